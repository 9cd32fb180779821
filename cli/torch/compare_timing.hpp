// SPDX-License-Identifier: Apache-2.0
// How fast each mechanism trains, measured in turn before the runs, and how many steps a budget
// holds. What was measured is kept in the folder, so that a second call finds the same steps.
#pragma once

#include "cli/torch/compare_stages.hpp"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace foci::cli {

/// Turns of one mechanism, a value each.
struct TrainSpeed {
  std::vector<double> per_second, mebibytes;
  std::int64_t samples = 0;  ///< of a turn
  std::string command;
};
struct CompareTiming {
  std::map<std::string, TrainSpeed> speeds;
  double together = 0;  ///< samples a second of one run beside as many others as there are jobs
  double seconds = 0;   ///< that measuring took, now or then
};
/// What is not known yet is measured, with all threads, one at a time and in turn.
CompareTiming compare_timing(const ComparePlan& plan, const CompareSite& site, int jobs,
                             const std::function<void(const std::string&)>& now);

/// Steps of each run, from the plan or the budget, or as an earlier call found them. Throws Misuse
/// that says what a budget must be.
std::int64_t compare_steps(const ComparePlan& plan, const CompareSite& site,
                           const CompareTiming& timing, int jobs);

/// Speeds as Records of the run that has this place among the seeds.
std::vector<Record> speed_records(const ComparePlan& plan, const CompareSite& site,
                                  const CompareTiming& timing, const std::string& mechanism,
                                  std::size_t place);

}  // namespace foci::cli
