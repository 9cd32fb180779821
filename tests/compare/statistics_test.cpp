// SPDX-License-Identifier: Apache-2.0
// The statistics of a comparison: known values, how often the interval holds the truth, and the
// sentences.
#include <foci/compare.hpp>
#include <foci/random.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace {

using namespace foci::compare;

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

TEST(Student, TablesAgree) {
  EXPECT_NEAR(student_quantile(0.05, 1), 12.7062, 1e-4);
  EXPECT_NEAR(student_quantile(0.05, 2), 4.30265, 1e-5);
  EXPECT_NEAR(student_quantile(0.01, 9), 3.24984, 1e-5);
  EXPECT_NEAR(student_quantile(0.05, 1e9), 1.95996, 1e-5);
  EXPECT_NEAR(student_tail(2.0, 5), 0.101939, 1e-6);
  EXPECT_NEAR(student_tail(-2.0, 5), 0.101939, 1e-6);
  EXPECT_NEAR(student_tail(0.0, 3), 1, 1e-12);
  EXPECT_EQ(student_tail(std::numeric_limits<double>::infinity(), 3), 0);
}

TEST(Summaries, LeaveOutWhatIsNotThere) {
  const std::vector<double> values = {1, nan, 3};
  const Summary some = summary_of(values);
  EXPECT_EQ(some.seeds, 2);
  EXPECT_DOUBLE_EQ(some.mean, 2);
  EXPECT_DOUBLE_EQ(some.deviation, std::sqrt(2.0));
  EXPECT_TRUE(std::isnan(summary_of(std::vector<double>{4}).deviation));
  EXPECT_TRUE(std::isnan(summary_of({}).mean));
}

TEST(Differences, OfThreeSeedsAreStudents) {
  const Difference found =
      difference_of({.values = {0.82, 0.85, 0.84}}, {.values = {0.80, 0.82, 0.83}}, {});
  EXPECT_EQ(found.seeds, 3);
  EXPECT_NEAR(found.difference, 0.02, 1e-12);
  EXPECT_NEAR(found.half(), 4.30265 * 0.01 / std::sqrt(3.0), 1e-6);
  EXPECT_NEAR(found.p, 0.0741799, 1e-6);
  EXPECT_EQ(found.verdict, Verdict::same);
  EXPECT_EQ(words_of(found, "share"), "no difference shown");
}

TEST(Differences, AreToldInPointsAndUnits) {
  const Series ours{.values = {0.901, 0.912, 0.906}}, base{.values = {0.800, 0.810, 0.805}};
  const Difference up = difference_of(ours, base, {});
  EXPECT_EQ(up.verdict, Verdict::better);
  EXPECT_EQ(words_of(up, "share"), "better by 10.13 ± 0.14 points");
  const Difference down = difference_of(ours, base, {.better = Better::lower});
  EXPECT_EQ(words_of(down, "share"), "worse by 10.13 ± 0.14 points");
  const Difference other = difference_of(ours, base, {.better = Better::neither});
  EXPECT_EQ(other.verdict, Verdict::different);
  EXPECT_EQ(words_of(other, ""), "higher by 0.1013 ± 0.0014");
  EXPECT_EQ(words_of(difference_of({.values = {200, 210, 190}}, {.values = {100, 100, 100}}, {}),
                     "images/s"),
            "better by 100 ± 25 images/s");
}

TEST(Differences, NoWinnerOnOneSeedOrTwo) {
  const Difference one = difference_of({.values = {0.9}}, {.values = {0.1}}, {});
  EXPECT_EQ(one.verdict, Verdict::unknown);
  EXPECT_EQ(one.p, 1);
  EXPECT_EQ(words_of(one, "share"), "1 seed cannot tell; 3 can");
  const Difference two = difference_of({.values = {0.9, 0.9}}, {.values = {0.1, 0.1}}, {});
  EXPECT_EQ(two.verdict, Verdict::unknown);
  EXPECT_EQ(words_of(two, "share"), "2 seeds cannot tell; 3 can");
  const Difference none = difference_of({.values = {nan, 1}}, {.values = {1, nan}}, {});
  EXPECT_EQ(none.seeds, 0);
  EXPECT_EQ(words_of(none, ""), "no seed in common");
}

