// SPDX-License-Identifier: Apache-2.0
// The emulator that stands in for a GPU: threads see each other's writes after barriers and
// shuffles, and a barrier that is missing or not reached by all shows.
#include "cuda/launch.cuh"

#include <gtest/gtest.h>

#include <vector>

namespace foci::cuda {
namespace {

struct Numbers {
  float* x;
};

/// Every thread takes its right neighbour's number, of the whole block.
void turn(Numbers to) {
  float* line = reinterpret_cast<float*>(shared_memory());
  float* mine = to.x + (blockIdx.x * blockDim.x + threadIdx.x);
  line[threadIdx.x] = *mine;
  __syncthreads();
  *mine = line[(threadIdx.x + 1) % blockDim.x];
}

/// The same without the barrier.
void turn_carelessly(Numbers to) {
  float* line = reinterpret_cast<float*>(shared_memory());
  float* mine = to.x + (blockIdx.x * blockDim.x + threadIdx.x);
  line[threadIdx.x] = *mine;
  *mine = line[(threadIdx.x + 1) % blockDim.x];
}

std::vector<float> counted(int n) {
  std::vector<float> x(std::size_t(n), 0.0f);
  for (int i = 0; i < n; ++i) x[std::size_t(i)] = float(i);
  return x;
}

TEST(Emulate, barriers_order_writes_and_reads) {
  std::vector<float> x = counted(2 * 96);
  launch("turn", turn, {{2}, {96}, 96 * sizeof(float)}, nullptr, Numbers{x.data()});
  for (int i = 0; i < 192; ++i) EXPECT_EQ(x[std::size_t(i)], float(i / 96 * 96 + (i + 1) % 96));
}

TEST(Emulate, a_missing_barrier_shows) {
  std::vector<float> x = counted(2 * 96);
  launch("turn", turn_carelessly, {{2}, {96}, 96 * sizeof(float)}, nullptr, Numbers{x.data()});
  int wrong = 0;
  for (int i = 0; i < 192; ++i) wrong += x[std::size_t(i)] != float(i / 96 * 96 + (i + 1) % 96);
  EXPECT_GT(wrong, 90);
}

void sum_up(Numbers to) {
  const float sum = warp_sum(to.x[threadIdx.x]);
  const unsigned odd = __ballot_sync(~0u, int(threadIdx.x % 2));
  const float before = __shfl_up_sync(~0u, float(threadIdx.x), 1);
  to.x[threadIdx.x] = sum + float(odd == 0xaaaa'aaaau) + before;
}

TEST(Emulate, lanes_see_each_other) {
  std::vector<float> x = counted(64);
  launch("sum_up", sum_up, {{1}, {64}}, nullptr, Numbers{x.data()});
  for (int i = 0; i < 64; ++i) {
    const int sum = i < 32 ? 31 * 16 : 31 * 16 + 32 * 32;
    EXPECT_EQ(x[std::size_t(i)], float(sum + 1 + (i % 32 == 0 ? i : i - 1)));
  }
}

void leave_some_behind(Numbers) {
  if (threadIdx.x < 32) __syncwarp();
  if (threadIdx.x < 8) __shfl_xor_sync(~0u, 1.0f, 1);
  if (threadIdx.x >= 8) __syncthreads();
}

TEST(EmulateDeathTest, a_barrier_that_not_all_reach_ends_the_program) {
  EXPECT_DEATH(launch("leave", leave_some_behind, {{1}, {64}}, nullptr, Numbers{nullptr}),
               "a barrier that not all threads reach");
}

}  // namespace
}  // namespace foci::cuda
