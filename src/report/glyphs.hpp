// SPDX-License-Identifier: Apache-2.0
// Letters for pixels: three by five, one octal digit a row, capitals for both cases. What has no
// glyph is a box.
#pragma once

#include <foci/data.hpp>
#include <foci/pictures.hpp>

#include <string_view>

namespace foci::report {

inline constexpr int glyph_step = 8, glyph_height = 10;  ///< pixels, drawn two by two

/// Five octal digits from the top row down; 4, 2 and 1 are the left, middle and right dot.
constexpr int glyph_of(char c) {
  constexpr std::string_view signs = "0123456789abcdefghijklmnopqrstuvwxyz-.,:+=()/%<>#_'?!;";
  constexpr int rows[] = {075557, 026227, 071747, 071717, 055711, 074717, 074757, 071122, 075757,
                          075717, 025755, 065656, 034443, 065556, 074647, 074644, 034553, 055755,
                          072227, 011152, 055655, 044447, 057755, 065555, 025552, 065644, 025563,
                          065655, 034716, 072222, 055557, 055552, 055775, 055255, 055222, 071247,
                          000700, 000002, 000024, 002020, 002720, 007070, 024442, 021112, 011244,
                          051245, 012421, 042124, 057575, 000007, 022000, 071202, 022202, 002024};
  if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  if (c == ' ') return 0;
  const auto at = signs.find(c);
  return at == std::string_view::npos ? 077777 : rows[at];
}

void write_letters(data::Image& image, int y, int x, std::string_view words, const Colour& colour);
inline int letters_width(std::string_view words) { return glyph_step * int(words.size()) - 2; }

}  // namespace foci::report
