// SPDX-License-Identifier: Apache-2.0
// Options that can be judged without tensors: numbers in range, pairs that go together, scopes that
// do not leak.
#include "attend/check.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <cmath>

namespace foci::checks {

namespace {

bool is_full(const Metric& metric) {
  const auto* given = std::get_if<Given>(&metric);
  return std::holds_alternative<KeyCovariance>(metric) || (given && given->extent == Extent::full);
}

void check_metric(const KeyCovariance& m) {
  if (!(m.ridge >= 0) || std::isinf(m.ridge)) {
    throw InvalidArgument(fmt::format("ridge is {:g}; it must be a finite number >= 0", m.ridge));
  }
  if (m.prior && (!(*m.prior >= 0) || std::isinf(*m.prior))) {
    throw InvalidArgument(fmt::format("prior is {:g}; it must be a finite number >= 0", *m.prior));
  }
  if (m.period < 1)
    throw InvalidArgument(fmt::format("period is {}; it must be at least 1 key", m.period));
}

void check_metric(const Random& m) {
  if (!(m.floor >= 0 && m.floor <= 1)) {
    throw InvalidArgument(fmt::format("floor is {:g}; it must lie in [0, 1]", m.floor));
  }
}

template <class M>
void check_metric(const M&) {}

void check_weighting(const Decay& w, const Options& how) {
  if (!(w.rate > 0 && w.rate <= 1)) {
    throw InvalidArgument(fmt::format("rate is {:g}; it must lie in (0, 1]", w.rate));
  }
  if (!how.causal)
    throw InvalidArgument("weighting decay looks back in time and is causal only: set causal");
}

template <class W>
void check_weighting(const W&, const Options&) {}

Reduce reduce_of(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.reduce; }) return m.reduce;
        return Reduce::mean;
      },
      metric);
}

void check_scope(const Options& how) {
  const Scope scope = scope_of(how);
  if (how.causal && scope == Scope::sequence && !how.allow_leak) {
    throw InvalidArgument(
        fmt::format("metric {}: scope sequence in a causal call would let the estimate see future "
                    "tokens: use scope prefix, "
                    "or set allow_leak to do it knowingly",
                    name_of(how.metric)));
  }
  if (scope == Scope::prefix && reduce_of(how.metric) == Reduce::median) {
    throw InvalidArgument(fmt::format(
        "metric {}: reduce median cannot run along a prefix: use reduce mean, or scope sequence",
        name_of(how.metric)));
  }
}

void check_scale(const Options& how) {
  if (const auto* number = std::get_if<double>(&how.scale)) {
    if (!(*number > 0) || std::isinf(*number)) {
      throw InvalidArgument(fmt::format("scale is {:g}; it must be a finite number > 0", *number));
    }
  }
  if (!std::holds_alternative<MatchDot>(how.scale)) return;
  if (!is_full(how.metric)) {
    throw InvalidArgument(fmt::format(
        "scale auto belongs to a full metric (key-covariance, or given with extent full), "
        "not to {}",
        name_of(how.metric)));
  }
  if (!std::holds_alternative<Softmax>(how.weighting)) {
    throw InvalidArgument(
        fmt::format("scale auto matches softmax attention's concentration; the weighting is {}",
                    name_of(how.weighting)));
  }
  if (how.causal) {
    throw InvalidArgument(
        "scale auto looks at all queries and would leak the future into a causal call: give a "
        "number");
  }
}

}  // namespace

std::string_view name_of(const Metric& metric) {
  return std::visit([](const auto& m) { return m.name; }, metric);
}

std::string_view name_of(const Weighting& weighting) {
  return std::visit([](const auto& w) { return w.name; }, weighting);
}

Scope scope_of(const Options& how) {
  const Scope asked = std::visit(
      [](const auto& m) {
        if constexpr (requires { m.scope; }) return m.scope;
        return Scope::automatic;
      },
      how.metric);
  return asked != Scope::automatic ? asked : how.causal ? Scope::prefix : Scope::sequence;
}

std::string refusal(const Metric& metric, const Weighting& weighting) {
  const bool relu2 = std::holds_alternative<Relu2>(weighting),
             linear = std::holds_alternative<Linear>(weighting);
  if (!is_full(metric) && metric::form_of(metric) != Form::distance) return {};
  if (!relu2 && !linear) return {};
  return fmt::format("metric {}{} does not go with weighting {}: {} (use softmax or identity)",
                     name_of(metric), is_full(metric) ? " (a full metric)" : " with form distance",
                     name_of(weighting),
                     relu2 ? "its scores are never positive, so every weight would be 0"
                           : "phi(q).phi(k) has no place for a bias per key");
}

void check_options(const Options& how) {
  std::visit([](const auto& m) { check_metric(m); }, how.metric);
  std::visit([&](const auto& w) { check_weighting(w, how); }, how.weighting);
  if (const std::string why = refusal(how.metric, how.weighting); !why.empty())
    throw InvalidArgument(why);
  check_scope(how);
  check_scale(how);
}

}  // namespace foci::checks
