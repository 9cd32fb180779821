// SPDX-License-Identifier: Apache-2.0
// A sheet of heat-maps before it is pixels or SVG: what is checked, and where everything lies.
#pragma once

#include <foci/pictures.hpp>

#include <string>
#include <vector>

namespace foci::report {

/// One picture: the image alone, or under a map of colours that ends at `most`.
struct HeatPanel {
  int x = 0, y = 0;  ///< the upper left pixel of the picture
  std::string name = {};
  const HeatRow* row = nullptr;
  const Heat* heat = nullptr;  ///< none: the image itself
  double most = 1;
  data::Image pixels = {};
  std::vector<std::string> notes = {};  ///< lines below its scale
};
struct HeatLayout {
  int width = 0, height = 0;
  std::vector<HeatPanel> panels;
  std::vector<int> row_tops;  ///< of the names of rows
};
inline constexpr int heat_margin = 16, heat_bar = 10, heat_line = 14;
inline constexpr double heat_opacity = 0.7;  ///< of the colours over the image, in grey

HeatLayout heat_layout(const HeatSheet& sheet, int title_height);

}  // namespace foci::report
