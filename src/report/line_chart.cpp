// SPDX-License-Identifier: Apache-2.0
// One line chart with its title and legend, and the mean of several runs.
#include "report/line_plot.hpp"

#include <fmt/format.h>

#include <cmath>

namespace foci::report {

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
  std::vector<Look> looks;
  for (std::size_t i = 0; i < chart.series.size(); ++i) {
    const Series& series = chart.series[i];
    looks.push_back({.number = i});
    if (!series.name.empty()) entries.push_back({series.name, i, sign_of(series)});
  }
  const double top = chart.title.empty() ? 22 : 54, right = chart.width - 20;
  const double legend = draw_legend(nullptr, entries, 16, right, top);
  const Frame frame = frame_of(chart, top + legend + 20);
  Svg svg(chart.width, chart.height, chart.title, chart.about);
  draw_title(svg, chart.title, chart.width);
  draw_legend(&svg, entries, 16, right, top);
  draw_plot(svg, chart, frame, looks);
  return svg.finished();
}

}  // namespace foci::report
