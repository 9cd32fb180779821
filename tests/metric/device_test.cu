// SPDX-License-Identifier: Apache-2.0
// The shared formulas on a GPU: each question is answered by the same inline code on the host and
// on the device, and the answers must agree to the bit (compiled without fused multiply-adds).
// Skipped where there is no GPU; compiled wherever there is nvcc.
#include "metric/chunk.hpp"
#include "metric/draw.hpp"
#include "metric/normalise.hpp"

#include <cuda_runtime.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

namespace {

using foci::Normalize;
namespace metric = foci::metric;

constexpr int D = 5;

struct Where {
  std::int64_t i, N, M, period;
  std::int64_t position, chunks, chunk;

  FOCI_HD void answer() {
    position = metric::position(i, N, M);
    chunks = metric::chunk_count(M, period);
    chunk = metric::chunk_of(i, period);
  }
  bool operator==(const Where&) const = default;
};

struct Drawn {
  std::uint64_t seed;
  std::int64_t layer, head;
  double m[D];

  FOCI_HD void answer() {
    for (int d = 0; d < D; ++d) m[d] = metric::draw(0.1, seed, layer, head, d);
  }
  bool operator==(const Drawn&) const = default;
};

template <class T>
struct Normalised {
  Normalize how;
  std::int64_t counted;
  T m[D], dm[D];
  T by, flat[D];

  FOCI_HD void answer() {
    by = metric::normalise(how, counted, m, D);
    metric::normalise_backward(how, by, dm, m, D);
    for (int d = 0; d < D; ++d) flat[d] = m[d];
    metric::flatten(flat, D);
  }
  bool operator==(const Normalised&) const = default;
};

template <class Question>
__global__ void answer_all(Question* questions, int count) {
  const int i = int(blockIdx.x * blockDim.x + threadIdx.x);
  if (i < count) questions[i].answer();
}

/// Answers on the device; the copy back waits for the kernel and reports its errors.
template <class Question>
cudaError_t ask_device(std::vector<Question>& questions) {
  const std::size_t bytes = questions.size() * sizeof(Question);
  Question* there = nullptr;
  int count = int(questions.size());
  void* arguments[] = {&there, &count};
  auto status = cudaMalloc(&there, bytes);
  if (status == cudaSuccess) {
    status = cudaMemcpy(there, questions.data(), bytes, cudaMemcpyHostToDevice);
  }
  if (status == cudaSuccess) {
    status = cudaLaunchKernel(answer_all<Question>, dim3((count + 31) / 32), dim3(32), arguments, 0,
                              cudaStreamPerThread);
  }
  if (status == cudaSuccess) status = cudaStreamSynchronize(cudaStreamPerThread);
  if (status == cudaSuccess) {
    status = cudaMemcpy(questions.data(), there, bytes, cudaMemcpyDeviceToHost);
  }
  cudaFree(there);
  return status;
}

template <class Question>
void expect_same(std::vector<Question> questions) {
  int devices = 0;
  if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) GTEST_SKIP() << "no GPU here";
  auto on_device = questions;
  for (auto& question : questions) question.answer();
  const auto status = ask_device(on_device);
  ASSERT_EQ(status, cudaSuccess) << cudaGetErrorString(status);
  for (std::size_t i = 0; i < questions.size(); ++i) EXPECT_TRUE(questions[i] == on_device[i]) << i;
}

template <class T>
std::vector<Normalised<T>> rows_to_normalise() {
  std::vector<Normalised<T>> rows;
  for (const auto how : {Normalize::max, Normalize::mean, Normalize::none}) {
    for (const std::int64_t counted : {0, 1, 7}) {
      rows.push_back({how, counted, {T(0.3), T(0.7), T(0.1), T(0.7), 0}, {1, 2, 3, 4, 5}, 0, {}});
      rows.push_back({how, counted, {0, 0, 0, 0, 0}, {1, 2, 3, 4, 5}, 0, {}});
      rows.push_back({how, counted, {T(1e-30), T(3e-30), 0, 0, 0}, {T(.1), 1, 1, 1, 1}, 0, {}});
    }
  }
  return rows;
}

TEST(Device, PositionsAndChunks) {
  std::vector<Where> questions;
  for (std::int64_t i = 0; i < 70; ++i) questions.push_back({i, 70, 37 + i, 1 + i % 9, 0, 0, 0});
  expect_same(questions);
}

TEST(Device, Draws) {
  std::vector<Drawn> questions;
  for (std::uint64_t seed : {0ull, 1ull, ~0ull}) {
    for (std::int64_t at = 0; at < 12; ++at) questions.push_back({seed, at, 11 - at, {}});
  }
  expect_same(questions);
}

TEST(Device, NormalisesFloats) { expect_same(rows_to_normalise<float>()); }

TEST(Device, NormalisesDoubles) { expect_same(rows_to_normalise<double>()); }

}  // namespace