TEST(Differences, FewSamplesWidenTheInterval) {
  // Three seeds agree to the digit; with 16 samples the difference is still a matter of luck.
  std::vector<float> ours(16, 1), base(16, 1);
  base[3] = base[7] = 0;
  const Series a{.values = {1, 1, 1}, .samples = {ours, ours, ours}};
  const Series b{.values = {0.875, 0.875, 0.875}, .samples = {base, base, base}};
  const Difference with = difference_of(a, b, {});
  EXPECT_EQ(with.verdict, Verdict::same) << with.low << " " << with.high;
  EXPECT_NEAR(with.half(), student_quantile(0.05, 15) * std::sqrt(0.125 * 0.875 / 15), 1e-9);
  const Difference without = difference_of({.values = a.values}, {.values = b.values}, {});
  EXPECT_EQ(without.verdict, Verdict::better);
  // Where nobody told the samples apart their error counts as that of two draws.
  const Difference apart = difference_of({.values = a.values, .errors = {0.05, 0.05, 0.05}},
                                         {.values = b.values, .errors = {0.08, 0.08, 0.08}}, {});
  EXPECT_NEAR(apart.half(), 1.95996 * std::hypot(0.05, 0.08), 1e-5);
}

/// How often the interval holds the true difference.
double coverage(int seeds, double between, double within, bool told) {
  int held = 0;
  constexpr int trials = 600, count = 40;
  for (int t = 0; t < trials; ++t) {
    foci::data::Random random(11, 0, std::uint64_t(t));
    std::vector<float> shared(count);
    for (float& sample : shared) sample = float(within * random.normal());
    Series ours, base;
    for (int s = 0; s < seeds; ++s) {
      const double seed = between * random.normal();
      std::vector<float> mine(count), theirs(count, 0);
      double mean = 0;
      for (int i = 0; i < count; ++i) {
        mine[std::size_t(i)] = float(seed + shared[std::size_t(i)]);
        mean += mine[std::size_t(i)] / double(count);
      }
      ours.values.push_back(mean);
      base.values.push_back(0);
      if (!told) continue;
      ours.samples.push_back(mine);
      base.samples.push_back(theirs);
    }
    const Difference found = difference_of(ours, base, {.resamples = 400});
    held += found.low <= 0 && found.high >= 0;
  }
  return held / double(trials);
}

TEST(Differences, TheIntervalHoldsTheTruthAsOftenAsItSays) {
  EXPECT_GT(coverage(3, 1, 0, false), 0.925);   // a bootstrap of three values: 0.75 at best
  EXPECT_GT(coverage(3, 1, 5, true), 0.92);     // seeds and samples, about as much of each
  EXPECT_LT(coverage(3, 0.2, 5, false), 0.75);  // what comes of forgetting the samples
  EXPECT_GT(coverage(3, 0.2, 5, true), 0.92);
  EXPECT_GT(coverage(12, 1, 2, true), 0.89);  // the bootstrap of many
  EXPECT_LT(coverage(12, 1, 2, true), 0.99);
}

TEST(Differences, ABootstrapIsTheSameForTheSameSeed) {
  Series ours, base;
  for (int s = 0; s < 12; ++s) {
    ours.values.push_back(1 + 0.1 * std::sin(s * s));
    base.values.push_back(1 + 0.1 * std::cos(3 * s));
  }
  const Difference a = difference_of(ours, base, {}), b = difference_of(ours, base, {});
  EXPECT_EQ(a.low, b.low);
  EXPECT_EQ(a.high, b.high);
  EXPECT_NE(difference_of(ours, base, {.seed = 1}).low, a.low);
}

TEST(Holm, CountsAllComparisons) {
  std::vector<Difference> all(4);
  const double p[] = {0.01, 0.04, 0.03, 0.005};
  for (std::size_t i = 0; i < 4; ++i) all[i].p = p[i];
  std::vector<Difference*> pointers;
  for (Difference& one : all) pointers.push_back(&one);
  adjust(pointers);
  EXPECT_NEAR(all[3].adjusted, 0.02, 1e-12);
  EXPECT_NEAR(all[0].adjusted, 0.03, 1e-12);
  EXPECT_NEAR(all[2].adjusted, 0.06, 1e-12);
  EXPECT_NEAR(all[1].adjusted, 0.06, 1e-12);
}

}  // namespace
