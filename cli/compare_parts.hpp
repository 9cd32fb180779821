// SPDX-License-Identifier: Apache-2.0
// Parts of results.json, and where in the runs its numbers stand.
#pragma once

#include "cli/compare_results.hpp"

#include <string>
#include <utility>
#include <vector>

namespace foci::cli {

/// null for what is not finite.
Json number_json(double value);
/// The last Record of the name; null where there is none.
const Record* find_record(const RunFound& found, const std::string& name);
/// In every run "clean" is of as many images as each attack; else it is of others than some.
bool clean_is_of_all_attacked(const Comparison& all);
const ComparedRun* find_run(const Comparison& all, const std::string& mechanism,
                            std::uint64_t seed);
/// "8/255" -> 8 and "/255"; 0 where it is no number.
std::pair<double, std::string> eps_of(const std::string& text);
/// The eps of "robust linf 8/255" and of its parts; 0 of all others.
double eps_in(const std::string& record);
/// Names of Records that are compared, in the order they were first met.
std::vector<std::string> record_names(const Comparison& all);

/// training, robustness, corruptions.
Json curves_json(const Comparison& all);
/// "concentration" -> the values of "concentration layer 0" and so on.
std::vector<double> by_layer(const RunFound& found, const std::string& name);
Json layers_json(const Comparison& all);
/// The picture of each image once, the weights of every mechanism's first run behind it.
Json maps_json(const Comparison& all);
Json ellipses_json(const Comparison& all);

/// Pictures of results, as SVG; empty where there is nothing to show.
std::string heat_figure(const Json& results);
/// Ellipses of one layer.
std::string plane_figure(const Json& results, const Json& layer);

}  // namespace foci::cli
