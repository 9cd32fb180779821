// SPDX-License-Identifier: Apache-2.0
// A layer's options, judged and given their defaults.
#include "nn/mechanism.hpp"

#include <foci/error.hpp>
#include <foci/settings.hpp>

#include <fmt/core.h>

#include <charconv>
#include <cmath>
#include <variant>

namespace foci::nn {
namespace {

std::string_view name_of(const Metric& metric) {
  return std::visit([](const auto& m) { return m.name; }, metric);
}

bool compares_values(const Metric& metric) {
  return std::holds_alternative<LayerChange>(metric) || std::holds_alternative<Flat>(metric);
}

Form form_of(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.form; }) return m.form;
        return Form::product;
      },
      metric);
}

void check(const AttentionOptions& options, const Metric& metric, bool running) {
  if (std::holds_alternative<Given>(metric)) {
    throw InvalidArgument("metric given has no tensor in a layer: use nn::attend, or learned");
  }
  if (options.learned && !std::holds_alternative<Dot>(metric)) {
    throw InvalidArgument(fmt::format(
        "learned takes the place of the metric, and that is {}: leave one out", name_of(metric)));
  }
  if (!running) return;
  if (options.learned) throw InvalidArgument("a learned metric has no running scope");
  const double momentum = options.running->momentum;
  if (!(momentum >= 0 && momentum < 1)) {
    throw InvalidArgument(fmt::format("momentum is {:g}; it must lie in [0, 1)", momentum));
  }
  if (options.how.metric_grad == MetricGrad::through) {
    throw InvalidArgument("scope running averages the past: it has no metric_grad through");
  }
  std::visit(
      [](const auto& m) {
        if constexpr (requires { m.scope; }) {
          if (m.scope != Scope::automatic)
            throw InvalidArgument("scope running takes the place of another scope: leave one out");
        } else {
          throw InvalidArgument(fmt::format(
              "scope running belongs to metrics that are estimated; the metric is {}", m.name));
        }
        if constexpr (requires { m.reduce; }) {
          if (m.reduce == Reduce::median)
            throw InvalidArgument("scope running averages: use reduce mean");
        }
        if constexpr (requires { m.prior; }) {
          if (m.prior) throw InvalidArgument("prior has no place under scope running");
        }
      },
      metric);
}

/// Written out, so that the text says it.
void resolve_scope(Options& how, bool running) {
  std::visit(
      [&](auto& m) {
        if constexpr (requires { m.scope; }) {
          if (running) {
            m.scope = Scope::sequence;
            how.allow_leak = how.causal;
          } else if (m.scope == Scope::automatic) {
            m.scope = how.causal ? Scope::prefix : Scope::sequence;
          }
        }
      },
      how.metric);
}

/// Written out too: standard means one thing for one metric and another for the next.
void resolve_gradient(Options& how, bool running) {
  if (running || how.metric_grad != MetricGrad::standard) return;
  std::visit(
      [&](const auto& m) {
        if constexpr (requires { m.scope; }) {
          const bool covariance = std::holds_alternative<KeyCovariance>(how.metric);
          how.metric_grad = covariance ? MetricGrad::through : MetricGrad::detached;
        }
      },
      how.metric);
}

std::string written(const Options& call, const AttentionOptions& options, bool running) {
  Settings settings = settings_of(call);
  settings["heads"] = std::to_string(options.heads);
  settings["kv_heads"] = std::to_string(options.kv_heads);
  settings["head_dim"] = std::to_string(options.head_dim);
  settings.erase("backend");
  if (options.learned) {
    settings.erase("extent");
    const bool full = options.learned->extent == Extent::full;
    settings["metric"] = full ? "learned-full" : "learned";
    constexpr std::string_view inits[] = {"identity", "estimate", "random"};
    settings["init"] = inits[int(options.learned->init)];
  }
  if (running) {
    for (const char* name : {"allow_leak", "metric_grad", "prior", "period"}) settings.erase(name);
    settings["scope"] = "running";
    settings["momentum"] = fmt::format("{}", options.running->momentum);
  }
  return to_text(settings);
}

bool same(const std::string& a, const std::string& b) {
  const auto whole = [](const std::string& text) {
    return text.find_first_not_of("0123456789") == text.npos;
  };
  if (a == b || (whole(a) && whole(b))) return a == b;
  double x = 0, y = 0;
  const auto [end_a, fault_a] = std::from_chars(a.data(), a.data() + a.size(), x);
  const auto [end_b, fault_b] = std::from_chars(b.data(), b.data() + b.size(), y);
  return fault_a == std::errc() && fault_b == std::errc() && end_a == a.data() + a.size() &&
         end_b == b.data() + b.size() && std::abs(x - y) <= 1e-12 * std::abs(x);
}

}  // namespace

Mechanism::Mechanism(const AttentionOptions& options, std::int64_t head_dim) : call(options.how) {
  const bool lowest = options.lowest && compares_values(call.metric);
  if (lowest) {
    call.metric = Dot{.form = form_of(call.metric)};
    call.metric_grad = MetricGrad::standard;
    call.allow_leak = false;
  }
  const bool running = options.running && !lowest;
  check(options, call.metric, running);
  compares = compares_values(call.metric);
  full = std::holds_alternative<KeyCovariance>(call.metric) ||
         (options.learned && options.learned->extent == Extent::full);
  if (std::holds_alternative<std::monostate>(call.scale)) {
    const bool product = std::holds_alternative<Linear>(call.weighting) && !full;
    call.scale = product ? 1.0 : 1 / std::sqrt(double(head_dim));
  }
  if (auto* covariance = std::get_if<KeyCovariance>(&call.metric)) {
    if (!covariance->prior && !running) covariance->prior = double(head_dim);
  }
  if (options.learned) {
    call.metric = Given{.form = options.learned->form, .extent = options.learned->extent};
  }
  resolve_scope(call, running);
  resolve_gradient(call, running);
  given = call;
  given.metric =
      Given{.form = form_of(call.metric), .extent = full ? Extent::full : Extent::diagonal};
  given.allow_leak = false;
  given.metric_grad = MetricGrad::standard;
  text = written(call, options, running);
}

bool differ(const std::string& one, const std::string& other) {
  Settings a = parse_settings(one), b = parse_settings(other);
  for (const char* name : {"backend", "metric_grad", "momentum", "init"}) {
    a.erase(name);
    b.erase(name);
  }
  if (a.size() != b.size()) return true;
  for (const auto& [name, value] : a) {
    const auto found = b.find(name);
    if (found == b.end() || !same(value, found->second)) return true;
  }
  return false;
}

}  // namespace foci::nn
