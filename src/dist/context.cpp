// SPDX-License-Identifier: Apache-2.0
// Every metric as a query q', keys and a bias per key: s = q' . k + b, and the ring does the rest.
#include <foci/context.hpp>

#include "dist/estimate.hpp"

#include <foci/attention.hpp>
#include <foci/tensor.hpp>

#include <ATen/ATen.h>

#include <fmt/core.h>

#include <cmath>

namespace foci::dist {
namespace {

template <class... F>
struct Cases : F... {
  using F::operator()...;
};

Form form_of(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.form; }) return m.form;
        return Form::product;
      },
      metric);
}

Scope scope_of(const Metric& metric, bool causal) {
  const Scope asked = std::visit(
      [](const auto& m) {
        if constexpr (requires { m.scope; }) return m.scope;
        return Scope::automatic;
      },
      metric);
  if (asked != Scope::automatic) return asked;
  return causal ? Scope::prefix : Scope::sequence;
}

bool estimates(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        return requires { m.scope; };
      },
      metric);
}

bool takes_median(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.reduce; }) return m.reduce == Reduce::median;
        return false;
      },
      metric);
}

[[noreturn]] void refuse(const char* what, const char* nearest) {
  throw Unsupported(fmt::format("{} over ranks is not there; the nearest is {}", what, nearest));
}

void check(const Tokens& t, const Options& how) {
  const auto need = [](bool holds, const char* what) {
    if (!holds) throw InvalidArgument(what);
  };
  if (!std::holds_alternative<Softmax>(how.weighting))
    refuse("a weighting other than softmax", "softmax");
  if (takes_median(how.metric)) refuse("reduce median", "reduce mean");
  if (std::holds_alternative<MatchDot>(how.scale)) refuse("scale auto", "a number");
  const bool jacobian = std::holds_alternative<Jacobian>(how.metric);
  if (jacobian && how.metric_grad == MetricGrad::through)
    refuse("the jacobian's gradient through", "metric_grad detached");
  need(t.q.defined() && t.k.defined() && t.v.defined(), "q, k and v are needed");
  need(t.q.dim() == 4 && t.k.dim() == 4 && t.v.dim() == 4, "q, k and v have four dimensions");
  need(t.q.size(2) == t.k.size(2) && t.k.size(2) == t.v.size(2),
       "a rank has as many queries as keys and values");
  need(t.q.size(2) > 0, "every rank needs a token");
  need(t.q.size(1) % t.k.size(1) == 0, "the query heads are a multiple of the key heads");
  if (t.q.scalar_type() != at::kFloat && t.q.scalar_type() != at::kDouble)
    refuse("a type other than f32 and f64", "f32");
  const bool compares =
      std::holds_alternative<LayerChange>(how.metric) || std::holds_alternative<Flat>(how.metric);
  need(!compares || t.v_prev.defined(), "layer-change and flat need v_prev");
  need(!compares || t.v.size(3) == t.k.size(3), "layer-change and flat need E = D");
  need(std::holds_alternative<Given>(how.metric) == t.metric.defined(),
       "metric given, and it alone, needs the tensor `metric`");
  if (how.causal && estimates(how.metric) && scope_of(how.metric, true) == Scope::sequence &&
      !how.allow_leak) {
    throw InvalidArgument("a sequence-wide estimate of a causal call sees the future; allow_leak");
  }
}

bool is_full(const Metric& metric) {
  const Given* given = std::get_if<Given>(&metric);
  return std::holds_alternative<KeyCovariance>(metric) ||
         (given != nullptr && given->extent == Extent::full);
}

double scale_of(const Options& how, std::int64_t D) {
  if (const double* c = std::get_if<double>(&how.scale)) return *c;
  return is_full(how.metric) ? 1 : 1 / std::sqrt(double(D));
}

/// As the core draws it, (1,G,1,D).
at::Tensor drawn(const Random& metric, std::int64_t G, std::int64_t D) {
  const foci::Tensor x(DType::f64, {1, G, 1, D}), m(DType::f64, {1, G, 1, D});
  foci::Tensor o(DType::f64, {1, G, 1, D});
  Options how;
  how.metric = metric;
  foci::attend({.o = o.view(), .metric = m.view()}, {.q = x.view(), .k = x.view(), .v = x.view()},
               how);
  return at::from_blob(const_cast<double*>(m.data<double>()), {1, G, 1, D}, at::kDouble).clone();
}

/// m of the diagonal metrics, (1 or B, G or H, 1 or n, D) in double; undefined for dot.
at::Tensor diagonal_of(Group& group, const Tokens& t, const Options& how) {
  const bool prefix = scope_of(how.metric, how.causal) == Scope::prefix;
  const bool through = how.metric_grad == MetricGrad::through;
  const auto change = [&](Normalize normalize) {
    const at::Tensor m = change_estimate(group, t, normalize, prefix);
    return through ? m : m.detach();
  };
  return std::visit(Cases{[&](const LayerChange& m) { return change(m.normalize); },
                          [&](const Flat& m) {
                            const at::Tensor shape = change(m.normalize);
                            return shape.mean(at::IntArrayRef{-1}, true).expand_as(shape);
                          },
                          [&](const Jacobian& m) {
                            Options plain = how;
                            plain.metric = Dot{};
                            return jacobian_estimate(group, t, m.normalize,
                                                     scale_of(plain, t.q.size(3)), how.causal,
                                                     prefix);
                          },
                          [&](const Random& m) { return drawn(m, t.k.size(1), t.k.size(3)); },
                          [&](const Given&) { return t.metric.to(at::kDouble); },
                          [&](const auto&) { return at::Tensor(); }},
                    how.metric);
}

