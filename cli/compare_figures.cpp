// SPDX-License-Identifier: Apache-2.0
// The figures of results, an SVG each. What there are no numbers for has none.
#include "cli/compare_parts.hpp"

#include "cli/write.hpp"

#include <foci/error.hpp>
#include <foci/pictures.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

namespace foci::cli {
namespace {

using Numbers = std::vector<double>;

constexpr double absent = std::numeric_limits<double>::quiet_NaN();

double number_in(const Json& value) { return value.is_number() ? value.get<double>() : absent; }

/// values[mechanism] is (points, seeds): a curve a seed, those that are whole.
std::vector<Numbers> runs_in(const Json& values, double scale) {
  std::vector<Numbers> runs;
  const std::size_t seeds = values.empty() ? 0 : values[0].size();
  for (std::size_t s = 0; s < seeds; ++s) {
    Numbers run;
    for (const Json& point : values) run.push_back(scale * number_in(point[s]));
    const bool whole = std::none_of(run.begin(), run.end(), [](double y) { return std::isnan(y); });
    if (whole) runs.push_back(std::move(run));
  }
  return runs;
}

report::Series mean_line(const std::string& name, const Numbers& x,
                         const std::vector<Numbers>& runs) {
  if (runs.empty()) return {};
  return report::mean_of(name, x, runs);
}

void add_line(report::LineChart& chart, report::Series line) {
  if (!line.x.empty()) chart.series.push_back(std::move(line));
}

/// Each number becomes the mean of those around it: the noise of single batches goes.
Numbers smoothed(const Numbers& values) {
  const std::size_t reach = values.size() / 40;
  Numbers means;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::size_t begin = i - std::min(i, reach), end = std::min(values.size(), i + reach + 1);
    double sum = 0;
    for (std::size_t k = begin; k < end; ++k) sum += values[k];
    means.push_back(sum / double(end - begin));
  }
  return means;
}

std::string training_figure(const Json& results) {
  report::LineChart chart{.title = "Loss in training, smoothed",
                          .about =
                              "The mean over seeds of each mechanism, by step, and one standard "
                              "deviation; each point is the mean of some steps around it.",
                          .x = {.name = "step"},
                          .y = {.name = "loss"}};
  for (const auto& [mechanism, curves] : results.at("curves").at("training").items()) {
    std::vector<Numbers> runs;
    Numbers x;
    for (const Json& curve : curves) {
      const Numbers steps = curve.at("step").get<Numbers>();
      if (steps.empty()) continue;
      if (x.empty() || steps.size() > x.size()) {
        x = steps;
        runs.clear();
      }
      if (steps == x) runs.push_back(smoothed(curve.at("loss").get<Numbers>()));
    }
    add_line(chart, mean_line(mechanism, x, runs));
  }
  return report::draw(chart);
}

/// "Accuracy under all attacks", "Accuracy under apgd-ce"
std::string robustness_title(const Json& curve) {
  return "Accuracy under " + curve.at("attack").get<std::string>();
}

std::string robustness_figure(const Json& curve) {
  report::LineChart chart{.title = robustness_title(curve),
                          .about =
                              "Share still classified correctly, by the largest change allowed; "
                              "the mean over seeds.",
                          .x = {.name = fmt::format("{} eps{}", curve.at("norm").get<std::string>(),
                                                    curve.at("unit") == "/255" ? ", 1/255" : "")},
                          .y = {.name = "accuracy, %", .from = 0}};
  for (const auto& [mechanism, values] : curve.at("values").items())
    add_line(chart, mean_line(mechanism, curve.at("eps").get<Numbers>(), runs_in(values, 100)));
  return report::draw(chart);
}

/// Means with one standard deviation to either side.
void add_bar(report::Bars& bars, const Json& seeds, double scale) {
  Numbers there;
  for (const Json& value : seeds) {
    if (value.is_number()) there.push_back(scale * value.get<double>());
  }
  const compare::Summary summary = compare::summary_of(there);
  const double mean = std::isnan(summary.mean) ? 0 : summary.mean;
  const double deviation = std::isnan(summary.deviation) ? 0 : summary.deviation;
  bars.values.push_back(mean);
  bars.low.push_back(std::max(0.0, mean - deviation));
  bars.high.push_back(mean + deviation);
}

std::string corruptions_figure(const Json& results) {
  const Json& all = results.at("curves").at("corruptions");
  if (all.empty()) return "";
  const bool shares = all[0].at("unit") == "share";
  report::BarChart chart{.title = "Under corruption",
                         .about =
                             "Each mechanism under each corruption; the mean over seeds and "
                             "one standard deviation.",
                         .y = {.name = shares ? "accuracy, %" : "perplexity", .from = 0}};
  for (const Json& mechanism : results.at("mechanisms")) {
    report::Bars bars{.name = mechanism.at("name").get<std::string>()};
    for (const Json& one : all) {
      const Json& points = one.at("values").at(bars.name);
      for (const Json& point : points) add_bar(bars, point, shares ? 100 : 1);
    }
    chart.bars.push_back(std::move(bars));
  }
  for (const Json& one : all) {
    for (const Json& severity : one.at("severity")) {
      std::string name = one.at("name").get<std::string>();
      std::replace(name.begin(), name.end(), '_', ' ');
      chart.groups.push_back(severity == 0 || one.at("severity").size() < 2
                                 ? name
                                 : fmt::format("{} {}", name, severity.dump()));
    }
  }
  return report::draw(chart);
}

/// Of the first measure of a group.
std::string title_in(const Json& results, const std::string& group) {
  for (const Json& one : results.at("measures")) {
    if (one.at("group") == group) return one.at("title");
  }
  return "";
}

std::string measure_figure(const Json& results, const std::string& group,
                           const std::string& title) {
  report::BarChart chart{
      .title = title, .about = "Each mechanism; the mean over seeds and one standard deviation."};
  const Json* measure = nullptr;
  for (const Json& one : results.at("measures")) {
    if (one.at("group") == group && measure == nullptr) measure = &one;
  }
  if (measure == nullptr) return "";
  const bool share = measure->at("unit") == "share";
  chart.y = {.name = share ? "%" : measure->at("unit").get<std::string>(), .from = 0};
  report::Bars bars{.name = measure->at("title").get<std::string>()};
  for (const Json& mechanism : results.at("mechanisms")) {
    const std::string name = mechanism.at("name");
    chart.groups.push_back(name);
    add_bar(bars, measure->at("values").at(name), share ? 100 : 1);
  }
  chart.bars.push_back(std::move(bars));
  return report::draw(chart);
}

std::string layers_figure(const Json& layer) {
  report::LineChart chart{.title = layer.at("title").get<std::string>(),
                          .about = "The mean over seeds of each mechanism.",
                          .x = {.name = "layer"}};
  for (const auto& [mechanism, seeds] : layer.at("values").items()) {
    std::vector<Numbers> runs;
    for (const Json& run : seeds) {
      if (run.is_array()) runs.push_back(run.get<Numbers>());
    }
    Numbers x(runs.empty() ? 0 : runs[0].size());
    for (std::size_t i = 0; i < x.size(); ++i) x[i] = double(i);
    add_line(chart, mean_line(mechanism, x, runs));
  }
  return report::draw(chart);
}

}  // namespace

