// SPDX-License-Identifier: Apache-2.0
// Lines with bands, signs with bars. Every number of every series is drawn; none is smoothed.
#include "report/line_plot.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

constexpr std::string_view line_picture = "a line chart";
constexpr std::size_t marked = 24;  ///< a line of more points than that shows few signs

/// All numbers along one axis.
std::vector<double> gathered(const LineChart& chart, std::vector<double> Series::*part) {
  std::vector<double> all;
  for (const Series& series : chart.series)
    all.insert(all.end(), (series.*part).begin(), (series.*part).end());
  return all;
}

/// Ticks of a short axis, which may stand closer than those of a long one.
int most_within(double length, double apart) { return std::clamp(int(length / apart), 2, 6); }

void draw_x_axis(Svg& svg, const Frame& frame, std::string_view name, double room) {
  const double bottom = frame.corner.y + frame.height;
  std::vector<Point> from = {{frame.corner.x, bottom}},
                     to = {{frame.corner.x + frame.width, bottom}};
  double free = 0;  // where the name before ends
  for (std::size_t i = 0; i < frame.x.at.size(); ++i) {
    const double x = frame.at(frame.x.at[i], frame.y.from).x;
    const double half = text_width(frame.x.names[i], 13) / 2;
    from.push_back({x, bottom}), to.push_back({x, bottom + 5});
    if (x - half < free) continue;
    svg.text({x, bottom + 20}, frame.x.names[i], {.anchor = Anchor::middle});
    free = x + half + 8;
  }
  svg.segments(from, to, {faint, 1});
  const std::string shown = shortened(name, room - 16, 13);
  const double half = text_width(shown, 13) / 2 + 8;  // a long name begins left of the axis
  const double middle = std::clamp(frame.corner.x + frame.width / 2, half, room - half);
  svg.text({middle, bottom + 42}, shown, {.anchor = Anchor::middle});
}

bool is_band(const Series& series) {
  return series.mark == Mark::line && series.x.size() > 1 && !series.low.empty();
}

void draw_band(Svg& svg, const Frame& frame, const Series& series, const Look& look) {
  std::vector<Point> edge;
  for (std::size_t k = 0; k < series.x.size(); ++k)
    edge.push_back(frame.at(series.x[k], series.high[k]));
  for (std::size_t k = series.x.size(); k-- > 0;)
    edge.push_back(frame.at(series.x[k], series.low[k]));
  svg.area(edge, colour_class(look.number), 0.2);
}

/// Those that stand out from their signs; with caps where no line says what belongs together.
void draw_bars(Svg& svg, const Frame& frame, const Series& series, const Look& look) {
  const double hidden = series.mark == Mark::joined ? 8 : 3;
  std::vector<Point> from, to;
  for (std::size_t k = 0; k < series.low.size(); ++k) {
    const Point low = frame.at(series.x[k], series.low[k]),
                high = frame.at(series.x[k], series.high[k]);
    if (low.y - high.y < hidden) continue;
    from.push_back(low), to.push_back(high);
    if (series.mark == Mark::joined) continue;
    for (const Point& end : {low, high})
      from.push_back({end.x - 4, end.y}), to.push_back({end.x + 4, end.y});
  }
  svg.segments(from, to, {colour_class(look.number), 1.5});
}

void draw_line(Svg& svg, const std::vector<Point>& points, Mark mark, const Look& look) {
  const std::string colour = colour_class(look.number);
  if (look.role == Role::aside) return svg.path(points, {colour, 1.6, aside_dash});
  svg.path(points, {colour, 2.2, mark == Mark::joined ? "" : dash_of(look.number)});
}

/// A few of many, to tell lines apart without colour.
std::vector<Point> marked_points(const std::vector<Point>& points, const Series& series,
                                 std::size_t number) {
  if (series.mark != Mark::line || points.size() <= marked) return points;
  const std::size_t every = std::max<std::size_t>(12, points.size() / 6);
  std::vector<Point> few;
  for (std::size_t k = (2 * number + 3) % 12; k < points.size(); k += every)
    few.push_back(points[k]);
  return few;
}

void draw_series(Svg& svg, const Frame& frame, const Series& series, const Look& look) {
  std::vector<Point> points;
  for (std::size_t k = 0; k < series.x.size(); ++k)
    points.push_back(frame.at(series.x[k], series.y[k]));
  const bool line = series.mark != Mark::points && points.size() > 1;
  if (!is_band(series)) draw_bars(svg, frame, series, look);
  if (line) draw_line(svg, points, series.mark, look);
  if (line && series.mark == Mark::curve) return;
  draw_marks(svg, marked_points(points, series, look.number), look.number);
}

}  // namespace

void check(const LineChart& chart) {
  if (chart.series.empty()) refuse(line_picture, chart.title, "no series");
  for (const Series& series : chart.series) {
    if (series.x.size() != series.y.size() || series.x.empty()) {
      refuse(line_picture, chart.title,
             fmt::format("{} has {} x and {} y; needs as many, at least one", escaped(series.name),
                         series.x.size(), series.y.size()));
    }
    check_finite(line_picture, chart.title, series.name, series.x);
    check_band(line_picture, chart.title, series.name, series.y, series.low, series.high);
  }
}

Frame frame_of(const LineChart& chart, double top) {
  std::vector<double> ys = gathered(chart, &Series::y);
  for (auto part : {&Series::low, &Series::high}) {
    const auto more = gathered(chart, part);
    ys.insert(ys.end(), more.begin(), more.end());
  }
  Frame frame;
  frame.x_steps = chart.x.steps, frame.y_steps = chart.y.steps;
  frame.corner.y = top;
  frame.height = chart.height - frame.corner.y - 54;
  frame.y = ticks_of(chart.y, ys, Ends::round,
                     std::max(most_within(frame.height, 28), int(frame.height / 44)));
  double names = 0;
  for (const std::string& name : frame.y.names) names = std::max(names, text_width(name, 13));
  frame.corner.x = 24 + names;
  frame.width = chart.width - frame.corner.x - 28;
  if (frame.width < 60 || frame.height < 40) {
    refuse(line_picture, chart.title,
           fmt::format("{:g} by {:g} is too small for it", chart.width, chart.height));
  }
  frame.x = ticks_of(chart.x, gathered(chart, &Series::x), Ends::tight,
                     std::max(most_within(frame.width, 48), int(frame.width / 62)));
  return frame;
}

void draw_plot(Svg& svg, const LineChart& chart, const Frame& frame,
               const std::vector<Look>& looks) {
  draw_y_axis(svg, frame, chart.y.name);
  draw_x_axis(svg, frame, chart.x.name, chart.width);
  // What lies beyond an axis that was set is cut off, with room for signs at the edge.
  svg.inside({frame.corner.x - 6, frame.corner.y - 6}, frame.width + 12, frame.height + 12);
  Frame inner = frame;
  inner.corner = {6, 6};
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    if (is_band(chart.series[i])) draw_band(svg, inner, chart.series[i], looks[i]);
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i)
    draw_series(svg, inner, chart.series[i], looks[i]);
  svg.close();
}

Sign sign_of(const Series& series) {
  if (series.x.size() < 2) return Sign::point;
  switch (series.mark) {
    case Mark::line:
      return Sign::line;
    case Mark::joined:
      return Sign::joined;
    case Mark::curve:
      return Sign::curve;
    case Mark::points:
      break;
  }
  return Sign::point;
}

}  // namespace foci::report
