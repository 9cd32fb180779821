// SPDX-License-Identifier: Apache-2.0
// What a run's folder says of itself, read without torch: its flags, its curve, its Records and
// what was found with them.
#pragma once

#include "cli/compare_results.hpp"

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

/// Runs whose flags differ in the seed alone have one name: the metric, and other flags behind
/// colons where they are not the same for all.
std::vector<std::string> mechanism_names(const std::vector<RunFacts>& runs);

/// step and loss of metrics.jsonl, thinned where there are many.
Json curve_of(const std::string& folder);

/// What a step of a comparison left behind: Records, right, layers, maps, ellipses, peak_bytes.
void add_found(RunFound& to, const Json& stage);
/// All of a run that somebody trained and judged: records.jsonl, and what a comparison added.
RunFound found_in(const std::string& folder);

/// How many numbers a file of weights holds.
std::int64_t parameters_in(const std::string& weights);

}  // namespace foci::cli
