// SPDX-License-Identifier: Apache-2.0
// Curves, numbers by layer and maps of results.json.
#include "cli/compare_parts.hpp"
#include "cli/suggest.hpp"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <map>
#include <set>

namespace foci::cli {

Json number_json(double value) { return std::isfinite(value) ? Json(value) : Json(); }

const Record* find_record(const RunFound& found, const std::string& name) {
  const auto newest = std::find_if(found.records.rbegin(), found.records.rend(),
                                   [&](const Record& record) { return record.name == name; });
  return newest == found.records.rend() ? nullptr : &*newest;
}

bool clean_is_of_all_attacked(const Comparison& all) {
  for (const ComparedRun& run : all.runs) {
    const Record* clean = find_record(run.found, "clean");
    if (clean == nullptr) continue;
    for (const Record& record : run.found.records) {
      const Record* newest = find_record(run.found, record.name);
      if (record.name.starts_with("robust ") && newest->n != clean->n) return false;
    }
  }
  return true;
}

const ComparedRun* find_run(const Comparison& all, const std::string& mechanism,
                            std::uint64_t seed) {
  for (const ComparedRun& run : all.runs) {
    if (run.state.mechanism == mechanism && run.state.seed == seed) return &run;
  }
  return nullptr;
}

std::pair<double, std::string> eps_of(const std::string& text) {
  const std::size_t slash = text.find('/');
  return {std::strtod(text.c_str(), nullptr), slash == text.npos ? "" : text.substr(slash)};
}

double eps_in(const std::string& record) {
  const auto parts = split(record, ' ');
  if (parts[0] != "robust" || parts.size() < 3) return 0;
  const auto [above, below] = eps_of(parts[2]);
  return below.empty() ? above : above / std::strtod(below.c_str() + 1, nullptr);
}

std::vector<std::string> record_names(const Comparison& all) {
  std::vector<std::string> names;
  for (const ComparedRun& run : all.runs) {
    for (const Record& record : run.found.records) {
      if (measure_kind(record.name) &&
          std::find(names.begin(), names.end(), record.name) == names.end())
        names.push_back(record.name);
    }
  }
  return names;
}

namespace {

constexpr double no_number = std::numeric_limits<double>::quiet_NaN();

/// Mean over the seeds that have one.
Json means_json(const Json& values) {
  std::vector<double> there;
  for (const Json& value : values) {
    if (value.is_number()) there.push_back(value.get<double>());
  }
  return number_json(compare::summary_of(there).mean);
}

/// By mechanism, values a seed of one Record.
Json by_seed(const Comparison& all, const std::string& record, bool is_error) {
  Json out = Json::object();
  for (const ComparedMechanism& mechanism : all.mechanisms) {
    out[mechanism.name] = Json::array();
    for (const std::uint64_t seed : all.seeds) {
      const ComparedRun* run = find_run(all, mechanism.name, seed);
      const Record* found = run == nullptr ? nullptr : find_record(run->found, record);
      const double value = found == nullptr ? no_number : found->value;
      out[mechanism.name].push_back(number_json(is_error ? 1 - value : value));
    }
  }
  return out;
}

/// Puts a point behind the curves of each mechanism.
void add_point(Json& curve, const Json& point) {
  for (const auto& [mechanism, values] : point.items()) {
    curve["values"][mechanism].push_back(values);
    curve["mean"][mechanism].push_back(means_json(values));
  }
}

/// Names of robust accuracy and of its parts, smallest eps first.
std::vector<std::string> robust_names(const Comparison& all) {
  std::vector<std::string> names;
  std::set<std::string> seen;
  for (const ComparedRun& run : all.runs) {
    for (const Record& record : run.found.records) {
      if (record.name.starts_with("robust ") && seen.insert(record.name).second)
        names.push_back(record.name);
    }
  }
  std::stable_sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return eps_in(a) < eps_in(b);
  });
  return names;
}

/// A curve for all attacks together, and one for each that came before them.
Json robustness_json(const Comparison& all) {
  const bool with_clean = clean_is_of_all_attacked(all);
  std::map<std::string, Json> curves;  // "linf: all" -> curve
  std::vector<std::string> order;
  for (const std::string& name : robust_names(all)) {
    const auto parts = split(name, ' ');
    const bool part = parts.size() == 5 && parts[3] == "1.";
    if (parts.size() != 3 && !part) continue;
    const std::string attack = part ? parts[4] : "all attacks";
    const std::string key = parts[1] + ": " + attack;
    const auto [eps, unit] = eps_of(parts[2]);
    if (curves.count(key) == 0) {
      curves[key] = {
          {"attack", attack}, {"norm", parts[1]}, {"eps", Json::array()}, {"unit", unit}};
      if (with_clean) {
        curves[key]["eps"].push_back(0);
        add_point(curves[key], by_seed(all, "clean", false));
      }
      order.push_back(key);
    }
    curves[key]["eps"].push_back(eps);
    add_point(curves[key], by_seed(all, name, false));
  }
  Json list = Json::array();
  for (const std::string& key : order) list.push_back(curves[key]);
  return list;
}

Json corruptions_json(const Comparison& all) {
  std::map<std::string, Json> bars;
  std::vector<std::string> order;
  for (const std::string& record : record_names(all)) {
    const MeasureKind kind = *measure_kind(record);
    if (kind.group != "corruption") continue;
    std::string name = record.substr(record.find('_') + 1);
    int severity = 0;
    if (name.size() > 2 && name[name.size() - 2] == '_' && std::isdigit(name.back()) != 0) {
      severity = name.back() - '0';
      name.resize(name.size() - 2);
    }
    if (bars.count(name) == 0) {
      bars[name] = {{"name", name}, {"unit", kind.unit}, {"severity", Json::array()}};
      order.push_back(name);
    }
    bars[name]["severity"].push_back(severity);
    add_point(bars[name], by_seed(all, record, kind.is_error));
  }
  Json list = Json::array();
  for (const std::string& name : order) list.push_back(bars[name]);
  return list;
}