Json draw_figures(const std::string& folder, const Json& results) {
  std::error_code fault;
  std::filesystem::create_directories(folder + "/figures", fault);
  if (fault) throw FileError(folder + "/figures: " + fault.message());
  Json list = Json::array();
  const auto add = [&](const std::string& name, const std::string& title, const auto& draw) {
    std::string svg;
    try {
      svg = draw();
    } catch (const InvalidArgument&) {
      return;  // nothing in it yet
    }
    if (svg.empty()) return;
    const std::string file = "figures/" + name + ".svg";
    write_whole(folder + "/" + file, svg);
    list.push_back({{"file", file}, {"title", title}});
  };
  const std::string score = title_in(results, "accuracy");
  add("accuracy", score, [&] { return measure_figure(results, "accuracy", score); });
  add("training", "Loss in training", [&] { return training_figure(results); });
  const Json& robustness = results.at("curves").at("robustness");
  for (std::size_t i = 0; i < robustness.size(); ++i) {
    add(i == 0 ? "robustness" : fmt::format("robustness-{}", i + 1),
        robustness_title(robustness[i]), [&] { return robustness_figure(robustness[i]); });
  }
  add("corruptions", "Under corruption", [&] { return corruptions_figure(results); });
  for (const Json& layer : results.at("layers")) {
    add(layer.at("name").get<std::string>(), layer.at("title").get<std::string>(),
        [&] { return layers_figure(layer); });
  }
  add("heat-maps", "What one query looks at", [&] { return heat_figure(results); });
  std::set<Json> layers;
  for (const Json& ellipse : results.at("ellipses")) layers.insert(ellipse.at("layer"));
  for (const Json& layer : layers) {
    add("ellipses-" + layer.dump(), fmt::format("Keys and the metric, layer {}", layer.dump()),
        [&] { return plane_figure(results, layer); });
  }
  add("speed", "Training speed",
      [&] { return measure_figure(results, "speed", "Training speed"); });
  add("memory", "Memory in training",
      [&] { return measure_figure(results, "memory", "Memory in training"); });
  return list;
}

}  // namespace foci::cli
