// SPDX-License-Identifier: Apache-2.0
// Row statistics of weights known by hand.
#include "ref/statistics.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace foci::ref {
namespace {

Statistics<double> of(std::vector<double> a) {
  std::vector<std::int64_t> at(a.size());
  for (std::size_t j = 0; j < a.size(); ++j) at[j] = std::int64_t(j) + 10;
  Row<double> row;
  row.n = std::int64_t(a.size());
  row.a = a.data();
  row.at = at.data();
  return statistics(row);
}

TEST(RowStatistics, equal_weights_use_every_key) {
  const auto s = of({0.25, 0.25, 0.25, 0.25});
  EXPECT_DOUBLE_EQ(s.concentration, 1);
  EXPECT_DOUBLE_EQ(s.effective_keys, 4);
  EXPECT_DOUBLE_EQ(s.entropy, std::log(4.0));
  EXPECT_EQ(s.largest, 0.25);
  EXPECT_EQ(s.largest_at, 10);  // the lowest of equals
}

TEST(RowStatistics, one_weight_uses_one_key) {
  const auto s = of({0, 0, 1, 0});
  EXPECT_DOUBLE_EQ(s.concentration, 0.5);
  EXPECT_DOUBLE_EQ(s.effective_keys, 1);
  EXPECT_DOUBLE_EQ(s.entropy, 0);
  EXPECT_EQ(s.largest_at, 12);
}

TEST(RowStatistics, signs_do_not_matter_and_neither_does_scale) {
  const auto s = of({3, -4}), tiny = of({3e-200, -4e-200}), huge = of({3e200, -4e200});
  EXPECT_DOUBLE_EQ(s.concentration, 7 / std::sqrt(50.0));
  EXPECT_DOUBLE_EQ(tiny.concentration, s.concentration);
  EXPECT_DOUBLE_EQ(huge.concentration, s.concentration);
  EXPECT_EQ(s.largest, 4);
  EXPECT_EQ(s.largest_at, 11);
}

TEST(RowStatistics, zero_rows_and_empty_rows) {
  const auto zero = of({0, 0, 0}), empty = of({});
  EXPECT_EQ(zero.concentration, 0);
  EXPECT_EQ(zero.effective_keys, 0);
  EXPECT_EQ(zero.largest, 0);
  EXPECT_EQ(zero.largest_at, 10);
  EXPECT_EQ(empty.concentration, 0);
  EXPECT_EQ(empty.largest_at, -1);
}

TEST(RowStatistics, nan_is_told) {
  const auto s = of({0.5, std::numeric_limits<double>::quiet_NaN(), 0.5});
  EXPECT_TRUE(std::isnan(s.concentration));
  EXPECT_TRUE(std::isnan(s.largest));
  EXPECT_EQ(s.largest_at, 11);
}

}  // namespace
}  // namespace foci::ref
