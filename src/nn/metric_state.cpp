// SPDX-License-Identifier: Apache-2.0
// What a layer remembers of its metric: a parameter that is learned, an average over training
// batches, a draw. Such metrics go to the operators as given ones.
#include "nn/attention.hpp"

#include "nn/views.hpp"

#include <foci/nn_parts.hpp>

#include <ATen/ATen.h>

#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

namespace foci::nn {
namespace {

thread_local std::function<void(const at::Tensor&)> sum_over_parts;

/// Of the whole batch.
at::Tensor of_all(const at::Tensor& part) {
  if (!sum_over_parts) return part;
  const at::Tensor all = part.contiguous().clone();
  sum_over_parts(all);
  return all;
}

/// x with log(1 + exp(x)) = m > 0.
at::Tensor inverse_softplus(const at::Tensor& m) { return m + at::log(-at::expm1(-m)); }

/// 1 for tokens that count, (B,1,N,1).
at::Tensor counted(const at::Tensor& key_mask, const at::Tensor& like) {
  if (!key_mask.defined()) return at::ones({like.size(0), 1, like.size(2), 1}, like.options());
  return key_mask.unsqueeze(1).unsqueeze(3).to(like.scalar_type());
}

/// A masked token may hold anything, NaN too: it is replaced, not multiplied by 0.
at::Tensor kept(const at::Tensor& x, const at::Tensor& keep) {
  return at::where(keep.gt(0), x, at::zeros_like(x));
}

/// m divided by its largest or mean entry; 1 where that is 0.
at::Tensor normalised(const at::Tensor& m, Normalize how) {
  if (how == Normalize::none) return m;
  const at::Tensor by =
      how == Normalize::max ? m.amax({-1}, true) : m.mean(at::IntArrayRef{-1}, true);
  const at::Tensor none = by.eq(0);
  return at::where(none, at::ones_like(m), m / at::where(none, at::ones_like(by), by));
}

/// Cholesky factor of s + ridge I (G,D,D); where it fails the ridge is raised tenfold, six times at
/// most.
at::Tensor factored(const at::Tensor& s, double ridge) {
  const at::Tensor eye = at::eye(s.size(-1), s.options());
  at::Tensor ridges = at::full({s.size(0), 1, 1}, ridge, s.options());
  for (int attempt = 0; attempt < 7; ++attempt) {
    const auto [lower, info] = at::linalg_cholesky_ex(s + ridges * eye);
    const at::Tensor failed = info.ne(0);
    if (!failed.any().item<bool>()) return lower;
    ridges = at::where(failed.view({-1, 1, 1}), ridges * 10, ridges);
  }
  throw NumericalError(
      "the keys' covariance cannot be factored, not with a larger ridge either: "
      "raise ridge");
}

struct Moments {
  at::Tensor n, mean, scatter;  // (), (G,D), (G,D,D)
};

/// Of the keys that count, over batch and tokens; the scatter over n - 1.
Moments moments(const at::Tensor& k, const at::Tensor& key_mask) {
  const at::Tensor keep = counted(key_mask, k).to(at::kDouble);
  const at::Tensor x = kept(k.to(at::kDouble), keep);
  const at::Tensor n = of_all(keep.sum());
  const at::Tensor mean = of_all(x.sum(at::IntArrayRef({0, 2}))) / n.clamp_min(1);
  const at::Tensor centred = kept(x - mean.unsqueeze(0).unsqueeze(2), keep);
  const at::Tensor rows = centred.transpose(0, 1).flatten(1, 2);  // (G,BN,D)
  return {n, mean, of_all(at::matmul(rows.transpose(1, 2), rows)) / (n - 1).clamp_min(1)};
}

Normalize normalize_of(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.normalize; }) return m.normalize;
        return Normalize::none;
      },
      metric);
}

}  // namespace

InParts::InParts(std::function<void(const at::Tensor&)> sum)
    : before_(std::exchange(sum_over_parts, std::move(sum))) {}
InParts::~InParts() { sum_over_parts = std::move(before_); }

at::Tensor encoded(const std::string& text) {
  at::Tensor bytes = at::empty({std::int64_t(text.size())}, at::kByte);
  std::memcpy(bytes.data_ptr(), text.data(), text.size());
  return bytes;
}

std::string decoded(const at::Tensor& bytes) {
  const at::Tensor plain = bytes.to(at::kCPU, at::kByte).contiguous();
  return {static_cast<const char*>(plain.data_ptr()), std::size_t(plain.numel())};
}

void AttentionImpl::remember() {
  const auto& [G, D] = std::pair(options_.kv_heads, options_.head_dim);
  if (options_.learned) {
    const bool random = options_.learned->init == Init::random;
    const bool nothing_below = options_.lowest && !how_->full;
    awaits_ = options_.learned->init == Init::estimate && !nothing_below;
    if (how_->full) {
      at::Tensor lower = at::zeros({G, D, D});
      if (random) lower = at::randn({G, D, D}).mul(1 / std::sqrt(double(D))).tril(-1);
      metric_factor = register_parameter("metric_factor", lower + at::eye(D));
    } else {
      const at::Tensor m = random ? at::rand({G, D}).mul(0.9).add(0.1) : at::ones({G, D});
      metric_raw = register_parameter("metric_raw", inverse_softplus(m));
    }
  } else if (std::holds_alternative<Random>(how_->call.metric)) {
    const at::Tensor x = at::zeros({1, G, 1, D});
    const at::NoGradGuard without;
    const auto drawn = measure(x, x, x, {}, {.metric = how_->call.metric}).metric;
    metric_drawn = register_buffer("metric_drawn", drawn.view({G, D}));
  }
  if (!options_.running || std::holds_alternative<Dot>(how_->call.metric)) return;
  if (how_->full) {
    running_mean = register_buffer("running_mean", at::zeros({G, D}));
    running_scatter = register_buffer("running_scatter", at::zeros({G, D, D}));
  } else {
    const bool jacobian = std::holds_alternative<Jacobian>(how_->call.metric);
    running_m = register_buffer("running_m", at::zeros({jacobian ? options_.heads : G, D}));
  }
  running_steps = register_buffer("running_steps", at::zeros({}, at::kLong));
}

