// SPDX-License-Identifier: Apache-2.0
// Bars in groups, with whiskers where there are low and high values.
#include "report/axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

constexpr std::string_view bar_picture = "a bar chart";
constexpr double slope = 0.5;  ///< sine of the angle of names that would not fit side by side

void check(const BarChart& chart) {
  if (chart.bars.empty() || chart.groups.empty())
    refuse(bar_picture, chart.title, chart.bars.empty() ? "no bars" : "no groups");
  if (chart.y.steps == Steps::logarithmic)
    refuse(bar_picture, chart.title, "bars begin at 0, which has no logarithm");
  for (const Bars& bars : chart.bars) {
    if (bars.values.size() != chart.groups.size()) {
      refuse(bar_picture, chart.title,
             fmt::format("{} has {} values for {} groups", escaped(bars.name), bars.values.size(),
                         chart.groups.size()));
    }
    check_band(bar_picture, chart.title, bars.name, bars.values, bars.low, bars.high);
  }
}

struct Layout {
  Frame frame;
  bool sloped = false;  ///< the names of groups
};

Layout layout_of(const BarChart& chart, double legend) {
  std::vector<double> ys = {0};
  for (const Bars& bars : chart.bars) {
    for (const auto* part : {&bars.values, &bars.low, &bars.high})
      ys.insert(ys.end(), part->begin(), part->end());
  }
  Layout layout;
  Frame& frame = layout.frame;
  frame.corner.y = 30 + (chart.title.empty() ? -14 : 18) + legend + 26;
  frame.y = ticks_of(chart.y, ys, Ends::round, std::max(2, int((chart.height - 150) / 44)));
  double names = 0, longest = 0;
  for (const std::string& name : frame.y.names) names = std::max(names, text_width(name, 13));
  for (const std::string& name : chart.groups) longest = std::max(longest, text_width(name, 13));
  frame.corner.x = 24 + names;
  frame.width = chart.width - frame.corner.x - 24;
  layout.sloped = longest > frame.width / double(chart.groups.size()) - 6;
  longest = std::min(longest, 150.0);
  frame.height = chart.height - frame.corner.y - (layout.sloped ? 26 + slope * longest : 34);
  if (frame.width < 60 || frame.height < 40) {
    refuse(bar_picture, chart.title,
           fmt::format("{:g} by {:g} is too small for it", chart.width, chart.height));
  }
  frame.x = {0, double(chart.groups.size()), {}, {}};
  return layout;
}

void draw_group_names(Svg& svg, const Layout& layout, const BarChart& chart) {
  const double bottom = layout.frame.corner.y + layout.frame.height;
  for (std::size_t g = 0; g < chart.groups.size(); ++g) {
    const double x = layout.frame.at(double(g) + 0.5, layout.frame.y.from).x;
    if (!layout.sloped) {
      svg.text({x, bottom + 20}, chart.groups[g], {.anchor = Anchor::middle});
      continue;
    }
    const std::string turn =
        fmt::format(" transform=\"rotate(-30 {} {})\"", number(x + 4), number(bottom + 16));
    svg.text({x + 4, bottom + 16}, shortened(chart.groups[g], 150, 13),
             {.anchor = Anchor::end, .more = turn});
  }
}

void draw_bars(Svg& svg, const Frame& frame, const BarChart& chart) {
  const double count = double(chart.bars.size()), room = frame.width / double(chart.groups.size());
  const double width = std::min(40.0, 0.8 * room / count);
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    const Bars& bars = chart.bars[i];
    for (std::size_t g = 0; g < bars.values.size(); ++g) {
      const double middle = frame.at(double(g) + 0.5, 0).x;
      const double left = middle + (double(i) - count / 2) * width;
      const auto y_of = [&](double value) {
        return frame.at(0, std::clamp(value, frame.y.from, frame.y.to)).y;
      };
      const double zero = y_of(0), end = y_of(bars.values[g]);
      svg.bar({left + 0.5, std::min(zero, end)}, width - 1, std::abs(zero - end), colour_class(i));
      if (bars.low.empty()) continue;
      const double x = left + width / 2, low = y_of(bars.low[g]), high = y_of(bars.high[g]);
      svg.line({x, low}, {x, high}, {ink, 1.5});
      for (const double y : {low, high}) svg.line({x - 3, y}, {x + 3, y}, {ink, 1.5});
    }
  }
  const Point zero = frame.at(0, std::clamp(0.0, frame.y.from, frame.y.to));
  svg.line(zero, {zero.x + frame.width, zero.y}, {faint, 1});
}

}  // namespace

std::string draw(const BarChart& chart) {
  check(chart);
  std::vector<Entry> entries;
  for (std::size_t i = 0; i < chart.bars.size(); ++i) {
    if (!chart.bars[i].name.empty()) entries.push_back({chart.bars[i].name, i, Sign::box});
  }
  const double top = chart.title.empty() ? 22 : 54, right = chart.width - 20;
  const Layout layout = layout_of(chart, draw_legend(nullptr, entries, 16, right, top));
  Svg svg(chart.width, chart.height, chart.title, chart.about);
  draw_title(svg, chart.title, chart.width);
  draw_legend(&svg, entries, 16, right, top);
  draw_y_axis(svg, layout.frame, chart.y.name);
  draw_bars(svg, layout.frame, chart);
  draw_group_names(svg, layout, chart);
  return svg.finished();
}

}  // namespace foci::report
