// SPDX-License-Identifier: Apache-2.0
// One block of softmax over bf16 by every kernel that this machine runs, against loops in double:
// no further off than twice the naive loop in float with weights in bf16.
#include "cpu/blocks_bf16.hpp"

#include <foci/tensor.hpp>

#include <gtest/gtest.h>

#include <bit>

namespace foci::cpu {
namespace {

class SoftmaxBf16 : public testing::TestWithParam<const NarrowKernels*> {};

void expect_close(const Case& c, const char* name, const std::vector<double>& exact,
                  const std::vector<double>& naive, const std::vector<float>& ours, double eps) {
  ASSERT_EQ(exact.size(), ours.size());
  double naive_error = 0, error = 0, most = 0;
  for (std::size_t i = 0; i < ours.size(); ++i) {
    if (exact[i] == double(ours[i])) continue;  // -inf too
    most = std::max(most, std::abs(exact[i]));
    naive_error = std::max(naive_error, std::abs(naive[i] - exact[i]));
    if (!(std::abs(ours[i] - exact[i]) <= error)) error = std::abs(ours[i] - exact[i]);
  }
  EXPECT_LE(error, 2 * naive_error + eps * most) << name << " " << c;
}

/// Several heads of a case: over few rows the naive loop may be right by chance.
void expect_close(const NarrowKernels& kernels, Case c) {
  Rows exact, naive;
  Result ours;
  for (c.head = 0; c.head < (c.rows < 20 ? 8 : 2); ++c.head) {
    const Problem problem(c);
    append(exact, loops<double>(problem));
    append(naive, loops<float>(problem));
    append(ours, attend(kernels, problem));
  }
  expect_close(c, "o", exact.o, naive.o, ours.o, 0x1p-8);
  expect_close(c, "lse", exact.lse, naive.lse, ours.lse, 0x1p-23);
  if (!c.statistics) return;
  expect_close(c, "squares", exact.squares, naive.squares, ours.squares, 0x1p-23);
  expect_close(c, "entropy", exact.entropy, naive.entropy, ours.entropy, 0x1p-23);
  expect_close(c, "largest", exact.largest, naive.largest, ours.largest, 0x1p-23);
  for (std::size_t i = 0; i < exact.margin.size(); ++i) {
    const bool tied = exact.margin[i] < 1e-5;
    EXPECT_TRUE(tied || ours.largest_at[i] == exact.largest_at[i]) << "row " << i << " of " << c;
  }
}

const std::int64_t widths[] = {1, 8, 16, 31, 64, 65};

TEST_P(SoftmaxBf16, EverySizeIsCloseToDouble) {
  int at = 0;
  for (const std::int64_t rows : {1, 5, 16, 17, 96}) {
    for (const std::int64_t n : {1, 2, 3, 31, 33, 192, 193, 500}) {
      for (int i = 0; i < 6; ++i, ++at) {  // widths and options in turn
        Case c{.rows = rows, .n = n, .D = widths[i], .E = widths[(i + at / 6) % 6]};
        c.causal = at % 2;
        c.biased = at / 2 % 2;
        c.statistics = at / 4 % 2;
        c.split = at % 3 == 0;
        expect_close(*GetParam(), c);
      }
    }
  }
}

TEST_P(SoftmaxBf16, EveryOptionIsCloseToDouble) {
  for (int bits = 0; bits < 32; ++bits) {
    Case c{.rows = 37, .n = 261, .D = 64, .E = 64};
    c.causal = bits & 1;
    c.biased = bits & 2;
    c.statistics = bits & 4;
    c.split = bits & 8;
    c.growth = bits & 16 ? 0.5f : 0.0f;  // the maximum has to follow
    expect_close(*GetParam(), c);
  }
}

TEST_P(SoftmaxBf16, ARowOfOneKeyIsItsValue) {
  const Problem problem({.rows = 9, .n = 1, .D = 24, .E = 40});
  const Result ours = attend(*GetParam(), problem);
  for (std::size_t i = 0; i < ours.o.size(); ++i)
    EXPECT_EQ(narrow(ours.o[i]), problem.v[i % 40]) << i;
}

TEST_P(SoftmaxBf16, ShiftAndSumAreTheLse) {
  for (const float scale : {0.125f, 0.0f}) {
    Problem problem({.rows = 37, .n = 90, .D = 24, .E = 8, .causal = true, .biased = true});
    problem.scale = scale;
    problem.sees[0] = 0;
    const Result ours = attend(*GetParam(), problem);
    EXPECT_EQ(ours.sum[0], 0.0f);
    EXPECT_EQ(ours.shift[0], 0.0f);
    for (std::int64_t i = 1; i < 37; ++i)
      EXPECT_NEAR(ours.lse[i], problem.r[i] + ours.shift[i] + std::log(ours.sum[i]), 1e-6) << i;
    const Rows exact = loops<double>(problem);
    for (std::int64_t i = 1; i < 37; ++i) EXPECT_NEAR(ours.lse[i], exact.lse[i], 2e-6) << i;
  }
}

TEST_P(SoftmaxBf16, PartsOfZeroChangeNothing) {
  Problem problem({.rows = 20, .n = 77, .D = 40, .E = 24});
  const Result without = attend(*GetParam(), problem);
  problem.size.split = true;
  EXPECT_EQ(attend(*GetParam(), problem), without);
}

TEST_P(SoftmaxBf16, RowsDoNotKnowTheirNeighbours) {
  for (const bool causal : {false, true}) {
    const Case c{.rows = 40,
                 .n = 230,
                 .D = 33,
                 .E = 64,
                 .causal = causal,
                 .statistics = true,
                 .growth = 0.4f};
    const Problem problem(c);
    const Result all = attend(*GetParam(), problem);
    for (std::int64_t i = 0; i < c.rows; ++i)
      EXPECT_EQ(attend(*GetParam(), problem.row(i)), all.row(i, c.E)) << i;
  }
}

TEST_P(SoftmaxBf16, WhatARowDoesNotSeeCannotTouchIt) {
  const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
  for (int at = 0; at < 24; ++at) {
    Case c{.rows = 48, .n = 150 + 7 * at, .D = 32, .E = at % 2 ? 64 : 17, .causal = true};
    c.statistics = at % 3 == 0;
    c.first_sees = at % 5 * 20;
    Problem problem(c);
    const Result clean = attend(*GetParam(), problem);
    const std::int64_t last = at * 2;  // the last row looked at
    for (std::int64_t j = problem.sees[last]; j < c.n; ++j) {
      for (std::int64_t e = 0; e < c.E; ++e) problem.v[j * c.E + e] = narrow(bad[(j + e) % 4]);
      for (std::int64_t d = 0; d < c.D; ++d) problem.k[j * c.D + d] = narrow(bad[(j + d) % 4]);
    }
    const Result dirty = attend(*GetParam(), problem);
    for (std::int64_t i = 0; i <= last; ++i)
      EXPECT_EQ(dirty.row(i, c.E), clean.row(i, c.E)) << "row " << i << " of " << c;
  }
}

TEST_P(SoftmaxBf16, ARowThatSeesNothingIsZero) {
  Case c{.rows = 20, .n = 50, .D = 16, .E = 16, .causal = true, .statistics = true};
  Problem problem(c);
  for (std::int64_t i = 0; i < 12; ++i) problem.sees[i] = 0;
  for (auto& x : problem.k) x = narrow(NAN);
  const Result ours = attend(*GetParam(), problem);
  for (std::int64_t i = 0; i < 12; ++i) {
    EXPECT_EQ(ours.lse[i], -INFINITY);
    EXPECT_EQ(ours.o[i * c.E], 0.0f);
    EXPECT_EQ(ours.largest_at[i], -1);
  }
  EXPECT_TRUE(std::isnan(ours.o[12 * c.E]));
}

TEST_P(SoftmaxBf16, QueriesAreReadAsTheyLie) {
  Problem problem({.rows = 21, .n = 65, .D = 48, .E = 16});
  const Result floats = attend(*GetParam(), problem);
  problem.lies_narrow = true;
  EXPECT_EQ(attend(*GetParam(), problem), floats);
}

TEST_P(SoftmaxBf16, PackingInPiecesIsPacking) {
  Problem problem({.rows = 8, .n = 203, .D = 23, .E = 41});
  const Result whole = attend(*GetParam(), problem);
  problem.piece = 64;
  EXPECT_EQ(attend(*GetParam(), problem), whole);
}

TEST_P(SoftmaxBf16, StoresAsEverybodyRounds) {
  const std::int64_t count = 5, width = 37, step = 40;
  std::vector<float> from;
  std::mt19937 random(1);
  for (std::int64_t i = 0; i < count * width; ++i)
    from.push_back(std::bit_cast<float>(std::uint32_t(random())));
  const float odd[] = {0.0f,   -0.0f,   INFINITY, -INFINITY,   NAN,         -NAN,
                       1e-40f, 3.4e38f, 1e-45f,   1.00390625f, 1.01171875f, -3.4e38f};
  std::copy(std::begin(odd), std::end(odd), from.begin() + 30);
  std::vector<std::uint16_t> to(count * step, 7);
  GetParam()->store_lines(to.data(), step, from.data(), count, width);
  for (std::int64_t i = 0; i < count * step; ++i) {
    const std::int64_t d = i % step;
    const std::uint16_t right = d < width ? Bf16(from[i / step * width + d]).bits : 7;
    EXPECT_EQ(to[i], right) << from[i / step * width + (d < width ? d : 0)];
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SoftmaxBf16, testing::ValuesIn(narrow_tables()),
                         [](const auto& info) { return std::string(info.param->name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SoftmaxBf16);

}  // namespace
}  // namespace foci::cpu
