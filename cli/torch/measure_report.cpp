// SPDX-License-Identifier: Apache-2.0
// A table row, a JSON field and a Record of each number come from one list of its names.
#include "cli/torch/measure_report.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"

#include <fmt/core.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cmath>

namespace foci::cli {
namespace {

using measure::Health;
using measure::Layer;
using measure::Rows;
using measure::Tokens;
using measure::Value;

template <class Of, class Number>
struct Named {
  const char *name, *head, *unit;
  Number Of::*at;
};

constexpr Named<Rows, Value> rows[] = {
    {"concentration", "concentration", "", &Rows::concentration},
    {"effective_keys", "eff. keys", "keys", &Rows::effective_keys},
    {"entropy", "entropy", "nats", &Rows::entropy},
    {"largest", "largest", "", &Rows::largest},
    {"distance", "distance", "places", &Rows::distance},
    {"top_mass", "top mass", "share", &Rows::top},
};
constexpr Named<Layer, Value> whole[] = {
    {"head_distance", "heads apart", "", &Layer::head_distance},
    {"rollout_keys", "rollout keys", "keys", &Layer::rollout_keys},
    {"key_change", "key change", "", &Layer::key_change},
};
constexpr Named<Tokens, Value> tokens[] = {
    {"cosine", "cosine", "", &Tokens::cosine},
    {"high_low", "HFC/LFC", "", &Tokens::high_low},
    {"residual", "residual", "", &Tokens::residual},
    {"dirichlet", "Dirichlet", "", &Tokens::dirichlet},
    {"dirichlet_relative", "by |X|^2", "", &Tokens::dirichlet_relative},
    {"effective_rank", "eff. rank", "", &Tokens::effective_rank},
    {"effective_rank_squares", "of squares", "", &Tokens::effective_rank_squares},
    {"stable_rank", "stable rank", "", &Tokens::stable_rank},
    {"participation", "participation", "", &Tokens::participation},
};
constexpr Named<Health, double> health[] = {
    {"least", "least", "", &Health::least},
    {"most", "most", "", &Health::most},
    {"mean", "mean", "", &Health::mean},
    {"variation", "CV", "", &Health::variation},
    {"anisotropy", "max/mean", "", &Health::anisotropy},
    {"condition", "condition", "", &Health::condition},
    {"entropy", "entropy", "", &Health::entropy},
    {"at_floor", "at floor", "share", &Health::at_floor},
    {"drift", "drift", "", &Health::drift},
};

std::string cell(const Value& value) { return value.n == 0 ? "-" : number_text(value.mean); }

Json json_of(const Value& value) {
  if (value.n == 0) return nullptr;
  return {{"mean", value.mean}, {"error", value.error}, {"n", value.n}};
}

Json json_of(const Rows& of) {
  Json json = Json::object();
  for (const auto& field : rows) json[field.name] = json_of(of.*field.at);
  return json;
}

Json json_of(const Tokens& of) {
  Json json = Json::object();
  for (const auto& field : tokens) json[field.name] = json_of(of.*field.at);
  return json;
}

/// {name: (H,N)}; null for a number that no row has, and in place of those of rows that have none.
Json queries_json(const at::Tensor& by_query) {
  Json json = Json::object();
  const at::Tensor x = by_query.contiguous();
  for (std::int64_t i = 0; i < x.size(0); ++i) {
    json[rows[i].name] = nullptr;
    if (x[i].isnan().all().item<bool>()) continue;
    Json heads = Json::array();
    for (std::int64_t h = 0; h < x.size(1); ++h) {
      const auto* row = x.data_ptr<double>() + (i * x.size(1) + h) * x.size(2);
      heads.push_back(std::vector<double>(row, row + x.size(2)));
    }
    json[rows[i].name] = heads;
  }
  return json;
}

Json json_of(const Layer& layer, std::int64_t index, const MeasurePlan& plan) {
  Json json{{"layer", index},
            {"heads", layer.heads},
            {"queries", layer.queries},
            {"keys", layer.keys},
            {"mechanism", layer.mechanism}};
  if (plan.attention) {
    json.update(json_of(layer.rows));
    for (const auto& field : whole) json[field.name] = json_of(layer.*field.at);
    Json heads = Json::array();
    for (const Rows& head : layer.by_head) heads.push_back(json_of(head));
    json["by_head"] = heads;
    json["looked"] = layer.looked;
    if (layer.by_query.defined()) json["by_query"] = queries_json(layer.by_query);
  }
  if (plan.metric && layer.metric) {
    Json metric = Json::object();
    Json errors = Json::object();
    for (const auto& field : health) {
      metric[field.name] = (*layer.metric).*field.at;
      const double error = (*layer.metric_error).*field.at;
      if (std::isfinite(error)) errors[field.name] = error;
    }
    metric["error"] = errors;
    metric["n"] = layer.metric_samples;
    json["metric"] = metric;
  }
  if (plan.tokens) json["tokens"] = json_of(layer.tokens);
  return json;
}

template <class List>
std::vector<std::string> heads_of(const char* first, const List& fields) {
  std::vector<std::string> head = {first};
  for (const auto& field : fields) head.emplace_back(field.head);
  return head;
}

void print_attention(const measure::Report& report, const MeasurePlan& plan) {
  std::vector<std::string> head = heads_of("layer", rows);
  for (const auto& field : whole) head.emplace_back(field.head);
  Table table(head);
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    const Layer& layer = report.layers[i];
    std::vector<std::string> row = {std::to_string(i)};
    for (const auto& field : rows) row.push_back(cell(layer.rows.*field.at));
    for (const auto& field : whole) row.push_back(cell(layer.*field.at));
    table.add(row);
    for (std::size_t h = 0; plan.per == Per::head && h < layer.by_head.size(); ++h) {
      std::vector<std::string> own = {fmt::format("  head {}", h)};
      for (const auto& field : rows) own.push_back(cell(layer.by_head[h].*field.at));
      own.resize(head.size());
      table.add(own);
    }
  }
  table.print();
  for (std::size_t i = 0; i < report.layers.size(); ++i) {
    const Layer& layer = report.layers[i];
    if (layer.looked == 0 || layer.looked >= layer.queries) continue;
    fmt::print(
        "layer {}: distance, top mass and heads apart are of {} of {} queries, evenly spread\n", i,
        layer.looked, layer.queries);
  }
}

void print_tokens(const measure::Report& report) {
  Table table(heads_of("tokens after", tokens));
  const auto add = [&](const std::string& name, const Tokens& of) {
    if (of.cosine.n == 0) return;
    std::vector<std::string> row = {name};
    for (const auto& field : tokens) row.push_back(cell(of.*field.at));
    table.add(row);
  };
  add("embedding", report.embedded);
  for (std::size_t i = 0; i < report.layers.size(); ++i)
    add(fmt::format("layer {}", i), report.layers[i].tokens);
  table.print();
}

void print_metric(const Found& found) {
  std::vector<std::string> head = heads_of("metric of", health);
  if (!found.drift.empty()) head.emplace_back("since before");
  Table table(head);
  for (std::size_t i = 0; i < found.report.layers.size(); ++i) {
    const Layer& layer = found.report.layers[i];
    if (!layer.metric) continue;
    std::vector<std::string> row = {fmt::format("layer {}", i)};
    for (const auto& field : health) row.push_back(number_text((*layer.metric).*field.at));
    if (!found.drift.empty()) row.push_back(number_text(found.drift[i]));
    table.add(row);
  }
  table.print();
}

/// The mean over layers that have the number; errors add as those of independent ones do not, so
/// there is none.
std::string mean_cell(const measure::Report& report, const Value& (*of)(const Layer&)) {
  double sum = 0;
  std::int64_t count = 0;
  for (const Layer& layer : report.layers) {
    if (of(layer).n == 0) continue;
    sum += of(layer).mean;
    ++count;
  }
  return count == 0 ? "-" : number_text(sum / double(count));
}

std::int64_t number_or(const Words& words, const char* flag, std::int64_t standard) {
  const auto found = words.find(flag);
  return found == words.end() ? standard : to_count(found->second);
}

bool has_tokens(const measure::Report& report) {
  return std::any_of(report.layers.begin(), report.layers.end(),
                     [](const Layer& layer) { return layer.tokens.cosine.n > 0; });
}

bool has_metric(const measure::Report& report) {
  return std::any_of(report.layers.begin(), report.layers.end(),
                     [](const Layer& layer) { return layer.metric.has_value(); });
}

}  // namespace

