// SPDX-License-Identifier: Apache-2.0
// Writes SVG that looks one way: paper and ink of the reader's light or dark scheme, Okabe and
// Ito's colours chosen for each, rounded numbers. Knows shapes and text, not what they stand for.
#pragma once

#include <foci/pictures.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace foci::report {

struct Point {
  double x = 0, y = 0;
};

/// Two decimals at most, no trailing zeros, no minus zero: equal pictures are equal bytes.
std::string number(double x);
/// Safe between tags and in attributes; bytes that are no UTF-8 and control characters become
/// signs.
std::string escaped(std::string_view text);
/// What it is wide in sans-serif of this size, rather too much than too little.
double text_width(std::string_view text, double size);
/// At most so wide, with an ellipsis where something is left out; never inside a character.
std::string shortened(std::string_view text, double width, double size);
/// The code points of a text, each as it lies there; a byte that is no UTF-8 stands for itself.
std::vector<std::string_view> characters(std::string_view text);
std::string hex(const Colour& colour);
std::string base64(std::span<const std::byte> bytes);

inline constexpr int series_colours = 8;
inline constexpr std::string_view ink = "foci-ink", faint = "foci-faint";
std::string colour_class(std::size_t series);

enum class Anchor { start, middle, end };
struct Lettering {
  double size = 13;
  Anchor anchor = Anchor::start;
  std::string_view colour = ink;  ///< a class, or a colour that begins with #
  std::string_view more = "";     ///< attributes
};
struct Pen {
  std::string_view colour = ink;
  double width = 1;
  std::string_view dash = "";
};

class Svg {
 public:
  Svg(double width, double height, std::string_view title, std::string_view about);

  void line(Point a, Point b, const Pen& pen);
  void path(const std::vector<Point>& points, const Pen& pen);
  /// The same outline, in relative path commands, around each of some points.
  void signs(const std::vector<Point>& at, std::string_view outline, std::string_view colour);
  /// One by one, from a point to another.
  void segments(const std::vector<Point>& from, const std::vector<Point>& to, const Pen& pen);
  /// A closed area; `opacity` from 0 to 1.
  void area(const std::vector<Point>& points, std::string_view colour, double opacity);
  void bar(Point corner, double width, double height, std::string_view colour, double opacity = 1);
  void frame(Point corner, double width, double height, const Pen& pen);
  void circle(Point at, double radius, std::string_view colour, double opacity, double rim = 0);
  void text(Point at, std::string_view words, const Lettering& how = {});
  /// What is shown when one points at it.
  void note(Point corner, double width, double height, std::string_view words);
  void image(Point corner, double width, double height, const data::Image& pixels);
  /// Until close(): this box alone, whose corner is the origin.
  void inside(Point corner, double width, double height);
  void close() { body_ += "</svg>\n"; }
  std::string finished() const { return body_ + "</svg>\n"; }

 private:
  std::string body_;
};

}  // namespace foci::report
