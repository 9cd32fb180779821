// SPDX-License-Identifier: Apache-2.0
// Letters for pixels: twelve rows of dots, nine of them above the line, as wide as the letter is.
#include "report/glyphs.hpp"

#include "report/svg.hpp"

#include <algorithm>
#include <iterator>

namespace foci::report {
namespace {

/// From '!' to '~'. Three hexadecimal digits a column, from the left; the highest bit is the top
/// row.
constexpr std::string_view columns[] = {"fc8",
                                        "e00000e00",
                                        "2383e0e38220fe0220",
                                        "310490ff8490460",
                                        "6189609006b0048348c30",
                                        "070688988950630050008",
                                        "e00",
                                        "1f060c802",
                                        "80260c1f0",
                                        "480300780300480",
                                        "0200200f8020020",
                                        "00200c",
                                        "020020020020",
                                        "008",
                                        "018060380c00",
                                        "7f08088088087f0",
                                        "400400ff8",
                                        "418828848888708",
                                        "410808888888770",
                                        "0600a0320420ff8020",
                                        "f909089089088f0",
                                        "3f05089089080f0",
                                        "8008188e0b00c00",
                                        "770888888888770",
                                        "7808488488507e0",
                                        "088",
                                        "00208c",
                                        "060060090090108",
                                        "090090090090090",
                                        "108090090060060",
                                        "4008008c8900600",
                                        "3e04109c8a28a289e86203c0",
                                        "0783a0c203a0078",
                                        "ff8888888888770",
                                        "7f0808808808808410",
                                        "ff88088088084103e0",
                                        "ff8888888888808",
                                        "ff8880880880800",
                                        "7f08088088888904f8",
                                        "ff8080080080080ff8",
                                        "808ff8808",
                                        "010008808ff0",
                                        "ff8080140220410808",
                                        "ff8008008008008",
                                        "ff8600180060180600ff8",
                                        "ff8600180040030ff8",
                                        "7f08088088088087f0",
                                        "ff8880880880700",
                                        "7f08088288188107e8",
                                        "ff88808c08a0710008",
                                        "710888888888888470",
                                        "800800800ff8800800800",
                                        "ff0008008008008ff0",
                                        "f000e00180e0f00",
                                        "fe00180e03000e0018fe0",
                                        "c18360080360c18",
                                        "e00180078180e00",
                                        "8188288c8988a08c08",
                                        "ffe802",
                                        "c00380060018",
                                        "802ffe",
                                        "200400800400200",
                                        "004004004004004004004",
                                        "800400",
                                        "0301481481500f8",
                                        "ff80901081080f0",
                                        "0f0108108108090",
                                        "0f0108108090ff8",
                                        "0f01481481480d0",
                                        "7f8900900",
                                        "0f21091090911fe",
                                        "ff80801001000f8",
                                        "5f8",
                                        "0025fc",
                                        "ff8020060090108",
                                        "ff8",
                                        "1f80801001800f81001000f8",
                                        "1f80801001000f8",
                                        "0f01081081080f0",
                                        "1ff0901081080f0",
                                        "0f01081080901ff",
                                        "1f8080100100",
                                        "090148148128090",
                                        "7f0108108",
                                        "1f00080080101f8",
                                        "180060018060180",
                                        "1e00180200c00200181e0",
                                        "108090060090108",
                                        "182064018060180",
                                        "118128148188108",
                                        "0407bc802",
                                        "ffe",
                                        "8027bc040",
                                        "030040040020010010060"};
static_assert(std::size(columns) == '~' - '!' + 1);

constexpr std::string_view box = "ff8808808808ff8";  // what has no glyph
constexpr int space = 4, between = 2;

/// Of one character, which may have several bytes.
std::string_view columns_of(std::string_view character) {
  const char c = character.size() == 1 ? character[0] : '\x7f';
  return c < '!' || c > '~' ? box : columns[c - '!'];
}

int column_at(std::string_view glyph, int x) {
  int bits = 0;
  for (const char digit : glyph.substr(3 * std::size_t(x), 3))
    bits = 16 * bits + (digit <= '9' ? digit - '0' : digit - 'a' + 10);
  return bits;
}

int width_of(std::string_view character) {
  return character == " " ? space : int(columns_of(character).size() / 3) + between;
}

}  // namespace

int letters_width(std::string_view words) {
  int width = 0;
  for (const std::string_view c : characters(words)) width += width_of(c);
  return std::max(0, width - between);
}

std::string fitting_letters(std::string_view words, int width) {
  if (letters_width(words) <= width) return std::string(words);
  std::string some;
  for (const std::string_view c : characters(words)) {
    if (letters_width(some + std::string(c) + "...") > width) break;
    some += c;
  }
  return some + "...";
}

void write_letters(data::Image& image, int y, int x, std::string_view words, const Colour& colour) {
  for (const std::string_view c : characters(words)) {
    const std::string_view glyph = c == " " ? "" : columns_of(c);
    for (int column = 0; column < int(glyph.size() / 3); ++column) {
      for (int row = 0; row < 12; ++row) {
        const int at_y = y + row, at_x = x + column;
        if ((column_at(glyph, column) >> (11 - row) & 1) == 0 || at_y < 0 || at_x < 0 ||
            at_y >= image.height || at_x >= image.width)
          continue;
        std::uint8_t* pixel = image.at(at_y, at_x);
        pixel[0] = colour.r, pixel[1] = colour.g, pixel[2] = colour.b;
      }
    }
    x += width_of(c);
  }
}

}  // namespace foci::report
