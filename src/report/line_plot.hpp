// SPDX-License-Identifier: Apache-2.0
// What a line chart and a sheet of them have in common: axes, and series as lines, signs, bands and
// bars. Titles and legends are theirs.
#pragma once

#include "report/axes.hpp"

namespace foci::report {

/// aside: a formula beside what was measured, under the same name.
enum class Role { own, aside };
struct Look {
  std::size_t number = 0;  ///< of its colour, sign and dash
  Role role = Role::own;
};

/// Refuses what cannot be drawn.
void check(const LineChart& chart);
/// Where the numbers lie in a picture of the chart's size, from `top` down.
Frame frame_of(const LineChart& chart, double top);
/// A look for each series.
void draw_plot(Svg& svg, const LineChart& chart, const Frame& frame,
               const std::vector<Look>& looks);
Sign sign_of(const Series& series);

}  // namespace foci::report
