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
  std::vector<double> round;  ///< when the turn began in which all mechanisms were timed
  std::int64_t samples = 0;   ///< of a turn
  std::string command;
};
struct CompareTiming {
  std::map<std::string, TrainSpeed> speeds;
  double together = 0;  ///< samples a second of one run beside as many others as there are jobs
  double seconds = 0;   ///< that measuring took, now or then
};
/// A budget that cannot hold the runs however fast they are is refused before anything is timed.
void check_budget(const ComparePlan& plan, const CompareSite& site, int jobs);
/// What is not known yet is measured, with all threads, one at a time and in turn. A turn that
/// lacks a mechanism is measured again with all of them: a machine is not equally busy later.
CompareTiming compare_timing(const ComparePlan& plan, const CompareSite& site, int jobs,
                             const std::function<void(const std::string&)>& now);

/// Steps of each run, and a line that says where they come from.
struct CompareSteps {
  std::int64_t count = 0;
  std::string from;
};
/// From the plan or the budget, or as an earlier call found them. Throws Misuse that says what a
/// budget must be and what would fit.
CompareSteps compare_steps(const ComparePlan& plan, const CompareSite& site,
                           const CompareTiming& timing, int jobs);

/// Speeds as Records of the run that has this place among the seeds.
std::vector<Record> speed_records(const ComparePlan& plan, const CompareSite& site,
                                  const CompareTiming& timing, const std::string& mechanism,
                                  std::size_t place);

}  // namespace foci::cli