at::Tensor AttentionImpl::given_metric() const {
  if (metric_raw.defined()) return at::softplus(metric_raw).unsqueeze(0).unsqueeze(2);
  if (metric_factor.defined()) {
    const at::Tensor lower = metric_factor.to(at::kDouble).tril();  // f64: autocast lets it be
    return at::matmul(lower, lower.transpose(1, 2)).unsqueeze(0);
  }
  if (metric_drawn.defined()) return metric_drawn.unsqueeze(0).unsqueeze(2);
  if (!running_steps.defined()) return {};
  const at::NoGradGuard without;
  const auto steps = running_steps.item<std::int64_t>();
  const double part = steps == 0 ? 1 : 1 - std::pow(options_.running->momentum, double(steps));
  if (running_scatter.defined()) {
    at::Tensor s = running_scatter.to(at::kDouble) / part;
    if (steps == 0) s = at::eye(s.size(-1), s.options()).expand_as(s);
    const double ridge = std::get<KeyCovariance>(how_->call.metric).ridge;
    return at::cholesky_inverse(factored(s, ridge)).unsqueeze(0);
  }
  at::Tensor m = running_m.to(at::kDouble) / part;
  if (steps == 0) m = at::ones_like(m);
  m = steps == 0 ? m : normalised(m, normalize_of(how_->call.metric));
  if (std::holds_alternative<Flat>(how_->call.metric))
    m = m.mean(at::IntArrayRef{-1}, true).expand_as(m);
  return m.unsqueeze(0).unsqueeze(2);
}

std::pair<at::Tensor, at::Tensor> AttentionImpl::raw(const Projected& p) const {
  if (std::holds_alternative<Jacobian>(how_->call.metric)) {
    Options plain = how_->call;
    plain.metric = Jacobian{.normalize = Normalize::none, .scope = Scope::sequence};
    plain.weighting = Softmax{};
    plain.allow_leak = plain.causal;
    if (std::holds_alternative<Linear>(how_->call.weighting)) plain.scale = {};
    const at::Tensor m = measure(p.q, p.k, p.v, {.key_mask = p.key_mask}, plain).metric.squeeze(2);
    const at::Tensor count =
        counted(p.key_mask, p.k).to(m.scalar_type()).sum(at::IntArrayRef({2, 3}));  // (B,1)
    const at::Tensor n = of_all(count.sum());
    return {n, of_all((m * count.unsqueeze(2)).sum(0)) / n.clamp_min(1)};
  }
  const auto type = wide_type(p.v);
  const at::Tensor keep = counted(p.key_mask, p.v).to(type);
  const at::Tensor change = kept((p.v.to(type) - p.v_prev.to(type)).abs(), keep);
  const at::Tensor n = of_all(keep.sum());
  return {n, of_all(change.sum(at::IntArrayRef({0, 2}))) / n.clamp_min(1)};
}

void AttentionImpl::start(const Projected& p) {
  if (!awaits_) return;
  const at::NoGradGuard without;
  if (metric_raw.defined()) {
    if (!p.v_prev.defined()) {
      throw InvalidArgument(
          "a learned metric with init estimate starts from how values change: "
          "the first batch needs v_prev (or use init identity)");
    }
    const at::Tensor m = normalised(raw(p).second, Normalize::max).clamp_min(1e-3);
    metric_raw.copy_(inverse_softplus(m));
  } else {
    const Moments seen = moments(p.k, p.key_mask);
    const double prior = double(options_.head_dim);
    const at::Tensor eye = at::eye(options_.head_dim, seen.scatter.options());
    const at::Tensor shrunk = (seen.n * seen.scatter + prior * eye) / (seen.n + prior);
    metric_factor.copy_(factored(at::cholesky_inverse(factored(shrunk, 1e-6)), 0));
  }
  awaits_ = false;
}

void AttentionImpl::observe(const Projected& p) {
  if (!running_steps.defined()) return;
  const at::NoGradGuard without;
  const double keep = options_.running->momentum;
  const auto take = [&](const at::Tensor& old, const at::Tensor& seen) {
    old.mul_(keep).add_(seen.to(old.scalar_type()), 1 - keep);
  };
  if (running_scatter.defined()) {
    const Moments seen = moments(p.k, p.key_mask);
    if (seen.n.item<double>() == 0) return;
    take(running_mean, seen.mean);
    take(running_scatter, seen.scatter);
  } else {
    const auto [n, m] = raw(p);
    if (n.item<double>() == 0) return;
    take(running_m, m);
  }
  running_steps.add_(1);
}

void AttentionImpl::loaded() {
  if (!awaits_) return;
  const at::Tensor m = metric_raw.defined() ? metric_raw : metric_factor;
  const at::Tensor start =
      metric_raw.defined() ? inverse_softplus(at::ones_like(m)) : at::eye(m.size(-1)).expand_as(m);
  awaits_ = m.eq(start).all().item<bool>();  // it never saw a batch there either
}

}  // namespace foci::nn
