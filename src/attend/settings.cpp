// SPDX-License-Identifier: Apache-2.0
// Options to words and back. One list of fields says which struct has which setting; reading,
// writing and refusing all go through it.
#include <foci/settings.hpp>

#include "attend/check.hpp"
#include "error/listed.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <array>
#include <charconv>
#include <cstdint>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace foci {
namespace {

template <class Value>
struct Named {
  std::string_view name;
  Value value;
};

/// The words of an enumeration; `automatic` and `standard` have none, they are what is not said.
template <class Value>
constexpr int words = 0;
template <>
constexpr auto words<Form> = std::to_array<Named<Form>>({{"product", Form::product},
                                                         {"distance", Form::distance}});
template <>
constexpr auto words<Reduce> = std::to_array<Named<Reduce>>({{"mean", Reduce::mean},
                                                             {"median", Reduce::median}});
template <>
constexpr auto words<Normalize> = std::to_array<Named<Normalize>>({{"max", Normalize::max},
                                                                   {"mean", Normalize::mean},
                                                                   {"none", Normalize::none}});
template <>
constexpr auto words<Scope> = std::to_array<Named<Scope>>({{"sequence", Scope::sequence},
                                                           {"prefix", Scope::prefix}});
template <>
constexpr auto words<Extent> = std::to_array<Named<Extent>>({{"diagonal", Extent::diagonal},
                                                             {"full", Extent::full}});
template <>
constexpr auto words<Rescale> = std::to_array<Named<Rescale>>({{"length", Rescale::length},
                                                               {"l1", Rescale::l1},
                                                               {"l2", Rescale::l2},
                                                               {"none", Rescale::none}});
template <>
constexpr auto words<Feature> = std::to_array<Named<Feature>>({{"elu1", Feature::elu1},
                                                               {"relu", Feature::relu},
                                                               {"exp", Feature::exp}});
template <>
constexpr auto words<MetricGrad> = std::to_array<Named<MetricGrad>>(
    {{"detached", MetricGrad::detached}, {"through", MetricGrad::through}});
template <>
constexpr auto words<Backend> = std::to_array<Named<Backend>>({{"ref", Backend::ref},
                                                               {"cpu", Backend::cpu},
                                                               {"cuda", Backend::cuda}});
template <>
constexpr auto words<bool> = std::to_array<Named<bool>>({{"true", true}, {"false", false}});

[[noreturn]] void refuse_value(std::string_view name, std::string_view text,
                               std::string_view wanted) {
  throw InvalidArgument(fmt::format("{} is '{}'; it must be {}", name, text, wanted));
}

template <class Value>
void read(std::string_view name, std::string_view text, Value& to) {
  if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
    const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), to);
    if (fault == std::errc() && end == text.data() + text.size()) return;
    refuse_value(name, text,
                 std::is_floating_point_v<Value> ? "a number"
                 : std::is_unsigned_v<Value>     ? "a whole number >= 0"
                                                 : "a whole number");
  } else {
    for (const auto& [word, value] : words<Value>) {
      if (text != word) continue;
      to = value;
      return;
    }
    std::string known;
    for (const auto& [word, value] : words<Value>) {
      known.append(known.empty() ? "" : ", ").append(word);
    }
    refuse_value(name, text, "one of " + known);
  }
}

template <class Value>
void read(std::string_view name, std::string_view text, std::optional<Value>& to) {
  read(name, text, to.emplace());
}

/// Nothing for what was left open.
template <class Value>
std::string written(const Value& value) {
  if constexpr (std::is_arithmetic_v<Value> && !std::is_same_v<Value, bool>) {
    return fmt::format("{}", value);
  } else {
    for (const auto& [word, known] : words<Value>) {
      if (value == known) return std::string(word);
    }
    return {};
  }
}

template <class Value>
std::string written(const std::optional<Value>& value) {
  return value ? written(*value) : std::string();
}

/// visit(name, field) for every field of one metric or weighting.
template <class Choice, class Visit>
void each_field(Choice& c, Visit&& visit) {
  if constexpr (requires { c.form; }) visit("form", c.form);
  if constexpr (requires { c.reduce; }) visit("reduce", c.reduce);
  if constexpr (requires { c.normalize; }) visit("normalize", c.normalize);
  if constexpr (requires { c.scope; }) visit("scope", c.scope);
  if constexpr (requires { c.ridge; }) visit("ridge", c.ridge);
  if constexpr (requires { c.prior; }) visit("prior", c.prior);
  if constexpr (requires { c.period; }) visit("period", c.period);
  if constexpr (requires { c.floor; }) visit("floor", c.floor);
  if constexpr (requires { c.seed; }) visit("seed", c.seed);
  if constexpr (requires { c.layer; }) visit("layer", c.layer);
  if constexpr (requires { c.extent; }) visit("extent", c.extent);
  if constexpr (requires { c.rescale; }) visit("rescale", c.rescale);
  if constexpr (requires { c.feature; }) visit("feature", c.feature);
  if constexpr (requires { c.rate; }) visit("rate", c.rate);
  if constexpr (requires { c.content; }) visit("content", c.content);
}

/// Those of the options that only an estimated metric has.
template <class Visit>
void each_of_estimate(Options& how, Visit&& visit) {
  visit("allow_leak", how.allow_leak);
  visit("metric_grad", how.metric_grad);
}

template <class Choice>
bool has(std::string_view setting) {
  bool found = false;
  const auto look = [&](std::string_view name, const auto&) { found |= name == setting; };
  Choice choice;
  Options how;
  each_field(choice, look);
  if constexpr (requires { choice.scope; }) each_of_estimate(how, look);
  return found;
}

