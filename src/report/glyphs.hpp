// SPDX-License-Identifier: Apache-2.0
// Letters for pixels, in both cases, a little apart from one another as their widths are. What has
// no glyph is a box.
#pragma once

#include <foci/data.hpp>
#include <foci/pictures.hpp>

#include <string>
#include <string_view>

namespace foci::report {

inline constexpr int letters_height = 9;  ///< above the line; two or three below it

int letters_width(std::string_view words);
/// As much of it as is so wide, with dots where something is left out.
std::string fitting_letters(std::string_view words, int width);
/// `y`, `x`: the upper left pixel; what lies beyond the image is left out.
void write_letters(data::Image& image, int y, int x, std::string_view words, const Colour& colour);

}  // namespace foci::report
