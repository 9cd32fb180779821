// SPDX-License-Identifier: Apache-2.0
// Line charts as SVG that read in light and dark: side by side, one legend below. A series is told
// by colour and by mark or dash.
#pragma once

#include <foci/experiments.hpp>

#include <string>
#include <vector>

namespace foci::cli {

struct Picture {
  std::string title;  ///< for those who cannot see it, with the description
  std::string description;
  std::vector<experiments::Chart> charts;
};

std::string svg_of(const Picture& picture);

/// Throws FileError.
void write_svg(const std::string& path, const Picture& picture);

}  // namespace foci::cli