template <class Variant, class Visit, std::size_t... I>
void each_choice(Visit&& visit, std::index_sequence<I...>) {
  (visit(std::variant_alternative_t<I, Variant>{}), ...);
}
template <class Variant, class Visit>
void each_choice(Visit&& visit) {
  each_choice<Variant>(visit, std::make_index_sequence<std::variant_size_v<Variant>>{});
}

template <class Variant>
std::vector<std::string_view> owners_among(std::string_view setting) {
  std::vector<std::string_view> names;
  each_choice<Variant>([&]<class Choice>(const Choice&) {
    if (has<Choice>(setting)) names.push_back(Choice::name);
  });
  return names;
}

template <class Variant>
Variant chosen(const Settings& settings, std::string_view kind) {
  Variant choice;
  const auto found = settings.find(kind);
  if (found == settings.end()) return choice;
  std::string known;
  bool met = false;
  each_choice<Variant>([&]<class Choice>(const Choice& candidate) {
    known.append(known.empty() ? "" : ", ").append(Choice::name);
    if (found->second != Choice::name) return;
    choice = candidate;
    met = true;
  });
  if (!met) refuse_value(kind, found->second, "one of " + known);
  return choice;
}

/// Settings taken out of the heap as they are understood; what stays behind is refused.
struct Reader {
  Settings left;

  template <class Value>
  void operator()(std::string_view name, Value& to) {
    const auto found = left.find(name);
    if (found == left.end()) return;
    read(name, found->second, to);
    left.erase(found);
  }
};

void read_scale(Settings& left, Scale& to) {
  const auto found = left.find("scale");
  if (found == left.end()) return;
  if (found->second == "auto") {
    to = MatchDot{};
  } else {
    double number = 0;
    read("scale", found->second, number);
    to = number;
  }
  left.erase(found);
}

[[noreturn]] void refuse_setting(const std::string& name, const Options& how) {
  if (const auto metrics = owners_among<Metric>(name); !metrics.empty()) {
    throw InvalidArgument(fmt::format("{} belongs to metric {}; the metric is {}", name,
                                      listed(metrics), checks::name_of(how.metric)));
  }
  if (const auto weightings = owners_among<Weighting>(name); !weightings.empty()) {
    throw InvalidArgument(fmt::format("{} belongs to weighting {}; the weighting is {}", name,
                                      listed(weightings), checks::name_of(how.weighting)));
  }
  throw InvalidArgument(fmt::format("there is no setting '{}'", name));
}

}  // namespace

Settings parse_settings(std::string_view text) {
  Settings settings;
  while (true) {
    const std::size_t begin = text.find_first_not_of(' ');
    if (begin == text.npos) return settings;
    text.remove_prefix(begin);
    const std::string_view word = text.substr(0, text.find(' '));
    text.remove_prefix(word.size());
    const std::size_t equals = word.find('=');
    if (equals == 0 || equals == word.npos) {
      throw InvalidArgument(fmt::format("settings are name=value; got '{}'", word));
    }
    const auto [at, added] =
        settings.emplace(std::string(word.substr(0, equals)), word.substr(equals + 1));
    if (!added) throw InvalidArgument(fmt::format("{} is said twice", at->first));
  }
}

std::string to_text(const Settings& settings) {
  std::string text;
  const auto add = [&](std::string_view name, std::string_view value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, value);
  };
  for (const std::string_view first : {"metric", "weighting"}) {
    if (const auto found = settings.find(first); found != settings.end()) add(first, found->second);
  }
  for (const auto& [name, value] : settings) {
    if (name != "metric" && name != "weighting") add(name, value);
  }
  return text;
}

Options options_of(const Settings& settings) {
  Options how;
  how.metric = chosen<Metric>(settings, "metric");
  how.weighting = chosen<Weighting>(settings, "weighting");
  Reader reader{settings};
  reader.left.erase("metric");
  reader.left.erase("weighting");
  std::visit(
      [&](auto& metric) {
        each_field(metric, reader);
        if constexpr (requires { metric.scope; }) each_of_estimate(how, reader);
      },
      how.metric);
  std::visit([&](auto& weighting) { each_field(weighting, reader); }, how.weighting);
  reader("causal", how.causal);
  reader("backend", how.backend);
  read_scale(reader.left, how.scale);
  if (!reader.left.empty()) refuse_setting(reader.left.begin()->first, how);
  return how;
}

Settings settings_of(const Options& how) {
  Settings settings{{"metric", std::string(checks::name_of(how.metric))},
                    {"weighting", std::string(checks::name_of(how.weighting))}};
  const auto write = [&](std::string_view name, const auto& value) {
    if (std::string text = written(value); !text.empty()) settings.emplace(name, std::move(text));
  };
  Options copy = how;
  std::visit(
      [&](const auto& metric) {
        each_field(metric, write);
        if constexpr (requires { metric.scope; }) each_of_estimate(copy, write);
      },
      how.metric);
  std::visit([&](const auto& weighting) { each_field(weighting, write); }, how.weighting);
  write("causal", how.causal);
  write("backend", how.backend);
  if (const double* number = std::get_if<double>(&how.scale)) write("scale", *number);
  if (std::holds_alternative<MatchDot>(how.scale)) settings.emplace("scale", "auto");
  return settings;
}

std::vector<std::string_view> owners(std::string_view setting) {
  auto names = owners_among<Metric>(setting);
  return names.empty() ? owners_among<Weighting>(setting) : names;
}

}  // namespace foci
