// SPDX-License-Identifier: Apache-2.0
// Writes small SVG pictures: rounded numbers, an explicit background (legible on light and dark
// pages), a title and a description for those who cannot see it. Knows shapes and text, nothing
// about attention.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <string>
#include <string_view>
#include <vector>

namespace foci::tools {

struct Point {
  double x = 0, y = 0;
};

/// Two decimals at most, no trailing zeros, no minus zero: equal pictures are equal bytes.
inline std::string number(double x) {
  const long long hundredths = std::llround(x * 100);
  std::string text = fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "",
                                 std::llabs(hundredths) / 100, std::llabs(hundredths) % 100);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

/// Ink and dash together, so that nothing is told by colour alone.
struct Pen {
  std::string_view colour = "#1f2328";
  double width = 1.5;
  std::string_view dash = "";
};

inline constexpr Pen solid_pen{"#0550ae", 2.2, ""};
inline constexpr Pen dashed_pen{"#953800", 2.0, "7 4"};
inline constexpr Pen dotted_pen{"#1f2328", 2.0, "2 3.5"};
inline constexpr Pen dash_dot_pen{"#6639ba", 2.0, "9 3 2 3"};
inline constexpr Pen thin_pen{"#8c959f", 1.0, ""};
inline constexpr Pen no_pen{"none", 0, ""};

enum class Anchor { start, middle, end };

class Svg {
 public:
  Svg(double width, double height, std::string_view title, std::string_view description) {
    body_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
        "height=\"{1}\" role=\"img\" "
        "aria-labelledby=\"title description\" font-family=\"system-ui, 'DejaVu Sans', "
        "sans-serif\" "
        "font-size=\"13\">\n<title id=\"title\">{2}</title>\n<desc id=\"description\">{3}</desc>\n",
        number(width), number(height), title, description);
    body_ += fmt::format(
        "<rect x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\" fill=\"#fff\" "
        "stroke=\"#d0d7de\"/>\n",
        number(width - 1), number(height - 1));
  }

  void line(Point a, Point b, const Pen& pen) {
    body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\"{}/>\n", number(a.x),
                         number(a.y), number(b.x), number(b.y), stroke(pen));
  }

  void circle(Point at, double radius, std::string_view fill, const Pen& pen = no_pen) {
    body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\" fill=\"{}\"{}/>\n", number(at.x),
                         number(at.y), number(radius), fill, stroke(pen));
  }

  void bar(Point corner, double width, double height, std::string_view fill,
           const Pen& pen = no_pen) {
    body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\"{}/>\n",
                         number(corner.x), number(corner.y), number(width), number(height), fill,
                         stroke(pen));
  }

  void path(const std::vector<Point>& points, const Pen& pen) {
    std::string steps;
    for (std::size_t i = 0; i < points.size(); ++i) {
      steps += fmt::format("{}{} {}", i == 0 ? "M" : "L", number(points[i].x), number(points[i].y));
    }
    body_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke-linejoin=\"round\"{}/>\n", steps,
                         stroke(pen));
  }

  /// A straight line that ends in a small head.
  void arrow(Point from, Point to, const Pen& pen) {
    const double length = std::hypot(to.x - from.x, to.y - from.y);
    const double x = (to.x - from.x) / length, y = (to.y - from.y) / length;
    const Point left{to.x - 4 * x - 3 * y, to.y - 4 * y + 3 * x},
        right{to.x - 4 * x + 3 * y, to.y - 4 * y - 3 * x};
    line(from, to, pen);
    path({left, to, right}, pen);
  }

  void text(Point at, std::string_view words, Anchor anchor = Anchor::start,
            std::string_view more = "") {
    constexpr std::string_view names[] = {"start", "middle", "end"};
    body_ +=
        fmt::format("<text x=\"{}\" y=\"{}\" fill=\"#1f2328\" text-anchor=\"{}\"{}>{}</text>\n",
                    number(at.x), number(at.y), names[int(anchor)], more, words);
  }

  std::string finished() const { return body_ + "</svg>\n"; }

 private:
  static std::string stroke(const Pen& pen) {
    if (pen.width == 0) return "";
    std::string text =
        fmt::format(" stroke=\"{}\" stroke-width=\"{}\"", pen.colour, number(pen.width));
    if (!pen.dash.empty()) text += fmt::format(" stroke-dasharray=\"{}\"", pen.dash);
    return text;
  }

  std::string body_;
};

inline constexpr std::string_view bold = " font-weight=\"600\"";

}  // namespace foci::tools
