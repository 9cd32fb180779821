// SPDX-License-Identifier: Apache-2.0
// Attention with rotary positions over nn::Attention's parameters. A metric that is estimated is
// formed here, token by token from raw sizes: their mean over the prefix, averaged within pairs,
// then normalised; the operators and the decoder get it as given.
#include "models/rotary.hpp"

#include "nn/views.hpp"

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>

#include <fmt/core.h>

#include <cmath>

namespace foci::models {
namespace {

bool is_estimated(const Metric& metric) {
  return std::holds_alternative<LayerChange>(metric) || std::holds_alternative<Flat>(metric) ||
         std::holds_alternative<Jacobian>(metric);
}

at::Tensor normalised(const at::Tensor& m, Normalize how) {
  if (how == Normalize::none) return m;
  const at::Tensor by = how == Normalize::max ? m.amax(-1, true) : m.mean(-1, true);
  const at::Tensor none = by.eq(0);
  return at::where(none, at::ones_like(m), m / at::where(none, at::ones_like(by), by));
}

/// What a layer with rotary positions does not do.
void check(const nn::AttentionImpl& layer, const nn::AttentionOptions& o,
           const nn::Mechanism& how) {
  const auto refuse = [](const char* what) {
    throw Unsupported(fmt::format("{} with rotary positions: use learned positions", what));
  };
  if (layer.running_steps.defined()) refuse("scope running");
  if (o.learned && o.learned->init == nn::Init::estimate) refuse("init estimate");
  std::visit(
      [&](const auto& m) {
        if constexpr (requires { m.reduce; }) {
          if (m.reduce == Reduce::median) refuse("reduce median");
        }
        if constexpr (requires {
                        m.scope;
                        m.normalize;
                      }) {
          if (m.scope != Scope::prefix) refuse("scope sequence");
        }
      },
      how.call.metric);
  if (std::holds_alternative<Jacobian>(how.call.metric) &&
      how.call.metric_grad == MetricGrad::through)
    refuse("metric jacobian with metric_grad through");
}

}  // namespace

Turn turn(std::int64_t first, std::int64_t count, std::int64_t head_dim, double base,
          const at::Tensor& like) {
  const auto wide = like.options().dtype(at::kDouble);
  const at::Tensor rates =
      at::arange(0, head_dim, 2, wide).mul(-std::log(base) / double(head_dim)).exp();
  const at::Tensor angles = at::arange(first, first + count, wide).unsqueeze(1) * rates;
  return {angles.cos().to(like.scalar_type()), angles.sin().to(like.scalar_type())};
}

at::Tensor turned(const at::Tensor& x, const Turn& by, Pairs pairs) {
  const std::int64_t D = x.size(-1);
  const bool halves = pairs == Pairs::halves;
  const at::Tensor a = halves ? x.slice(-1, 0, D / 2) : x.slice(-1, 0, D, 2);
  const at::Tensor b = halves ? x.slice(-1, D / 2, D) : x.slice(-1, 1, D, 2);
  const at::Tensor p = a * by.cos - b * by.sin, q = a * by.sin + b * by.cos;
  return halves ? at::cat({p, q}, -1) : at::stack({p, q}, -1).flatten(-2);
}

at::Tensor pair_means(const at::Tensor& m, Pairs pairs) {
  const std::int64_t D = m.size(-1);
  if (pairs == Pairs::halves) {
    const at::Tensor mean = (m.slice(-1, 0, D / 2) + m.slice(-1, D / 2, D)) / 2;
    return at::cat({mean, mean}, -1);
  }
  const at::Tensor mean = (m.slice(-1, 0, D, 2) + m.slice(-1, 1, D, 2)) / 2;
  return at::stack({mean, mean}, -1).flatten(-2);
}

struct RotaryAttention::Heads {
  at::Tensor q;     // (B,H,N,D), turned
  at::Tensor k, v;  // (B,G,N,D), k turned
};

RotaryAttention::RotaryAttention(nn::Attention layer, const nn::AttentionOptions& options,
                                 Pairs pairs)
    : layer_(std::move(layer)),
      options_(options),
      how_(options, options.head_dim),
      pairs_(pairs),
      estimates_(is_estimated(how_.call.metric)) {
  check(*layer_, options_, how_);
}

RotaryAttention::Heads RotaryAttention::project(const at::Tensor& x, const Turn& by) {
  const nn::AttentionOptions& o = options_;
  const std::int64_t q_size = o.heads * o.head_dim, k_size = o.kv_heads * o.head_dim;
  const at::Tensor all = layer_->qkv(x);
  const auto heads = [&](std::int64_t first, std::int64_t size) {
    return all.slice(2, first, first + size)
        .view({x.size(0), x.size(1), -1, o.head_dim})
        .transpose(1, 2);
  };
  return {turned(heads(0, q_size), by, pairs_), turned(heads(q_size, k_size), by, pairs_),
          heads(q_size + k_size, k_size)};
}

/// Raw m to m: pairs, normalisation, flat's mean.
at::Tensor RotaryAttention::finish(const at::Tensor& raw) const {
  return std::visit(
      [&](const auto& metric) {
        at::Tensor m = pair_means(raw, pairs_);
        if constexpr (requires { metric.normalize; }) m = normalised(m, metric.normalize);
        if constexpr (std::is_same_v<std::decay_t<decltype(metric)>, Flat>)
          m = m.mean(-1, true).expand_as(m);
        return m;
      },
      how_.call.metric);
}

/// m (1,G,1,D) or P (1,G,D,D) of learned and random metrics; else undefined.
at::Tensor RotaryAttention::fixed_metric() const {
  const nn::AttentionImpl& layer = *layer_;
  if (layer.metric_raw.defined())
    return pair_means(at::softplus(layer.metric_raw), pairs_).unsqueeze(0).unsqueeze(2);
  if (layer.metric_drawn.defined()) return finish(layer.metric_drawn).unsqueeze(0).unsqueeze(2);
  if (!layer.metric_factor.defined()) return {};
  const at::Tensor lower = layer.metric_factor.to(at::kDouble).tril();
  return at::matmul(lower, lower.transpose(1, 2)).unsqueeze(0);
}

/// The raw metric of each of the newest tokens alone: |v - v_prev| (B,G,N,D), or how far the plain
/// output moves with the query (B,H,N,D).
at::Tensor RotaryAttention::sizes(const Heads& p, const at::Tensor& v_prev,
                                  RotaryCache* cache) const {
  if (how_.compares) {
    const auto type = nn::wide_type(p.v);
    return (p.v.to(type) - v_prev.to(type)).abs();
  }
  const at::NoGradGuard without;
  Options plain = how_.call;
  plain.metric = Jacobian{.normalize = Normalize::none, .scope = Scope::sequence};
  plain.weighting = Softmax{};
  plain.allow_leak = true;  // one query at the end: there is no later token
  if (std::holds_alternative<Linear>(how_.call.weighting)) plain.scale = {};
  const bool continues = cache && cache->k.defined();
  const at::Tensor k = continues ? at::cat({cache->k, p.k}, 2) : p.k;
  const at::Tensor v = continues ? at::cat({cache->v, p.v}, 2) : p.v;
  const std::int64_t N = p.q.size(2), before = k.size(2) - N;
  std::vector<at::Tensor> rows;
  for (std::int64_t i = 0; i < N; ++i) {
    const std::int64_t seen = before + i + 1;
    rows.push_back(
        nn::measure(p.q.slice(2, i, i + 1), k.slice(2, 0, seen), v.slice(2, 0, seen), {}, plain)
            .metric);
  }
  if (cache) cache->k = k, cache->v = v;
  return at::cat(rows, 2);
}

at::Tensor RotaryAttention::out(const at::Tensor& o) {
  return layer_->proj(o.transpose(1, 2).reshape({o.size(0), o.size(2), -1}));
}

RotaryAttention::Result RotaryAttention::forward(const at::Tensor& x, const Turn& by,
                                                 const at::Tensor& v_prev) {
  const Heads p = project(x, by);
  at::Tensor metric = fixed_metric();
  if (estimates_) {
    at::Tensor raw;
    if (how_.compares) {
      const at::Tensor each = sizes(p, v_prev, nullptr);
      const at::Tensor count = at::arange(1, x.size(1) + 1, each.options()).unsqueeze(1);
      raw = each.cumsum(2) / count;
    } else {
      const at::NoGradGuard without;
      Options plain = how_.call;
      plain.metric = Jacobian{.normalize = Normalize::none, .scope = Scope::prefix};
      plain.weighting = Softmax{};
      if (std::holds_alternative<Linear>(how_.call.weighting)) plain.scale = {};
      raw = nn::measure(p.q, p.k, p.v, {}, plain).metric;
    }
    metric = finish(raw);
    if (how_.call.metric_grad != MetricGrad::through) metric = metric.detach();
  }
  const bool given = metric.defined();
  const at::Tensor o =
      nn::attend(p.q, p.k, p.v, {.metric = given ? metric.to(nn::wide_type(p.q)) : metric},
                 given ? how_.given : how_.call);
  return {out(o), p.v};
}

RotaryAttention::Result RotaryAttention::step(const at::Tensor& x, const Turn& by,
                                              const at::Tensor& v_prev, RotaryCache& cache,
                                              std::int64_t capacity) {
  const Heads p = project(x, by);
  at::Tensor metric = fixed_metric();
  if (estimates_) {
    at::Tensor total = sizes(p, v_prev, &cache).cumsum(2);
    if (cache.sum.defined()) total = total + cache.sum;
    cache.sum = total.slice(2, -1);
    const std::int64_t first = cache.length + 1;
    metric = finish(total / at::arange(first, first + x.size(1), total.options()).unsqueeze(1));
  }
  const bool given = metric.defined();
  if (!cache.decoder) {
    Options how = given ? how_.given : how_.call;
    if (x.is_cuda()) how.backend = Backend::cuda;
    cache.decoder = std::make_unique<Decoder>(DecoderSizes{.B = x.size(0),
                                                           .H = options_.heads,
                                                           .G = options_.kv_heads,
                                                           .D = options_.head_dim,
                                                           .E = options_.head_dim,
                                                           .capacity = capacity,
                                                           .dtype = nn::view_of("q", p.q).dtype},
                                              how);
  }
  const at::Tensor wide = given ? metric.to(nn::wide_type(p.q)) : metric;
  const at::Tensor o = at::empty(p.q.sizes(), p.q.options());
  cache.decoder->step({.o = nn::view_of("o", o)}, {.q = nn::view_of("q", p.q),
                                                   .k = nn::view_of("k", p.k),
                                                   .v = nn::view_of("v", p.v),
                                                   .metric = nn::view_of("metric", wide)});
  cache.length += x.size(1);
  return {out(o), p.v};
}

}  // namespace foci::models
