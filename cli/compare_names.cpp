// SPDX-License-Identifier: Apache-2.0
// Names of mechanisms and of durations.
#include "cli/compare_plan.hpp"

#include "cli/misuse.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <map>

namespace foci::cli {
namespace {

const Flag* train_flag(std::string_view name) {
  for (const Flag& flag : find_verb("train")->flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

/// Flags that may follow a metric.
std::vector<std::string> mechanism_flags() {
  std::vector<std::string> names = {"weighting", "metric-layers"};
  for (const Flag& flag : find_verb("train")->flags) {
    if (is_of_mechanism(flag.name)) names.emplace_back(flag.name);
  }
  return names;
}

}  // namespace

Contender contender_of(const std::string& name) {
  const auto parts = split(name, ':');
  const auto metrics = choices(train_flag("metric")->values);
  if (std::find(metrics.begin(), metrics.end(), parts[0]) == metrics.end()) {
    throw Misuse(fmt::format("--mechanisms does not know '{}'{}", shown(parts[0]),
                             suggestion(parts[0], metrics)),
                 "metrics with commas: " + listed(metrics));
  }
  Contender contender{name, {{"metric", parts[0]}}};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    // A colon may belong to the value: metric-layers=1:
    if (parts[i].find('=') == std::string::npos && i > 1) {
      contender.words["metric-layers"] += ":" + parts[i];
      continue;
    }
    const std::size_t equals = parts[i].find('=');
    const std::string flag = parts[i].substr(0, equals);
    const auto known = mechanism_flags();
    if (std::find(known.begin(), known.end(), flag) == known.end()) {
      throw Misuse(fmt::format("--mechanisms {}: '{}' is no flag of a mechanism{}", shown(name),
                               shown(flag), suggestion(flag, known)),
                   "as in layer-change:form=distance");
    }
    contender.words[flag] = equals == std::string::npos ? "true" : parts[i].substr(equals + 1);
  }
  for (const auto& [flag, value] : contender.words) {
    if (flag != "metric-layers") check_value(*train_flag(flag), value);
  }
  if (contender.words.count("metric-layers") > 0)
    check_value(*train_flag("metric-layers"), contender.words.at("metric-layers"));
  return contender;
}

double seconds_of(const std::string& text) {
  static const std::map<char, double> units = {{'s', 1}, {'m', 60}, {'h', 3600}, {'d', 86400}};
  double seconds = 0;
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t end = text.find_first_not_of("0123456789.", at);
    const double number = to_number(std::string_view(text).substr(at, end - at));
    const auto unit = end == std::string::npos ? units.end() : units.find(text[end]);
    if (!(number >= 0) || unit == units.end()) break;
    seconds += number * unit->second;
    at = end + 1;
  }
  if (at >= text.size() && seconds > 0) return seconds;
  throw Misuse(fmt::format("--budget '{}' is no time", shown(text)), "as in 90s, 8m, 1h or 1h30m");
}

std::string duration_text(double seconds) {
  const std::int64_t whole = std::llround(seconds);
  if (whole < 60) return fmt::format("{}s", whole);
  const std::string rest = whole % 60 > 0 ? fmt::format("{}s", whole % 60) : "";
  if (whole < 3600) return fmt::format("{}m{}", whole / 60, rest);
  return fmt::format("{}h{}", whole / 3600,
                     whole / 60 % 60 > 0 ? fmt::format("{}m", whole / 60 % 60) : "");
}

bool is_control(const Contender& contender) {
  const std::string& metric = contender.words.at("metric");
  return metric == "flat" || metric == "random";
}

std::string about(const Contender& contender) {
  static const std::map<std::string, std::string> sentences = {
      {"dot", "plain attention"},
      {"flat", "control: layer-change's temperature without its shape"},
      {"random", "control: a metric drawn at random"},
      {"layer-change", "directions count by how much values move between layers"},
      {"jacobian", "directions count by how much the output turns with the query"},
      {"key-covariance", "distances in the geometry of the keys' covariance"},
      {"learned", "a diagonal metric that is trained"},
      {"learned-full", "a full metric that is trained"},
  };
  std::string text = sentences.at(contender.words.at("metric"));
  for (const auto& [flag, value] : contender.words) {
    const bool usual = flag == "metric" || (flag == "weighting" && value == "softmax");
    if (!usual) text += fmt::format(", {} {}", flag, value);
  }
  return text;
}

}  // namespace foci::cli
