// SPDX-License-Identifier: Apache-2.0
// Mechanism flags to foci::Options and back, in the library's own words (settings.hpp).
#include "cli/mechanism.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <foci/attention.hpp>
#include <foci/settings.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <variant>

namespace foci::cli {
namespace {

constexpr std::string_view metric_only[] = {"form",       "reduce", "normalize", "scope",
                                            "allow-leak", "ridge",  "prior",     "period",
                                            "floor",      "layer",  "given",     "metric-grad"};
constexpr std::string_view weighting_only[] = {"feature", "rate", "content", "rescale"};
/// In the order in which they are written out.
constexpr std::string_view of_metric[] = {"form",   "reduce",     "normalize",  "ridge", "prior",
                                          "floor",  "layer",      "seed",       "given", "scope",
                                          "period", "allow-leak", "metric-grad"};
constexpr std::string_view of_weighting[] = {"feature", "rescale", "rate", "content"};

/// What the library calls the setting of a flag.
std::string setting_of(std::string_view flag) {
  if (flag == "given") return "extent";
  std::string name(flag);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

const std::string* text_of(const Words& words, std::string_view flag) {
  const auto found = words.find(std::string(flag));
  return found == words.end() ? nullptr : &found->second;
}

template <class Variant>
std::string chosen_name(const Words& words, std::string_view flag) {
  const std::string* text = text_of(words, flag);
  return std::string(text ? *text : std::variant_alternative_t<0, Variant>::name);
}

bool fits(const std::string& choice, std::string_view flag) {
  const auto names = foci::owners(setting_of(flag));
  return std::find(names.begin(), names.end(), choice) != names.end();
}

template <std::size_t count>
void refuse_misfits(const Words& words, const std::string& choice, std::string_view kind,
                    const std::string_view (&flags)[count]) {
  for (const std::string_view flag : flags) {
    const std::string* text = text_of(words, flag);
    if (text == nullptr || *text == "false" || fits(choice, flag)) continue;
    throw Misuse(fmt::format("--{} belongs to --{} {}; the {} is {}", flag, kind,
                             listed(owners(flag)), kind, choice));
  }
}

/// The words that are settings of the mechanism; those left at "false" belong everywhere.
Settings settings_in(const Words& words, const std::string& metric, const std::string& weighting) {
  Settings settings{{"metric", metric}, {"weighting", weighting}};
  const auto take = [&](std::string_view flag) {
    if (const std::string* text = text_of(words, flag)) settings[setting_of(flag)] = *text;
  };
  for (const std::string_view flag : of_metric) {
    if (fits(metric, flag)) take(flag);
  }
  for (const std::string_view flag : of_weighting) {
    if (fits(weighting, flag)) take(flag);
  }
  for (const char* flag : {"causal", "backend", "scale"}) take(flag);
  return settings;
}

/// A setting's text as JSON has it: numbers as numbers.
Json typed(std::string_view flag, const std::string& text) {
  if (text == "true" || text == "false") return text == "true";
  for (const std::string_view real : {"ridge", "prior", "floor", "rate"}) {
    if (flag == real) return to_number(text);
  }
  if (flag == "layer" || flag == "period") return to_count(text);
  if (flag == "seed") return std::stoull(text);
  return text;
}

/// What the library leaves open, as it applies to head size D.
void resolve(Settings& settings, const Options& how, std::int64_t D) {
  const bool prefix = scope_of(how) == Scope::prefix;
  if (is_full(how.metric)) settings.erase("form");
  if (!is_estimated(how.metric)) return;
  settings["scope"] = prefix ? "prefix" : "sequence";
  if (!prefix) settings.erase("period");
  if (!how.allow_leak) settings.erase("allow_leak");
  const bool covariance = std::holds_alternative<KeyCovariance>(how.metric);
  settings.emplace("metric_grad", covariance ? "through" : "detached");
  if (covariance) settings.emplace("prior", fmt::format("{}", prefix ? double(D) : 0.0));
}

}  // namespace

Options options_of(const Words& words) {
  const std::string metric = chosen_name<Metric>(words, "metric"),
                    weighting = chosen_name<Weighting>(words, "weighting");
  refuse_misfits(words, metric, "metric", metric_only);
  refuse_misfits(words, weighting, "weighting", weighting_only);
  const Options how = foci::options_of(settings_in(words, metric, weighting));
  if (text_of(words, "period") != nullptr && scope_of(how) != Scope::prefix) {
    throw Misuse("--period belongs to --scope prefix; the scope is sequence",
                 "prefix is the scope of causal calls: add --causal");
  }
  if (text_of(words, "form") != nullptr && is_full(how.metric)) {
    throw Misuse("--form belongs to diagonal metrics; --given full is a distance by itself");
  }
  return how;
}

std::optional<DType> dtype_of_words(const Words& words) {
  const std::string* text = text_of(words, "dtype");
  if (text == nullptr) return {};
  for (const DType dtype : {DType::f64, DType::f32, DType::bf16, DType::f16}) {
    if (*text == name_of(dtype)) return dtype;
  }
  return DType::f32;
}

std::vector<std::string> owners(std::string_view flag) {
  if (flag == "seed") return {};  // everything that is drawn at random has it
  const auto names = foci::owners(setting_of(flag));
  return {names.begin(), names.end()};
}

Words overruled(const Words& stored, const Words& given) {
  Words words = stored;
  for (const auto& [flag, text] : given) words[flag] = text;
  const std::string metric = chosen_name<Metric>(words, "metric"),
                    weighting = chosen_name<Weighting>(words, "weighting");
  for (const auto& [flag, text] : stored) {
    if (given.count(flag) > 0 || owners(flag).empty()) continue;
    if (!fits(metric, flag) && !fits(weighting, flag)) words.erase(flag);
  }
  return words;
}

Json resolved(const Options& how, std::int64_t D) {
  Settings settings = settings_of(how);
  resolve(settings, how, D);
  Json flags;
  const auto add = [&](std::string_view flag) {
    const auto found = settings.find(setting_of(flag));
    if (found != settings.end()) flags[std::string(flag)] = typed(flag, found->second);
  };
  add("metric");
  for (const std::string_view flag : of_metric) add(flag);
  add("weighting");
  for (const std::string_view flag : of_weighting) add(flag);
  const bool one = is_full(how.metric) || std::holds_alternative<Linear>(how.weighting);
  if (const double* scale = std::get_if<double>(&how.scale)) {
    flags["scale"] = *scale;
  } else if (std::holds_alternative<MatchDot>(how.scale)) {
    flags["scale"] = "auto";
  } else {
    flags["scale"] = one ? 1.0 : 1.0 / std::sqrt(double(D));
  }
  flags["causal"] = how.causal;
  return flags;
}

std::string described(const Options& how, std::int64_t D) {
  std::vector<std::string> metric, weighting;
  const Json flags = resolved(how, D);
  for (const auto& [name, value] : flags.items()) {
    if (name == "metric" || name == "weighting" || value == false) continue;
    const std::string text = value.is_string()         ? value.get<std::string>()
                             : value.is_number_float() ? fmt::format("{:.6g}", value.get<double>())
                                                       : value.dump();
    const std::string part = value == true ? name : fmt::format("{} {}", name, text);
    const bool by_metric =
        std::find(std::begin(of_metric), std::end(of_metric), name) != std::end(of_metric);
    (by_metric ? metric : weighting).push_back(part);
  }
  const auto bracketed = [](const std::vector<std::string>& parts) {
    return parts.empty() ? std::string() : fmt::format(" ({})", listed(parts));
  };
  return fmt::format("{}{} with {}{}", metric_name(how.metric), bracketed(metric),
                     weighting_name(how.weighting), bracketed(weighting));
}

std::string backend_name(const Options& how, DType dtype) {
  if (const Settings said = settings_of(how); said.contains("backend")) return said.at("backend");
  for (const Support& cell : support()) {
    if (dtype != DType::f64 && cell.supported && cell.backend == "cpu" &&
        cell.metric == metric_name(how.metric) && cell.weighting == weighting_name(how.weighting)) {
      return "cpu";
    }
  }
  return "ref";
}

std::string metric_name(const Metric& metric) {
  return std::visit([](const auto& m) { return std::string(m.name); }, metric);
}

std::string weighting_name(const Weighting& weighting) {
  return std::visit([](const auto& w) { return std::string(w.name); }, weighting);
}

bool uses_v_prev(const Metric& metric) {
  return std::holds_alternative<LayerChange>(metric) || std::holds_alternative<Flat>(metric);
}

bool is_full(const Metric& metric) {
  const Given* given = std::get_if<Given>(&metric);
  return std::holds_alternative<KeyCovariance>(metric) ||
         (given != nullptr && given->extent == Extent::full);
}

bool is_estimated(const Metric& metric) { return fits(metric_name(metric), "scope"); }

bool has_entropy(const Weighting& weighting) {
  const Decay* decay = std::get_if<Decay>(&weighting);
  return std::holds_alternative<Softmax>(weighting) || std::holds_alternative<Linear>(weighting) ||
         (decay != nullptr && !decay->content);
}

Scope scope_of(const Options& how) {
  Scope scope = Scope::sequence;
  std::visit(
      [&](const auto& metric) {
        if constexpr (requires { metric.scope; }) {
          const Scope standard = how.causal ? Scope::prefix : Scope::sequence;
          scope = metric.scope == Scope::automatic ? standard : metric.scope;
        }
      },
      how.metric);
  return scope;
}

}  // namespace foci::cli