MeasurePlan measure_plan(const Words& words, const Common& common) {
  MeasurePlan plan;
  plan.samples = number_or(words, "samples", plan.samples);
  plan.batch = number_or(words, "batch", plan.batch);
  plan.options.closely = number_or(words, "closely", plan.options.closely);
  plan.options.top = number_or(words, "top", plan.options.top);
  plan.options.spectrum.seed = common.seed;
  const auto per = words.find("per");
  if (per != words.end()) plan.per = per->second == "head" ? Per::head : Per::query;
  if (per != words.end() && per->second == "layer") plan.per = Per::layer;
  plan.options.queries = plan.per == Per::query;
  const auto what = words.find("what");
  if (what == words.end() || what->second == "all") return plan;
  plan.attention = plan.tokens = plan.metric = false;
  const std::vector<std::string> known = {"attention", "tokens", "metric"};
  for (const std::string& word : split(what->second, ',')) {
    if (std::find(known.begin(), known.end(), word) == known.end()) {
      throw Misuse(fmt::format("--what '{}' is no table{}", shown(word), suggestion(word, known)),
                   "all, or " + listed(known));
    }
    (word == "attention" ? plan.attention : word == "tokens" ? plan.tokens : plan.metric) = true;
  }
  return plan;
}

void print_tables(const Found& found, const MeasurePlan& plan) {
  const bool tokens = plan.tokens && has_tokens(found.report);
  if (plan.attention) print_attention(found.report, plan);
  if (tokens && plan.attention) fmt::print("\n");
  if (tokens) print_tokens(found.report);
  if (!plan.metric || !has_metric(found.report)) return;
  if (tokens || plan.attention) fmt::print("\n");
  print_metric(found);
}

