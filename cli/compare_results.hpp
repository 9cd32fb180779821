// SPDX-License-Identifier: Apache-2.0
// Results of runs side by side: results.json as the page reads it, results.csv, records.jsonl. What
// runs gave comes in as Records and what was found with them; no run is started here.
#pragma once

#include "cli/flags.hpp"
#include "cli/mechanism.hpp"

#include <foci/compare.hpp>
#include <foci/record.hpp>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace foci::cli {

/// A measure by its name: what Records of it mean, and how they are told.
struct MeasureKind {
  std::string name, title, group, unit, about;
  compare::Better better = compare::Better::neither;
  bool decides = false;   ///< counts among the comparisons that a verdict rests on
  bool is_error = false;  ///< the Record holds 1 minus the value
};
/// Of a Record's name; nothing for those that are not compared.
std::optional<MeasureKind> measure_kind(const std::string& record);

/// Where a run stands.
struct RunState {
  std::string mechanism, folder;  ///< folder below that of the results, or a path
  std::uint64_t seed = 0;
  std::string state = "waiting";  ///< waiting, running, done, failed
  std::string stage, error;
  std::string place = {};  ///< while it runs, where there are several ranks: "rank 1 on node2"
  std::int64_t step = 0, steps = 0;
  double per_second = 0, seconds = 0;
};

/// What a run gave.
struct RunFound {
  std::vector<Record> records;
  std::map<std::string, std::string> right;  ///< by Record: a digit a sample, 1 is right
  Json maps = Json::array(), ellipses = Json::array();
  Json flags = Json::array();  ///< doubts about what is shown of it
  std::int64_t peak_bytes = 0;
};

struct ComparedRun {
  RunState state;
  RunFound found;
  Json curve = Json::object();  ///< step, loss
};

/// One that is compared, as the page names it.
struct ComparedMechanism {
  std::string name, about;
  bool control = false;
  Words words;
};

struct Comparison {
  Json facts;  ///< what results.json says beside runs and measures: title, task, data, ...
  std::vector<ComparedMechanism> mechanisms;
  std::vector<std::uint64_t> seeds;
  std::vector<ComparedRun> runs;
};

/// results.json.
Json results_json(const Comparison& comparison);
/// The same numbers, a line each: measure, mechanism, seed, value, unit, n, group, flags.
std::string results_csv(const Json& results);
/// The table of the verdict for a terminal.
void print_results(const Json& results);

/// An SVG for each figure into folder/figures; gives "figures" of results.json.
Json draw_figures(const std::string& folder, const Json& results);
/// Writes all of it into the folder, each file whole: results.json, results.csv, records.jsonl,
/// figures, report.html. Figures are named in the results.
void write_results(const std::string& folder, const Comparison& comparison, Json& results);

}  // namespace foci::cli