/// (.,G,.,D) for the query heads, which share key heads; (.,H,.,D) as it is.
at::Tensor for_heads(const at::Tensor& m, std::int64_t H) {
  return m.size(1) == H ? m : m.repeat_interleave(H / m.size(1), 1);
}

/// What the scores are made of, in double.
struct Folded {
  at::Tensor q, k, bias;  // bias (B,G,n) without the mask, or undefined
  Chunks chunks;
};

Folded fold_diagonal(Group& group, const Tokens& t, const Options& how, double c) {
  const at::Tensor q = t.q.to(at::kDouble), k = t.k.to(at::kDouble);
  at::Tensor m = diagonal_of(group, t, how);
  if (form_of(how.metric) == Form::product)
    return {c * (m.defined() ? q * for_heads(m, q.size(1)) : q), k, {}, {}};
  if (!m.defined()) m = at::ones({1, k.size(1), 1, k.size(3)}, k.options());
  // Distances stay when both move; along the prefix nothing of the future may say where to.
  const bool by_query = m.size(2) != 1 || m.size(1) != k.size(1);
  const at::Tensor shift = how.causal ? first_key(group, t) : mean_key(group, t);
  const at::Tensor near = k - shift;
  const at::Tensor own = for_heads(m, q.size(1));
  const at::Tensor folded = c * own * (q - for_heads(shift, q.size(1)));
  if (!by_query) return {folded, near, -0.5 * c * (m * near * near).sum(3), {}};
  return {at::cat({folded, (-0.5 * c * own).expand_as(folded)}, 3),
          at::cat({near, near * near}, 3),
          {},
          {}};
}

Folded fold_full(Group& group, const Tokens& t, const Options& how, double c) {
  const at::Tensor q = t.q.to(at::kDouble), k = t.k.to(at::kDouble);
  const KeyCovariance* covariance = std::get_if<KeyCovariance>(&how.metric);
  const bool prefix = covariance != nullptr && scope_of(how.metric, how.causal) == Scope::prefix;
  Geometry geometry;
  if (covariance == nullptr) {
    geometry.shift = how.causal ? first_key(group, t) : mean_key(group, t);
    geometry.P = t.metric.to(at::kDouble);
  } else {
    geometry = prefix ? prefix_geometry(group, t, *covariance)
                      : covariance_geometry(group, t, *covariance);
    if (how.metric_grad == MetricGrad::detached) geometry.P = geometry.P.detach();
  }
  const std::int64_t H = q.size(1);
  const at::Tensor near = k - geometry.shift, away = q - for_heads(geometry.shift, H);
  if (!prefix) {
    const at::Tensor bias = -0.5 * c * (at::matmul(near, geometry.P) * near).sum(3);
    return {c * at::matmul(away, for_heads(geometry.P, H)), near, bias, {}};
  }
  std::vector<at::Tensor> rows, batches;
  for (std::size_t i = 0; i < geometry.chunks.size(); ++i) {
    const Chunk& chunk = geometry.chunks[i];
    const at::Tensor P = geometry.P[chunk.index].repeat_interleave(H / k.size(1), 0);
    const at::Tensor centre = geometry.centre[chunk.index].repeat_interleave(H / k.size(1), 0);
    rows.push_back(c * at::matmul(away[chunk.batch].slice(1, chunk.first, chunk.end) - centre, P));
    const bool last =
        i + 1 == geometry.chunks.size() || geometry.chunks[i + 1].batch != chunk.batch;
    if (!last) continue;
    batches.push_back(at::cat(rows, 1));
    rows.clear();
  }
  return {at::stack(batches), near, {}, {geometry.chunks, geometry.P, geometry.centre, c}};
}

}  // namespace

at::Tensor attend(Group& group, const Tokens& tokens, const Options& how) {
  check(tokens, how);
  const double c = scale_of(how, tokens.k.size(3));
  const Folded folded =
      is_full(how.metric) ? fold_full(group, tokens, how, c) : fold_diagonal(group, tokens, how, c);
  const at::Tensor keep = counted(tokens).expand({-1, tokens.k.size(1), -1, -1});
  const at::Tensor seen = keep.gt(0);
  const auto clean = [&](const at::Tensor& x) { return at::where(seen, x, at::zeros_like(x)); };
  at::Tensor bias = at::zeros_like(keep.select(3, 0));
  if (folded.bias.defined()) bias = bias + folded.bias;
  bias = bias.masked_fill(seen.select(3, 0).logical_not(), -INFINITY);
  const auto type = tokens.q.scalar_type();
  const auto narrow = [&](const at::Tensor& x) { return x.to(type).contiguous(); };
  Scores scores{narrow(folded.q), narrow(clean(folded.k)), narrow(bias), folded.chunks, how.causal};
  if (scores.chunks.P.defined()) {
    scores.chunks.P = narrow(scores.chunks.P);
    scores.chunks.centre = narrow(scores.chunks.centre);
  }
  return ring_attend(group, scores, narrow(clean(tokens.v))).o;
}

}  // namespace foci::dist
