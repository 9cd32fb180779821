// SPDX-License-Identifier: Apache-2.0
// The formulas every backend shares: normalising and its ties, chunks, the random metric, the
// arena.
#include "metric/arena.hpp"
#include "metric/chunk.hpp"
#include "metric/draw.hpp"
#include "metric/normalise.hpp"
#include "metric/rows.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>
#include <vector>

namespace foci::metric {
namespace {

TEST(Normalise, divides_by_max_mean_or_nothing) {
  std::vector<double> max{1, 4, 3}, mean{1, 4, 4}, none{1, 4, 3};
  EXPECT_EQ(normalise(Normalize::max, 1, max.data(), 3), 4);
  EXPECT_EQ(max, (std::vector<double>{0.25, 1, 0.75}));
  EXPECT_EQ(normalise(Normalize::mean, 1, mean.data(), 3), 3);
  EXPECT_DOUBLE_EQ(mean[0], 1.0 / 3);
  EXPECT_EQ(normalise(Normalize::none, 1, none.data(), 3), 1);
  EXPECT_EQ(none[1], 4);
}

TEST(Normalise, gives_ones_where_nothing_changed_or_nothing_was_counted) {
  for (const Normalize how : {Normalize::max, Normalize::mean}) {
    std::vector<double> still{0, 0};
    EXPECT_EQ(normalise(how, 5, still.data(), 2), 0);
    EXPECT_EQ(still, (std::vector<double>{1, 1}));
  }
  std::vector<double> nobody{7, 7};
  EXPECT_EQ(normalise(Normalize::none, 0, nobody.data(), 2), 0);
  EXPECT_EQ(nobody, (std::vector<double>{1, 1}));
}

TEST(Normalise, tied_maxima_share_the_gradient) {
  std::vector<double> m{2, 2, 1}, dm{1, 0, 3};
  const double by = normalise(Normalize::max, 1, m.data(), 3);
  normalise_backward(Normalize::max, by, dm.data(), m.data(), 3);
  const double dot = 1 * 1 + 0 * 1 + 3 * 0.5;
  EXPECT_DOUBLE_EQ(dm[0], (1 - dot / 2) / 2);
  EXPECT_DOUBLE_EQ(dm[1], (0 - dot / 2) / 2);
  EXPECT_DOUBLE_EQ(dm[2], 3.0 / 2);
}

TEST(Normalise, a_zero_divisor_sends_nothing_back) {
  std::vector<double> m{1, 1}, dm{5, -5};
  normalise_backward(Normalize::max, 0.0, dm.data(), m.data(), 2);
  EXPECT_EQ(dm, (std::vector<double>{0, 0}));
}

TEST(Chunks, count_and_place) {
  EXPECT_EQ(chunk_count(0, 64), 0);
  EXPECT_EQ(chunk_count(64, 64), 1);
  EXPECT_EQ(chunk_count(65, 64), 2);
  EXPECT_EQ(chunk_of(63, 64), 0);
  EXPECT_EQ(chunk_of(64, 64), 1);
  EXPECT_EQ(position(0, 3, 10), 7);
  EXPECT_EQ(position(0, 10, 3), -7);
}

TEST(Draw, lies_in_its_range_and_depends_on_every_argument) {
  std::set<double> seen;
  double sum = 0;
  for (int d = 0; d < 4096; ++d) {
    const double x = draw(0.1, 42, 3, 1, d);
    EXPECT_GE(x, 0.1);
    EXPECT_LT(x, 1.0);
    sum += x;
    seen.insert(x);
  }
  EXPECT_EQ(seen.size(), 4096u);
  EXPECT_NEAR(sum / 4096, 0.55, 0.02);  // five standard errors
  EXPECT_NE(draw(0.1, 42, 3, 1, 0), draw(0.1, 43, 3, 1, 0));
  EXPECT_NE(draw(0.1, 42, 3, 1, 0), draw(0.1, 42, 4, 1, 0));
  EXPECT_NE(draw(0.1, 42, 3, 1, 0), draw(0.1, 42, 3, 2, 0));
  EXPECT_EQ(draw(0.1, 42, 3, 1, 0), draw(0.1, 42, 3, 1, 0));
}

/// Every number of sixteen bits, halfway to the next, and a hair to either side of both.
template <class S>
void expect_the_same_rounding() {
  for (std::uint32_t pattern = 0; pattern < 0x8000; ++pattern) {
    S from, next;
    from.bits = std::uint16_t(pattern);
    next.bits = std::uint16_t(pattern + 1);
    const float x = static_cast<float>(from), halfway = x + (static_cast<float>(next) - x) / 2;
    for (const float near : {x, halfway}) {
      for (const float y : {near, std::nextafter(near, 0.0f), std::nextafter(near, 1e38f)}) {
        ASSERT_EQ(convert<S>(y).bits, S(double(y)).bits) << y;
        ASSERT_EQ(convert<S>(-y).bits, S(double(-y)).bits) << y;
      }
    }
    ASSERT_EQ(std::bit_cast<std::uint32_t>(convert<float>(from)), std::bit_cast<std::uint32_t>(x));
  }
  for (const float y : {65519.99f, 65520.0f, 65536.0f, 3.4e38f, 1e-45f, 2.9e-8f, 3e-8f})
    EXPECT_EQ(convert<S>(y).bits, S(double(y)).bits) << y;
}

TEST(Rows, narrow_a_float_as_the_types_themselves_do) {
  expect_the_same_rounding<Bf16>();
  expect_the_same_rounding<F16>();
}

TEST(Arena, counts_what_it_would_hand_out) {
  Arena counting;
  EXPECT_TRUE(counting.take<double>(3).empty());
  EXPECT_TRUE(counting.take<char>(65).empty());
  EXPECT_EQ(counting.used(), 64u + 128u);
  std::vector<std::byte> memory(counting.used() + Arena::alignment);
  Arena real(std::span<std::byte>(memory).subspan(1));
  const auto a = real.take<double>(3);
  const auto b = real.take<char>(65);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0u);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(b.data()) % 64, 0u);
  EXPECT_LE(static_cast<const void*>(b.data() + b.size()),
            static_cast<const void*>(memory.data() + memory.size()));
}

}  // namespace
}  // namespace foci::metric
