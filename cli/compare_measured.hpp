// SPDX-License-Identifier: Apache-2.0
// The measures of a comparison with what their differences say; results.json is made of them.
#pragma once

#include "cli/compare_results.hpp"

#include <map>
#include <set>
#include <string>
#include <vector>

namespace foci::cli {

/// A measure with the series of every mechanism.
struct ComparedMeasure {
  MeasureKind kind;
  std::int64_t n = 0;
  std::map<std::string, compare::Series> series;
  std::map<std::string, compare::Difference> against;
  std::vector<RecordFlag> flags;
  std::map<std::string, std::vector<std::set<std::string>>> flagged;  ///< by seed, flags' names
};

/// In the order of a page, each difference judged beside all others.
std::vector<ComparedMeasure> all_measured(const Comparison& all);

/// What chance leaves to a mechanism that counts as better or worse.
inline constexpr double surely = 0.05;
/// Whether a verdict may rest on it.
bool holds(const ComparedMeasure& one, const compare::Difference& difference);
/// Turns that differ a lot were timed beside other work: no speed of them is held against another.
bool is_disturbed(const ComparedMeasure& one);
/// Those that are not there yet.
void add_flags(std::vector<RecordFlag>& to, const std::vector<RecordFlag>& flags);

}  // namespace foci::cli