Json training_json(const Comparison& all) {
  Json curves = Json::object();
  for (const ComparedMechanism& mechanism : all.mechanisms) {
    curves[mechanism.name] = Json::array();
    for (const ComparedRun& run : all.runs) {
      if (run.state.mechanism != mechanism.name || !run.curve.contains("step")) continue;
      Json curve{{"seed", run.state.seed}};
      curve.update(run.curve);
      curves[mechanism.name].push_back(curve);
    }
  }
  return curves;
}

}  // namespace

Json curves_json(const Comparison& all) {
  return {{"training", training_json(all)},
          {"robustness", robustness_json(all)},
          {"corruptions", corruptions_json(all)}};
}

std::vector<double> by_layer(const RunFound& found, const std::string& name) {
  std::vector<double> values;
  for (;;) {
    const Record* record = find_record(found, name + " layer " + std::to_string(values.size()));
    if (record == nullptr) return values;
    values.push_back(record->value);
  }
}

Json layers_json(const Comparison& all) {
  static const std::vector<std::pair<std::string, std::string>> kinds = {
      {"concentration", "Concentration"},
      {"effective_keys", "Effective keys"},
      {"entropy", "Entropy of the weights"},
      {"distance", "How far attention looks"},
      {"head_distance", "How far heads are apart"},
      {"cosine", "Mean cosine between tokens"},
      {"effective_rank", "Effective rank of the tokens"},
      {"high_low", "High to low frequencies"}};
  Json list = Json::array();
  for (const auto& [name, title] : kinds) {
    Json one{{"name", name}, {"title", title + ", by layer"}, {"better", "neither"}};
    bool some = false;
    for (const ComparedMechanism& mechanism : all.mechanisms) {
      Json& values = one["values"][mechanism.name] = Json::array();
      std::vector<std::vector<double>> columns;
      for (const std::uint64_t seed : all.seeds) {
        const ComparedRun* run = find_run(all, mechanism.name, seed);
        const auto layers = run == nullptr ? std::vector<double>() : by_layer(run->found, name);
        values.push_back(layers.empty() ? Json() : Json(layers));
        some = some || !layers.empty();
        columns.resize(std::max(columns.size(), layers.size()));
        for (std::size_t i = 0; i < layers.size(); ++i) columns[i].push_back(layers[i]);
      }
      Json& mean = one["mean"][mechanism.name] = Json::array();
      for (const auto& column : columns)
        mean.push_back(number_json(compare::summary_of(column).mean));
    }
    if (some) list.push_back(one);
  }
  return list;
}

Json maps_json(const Comparison& all) {
  Json list = Json::array();
  for (const ComparedRun& run : all.runs) {
    for (std::size_t i = 0; i < run.found.maps.size(); ++i) {
      const Json& map = run.found.maps[i];
      if (i >= list.size()) list.push_back(map), list.back()["weights"] = Json::object();
      if (!list[i]["weights"].contains(run.state.mechanism) && map.contains("weights"))
        list[i]["weights"][run.state.mechanism] = map["weights"];
    }
  }
  return list;
}

namespace {

/// How much the two coordinates of a panel differ for its metric: 1 where they count the same.
double unlikeness(const Json& ellipse) {
  const double a = ellipse["metric"][0][0], b = ellipse["metric"][1][1];
  return std::max(a, b) / std::max(std::min(a, b), 1e-12);
}

/// The panel of another pair of coordinates.
void turn_to(Json& ellipse, const Json& axes) {
  const Json& space = ellipse.at("space");
  const std::size_t a = axes[0], b = axes[1];
  const auto two = [&](const Json& all) { return Json::array({all.at(a), all.at(b)}); };
  Json keys = Json::array();
  for (const Json& key : space.at("keys")) keys.push_back(two(key));
  const Json &m = space.at("metric"), metric = Json::array({two(m.at(a)), two(m.at(b))});
  const Json query = two(space.at("query"));
  ellipse["axes"] = axes, ellipse["keys"] = keys, ellipse["query"] = query;
  ellipse["metric"] = metric;
}

/// Panels of one layer and head show one pair of coordinates: that which some metric tells apart
/// most. Of runs of an older version each has its own.
void share_axes(Json& list) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Json*>> places;
  for (Json& one : list) {
    if (one.contains("axes")) places[{one.value("layer", 0), one.value("head", 0)}].push_back(&one);
  }
  for (auto& [place, panels] : places) {
    const auto least = [](const Json* a, const Json* b) { return unlikeness(*a) < unlikeness(*b); };
    const Json axes = (*std::max_element(panels.begin(), panels.end(), least))->at("axes");
    const bool known = std::all_of(panels.begin(), panels.end(),
                                   [](const Json* one) { return one->contains("space"); });
    for (Json* one : panels) {
      if (known) turn_to(*one, axes);
      one->erase("space");
    }
  }
}

}  // namespace

Json ellipses_json(const Comparison& all) {
  Json list = Json::array();
  std::set<std::string> seen;
  for (const ComparedRun& run : all.runs) {
    if (run.found.ellipses.empty() || !seen.insert(run.state.mechanism).second) continue;
    for (Json ellipse : run.found.ellipses) {
      ellipse["mechanism"] = run.state.mechanism;
      list.push_back(ellipse);
    }
  }
  share_axes(list);
  return list;
}

}  // namespace foci::cli
