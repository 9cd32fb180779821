// SPDX-License-Identifier: Apache-2.0
// A run allocates nothing: every call of operator new in this program is counted.
#include "allocations.hpp"

#include <foci/executor.hpp>

#include <gtest/gtest.h>

namespace foci {
namespace {

TEST(Executor, RunAllocatesNothing) {
  Executor executor(4);
  std::atomic<std::int64_t> sum = 0;
  const auto task = [&](std::int64_t i, int) { sum += i; };
  executor.on_progress([](void*, std::int64_t, std::int64_t) {}, nullptr);
  const std::int64_t before = allocations;
  for (int repeat = 0; repeat < 100; ++repeat) {
    executor.run(50, task);
    executor.run(2, [&](std::int64_t, int) { executor.run(10, task); });
  }
  EXPECT_EQ(allocations, before);
  EXPECT_EQ(sum, 100 * (1225 + 2 * 45));
  ::operator delete(::operator new(1));
  EXPECT_EQ(allocations, before + 1) << "the count counts";
}

}  // namespace
}  // namespace foci
