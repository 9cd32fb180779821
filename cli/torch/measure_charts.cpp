// SPDX-License-Identifier: Apache-2.0
// Which numbers of a report stand in which chart, and runs of one kind together.
#include "cli/torch/measure_charts.hpp"

#include <foci/pictures.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

namespace foci::cli {
namespace {

using OfLayers = std::vector<double> (*)(const measure::Report& report);

/// Empty where a layer has no such number.
std::vector<double> cosines(const measure::Report& report) {
  std::vector<double> values;
  if (report.embedded.cosine.n > 0) values.push_back(report.embedded.cosine.mean);
  for (const measure::Layer& layer : report.layers) {
    if (layer.tokens.cosine.n > 0) values.push_back(layer.tokens.cosine.mean);
  }
  return values;
}

std::vector<double> concentrations(const measure::Report& report) {
  std::vector<double> values;
  for (const measure::Layer& layer : report.layers) {
    if (layer.rows.concentration.n > 0) values.push_back(layer.rows.concentration.mean);
  }
  return values;
}

/// A line for each kind of as many layers, with a band where it has several runs.
std::string kinds_svg(const std::vector<Pictured>& all, const Reports& reports, OfLayers numbers,
                      report::LineChart chart) {
  std::vector<std::pair<std::string, std::vector<std::vector<double>>>> kinds;
  for (std::size_t i = 0; i < all.size(); ++i) {
    std::vector<double> run = numbers(*reports[i]);
    if (run.empty()) continue;
    const auto same = std::find_if(kinds.begin(), kinds.end(), [&](const auto& kind) {
      return kind.first == all[i].kind && kind.second[0].size() == run.size();
    });
    if (same != kinds.end()) {
      same->second.push_back(std::move(run));
    } else {
      kinds.push_back({all[i].kind, {std::move(run)}});
    }
  }
  for (const auto& [kind, runs] : kinds) {
    std::vector<double> x;
    for (std::size_t l = 0; l < runs[0].size(); ++l) x.push_back(double(l));
    chart.series.push_back(report::mean_of(kind, x, runs));
  }
  return chart.series.empty() ? "" : report::draw(chart);
}

}  // namespace

std::vector<std::string> counted(std::int64_t count) {
  std::vector<std::string> names;
  for (std::int64_t i = 0; i < count; ++i) names.push_back(std::to_string(i));
  return names;
}

std::string layers_svg(const Pictured& of, const measure::Report& report) {
  double keys = 2;
  for (const measure::Layer& layer : report.layers) keys = std::max(keys, double(layer.keys));
  // Colours span what can be, so that those of several models say the same.
  const struct {
    const char* name;
    measure::Value measure::Rows::*value;
    std::optional<double> from, to;
  } kinds[] = {{"concentration S", &measure::Rows::concentration, 0, 1},
               {"effective keys", &measure::Rows::effective_keys, 0, keys},
               {"distance", &measure::Rows::distance, 0, {}},
               {"entropy, nats", &measure::Rows::entropy, 0, std::log(keys)}};
  report::GridSheet sheet{.title = of.name + ": attention by layer and head",
                          .about = "Means over queries and samples, a row for each layer."};
  for (const auto& kind : kinds) {
    report::Grid grid{.name = kind.name, .from = kind.from, .to = kind.to};
    bool complete = !report.layers.empty();
    for (const measure::Layer& layer : report.layers) {
      complete = complete && !layer.by_head.empty() &&
                 layer.by_head.size() == report.layers[0].by_head.size();
      for (const measure::Rows& head : layer.by_head) {
        complete = complete && (head.*kind.value).n > 0;
        grid.values.push_back((head.*kind.value).mean);
      }
    }
    if (!complete) continue;
    grid.rows = counted(std::int64_t(report.layers.size()));
    grid.columns = counted(std::int64_t(report.layers[0].by_head.size()));
    sheet.grids.push_back(std::move(grid));
  }
  return sheet.grids.empty() ? "" : report::draw(sheet);
}

std::string collapse_svg(const Pictured& of, const measure::Report& report) {
  report::LineChart chart{.title = of.name + ": tokens by layer",
                          .about =
                              "The mean cosine of pairs of tokens and what is left of them "
                              "beside their mean, before the first block and after each.",
                          .x = {"blocks passed"},
                          .y = {.name = "mean over samples, and its standard error"}};
  const struct {
    const char* name;
    measure::Value measure::Tokens::*value;
  } kinds[] = {{"mean pairwise cosine", &measure::Tokens::cosine},
               {"rank-1 residual", &measure::Tokens::residual}};
  for (const auto& kind : kinds) {
    report::Series series{.name = kind.name};
    const auto add = [&](double x, const measure::Value& value) {
      if (value.n == 0) return;
      series.x.push_back(x);
      series.y.push_back(value.mean);
      series.low.push_back(value.mean - value.error);
      series.high.push_back(value.mean + value.error);
    };
    add(0, report.embedded.*kind.value);
    for (std::size_t l = 0; l < report.layers.size(); ++l)
      add(double(l + 1), report.layers[l].tokens.*kind.value);
    if (!series.x.empty()) chart.series.push_back(std::move(series));
  }
  return chart.series.empty() ? "" : report::draw(chart);
}

std::string collapse_svg(const std::vector<Pictured>& all, const Reports& reports) {
  return kinds_svg(
      all, reports, cosines,
      {.title = "Do tokens become alike?",
       .about = "Mean cosine of pairs of tokens by layer; bands are deviations over runs.",
       .x = {"blocks passed"},
       .y = {"mean cosine of pairs of tokens"}});
}

std::string concentration_svg(const std::vector<Pictured>& all, const Reports& reports) {
  return kinds_svg(all, reports, concentrations,
                   {.title = "Does attention concentrate?",
                    .about = "Mean concentration by layer; bands are deviations over runs.",
                    .x = {"layer"},
                    .y = {.name = "concentration S", .to = 1}});
}

}  // namespace foci::cli
