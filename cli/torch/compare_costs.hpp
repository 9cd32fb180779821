// SPDX-License-Identifier: Apache-2.0
// What a comparison will take on this machine, by what was timed, and what of it a budget holds.
#pragma once

#include "cli/torch/compare_timing.hpp"

#include <cstdint>
#include <string>

namespace foci::cli {

inline constexpr std::int64_t least_steps = 20;     // of a run, that a budget must hold
inline constexpr double least_timed_seconds = 0.7;  // of steps, to know a rate

/// Seconds by what they are spent on.
struct CompareCosts {
  double starting = 0, timing = 0, training = 0, judging = 0, attacks = 0, corruptions = 0;
  double all() const { return starting + timing + training + judging + attacks + corruptions; }
};
/// "40s timing, 4m training, 5m attacks", what takes less than a second left out.
std::string told(const CompareCosts& costs);

/// All but training, and how many steps of each run fit beside it.
struct CompareEstimate {
  CompareCosts costs;
  double a_step = 0;  ///< seconds of the whole machine for a step of all runs
  std::int64_t steps = 0;
};

class CompareReckoning {
 public:
  CompareReckoning(const ComparePlan& plan, const CompareSite& site, int jobs);
  /// What is not timed yet is taken to be as fast as it can be: fewer steps than here will fit.
  CompareEstimate estimate(const CompareTiming& timing) const;
  /// Misuse that says what the budget must be, and the command that fits.
  [[noreturn]] void refuse(const CompareTiming& timing) const;
  /// Before anything is timed: of a budget that is too small however fast the runs are.
  void check() const;

 private:
  /// What the estimate rests on besides the plan.
  struct Guess {
    Words words;  // of the plan
    double budget = 0;
    double unknown = 1;  // rate of a mechanism that is not timed yet, over the baseline's
    double turn = 0;     // seconds of a turn of one mechanism that is missing
  };
  Guess at_best() const;
  CompareEstimate estimate(const CompareTiming& timing, const Guess& guess) const;
  CompareCosts costs_of_a_run(const Words& words, double rate) const;
  Guess fitting(const CompareTiming& timing) const;
  double count(const Words& words, const char* flag) const;

  const ComparePlan& plan_;
  int jobs_;
  double batch_ = 0;
  std::int64_t judged_ = 0;  // of images: those of the split
};

}  // namespace foci::cli
