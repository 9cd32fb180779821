// SPDX-License-Identifier: Apache-2.0
// What a run's folder says of itself, read without torch: its flags, its curve, its Records and
// what was found with them.
#pragma once

#include "cli/compare_results.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace foci::cli {

/// The file as JSON; null where it is not there or not whole.
Json read_json(const std::string& path);

/// config.json: task, flags, data. Throws FileError that says what is missing.
struct RunFacts {
  std::string folder, task;
  Words words;
  Json data;
};
RunFacts run_facts(const std::string& folder);

/// What a run is called beside others, and the flags that tell it from them.
struct MechanismName {
  std::string name;
  Words flags;  ///< without the metric
};
/// Runs whose flags differ in the seed alone have one name: the metric, and other flags behind
/// colons where they are not the same for all.
std::vector<MechanismName> mechanism_names(const std::vector<RunFacts>& runs);
/// Where one is too long for a column, all are the metric alone, with a number where several have
/// it: "layer-change 1". What tells them apart then stands elsewhere.
void shorten(std::vector<MechanismName>& names);

/// step and loss of metrics.jsonl, thinned where there are many.
Json curve_of(const std::string& folder);

/// Step, samples a second, time and resident bytes of the last lines of a run's metrics.jsonl.
struct MetricsLine {
  std::int64_t step = 0, memory = 0;
  double per_second = 0, time = 0;
};
std::vector<MetricsLine> metrics_of(const std::string& run);

/// What a step of a comparison left behind: Records, right, layers, maps, ellipses, flags,
/// peak_bytes.
/// Throws InvalidArgument.
void add_found(RunFound& to, const Json& stage);
/// All of a run that somebody trained and judged: records.jsonl, and what a comparison added.
RunFound found_in(const std::string& folder);

/// How many numbers a file of weights holds.
std::int64_t parameters_in(const std::string& weights);

}  // namespace foci::cli
