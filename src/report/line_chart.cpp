// SPDX-License-Identifier: Apache-2.0
// Lines with bands, points with bars. Every number of every series is drawn; none is smoothed.
#include "report/axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

constexpr std::string_view line_picture = "a line chart";
constexpr std::size_t marked = 24;  ///< a line of more points than that shows no signs

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

/// All numbers along one axis.
std::vector<double> gathered(const LineChart& chart, std::vector<double> Series::*part) {
  std::vector<double> all;
  for (const Series& series : chart.series)
    all.insert(all.end(), (series.*part).begin(), (series.*part).end());
  return all;
}

Frame frame_of(const LineChart& chart, double legend) {
  std::vector<double> ys = gathered(chart, &Series::y);
  for (auto part : {&Series::low, &Series::high}) {
    const auto more = gathered(chart, part);
    ys.insert(ys.end(), more.begin(), more.end());
  }
  Frame frame;
  frame.x_steps = chart.x.steps, frame.y_steps = chart.y.steps;
  frame.corner.y = 30 + (chart.title.empty() ? -14 : 18) + legend + 26;
  frame.height = chart.height - frame.corner.y - 54;
  frame.y = ticks_of(chart.y, ys, Ends::round, std::max(2, int(frame.height / 44)));
  double names = 0;
  for (const std::string& name : frame.y.names) names = std::max(names, text_width(name, 13));
  frame.corner.x = 24 + names;
  frame.width = chart.width - frame.corner.x - 28;
  if (frame.width < 60 || frame.height < 40) {
    refuse(line_picture, chart.title,
           fmt::format("{:g} by {:g} is too small for it", chart.width, chart.height));
  }
  frame.x = ticks_of(chart.x, gathered(chart, &Series::x), Ends::tight,
                     std::max(2, int(frame.width / 62)));
  return frame;
}

void draw_x_axis(Svg& svg, const Frame& frame, std::string_view name) {
  const double bottom = frame.corner.y + frame.height;
  svg.line({frame.corner.x, bottom}, {frame.corner.x + frame.width, bottom}, {faint, 1});
  double free = 0;  // where the name before ends
  for (std::size_t i = 0; i < frame.x.at.size(); ++i) {
    const double x = frame.at(frame.x.at[i], frame.y.from).x;
    const double half = text_width(frame.x.names[i], 13) / 2;
    svg.line({x, bottom}, {x, bottom + 5}, {faint, 1});
    if (x - half < free) continue;
    svg.text({x, bottom + 20}, frame.x.names[i], {.anchor = Anchor::middle});
    free = x + half + 8;
  }
  svg.text({frame.corner.x + frame.width / 2, bottom + 42}, shortened(name, frame.width, 13),
           {.anchor = Anchor::middle});
}

bool is_line(const Series& series) { return series.mark == Mark::line && series.x.size() > 1; }

void draw_band(Svg& svg, const Frame& frame, const Series& series, std::size_t i) {
  std::vector<Point> edge;
  for (std::size_t k = 0; k < series.x.size(); ++k)
    edge.push_back(frame.at(series.x[k], series.high[k]));
  for (std::size_t k = series.x.size(); k-- > 0;)
    edge.push_back(frame.at(series.x[k], series.low[k]));
  svg.area(edge, colour_class(i), 0.2);
}

void draw_whisker(Svg& svg, Point low, Point high, std::string_view colour) {
  svg.line(low, high, {colour, 1.5});
  for (const Point& end : {low, high})
    svg.line({end.x - 4, end.y}, {end.x + 4, end.y}, {colour, 1.5});
}

void draw_series(Svg& svg, const Frame& frame, const Series& series, std::size_t i) {
  std::vector<Point> points;
  for (std::size_t k = 0; k < series.x.size(); ++k)
    points.push_back(frame.at(series.x[k], series.y[k]));
  const bool line = is_line(series);
  if (line) svg.path(points, {colour_class(i), 2.2, dash_of(i)});
  if (!line) {
    for (std::size_t k = 0; k < series.low.size(); ++k) {
      draw_whisker(svg, frame.at(series.x[k], series.low[k]), frame.at(series.x[k], series.high[k]),
                   colour_class(i));
    }
  }
  if (line && points.size() > marked) {  // a few, to tell lines apart without colour
    const std::size_t every = std::max<std::size_t>(12, points.size() / 6);
    for (std::size_t k = (2 * i + 3) % 12; k < points.size(); k += every)
      draw_mark(svg, points[k], i);
    return;
  }
  for (const Point& point : points) draw_mark(svg, point, i);
}

}  // namespace

Series mean_of(std::string name, std::vector<double> x,
               const std::vector<std::vector<double>>& runs) {
  if (runs.empty()) refuse("a mean", name, "no runs");
  Series mean{.name = std::move(name), .x = std::move(x)};
  for (const auto& run : runs) {
    if (run.size() == mean.x.size()) continue;
    refuse("a mean", mean.name,
           fmt::format("{} x and a run of {} numbers", mean.x.size(), run.size()));
  }
  for (std::size_t k = 0; k < mean.x.size(); ++k) {
    double sum = 0, squares = 0;
    for (const auto& run : runs) sum += run[k];
    const double middle = sum / double(runs.size());
    for (const auto& run : runs) squares += (run[k] - middle) * (run[k] - middle);
    mean.y.push_back(middle);
    if (runs.size() < 2) continue;
    const double deviation = std::sqrt(squares / double(runs.size() - 1));
    mean.low.push_back(middle - deviation);
    mean.high.push_back(middle + deviation);
  }
  return mean;
}

std::string draw(const LineChart& chart) {
  check(chart);
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    if (!chart.series[i].name.empty())
      entries.push_back(
          {chart.series[i].name, i, is_line(chart.series[i]) ? Sign::line : Sign::point});
  }
  const double top = chart.title.empty() ? 22 : 54, right = chart.width - 20;
  const Frame frame = frame_of(chart, draw_legend(nullptr, entries, 16, right, top));
  Svg svg(chart.width, chart.height, chart.title, chart.about);
  draw_title(svg, chart.title, chart.width);
  draw_legend(&svg, entries, 16, right, top);
  draw_y_axis(svg, frame, chart.y.name);
  draw_x_axis(svg, frame, chart.x.name);
  // What lies beyond an axis that was set is cut off, with room for signs at the edge.
  svg.inside({frame.corner.x - 6, frame.corner.y - 6}, frame.width + 12, frame.height + 12);
  Frame inner = frame;
  inner.corner = {6, 6};
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    if (!series.low.empty() && is_line(series)) draw_band(svg, inner, series, i);
  }
  for (std::size_t i = 0; i < chart.series.size(); ++i) draw_series(svg, inner, chart.series[i], i);
  svg.close();
  return svg.finished();
}

}  // namespace foci::report
