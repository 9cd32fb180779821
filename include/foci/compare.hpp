// SPDX-License-Identifier: Apache-2.0
// The statistics of a comparison: what a mechanism's values over seeds say about the difference
// from a baseline, how sure that is, and the sentence for it. Trains and measures nothing.
#pragma once

#include <foci/export.h>

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci::compare {

/// What a larger number of a measure means.
enum class Better { higher, lower, neither };

/// One mechanism's results of one measure, in the order of the seeds. NaN: there is none.
struct Series {
  std::vector<double> values = {};
  /// For each seed what became of every sample, the same samples for all; empty: not known.
  std::vector<std::vector<float>> samples = {};
  /// Standard errors of the values over the samples they were taken from; empty or 0: none.
  std::vector<double> errors = {};
};

struct Summary {
  double mean = 0, deviation = 0;  ///< NaN where there are too few: one for a mean, two
  int seeds = 0;
};
FOCI_API Summary summary_of(std::span<const double> values);

/// same: the interval holds 0. different: it does not, and neither direction is better.
enum class Verdict { same, better, worse, different, unknown };
FOCI_API std::string_view name_of(Verdict verdict);

/// Ours minus the baseline's, paired by seeds. Without a seed in common all is NaN.
struct Difference {
  int seeds = 0;
  double difference = 0, low = 0, high = 0;  ///< and the ends of the interval
  double p = 1;                              ///< of no difference; 1 where it cannot be told
  double adjusted = 1;                       ///< the same once all comparisons are counted: Holm
  Verdict verdict = Verdict::unknown;
  double half() const { return (high - low) / 2; }
};

/// Fewer seeds than this tell nothing, and from so many on the interval is a bootstrap.
inline constexpr int least_seeds = 3, bootstrap_seeds = 10;

struct Judging {
  Better better = Better::higher;
  double level = 0.95;
  int resamples = 4000;
  std::uint64_t seed = 0;
};
/// The interval has two parts: how seeds differ, and which samples were taken. With few seeds it is
/// Student's with Satterthwaite's degrees of freedom, else a bootstrap over seeds and samples.
FOCI_API Difference difference_of(const Series& ours, const Series& baseline, const Judging& how);

/// Fills `adjusted` of all by Holm's procedure.
FOCI_API void adjust(std::span<Difference* const> all);

/// "better by 1.2 ± 0.4 points", "no difference shown", "2 seeds cannot tell; 3 can". `unit` is
/// that of the values; shares are told in points.
FOCI_API std::string words_of(const Difference& difference, std::string_view unit);

/// P(|T| >= |t|) of Student's distribution, and the t of which that is `tail`.
FOCI_API double student_tail(double t, double freedom);
FOCI_API double student_quantile(double tail, double freedom);

}  // namespace foci::compare