void print_beside(const std::vector<Found>& found) {
  Table table({"means over layers", "concentration", "eff. keys", "entropy", "distance",
               "heads apart", "cosine", "eff. rank", "last cosine", "last eff. rank"});
  for (const Found& one : found) {
    const measure::Report& r = one.report;
    table.add({one.what->name,
               mean_cell(r, [](const Layer& l) -> const Value& { return l.rows.concentration; }),
               mean_cell(r, [](const Layer& l) -> const Value& { return l.rows.effective_keys; }),
               mean_cell(r, [](const Layer& l) -> const Value& { return l.rows.entropy; }),
               mean_cell(r, [](const Layer& l) -> const Value& { return l.rows.distance; }),
               mean_cell(r, [](const Layer& l) -> const Value& { return l.head_distance; }),
               mean_cell(r, [](const Layer& l) -> const Value& { return l.tokens.cosine; }),
               mean_cell(r, [](const Layer& l) -> const Value& { return l.tokens.effective_rank; }),
               cell(r.layers.back().tokens.cosine), cell(r.layers.back().tokens.effective_rank)});
  }
  table.print();
}

Json json_of(const Found& found, const MeasurePlan& plan) {
  Json layers = Json::array();
  for (std::size_t i = 0; i < found.report.layers.size(); ++i) {
    layers.push_back(json_of(found.report.layers[i], std::int64_t(i), plan));
    if (!found.drift.empty() && layers.back().contains("metric"))
      layers.back()["metric"]["drift_steps"] = found.drift[i];
  }
  Json json{{"subject", found.what->name},
            {"weights", found.what->weights.empty() ? Json(nullptr) : Json(found.what->weights)},
            {"samples", found.report.samples},
            {"of", found.of},
            {"layers", layers}};
  if (plan.tokens) json["embedded"] = json_of(found.report.embedded);
  return json;
}

std::vector<NamedValue> values_of(const Found& found, const MeasurePlan& plan) {
  std::vector<NamedValue> all;
  const auto add = [&](const auto& field, const auto& of, const std::string& where) {
    const Value& value = of.*field.at;
    if (value.n > 0) all.push_back({fmt::format("{} {}", field.name, where), field.unit, value});
  };
  if (plan.tokens) {
    for (const auto& field : tokens) add(field, found.report.embedded, "embedding");
  }
  for (std::size_t i = 0; i < found.report.layers.size(); ++i) {
    const Layer& layer = found.report.layers[i];
    const std::string where = fmt::format("layer {}", i);
    if (plan.attention) {
      for (const auto& field : rows) add(field, layer.rows, where);
      for (const auto& field : whole) add(field, layer, where);
    }
    if (plan.tokens) {
      for (const auto& field : tokens) add(field, layer.tokens, where);
    }
    if (!plan.metric || !layer.metric) continue;
    for (const auto& field : health) {
      const Value value{(*layer.metric).*field.at, (*layer.metric_error).*field.at,
                        layer.metric_samples};
      all.push_back({fmt::format("metric_{} {}", field.name, where), field.unit, value});
    }
  }
  return all;
}

}  // namespace foci::cli
