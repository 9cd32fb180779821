// SPDX-License-Identifier: Apache-2.0
// Mechanism flags to foci::Options and back, driven by which fields each struct of the variants
// has.
#include "cli/mechanism.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <foci/attention.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <utility>
#include <variant>

namespace foci::cli {
namespace {

template <class Value>
struct Named {
  std::string_view name;
  Value value;
};

constexpr Named<Form> forms[] = {{"product", Form::product}, {"distance", Form::distance}};
constexpr Named<Reduce> reduces[] = {{"mean", Reduce::mean}, {"median", Reduce::median}};
constexpr Named<Normalize> normalizes[] = {
    {"max", Normalize::max}, {"mean", Normalize::mean}, {"none", Normalize::none}};
constexpr Named<Scope> scopes[] = {{"sequence", Scope::sequence}, {"prefix", Scope::prefix}};
constexpr Named<Extent> extents[] = {{"diagonal", Extent::diagonal}, {"full", Extent::full}};
constexpr Named<Rescale> rescales[] = {
    {"length", Rescale::length}, {"l1", Rescale::l1}, {"l2", Rescale::l2}, {"none", Rescale::none}};
constexpr Named<Feature> features[] = {
    {"elu1", Feature::elu1}, {"relu", Feature::relu}, {"exp", Feature::exp}};
constexpr Named<MetricGrad> metric_grads[] = {{"detached", MetricGrad::detached},
                                              {"through", MetricGrad::through}};
constexpr Named<Backend> backends[] = {
    {"ref", Backend::ref}, {"cpu", Backend::cpu}, {"cuda", Backend::cuda}};
constexpr Named<DType> dtypes[] = {
    {"f64", DType::f64}, {"f32", DType::f32}, {"bf16", DType::bf16}, {"f16", DType::f16}};

const std::string* text_of(const Words& words, std::string_view flag) {
  const auto found = words.find(std::string(flag));
  return found == words.end() ? nullptr : &found->second;
}

bool is_on(const Words& words, std::string_view flag) {
  const std::string* text = text_of(words, flag);
  return text != nullptr && *text == "true";
}

template <class Value, std::size_t count>
void read(Value& to, const Words& words, std::string_view flag,
          const Named<Value> (&names)[count]) {
  const std::string* text = text_of(words, flag);
  for (const auto& [name, value] : names) {
    if (text != nullptr && *text == name) to = value;
  }
}

template <class Value, std::size_t count>
std::string name_in(const Named<Value> (&names)[count], Value value) {
  for (const auto& [name, candidate] : names) {
    if (candidate == value) return std::string(name);
  }
  return {};
}

/// Whether the struct of this metric or weighting has a place for the flag.
template <class Choice>
bool takes(std::string_view flag) {
  if (flag == "form") return requires(Choice c) {
      c.form;
    };
  if (flag == "reduce") return requires(Choice c) {
      c.reduce;
    };
  if (flag == "normalize") return requires(Choice c) {
      c.normalize;
    };
  if (flag == "scope" || flag == "allow-leak" || flag == "metric-grad") {
    return requires(Choice c) { c.scope; };
  }
  if (flag == "ridge") return requires(Choice c) {
      c.ridge;
    };
  if (flag == "prior") return requires(Choice c) {
      c.prior;
    };
  if (flag == "period") return requires(Choice c) {
      c.period;
    };
  if (flag == "floor") return requires(Choice c) {
      c.floor;
    };
  if (flag == "layer") return requires(Choice c) {
      c.layer;
    };
  if (flag == "given") return requires(Choice c) {
      c.extent;
    };
  if (flag == "feature") return requires(Choice c) {
      c.feature;
    };
  if (flag == "rate") return requires(Choice c) {
      c.rate;
    };
  if (flag == "content") return requires(Choice c) {
      c.content;
    };
  if (flag == "rescale") return requires(Choice c) {
      c.rescale;
    };
  return false;
}

constexpr std::string_view metric_only[] = {"form",       "reduce", "normalize", "scope",
                                            "allow-leak", "ridge",  "prior",     "period",
                                            "floor",      "layer",  "given",     "metric-grad"};
constexpr std::string_view weighting_only[] = {"feature", "rate", "content", "rescale"};

/// Calls visit(Choice{}) for every alternative of the variant.
template <class Variant, class Visit, std::size_t... I>
void for_each_choice(Visit&& visit, std::index_sequence<I...>) {
  (visit(std::variant_alternative_t<I, Variant>{}), ...);
}
template <class Variant, class Visit>
void for_each_choice(Visit&& visit) {
  for_each_choice<Variant>(visit, std::make_index_sequence<std::variant_size_v<Variant>>{});
}

template <class Variant>
Variant chosen(const Words& words, std::string_view flag) {
  Variant choice;
  const std::string* text = text_of(words, flag);
  for_each_choice<Variant>([&](auto candidate) {
    if (text != nullptr && *text == candidate.name) choice = candidate;
  });
  return choice;
}

template <class Variant>
std::vector<std::string> takers(std::string_view flag) {
  std::vector<std::string> names;
  for_each_choice<Variant>([&](auto candidate) {
    if (takes<decltype(candidate)>(flag)) names.emplace_back(candidate.name);
  });
  return names;
}

template <class Variant>
bool fits(const Variant& choice, std::string_view flag) {
  return std::visit([&](const auto& c) { return takes<std::decay_t<decltype(c)>>(flag); }, choice);
}

template <class Variant, std::size_t count>
void refuse_misfits(const Words& words, const Variant& choice, std::string_view kind,
                    const std::string_view (&flags)[count]) {
  for (const std::string_view flag : flags) {
    const std::string* text = text_of(words, flag);
    if (text == nullptr || *text == "false" || fits(choice, flag)) continue;
    const auto name = std::visit([](const auto& c) { return c.name; }, choice);
    throw Misuse(fmt::format("--{} belongs to --{} {}; the {} is {}", flag, kind,
                             fmt::join(takers<Variant>(flag), ", "), kind, name));
  }
}

template <class M>
void fill_metric(M& metric, const Words& words) {
  const auto number = [&](std::string_view flag, auto& to) {
    if (const std::string* text = text_of(words, flag)) to = to_number(*text);
  };
  const auto count = [&](std::string_view flag, std::int64_t& to) {
    if (const std::string* text = text_of(words, flag)) to = to_count(*text);
  };
  if constexpr (requires { metric.form; }) read(metric.form, words, "form", forms);
  if constexpr (requires { metric.reduce; }) read(metric.reduce, words, "reduce", reduces);
  if constexpr (requires { metric.normalize; }) {
    read(metric.normalize, words, "normalize", normalizes);
  }
  if constexpr (requires { metric.scope; }) read(metric.scope, words, "scope", scopes);
  if constexpr (requires { metric.ridge; }) number("ridge", metric.ridge);
  if constexpr (requires { metric.prior; }) number("prior", metric.prior);
  if constexpr (requires { metric.period; }) count("period", metric.period);
  if constexpr (requires { metric.floor; }) number("floor", metric.floor);
  if constexpr (requires { metric.layer; }) count("layer", metric.layer);
  if constexpr (requires { metric.seed; }) {
    if (const std::string* text = text_of(words, "seed")) metric.seed = to_count(*text);
  }
  if constexpr (requires { metric.extent; }) read(metric.extent, words, "given", extents);
}

template <class W>
void fill_weighting(W& weighting, const Words& words) {
  if constexpr (requires { weighting.feature; }) {
    read(weighting.feature, words, "feature", features);
  }
  if constexpr (requires { weighting.rescale; }) {
    read(weighting.rescale, words, "rescale", rescales);
  }
  if constexpr (requires { weighting.rate; }) {
    if (const std::string* text = text_of(words, "rate")) weighting.rate = to_number(*text);
  }
  if constexpr (requires { weighting.content; }) weighting.content = is_on(words, "content");
}

template <class M>
void add_metric(Json& to, const M& metric, const Options& how, std::int64_t D) {
  if constexpr (requires { metric.form; }) {
    if (!is_full(how.metric)) to["form"] = name_in(forms, metric.form);
  }
  if constexpr (requires { metric.reduce; }) to["reduce"] = name_in(reduces, metric.reduce);
  if constexpr (requires { metric.normalize; }) {
    to["normalize"] = name_in(normalizes, metric.normalize);
  }
  if constexpr (requires { metric.ridge; }) to["ridge"] = metric.ridge;
  if constexpr (requires { metric.prior; }) {
    to["prior"] = metric.prior.value_or(scope_of(how) == Scope::prefix ? double(D) : 0.0);
  }
  if constexpr (requires { metric.floor; }) to["floor"] = metric.floor;
  if constexpr (requires { metric.layer; }) to["layer"] = metric.layer;
  if constexpr (requires { metric.seed; }) to["seed"] = metric.seed;
  if constexpr (requires { metric.extent; }) to["given"] = name_in(extents, metric.extent);
  if constexpr (requires { metric.scope; }) {
    to["scope"] = name_in(scopes, scope_of(how));
    if constexpr (requires { metric.period; }) {
      if (scope_of(how) == Scope::prefix) to["period"] = metric.period;
    }
    if (how.allow_leak) to["allow-leak"] = true;
    const bool through = std::is_same_v<M, KeyCovariance>;
    to["metric-grad"] = how.metric_grad == MetricGrad::standard
                            ? (through ? "through" : "detached")
                            : name_in(metric_grads, how.metric_grad);
  }
}

}  // namespace

Options options_of(const Words& words) {
  Options how;
  how.metric = chosen<Metric>(words, "metric");
  how.weighting = chosen<Weighting>(words, "weighting");
  refuse_misfits(words, how.metric, "metric", metric_only);
  refuse_misfits(words, how.weighting, "weighting", weighting_only);
  std::visit([&](auto& metric) { fill_metric(metric, words); }, how.metric);
  std::visit([&](auto& weighting) { fill_weighting(weighting, words); }, how.weighting);
  how.causal = is_on(words, "causal");
  how.allow_leak = is_on(words, "allow-leak");
  read(how.metric_grad, words, "metric-grad", metric_grads);
  read(how.backend, words, "backend", backends);
  if (const std::string* scale = text_of(words, "scale")) {
    how.scale = *scale == "auto" ? Scale(MatchDot{}) : Scale(to_number(*scale));
  }
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
  if (text_of(words, "dtype") == nullptr) return {};
  DType dtype = DType::f32;
  read(dtype, words, "dtype", dtypes);
  return dtype;
}

std::vector<std::string> owners(std::string_view flag) {
  const auto of_metric = takers<Metric>(flag);
  return of_metric.empty() ? takers<Weighting>(flag) : of_metric;
}

Words overruled(const Words& stored, const Words& given) {
  Words words = stored;
  for (const auto& [flag, text] : given) words[flag] = text;
  const auto metric = chosen<Metric>(words, "metric");
  const auto weighting = chosen<Weighting>(words, "weighting");
  for (const auto& [flag, text] : stored) {
    if (given.count(flag) > 0 || owners(flag).empty()) continue;
    if (!fits(metric, flag) && !fits(weighting, flag)) words.erase(flag);
  }
  return words;
}

Json resolved(const Options& how, std::int64_t D) {
  Json flags;
  flags["metric"] = metric_name(how.metric);
  std::visit([&](const auto& metric) { add_metric(flags, metric, how, D); }, how.metric);
  flags["weighting"] = weighting_name(how.weighting);
  std::visit(
      [&](const auto& weighting) {
        if constexpr (requires { weighting.feature; }) {
          flags["feature"] = name_in(features, weighting.feature);
        }
        if constexpr (requires { weighting.rescale; }) {
          flags["rescale"] = name_in(rescales, weighting.rescale);
        }
        if constexpr (requires { weighting.rate; }) flags["rate"] = weighting.rate;
        if constexpr (requires { weighting.content; }) flags["content"] = weighting.content;
      },
      how.weighting);
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
    (takers<Metric>(name).empty() && name != "seed" ? weighting : metric).push_back(part);
  }
  const auto bracketed = [](const std::vector<std::string>& parts) {
    return parts.empty() ? std::string() : fmt::format(" ({})", listed(parts));
  };
  return fmt::format("{}{} with {}{}", metric_name(how.metric), bracketed(metric),
                     weighting_name(how.weighting), bracketed(weighting));
}

std::string backend_name(const Options& how, DType dtype) {
  if (how.backend != Backend::automatic) return name_in(backends, how.backend);
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

bool is_estimated(const Metric& metric) { return fits(metric, "scope"); }

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
