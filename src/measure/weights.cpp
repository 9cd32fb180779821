// SPDX-License-Identifier: Apache-2.0
// s = c q'.k + b + r for every metric, then each weighting over the keys that a query sees. The
// definition is src/ref; tests hold the two together.
#include "measure/weights.hpp"

#include <foci/error.hpp>
#include <foci/measure.hpp>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/full.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <variant>

namespace foci::measure {
namespace {

constexpr std::int64_t block_size = std::int64_t(1) << 22;

/// (.., G, ..) along dimension 1 to H heads.
at::Tensor heads_of(const at::Tensor& x, std::int64_t heads) {
  return !x.defined() || x.size(1) == heads ? x : x.repeat_interleave(heads / x.size(1), 1);
}

Form form_of(const Metric& metric) {
  return std::visit(
      [](const auto& m) {
        if constexpr (requires { m.form; }) return m.form;
        return Form::product;
      },
      metric);
}

double scale_of(const foci::Options& how, std::int64_t D) {
  if (const auto* number = std::get_if<double>(&how.scale)) return *number;
  if (is_full(how.metric) || std::holds_alternative<Linear>(how.weighting)) return 1;
  return 1 / std::sqrt(double(D));
}

at::Tensor narrowed(const at::Tensor& x, std::int64_t first, std::int64_t count) {
  return !x.defined() || x.size(0) == 1 ? x : x.narrow(0, first, count);
}

/// x by what `how` says, 0 where that is 0. Unseen entries of x are 0.
at::Tensor rescaled(const at::Tensor& x, Rescale how, const at::Tensor& seen) {
  at::Tensor by;
  if (how == Rescale::none) return x;
  if (how == Rescale::length) by = seen.sum(-1, true).to(x.scalar_type());
  if (how == Rescale::l1) by = x.abs().sum(-1, true);
  if (how == Rescale::l2) {
    const at::Tensor largest = x.abs().amax(-1, true);
    const at::Tensor safe = at::where(largest.gt(0), largest, at::full({}, 1, x.options()));
    by = safe * (x / safe).square().sum(-1, true).sqrt();
  }
  return at::where(by.gt(0), x / by, at::zeros({}, x.options()));
}

}  // namespace

bool is_full(const Metric& metric) {
  const auto* given = std::get_if<Given>(&metric);
  return std::holds_alternative<KeyCovariance>(metric) ||
         (given != nullptr && given->extent == Extent::full);
}

at::Tensor metric_of(const nn::Seen& call) {
  return std::holds_alternative<Given>(call.how.metric) ? call.extras.metric
                                                        : call.statistics.metric;
}

nn::Seen samples_of(const nn::Seen& call, std::int64_t first, std::int64_t count) {
  const auto cut = [&](const at::Tensor& x) { return narrowed(x, first, count); };
  nn::Seen some = call;
  for (at::Tensor* x : {&some.q, &some.k, &some.v, &some.extras.v_prev, &some.extras.key_mask,
                        &some.extras.key_bias, &some.extras.metric})
    *x = cut(*x);
  nn::Statistics& s = some.statistics;
  for (at::Tensor* x : {&s.o, &s.lse, &s.concentration, &s.effective_keys, &s.entropy, &s.largest,
                        &s.largest_at, &s.metric})
    *x = cut(*x);
  return some;
}

Weights::Weights(const nn::Seen& call) : how_(call.how) {
  if (call.extras.q_offsets.defined() || call.extras.k_offsets.defined()) {
    throw Unsupported(
        "weights of packed sequences; the nearest is one sequence a call, or a key_mask");
  }
  const auto wide = call.q.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const std::int64_t heads = call.q.size(1);
  q_ = call.q.detach().to(wide);
  k_ = heads_of(call.k.detach().to(wide), heads);
  bias_ = heads_of(
      call.extras.key_bias.defined() ? call.extras.key_bias.detach().to(wide) : at::Tensor(),
      heads);
  key_mask_ = call.extras.key_mask;
  const at::Tensor metric = metric_of(call);
  if (metric.defined()) {
    at::Tensor& own = is_full(how_.metric) ? P_ : m_;
    own = heads_of(metric.detach().to(wide), heads);
  }
  distance_ = P_.defined() || form_of(how_.metric) == Form::distance;
  if (distance_ && k_.size(2) > 0) {  // small differences of large numbers, else
    at::Tensor mean = k_;
    if (key_mask_.defined()) {
      const at::Tensor keep = key_mask_.unsqueeze(1).unsqueeze(3);
      const at::Tensor count = keep.sum(2, true).clamp_min(1).to(wide);
      mean = k_.masked_fill(keep.logical_not(), 0).sum(2, true) / count;
    } else {
      mean = k_.mean(2, true);
    }
    k_ = k_ - mean;
    q_ = q_ - mean;
  }
  c_ = at::full({}, scale_of(how_, q_.size(3)), q_.options());
  if (std::holds_alternative<MatchDot>(how_.scale)) match(call);
}

std::int64_t Weights::block() const {
  const std::int64_t row = q_.size(0) * q_.size(1) * std::max<std::int64_t>(k_.size(2), 1);
  return std::clamp<std::int64_t>(block_size / std::max<std::int64_t>(row, 1), 1,
                                  std::max<std::int64_t>(q_.size(2), 1));
}

at::Tensor Weights::visible(std::int64_t first, std::int64_t count) const {
  const std::int64_t N = q_.size(2), M = k_.size(2);
  const auto whole = at::TensorOptions().dtype(at::kLong).device(q_.device());
  at::Tensor seen = at::ones({1, 1, count, M}, whole.dtype(at::kBool));
  if (how_.causal) {
    const at::Tensor t = at::arange(first + M - N, first + count + M - N, whole);
    seen = at::arange(M, whole).unsqueeze(0).le(t.unsqueeze(1)).unsqueeze(0).unsqueeze(0);
  }
  if (key_mask_.defined()) seen = seen.logical_and(key_mask_.unsqueeze(1).unsqueeze(2));
  return seen.expand({q_.size(0), 1, count, M});
}

/// -1/2 c (q - k)' P (q - k), with P (B|1,H,D,D).
at::Tensor Weights::scores_under(const at::Tensor& P, const at::Tensor& q) const {
  const at::Tensor Pq = at::matmul(q, P), Pk = at::matmul(k_, P);
  const at::Tensor own = (Pq * q).sum(-1, true), theirs = (Pk * k_).sum(-1).unsqueeze(-2);
  return c_ * (at::matmul(Pq, k_.transpose(-1, -2)) - 0.5 * theirs - 0.5 * own);
}

/// Under prefix the metric is that of the query's chunk.
at::Tensor Weights::chunked_scores(const at::Tensor& q, std::int64_t first,
                                   std::int64_t count) const {
  const std::int64_t N = q_.size(2), M = k_.size(2), B = q_.size(0);
  const auto whole = at::TensorOptions().dtype(at::kLong).device(q.device());
  const at::Tensor t = at::arange(first + M - N, first + count + M - N, whole).clamp(0, M);
  at::Tensor before = t.unsqueeze(0).expand({B, count});  // unmasked keys before t
  if (key_mask_.defined()) {
    const at::Tensor sums =
        at::cat({at::zeros({B, 1}, whole), key_mask_.to(at::kLong).cumsum(1)}, 1);
    before = sums.gather(1, before);
  }
  const auto period = std::get<KeyCovariance>(how_.metric).period;
  const at::Tensor chunk = before.div(period, "floor").clamp_max(P_.size(2) - 1);
  at::Tensor s;
  for (auto c = chunk.min().item<std::int64_t>(); c <= chunk.max().item<std::int64_t>(); ++c) {
    const at::Tensor own = scores_under(P_.select(2, c), q);
    s = s.defined() ? at::where(chunk.eq(c).unsqueeze(1).unsqueeze(3), own, s) : own;
  }
  return s;
}

at::Tensor Weights::scores(std::int64_t first, std::int64_t count) const {
  const at::Tensor q = q_.narrow(2, first, count);
  at::Tensor s;
  if (P_.defined()) {
    s = P_.dim() == 5 ? chunked_scores(q, first, count) : scores_under(P_, q);
  } else {
    at::Tensor m = m_;
    if (m.defined() && m.size(2) > 1) m = m.narrow(2, first, count);
    const at::Tensor mq = m.defined() ? m * q : q;
    s = at::matmul(mq, k_.transpose(-1, -2));
    if (distance_) {
      const at::Tensor squares = k_.square();
      const at::Tensor theirs =
          m.defined() ? at::matmul(m, squares.transpose(-1, -2)) : squares.sum(-1).unsqueeze(-2);
      s = s - 0.5 * theirs - 0.5 * (mq * q).sum(-1, true);
    }
    s = c_ * s;
  }
  return bias_.defined() ? s + bias_.unsqueeze(2) : s;
}

at::Tensor Weights::linear(const at::Tensor& q, const at::Tensor& seen) const {
  const Feature feature = std::get<Linear>(how_.weighting).feature;
  at::Tensor of_q, of_k;
  if (feature == Feature::exp) {
    const at::Tensor top = k_.amax(2, true);  // (B,H,1,D)
    const at::Tensor sum = q + top;
    of_q = (sum - sum.amax(-1, true)).exp();
    of_k = (k_ - top).exp();
  } else {
    const auto phi = [&](const at::Tensor& x) {
      return feature == Feature::relu ? x.clamp_min(0) : at::elu(x) + 1;
    };
    of_q = phi(q);
    of_k = phi(k_);
  }
  const at::Tensor x = at::matmul(of_q, of_k.transpose(-1, -2)).masked_fill(seen.logical_not(), 0);
  return rescaled(x, Rescale::l1, seen);
}

/// rate^(last key that is seen - j), by the sum.
at::Tensor Weights::decayed(const at::Tensor& seen) const {
  const auto type = q_.options();
  const at::Tensor place = at::arange(k_.size(2), type);
  const at::Tensor last = at::where(seen, place, at::full({}, -1, type)).amax(-1, true);
  const double log_rate = std::log(std::get<Decay>(how_.weighting).rate);
  const at::Tensor w = ((last - place).clamp_min(0) * log_rate).exp();
  return rescaled(w.masked_fill(seen.logical_not(), 0), Rescale::l1, seen);
}

at::Tensor Weights::weighed(const at::Tensor& s, const at::Tensor& seen) const {
  const at::Tensor hidden = seen.logical_not();
  return std::visit(
      [&](const auto& weighting) -> at::Tensor {
        using W = std::decay_t<decltype(weighting)>;
        if constexpr (std::is_same_v<W, Softmax>) {
          const at::Tensor a = at::softmax(s.masked_fill(hidden, -INFINITY), -1);
          return a.masked_fill(seen.any(-1, true).logical_not(), 0);
        } else if constexpr (std::is_same_v<W, Relu2>) {
          return rescaled(s.clamp_min(0).square().masked_fill(hidden, 0), weighting.rescale, seen);
        } else if constexpr (std::is_same_v<W, Identity>) {
          return rescaled(s.masked_fill(hidden, 0), weighting.rescale, seen);
        } else if constexpr (std::is_same_v<W, Decay>) {
          const at::Tensor w = decayed(seen);
          return weighting.content ? (w * s).masked_fill(hidden, 0) : w;
        } else {
          return {};  // linear: rows() makes it from q and k
        }
      },
      how_.weighting);
}

at::Tensor Weights::rows(std::int64_t first, std::int64_t count) const {
  const std::int64_t B = q_.size(0), H = q_.size(1), M = k_.size(2);
  if (M == 0 || count == 0) return at::zeros({B, H, count, M}, q_.options());
  const at::Tensor seen = visible(first, count);
  at::Tensor a;
  if (std::holds_alternative<Linear>(how_.weighting)) {
    at::Tensor m = m_;
    if (m.defined() && m.size(2) > 1) m = m.narrow(2, first, count);
    const at::Tensor q = q_.narrow(2, first, count);
    a = linear(c_ * (m.defined() ? m * q : q), seen);
  } else {
    a = weighed(scores(first, count), seen);
  }
  return a.expand({B, H, count, M});
}

/// The scale that the call chose, per sample and head, from what its rows say: their lse falls as
/// the scale grows; weights that are no probabilities are in proportion to it.
void Weights::match(const nn::Seen& call) {
  const std::int64_t B = q_.size(0), H = q_.size(1), N = q_.size(2);
  c_ = at::ones({B, H, 1, 1}, q_.options());
  const std::int64_t row = N - 1;  // whichever; a causal one sees most
  const auto at_row = [&](const at::Tensor& x) { return x.narrow(2, row, 1).unsqueeze(-1); };
  if (!std::holds_alternative<Softmax>(how_.weighting)) {
    const at::Tensor own = rows(row, 1).abs().amax(-1, true);
    const at::Tensor told = at_row(call.statistics.largest).to(own.scalar_type());
    c_ = at::where(own.gt(0), told / own.clamp_min(1e-30), at::ones_like(own));
    return;
  }
  const at::Tensor lse = at_row(call.statistics.lse).to(at::kDouble);
  const at::Tensor hidden = visible(row, 1).logical_not();
  at::Tensor bias = bias_;
  bias_ = at::Tensor();
  const at::Tensor s = scores(row, 1).to(at::kDouble);  // at scale 1
  bias_ = bias;
  if (bias.defined()) bias = bias.unsqueeze(2).to(at::kDouble);
  at::Tensor low = at::full({B, H, 1, 1}, -30.0, s.options()), high = low.neg();  // of ln c
  for (int step = 0; step < 80; ++step) {
    const at::Tensor middle = (low + high) / 2;
    at::Tensor x = middle.exp() * s;
    if (bias.defined()) x = x + bias;
    const at::Tensor over = x.masked_fill(hidden, -INFINITY).logsumexp(-1, true).gt(lse);
    low = at::where(over, middle, low);
    high = at::where(over, high, middle);
  }
  c_ = ((low + high) / 2).exp().to(q_.scalar_type());
}

at::Tensor weights(const nn::Seen& call, const Part& part) {
  const std::int64_t B = call.q.size(0), H = call.q.size(1), N = call.q.size(2);
  const std::int64_t count = part.count < 0 ? N - part.first : part.count;
  if (part.sample >= B || part.head >= H || part.first < 0 || part.first + count > N) {
    throw InvalidArgument(fmt::format(
        "weights of sample {}, head {}, queries {} to {}: the call has {} samples, {} heads and {} "
        "queries",
        part.sample, part.head, part.first, part.first + count, B, H, N));
  }
  nn::Seen some = part.sample < 0 ? call : samples_of(call, part.sample, 1);
  const std::int64_t numbers = some.q.size(0) * H * count * call.k.size(2);
  if (numbers > most_weights) {
    throw Unsupported(
        fmt::format("{} weights at once, more than 2 GiB; the nearest is fewer queries: {} of them",
                    numbers, most_weights / std::max<std::int64_t>(numbers / count, 1)));
  }
  const at::NoGradGuard without;
  const Weights of(some);
  std::vector<at::Tensor> blocks;
  for (std::int64_t i = part.first; i < part.first + count; i += of.block()) {
    const at::Tensor a = of.rows(i, std::min(of.block(), part.first + count - i));
    blocks.push_back(part.head < 0 ? a : a.narrow(1, part.head, 1));
  }
  if (blocks.empty()) blocks.push_back(of.rows(part.first, 0));
  return at::cat(blocks, 2);
}

}  // namespace foci::measure
