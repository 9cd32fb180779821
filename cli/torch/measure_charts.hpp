// SPDX-License-Identifier: Apache-2.0
// Charts and grids of what foci measure found, layer by layer, as SVG; empty where nothing was
// measured of it.
#pragma once

#include "cli/torch/measure_pictures.hpp"

#include <string>
#include <vector>

namespace foci::cli {

std::vector<std::string> counted(std::int64_t count);  ///< "0", "1", ...

/// Layers by heads. Layers with other numbers of heads share no grid.
std::string layers_svg(const Pictured& of, const measure::Report& report);
/// How alike tokens are after each block, and how far from all the same.
std::string collapse_svg(const Pictured& of, const measure::Report& report);

using Reports = std::vector<const measure::Report*>;
/// A line for each kind, with a band where it has several runs.
std::string collapse_svg(const std::vector<Pictured>& all, const Reports& reports);
std::string concentration_svg(const std::vector<Pictured>& all, const Reports& reports);

}  // namespace foci::cli
