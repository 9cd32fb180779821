// SPDX-License-Identifier: Apache-2.0
// What charts share: ticks at round numbers, a frame with axes, a legend that takes the rows it
// needs, and the words for what cannot be drawn.
#pragma once

#include "report/svg.hpp"

namespace foci::report {

/// A picture and what is wrong with it: "a line chart, 'loss': no series".
[[noreturn]] void refuse(std::string_view picture, std::string_view title, std::string_view fault);
/// Throws where a number is not finite: "... 3 of 'dot' is nan".
void check_finite(std::string_view picture, std::string_view title, std::string_view name,
                  std::span<const double> values);
/// Low and high are absent or as many as `values`, and lie around them.
void check_band(std::string_view picture, std::string_view title, std::string_view name,
                std::span<const double> values, std::span<const double> low,
                std::span<const double> high);

struct Ticks {
  double from = 0, to = 1;  ///< of the axis
  std::vector<double> at;
  std::vector<std::string> names;
};
/// `tight`: the axis ends with the numbers, not at a tick. `most`: ticks that fit.
enum class Ends { tight, round };
Ticks ticks_of(const Axis& axis, std::span<const double> values, Ends ends, int most);
/// With a real minus sign, and no more digits than tell it from others `step` away.
std::string tick_name(double value, double step);
/// Three or four digits, as a cell of a grid has room for.
std::string short_number(double value);

/// Where the numbers of a chart lie.
struct Frame {
  Point corner;
  double width = 0, height = 0;
  Ticks x, y;
  Steps x_steps = Steps::linear, y_steps = Steps::linear;

  Point at(double px, double py) const;
};

/// joined: a sign on a line without dashes. curve: a line without signs. aside: of any colour.
enum class Sign { line, point, box, joined, curve, aside };
struct Entry {
  std::string name;
  std::size_t series = 0;
  Sign sign = Sign::line;
};
std::string_view dash_of(std::size_t series);
inline constexpr std::string_view aside_dash = "5 4";
/// A sign of its own for each series.
void draw_marks(Svg& svg, const std::vector<Point>& at, std::size_t series);
/// Rows of entries between `left` and `right`; gives back the height they take, and draws nothing
/// without a picture.
double draw_legend(Svg* svg, const std::vector<Entry>& entries, double left, double right,
                   double top);
void draw_title(Svg& svg, std::string_view title, double width, double size = 15);
/// The axis of y with its lines and name.
void draw_y_axis(Svg& svg, const Frame& frame, std::string_view name);

}  // namespace foci::report
