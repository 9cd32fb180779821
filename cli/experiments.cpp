// SPDX-License-Identifier: Apache-2.0
// foci theory --experiment NAME: the flags of an experiment are the fields of its struct.
#include "cli/experiments.hpp"

#include "cli/misuse.hpp"
#include "cli/remarks.hpp"
#include "cli/terminal.hpp"
#include "cli/write.hpp"

#include <foci/executor.hpp>
#include <foci/experiments.hpp>
#include <foci/pictures.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

namespace foci::cli {
namespace {

using experiments::Chart;
using experiments::Estimate;
using experiments::Experiment;
using experiments::Result;
using experiments::Series;

/// The one of that name, as it is when nothing is said.
Experiment named(const std::string& name) {
  Experiment found;
  const auto look = [&]<std::size_t... i>(std::index_sequence<i...>) {
    const auto one = [&](auto candidate) {
      if (candidate.name == name) found = candidate;
    };
    (one(std::variant_alternative_t<i, Experiment>()), ...);
  };
  look(std::make_index_sequence<std::variant_size_v<Experiment>>());
  return found;
}

Experiment experiment_of(const Words& words) {
  std::set<std::string> known = {"experiment", "svg",  "markdown", "json",
                                 "quiet",      "seed", "threads",  "device"};
  Experiment experiment = named(words.at("experiment"));
  std::visit(
      [&](auto& of) {
        const auto take = [&](const char* flag, auto& field) {
          known.insert(flag);
          if (words.count(flag) == 0) return;
          if constexpr (std::is_same_v<decltype(field), double&>) {
            field = to_number(words.at(flag));
          } else {
            field = to_count(words.at(flag));
          }
        };
        take("dim", of.dim);
        take("runs", of.runs);
        if constexpr (requires { of.keys; }) take("keys", of.keys);
        if constexpr (requires { of.noise; }) take("noise", of.noise);
        if constexpr (requires { of.layers; }) take("layers", of.layers);
      },
      experiment);
  for (const auto& [flag, text] : words) {
    if (!known.contains(flag)) {
      throw Misuse(
          fmt::format("--{} does not belong to --experiment {}", flag, words.at("experiment")));
    }
  }
  return experiment;
}

Json json_of(const Series& series) {
  constexpr const char* kinds[] = {"measured", "closed", "extreme"};
  Json values = Json::array(), errors = Json::array();
  for (const Estimate& y : series.y) {
    values.push_back(y.value);
    errors.push_back(y.standard_error);
  }
  return {{"name", series.name},
          {"kind", kinds[int(series.kind)]},
          {"x", series.x},
          {"y", values},
          {"standard_error", errors}};
}

Json json_of(const Result& result) {
  Json charts = Json::array(), rows = Json::array();
  for (const Chart& chart : result.charts) {
    Json all = Json::array();
    for (const Series& series : chart.series) all.push_back(json_of(series));
    charts.push_back(
        {{"title", chart.title}, {"x", chart.x.name}, {"y", chart.y.name}, {"series", all}});
  }
  for (const auto& row : result.table.rows) {
    Json values = Json::object();
    for (std::size_t c = 0; c < row.values.size(); ++c) {
      values[result.table.columns[c]] = {{"value", row.values[c].value},
                                         {"standard_error", row.values[c].standard_error}};
    }
    rows.push_back({{"name", row.name}, {"values", values}});
  }
  return {{"table", rows}, {"charts", charts}};
}

std::string text_of(const Estimate& of) {
  if (of.standard_error != 0) return fmt::format("{:.3g} ± {:.2g}", of.value, of.standard_error);
  return of.value >= 1000 ? fmt::format("{:.0f}", of.value) : fmt::format("{:.3g}", of.value);
}

void print_markdown(const experiments::Table& table) {
  fmt::print("| {} |", table.compared);
  for (const std::string& column : table.columns) fmt::print(" {} |", column);
  fmt::print("\n|---|");
  for (std::size_t c = 0; c < table.columns.size(); ++c) fmt::print("--:|");
  fmt::print("\n");
  for (const auto& row : table.rows) {
    fmt::print("| {} |", row.name);
    for (const Estimate& value : row.values) fmt::print(" {} |", text_of(value));
    fmt::print("\n");
  }
}

void print_table(const experiments::Table& of) {
  std::vector<std::string> head = {of.compared};
  head.insert(head.end(), of.columns.begin(), of.columns.end());
  Table table(head);
  for (const auto& row : of.rows) {
    std::vector<std::string> cells = {row.name};
    for (const Estimate& value : row.values) cells.push_back(text_of(value));
    table.add(cells);
  }
  table.print();
}

report::Axis axis_of(const experiments::Axis& axis) {
  return {.name = axis.name,
          .steps = axis.spacing == experiments::Spacing::logarithmic ? report::Steps::logarithmic
                                                                     : report::Steps::linear};
}

bool fits(const experiments::Axis& axis, double x) {
  return std::isfinite(x) && (axis.spacing == experiments::Spacing::linear || x > 0);
}

/// What its axes can show; an error bar that would go down to 0 on a logarithmic one ends at
/// `least`.
report::Series series_of(const Chart& chart, const Series& from, double least) {
  constexpr report::Mark marks[] = {report::Mark::joined, report::Mark::curve,
                                    report::Mark::points};
  report::Series series{.name = from.name, .mark = marks[int(from.kind)]};
  for (std::size_t i = 0; i < from.x.size(); ++i) {
    const auto [y, error] = from.y[i];
    if (!fits(chart.x, from.x[i]) || !fits(chart.y, y)) continue;
    series.x.push_back(from.x[i]);
    series.y.push_back(y);
    if (from.kind == experiments::Kind::closed) continue;
    series.low.push_back(fits(chart.y, y - error) ? y - error : least);
    series.high.push_back(y + error);
  }
  return series;
}

report::LineChart chart_of(const Chart& from) {
  report::LineChart chart{.title = from.title, .x = axis_of(from.x), .y = axis_of(from.y)};
  double least = HUGE_VAL;
  for (const Series& series : from.series) {
    for (const Estimate& y : series.y) {
      if (fits(from.y, y.value)) least = std::min(least, y.value);
    }
  }
  for (const Series& series : from.series) {
    chart.series.push_back(series_of(from, series, least));
    if (chart.series.back().x.empty()) chart.series.pop_back();
  }
  return chart;
}

report::ChartSheet sheet_of(const std::string& name, const std::string& asks,
                            const Result& result) {
  report::ChartSheet sheet{.title = "foci theory --experiment " + name, .about = asks};
  for (const Chart& from : result.charts) {
    sheet.about += fmt::format(" {}: {} over {}.", from.title, from.y.name, from.x.name);
    sheet.charts.push_back(chart_of(from));
    if (sheet.charts.back().series.empty()) sheet.charts.pop_back();
  }
  return sheet;
}

}  // namespace

int run_experiment(const Theory& verb) {
  const Words& words = verb.words;
  const Experiment experiment = experiment_of(words);
  const std::string name = words.at("experiment");
  const std::string asks =
      std::visit([](const auto& of) { return std::string(of.asks); }, experiment);
  Executor threads(verb.common.threads);
  Remarks remarks;
  const Result result = experiments::run(experiment, verb.common.seed, &threads);
  if (words.count("svg") > 0)
    write_picture(words.at("svg"), report::draw(sheet_of(name, asks, result)));
  if (verb.common.json) {
    Json all{{"experiment", name},
             {"asks", asks},
             {"seed", verb.common.seed},
             {"threads", threads.threads()}};
    std::visit(
        [&](const auto& of) {
          all["dim"] = of.dim;
          all["runs"] = of.runs;
          if constexpr (requires { of.keys; }) all["keys"] = of.keys;
          if constexpr (requires { of.noise; }) all["noise"] = of.noise;
          if constexpr (requires { of.layers; }) all["layers"] = of.layers;
        },
        experiment);
    all.update(json_of(result));
    all["flags"] = remarks.json();
    print_json(all);
    return 0;
  }
  if (words.count("markdown") > 0) {
    print_markdown(result.table);
    return 0;
  }
  if (!verb.common.quiet) fmt::print("{}\n\n", asks);
  print_table(result.table);
  if (words.count("svg") > 0 && !verb.common.quiet) fmt::print("\n{}\n", words.at("svg"));
  remarks.print();
  return 0;
}

void refuse_experiment_flags(const Words& words) {
  for (const char* flag : {"runs", "noise", "layers", "svg", "markdown"}) {
    if (words.count(flag) == 0) continue;
    throw Misuse(fmt::format("--{} belongs to experiments: it needs --experiment NAME", flag),
                 "--curve FILE draws a closed form");
  }
}

}  // namespace foci::cli
