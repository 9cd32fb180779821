// SPDX-License-Identifier: Apache-2.0
// What foci measure found: tables, JSON, and the numbers that become Records.
#pragma once

#include "cli/torch/measure_subject.hpp"

#include <foci/record.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace foci::cli {

enum class Per { layer, head, query };

struct MeasurePlan {
  measure::Options options;
  std::int64_t samples = 1000, batch = 50;
  bool attention = true, tokens = true, metric = true;
  Per per = Per::layer;
};
/// Throws Misuse.
MeasurePlan measure_plan(const Words& words, const Common& common);

/// One subject, measured.
struct Found {
  const Measured* what = nullptr;
  std::int64_t of = 0;  ///< samples that there were
  measure::Report report;
  std::vector<double> drift;  ///< of each layer's metric since the checkpoint before; empty: none
};

void print_tables(const Found& found, const MeasurePlan& plan);
/// Several, a line each.
void print_beside(const std::vector<Found>& found);

Json json_of(const Found& found, const MeasurePlan& plan);

/// "concentration layer 3" and so on, with the error and count of each.
struct NamedValue {
  std::string name, unit;
  measure::Value value;
};
std::vector<NamedValue> values_of(const Found& found, const MeasurePlan& plan);

}  // namespace foci::cli
