// SPDX-License-Identifier: Apache-2.0
// What is kept of a full metric on the device, and in which order its kernels run.
#include "cuda/full_metric.cuh"

#include "cuda/product.cuh"
#include "cuda/softmax_wgmma.cuh"
#include "metric/cholesky.hpp"

#include <algorithm>
#include <cmath>

namespace foci::cuda {

namespace {

/// Blocks that keep a large GPU busy, and how few keys are worth one.
constexpr std::int64_t enough_blocks = 528;
constexpr std::int64_t fewest_keys = 128;
/// Of fewer a row's weights do not average out what products leave.
constexpr int fewest_multiplied = 512;
/// Bytes that biases of all chunks may take.
constexpr std::int64_t most_bias = std::int64_t(1) << 30;

struct ScaleArgs {
  Field to;             // (sequences,G)
  const float* scales;  // (sequences,G), or `scale`
  double scale;
  int G, count;
};

__global__ void __launch_bounds__(product_threads) write_scale(ScaleArgs args) {
  const int index = int(blockIdx.x) * product_threads + int(threadIdx.x);
  if (index >= args.count) return;
  store_wide(args.to, args.to.offset(index / args.G, index % args.G),
             args.scales ? double(args.scales[index]) : args.scale);
}

struct EchoArgs {
  Field to, from;  // (sequences|1,G,D,D)
  int G, D;
};

__global__ void __launch_bounds__(product_threads) echo_metric(EchoArgs args) {
  const int b = int(blockIdx.x) / args.G, g = int(blockIdx.x) % args.G;
  for (int i = int(threadIdx.x); i < args.D * args.D; i += product_threads) {
    const int d = i / args.D, e = i % args.D;
    store_wide(args.to, args.to.offset(b, g, d, e),
               load_wide(args.from, args.from.offset(b, g, d, e)));
  }
}

Slots slots_of(const Problem& p, const Shape& shape) {
  Slots slots;
  slots.shape = shape;
  slots.B = int(p.size.B);
  slots.key_mask = Field(p.from.key_mask);
  const auto* how = p.metric<KeyCovariance>();
  if (!how || p.scope != Scope::prefix) return slots;
  slots.prefix = 1;
  slots.period = int(std::min<std::int64_t>(how->period, 1 << 30));
  slots.chunks = int(std::max<std::int64_t>(metric::chunk_count(shape.longest_m, slots.period), 1));
  return slots;
}

}  // namespace

FullMetric::FullMetric(Arena& arena, const Problem& problem, const Shape& shape, Pass pass,
                       std::int64_t wave_bytes)
    : p_(problem),
      pass_(pass),
      slots_(slots_of(problem, shape)),
      covariance_(problem.metric<KeyCovariance>() != nullptr) {
  if (const auto* how = p_.metric<KeyCovariance>()) shrink_ = {how->ridge, *how->prior};
  take_estimates(arena);
  take_lines(arena, wave_bytes);
  if (may_multiply()) take_products(arena);
  if (pass_ == Pass::backward) take_gradients(arena);
}

std::int64_t FullMetric::bias_bytes() const {
  return std::int64_t(slots_.chunks) * slots_.B * slots_.shape.G * slots_.shape.M * 4;
}

bool FullMetric::may_multiply() const {
  const Shape& shape = slots_.shape;
  const Inputs& from = p_.from;
  if (slots_.prefix && (bias_bytes() > most_bias || shape.E > 128)) return false;
  return !p_.match_dot && !from.key_bias && std::holds_alternative<Softmax>(p_.how.weighting) &&
         shape.D % 8 == 0 && shape.D <= 128 && shape.longest_m > fewest_multiplied &&
         from.q.dtype != DType::f32;
}

bool FullMetric::offers_products() const {
  return may_multiply() && products_read(Field(p_.from.q)) && products_read(Field(p_.from.k));
}

bool FullMetric::offers_narrow() const {
  const Shape& shape = slots_.shape;
  return offers_products() && narrow_heads_ && !p_.packed() && shape.D == shape.E &&
         shape.D % 64 == 0;
}

void FullMetric::allow_narrow() {
  allow_products();
  products_.narrow = narrow_heads_;
  products_.wide = narrow_heads_ + std::int64_t(slots_.shape.sequences) * slots_.shape.G;
  products_.narrow_q = reinterpret_cast<std::uint16_t*>(zq_);
  products_.narrow_k = reinterpret_cast<std::uint16_t*>(zk_);
  products_.apart = 2;
}

void FullMetric::take_products(Arena& arena) {
  const Shape& shape = slots_.shape;
  const std::int64_t B = slots_.B, D = shape.D, count = slots_.count();
  const std::int64_t heads = std::int64_t(shape.sequences) * shape.G;
  const bool half = p_.from.k.dtype == DType::f16, back = pass_ == Pass::backward;
  if (!slots_.prefix || (half && back)) P_ = arena.take<float>(count, D, D).data();
  products_.slots = slots_;
  products_.c = float(p_.c);
  products_.P = P_;
  products_.centre = centre_;
  products_.q = zq_;
  products_.row_bias = arena.take<float>(B, shape.H, shape.N).data();
  products_.key_bias = arena.take<float>(slots_.chunks, B, shape.G, shape.M).data();
  products_.largest = arena.take<int>(heads, FullProducts::sizes).data();
  products_.chosen = arena.take<int>(heads).data();
  products_.half = int(half);
  if (back) dproduct_bias_ = arena.take<float>(slots_.chunks, B, shape.G, shape.M).data();
  if (!slots_.prefix) {
    narrow_heads_ = arena.take<int>(2, heads).data();
    return;
  }
  products_.W = arena.take<std::uint16_t>(count, D, D).data();
  products_.unit = arena.take<float>(count).data();
  products_.narrow_q = arena.take<std::uint16_t>(B, shape.H, shape.N, D).data();
  products_.P_parts = arena.take<std::uint16_t>(count, 2, D, D).data();
  products_.moved = arena.take<float>(count, D).data();
  if (!half) products_.narrow_k = arena.take<std::uint16_t>(B, shape.G, shape.M, D).data();
}

void FullMetric::take_estimates(Arena& arena) {
  const Shape& shape = slots_.shape;
  const std::int64_t D = shape.D, heads = std::int64_t(shape.sequences) * shape.G;
  if (slots_.prefix) {
    slots_.kept = arena.take<int>(slots_.B, shape.M).data();
    slots_.spans = arena.take<int>(shape.sequences, slots_.chunks + 1).data();
    slots_.key_spans = arena.take<int>(shape.sequences, slots_.chunks + 1).data();
    slots_.chunks_before = arena.take<int>(shape.sequences).data();
  } else {
    const std::int64_t tiles = product_tiles(shape.D);
    const std::int64_t most = std::max<std::int64_t>(enough_blocks / (heads * tiles + 1), 1);
    part_keys_ = int(std::max(parts(shape.longest_m, most), fewest_keys));
    parts_ = int(std::max<std::int64_t>(parts(shape.longest_m, part_keys_), 1));
  }
  const std::int64_t count = slots_.count();
  const bool back = pass_ == Pass::backward;
  moments_.slots = slots_;
  moments_.k = Field(p_.from.k);
  moments_.parts = parts_;
  moments_.part_keys = part_keys_;
  moments_.part_count = arena.take<int>(count, parts_).data();
  moments_.part_mean = arena.take<double>(count, parts_, D).data();
  const bool joined = !slots_.prefix && parts_ == 1;  // there is nothing to join
  moments_.count = joined ? moments_.part_count : arena.take<int>(count).data();
  moments_.mean = joined ? moments_.part_mean : arena.take<double>(count, D).data();
  if (covariance_ || back) sums_ = arena.take<double>(count, parts_, D, D).data();
  if (covariance_) moments_.scatter = sums_;
  W_ = arena.take<float>(count, D, D).data();
  centre_ = arena.take<float>(count, D).data();
  if (covariance_ && back) lower_ = arena.take<double>(count, D, D).data();
  if (back || wants_room(shape.D)) inverse_ = arena.take<double>(count, D, D).data();
}

void FullMetric::take_lines(Arena& arena, std::int64_t wave_bytes) {
  const Shape& shape = slots_.shape;
  const std::int64_t B = slots_.B, D = shape.D;
  const std::int64_t bytes = std::max<std::int64_t>(B * shape.G * shape.M * D * 4, 1);
  if (slots_.prefix && !p_.from.key_mask && !p_.packed())
    first_chunk_ = std::max(shape.M - shape.N, 0) / slots_.period;
  first_chunk_ = std::min(first_chunk_, slots_.chunks - 1);
  wave_chunks_ = int(std::clamp<std::int64_t>(wave_bytes / bytes, 1, slots_.chunks - first_chunk_));
  zq_ = arena.take<float>(B, shape.H, shape.N, D).data();
  zk_ = arena.take<float>(wave_chunks_, B, shape.G, shape.M, D).data();
  if (p_.match_dot) match_ = ScaleMatch::take(arena, shape, slots_.B);
}

void FullMetric::take_gradients(Arena& arena) {
  const Shape& shape = slots_.shape;
  const std::int64_t B = slots_.B, D = shape.D;
  dzq_ = arena.take<float>(B, shape.H, shape.N, D).data();
  dzk_ = arena.take<float>(wave_chunks_, B, shape.G, shape.M, D).data();
  dk_ = arena.take<float>(B, shape.G, shape.M, D).data();
  shift_ = arena.take<double>(slots_.count(), D).data();
  const std::int64_t rooms = may_multiply() ? slots_.count() : gradient_blocks;
  room_ = arena.take<double>(std::min(slots_.count(), rooms), D, D).data();
  if (!slots_.prefix) return;
  dv_ = arena.take<float>(B, shape.G, shape.M, shape.E).data();
  const View& bias = p_.from.key_bias;
  if (bias) dkey_bias_ = arena.take<float>(bias.shape[0], bias.shape[1], bias.shape[2]).data();
}

/// A causal row may not feel a mean of keys it does not see: a given metric then measures from the
/// first key.
bool FullMetric::has_means() const { return covariance_ || !p_.how.causal; }

Factors FullMetric::factors(const Outputs& to) const {
  Factors of;
  of.slots = slots_;
  of.k = Field(p_.from.k);
  if (!covariance_) {
    of.given = Field(p_.from.metric);
    of.slack = metric::slack_of(p_.from.metric.dtype == DType::f64, p_.size.D);
  }
  if (has_means()) of.count = moments_.count;
  of.mean = moments_.mean;
  of.scatter = moments_.scatter;
  if (covariance_) of.scatter_step = std::int64_t(parts_) * p_.size.D * p_.size.D;
  of.shrink = shrink_;
  of.every = int(bool(to.metric) || bool(to.status));
  of.W = W_;
  of.centre = centre_;
  of.lower = lower_;
  of.inverse = inverse_;
  of.metric = Field(to.metric);
  of.status = Field(to.status);
  return of;
}

void FullMetric::factor_all(const Outputs& to, Stream stream) const {
  if (slots_.prefix && !multiplies()) place_chunks(slots_, stream);
  if (has_means()) gather_moments(moments_, stream);
  factor(factors(to), stream);
}

/// From estimates that suffice for the heads that are chosen; the others are left to factor_all().
void FullMetric::fold_products(const Outputs& to, Stream stream) const {
  Moments moments = moments_;
  Factors of = factors(to);
  moments.slots.by_mma = of.slots.by_mma = nullptr;
  if (slots_.prefix) place_chunks(slots_, stream);
  if (has_means()) estimate_moments(moments, stream);
  of.P = P_;
  of.narrow_W = products_.W, of.P_parts = products_.P_parts;
  of.unit = products_.unit, of.moved = products_.moved, of.c = products_.c;
  covariance_ ? invert(of, stream) : factor(of, stream);
  cuda::fold_products(products_, Field(p_.from.q), Field(p_.from.k), stream);
}

Folded FullMetric::products() const {
  const Shape& shape = slots_.shape;
  Folded to;
  to.q = Field::of(products_.q, {slots_.B, shape.H, shape.N, shape.D});
  to.k = Field(p_.from.k);
  to.v = Field(p_.from.v);
  to.key_bias = Field::of(products_.key_bias, {slots_.B, shape.G, shape.M});
  to.key_head_bias = 1;
  to.key_mask = slots_.key_mask;
  to.row_bias = Field::of(products_.row_bias, {slots_.B, shape.H, shape.N});
  to.by_mma = products_.wide ? products_.wide : products_.chosen;
  if (!slots_.prefix) return to;
  to.q = narrow_lines(products_.narrow_q, {slots_.B, shape.H, shape.N, shape.D});
  to.k = prefix_keys(products_, to.k);
  to.key_bias = Field::of(products_.key_bias, {slots_.chunks, slots_.B, shape.G, shape.M});
  to.spans = slots_.spans;
  to.most_chunks = slots_.chunks;
  const bool even = !slots_.key_mask.data && !p_.packed();
  to.chunks =
      even ? std::min(shape.N, slots_.period + std::max(shape.N - shape.M, 0)) : shape.longest_n;
  return to;
}

Folded FullMetric::narrow_products() const {
  const Shape& shape = slots_.shape;
  Folded to = products();
  // Where these lie before they are allowed as well: who serves them is asked first.
  auto *q = reinterpret_cast<std::uint16_t*>(zq_), *k = reinterpret_cast<std::uint16_t*>(zk_);
  to.q = narrow_lines(q, {slots_.B, shape.H, shape.N, shape.D}, 2);
  to.k = narrow_lines(k, {slots_.B, shape.G, shape.M, shape.D}, 2);
  to.by_mma = narrow_heads_;
  return to;
}

/// Sums that passes along the prefix add to.
void FullMetric::clear_sums(Stream stream) const {
  const Shape& shape = slots_.shape;
  fill(dv_, 0, sizeof(float) * std::size_t(slots_.B) * shape.G * shape.M * shape.E, stream);
  if (dkey_bias_)
    fill(dkey_bias_, 0, sizeof(float) * std::size_t(p_.from.key_bias.count()), stream);
  if (multiplies()) fill(dproduct_bias_, 0, std::size_t(bias_bytes()), stream);
}

void FullMetric::estimate(const Outputs& to, Stream stream) {
  if (slots_.prefix && pass_ == Pass::backward) clear_sums(stream);
  if (multiplies()) fold_products(to, stream);
  factor_all(to, stream);
  if (to.metric && !covariance_) {
    const int G = slots_.shape.G, D = slots_.shape.D;
    launch("full metric: echo", echo_metric,
           {{unsigned(to.metric.shape[0] * G)}, {product_threads}}, stream,
           EchoArgs{Field(to.metric), Field(p_.from.metric), G, D});
  }
  if (p_.match_dot) match(stream);
  if (!to.scale) return;
  const int count = slots_.shape.sequences * slots_.shape.G;
  launch("full metric: scale", write_scale,
         {{unsigned(parts(count, product_threads))}, {product_threads}}, stream,
         ScaleArgs{Field(to.scale), match_.scales, p_.c, slots_.shape.G, count});
}

void FullMetric::match(Stream stream) {
  const Shape& shape = slots_.shape;
  Folded dot;
  dot.scale = float(1 / std::sqrt(double(shape.D)));
  dot.q = Field(p_.from.q), dot.k = Field(p_.from.k), dot.v = Field(p_.from.v);
  dot.key_mask = slots_.key_mask;
  tile_forward(shape, dot, Weigh{}, match_.rows(), stream);
  begin_match(match_, stream);
  for (int round = 0; round < match_rounds; ++round) {
    for (int wave = 0; wave < waves(); ++wave) {
      Folded full = round == 0 || waves() > 1 ? fold(wave, stream) : folded(wave_at(wave));
      full.key_bias = {};
      tile_forward(shape, full, Weigh{}, match_.rows(), stream);
    }
    advance_match(match_, stream);
  }
}

int FullMetric::waves() const { return int(parts(slots_.chunks - first_chunk_, wave_chunks_)); }

FullMetric::Wave FullMetric::wave_at(int index) const {
  const int first = first_chunk_ + index * wave_chunks_;
  return {first, std::min(wave_chunks_, slots_.chunks - first)};
}

LineSet FullMetric::lines(const Wave& wave, bool keys) const {
  return {slots_, {W_, centre_, int(covariance_)}, int(keys), wave.first, wave.chunks};
}

Folded FullMetric::folded(const Wave& wave) const {
  const Shape& shape = slots_.shape;
  const std::int64_t B = slots_.B, D = shape.D;
  Folded to;
  to.score = Score::difference;
  to.scale = p_.match_dot ? 1.0f : float(p_.c);
  to.scales = match_.scales;
  to.q = Field::of(zq_, {B, shape.H, shape.N, D});
  to.k = slots_.prefix ? Field::of(zk_, {wave.chunks, B, shape.G, shape.M, D})
                       : Field::of(zk_, {B, shape.G, shape.M, D});
  to.v = Field(p_.from.v);
  to.key_bias = Field(p_.from.key_bias);
  to.key_head_bias = int(p_.from.key_bias && p_.from.key_bias.shape[1] != p_.size.H);
  to.key_mask = slots_.key_mask;
  to.by_mma = slots_.by_mma;
  if (!slots_.prefix) return to;
  to.spans = slots_.spans;
  to.first_chunk = wave.first;
  to.chunks = wave.chunks;
  to.most_chunks = slots_.chunks;
  return to;
}

Folded FullMetric::fold(int wave, Stream stream) {
  const Wave of = wave_at(wave);
  if (wave == 0) whiten(zq_, Field(p_.from.q), lines({0, slots_.chunks}, false), stream);
  whiten(zk_, Field(p_.from.k), lines(of, true), stream);
  return folded(of);
}

/// Whether somebody asks for what the metric's gradient leads to.
bool FullMetric::wants_metric(const Gradients& to) const {
  return bool(to.dmetric) || (covariance_ && p_.through && to.dk);
}

Sinks FullMetric::sinks(const Gradients& to) {
  const Shape& shape = slots_.shape;
  const std::int64_t B = slots_.B, D = shape.D;
  Sinks into;
  if (to.dq || wants_metric(to)) into.dq = Field::of(dzq_, {B, shape.H, shape.N, D});
  if (to.dk || wants_metric(to)) {
    into.dk = slots_.prefix ? Field::of(dzk_, {wave_chunks_, B, shape.G, shape.M, D})
                            : Field::of(dzk_, {B, shape.G, shape.M, D});
  }
  into.dv = Field(to.dv);
  into.dkey_bias = Field(to.dkey_bias);
  if (!slots_.prefix) return into;
  if (to.dv) into.dv = Field::of(dv_, {B, shape.G, shape.M, shape.E});
  if (to.dkey_bias) into.dkey_bias = Field::of(dkey_bias_, {B, p_.from.key_bias.shape[1], shape.M});
  return into;
}

Sinks FullMetric::product_sinks(const Gradients& to) {
  Sinks into = sinks(to);
  const Shape& shape = slots_.shape;
  into.dkey_bias = Field::of(dproduct_bias_, {slots_.B, shape.G, shape.M});
  if (!slots_.prefix) return into;
  if (into.dk.data) into.dk = Field::of(dk_, {slots_.B, shape.G, shape.M, shape.D});
  into.dkey_bias = Field::of(dproduct_bias_, {slots_.chunks, slots_.B, shape.G, shape.M});
  return into;
}

void FullMetric::gather(int wave, const Gradients& to, Stream stream) {
  const LineSet keys = lines(wave_at(wave), true);
  if (to.dk) unwhiten_keys(dk_, wave > 0, dzk_, keys, stream);
  if (wants_metric(to)) sum_outer({sums_, parts_, 0}, dzk_, zk_, keys, stream);
}

MetricGradient FullMetric::gradient(const Gradients& to) const {
  MetricGradient of;
  of.slots = slots_;
  of.G = sums_;
  of.parts = parts_;
  const bool shared = !covariance_ && p_.from.metric.shape[0] == 1;
  of.joined = shared ? std::max(slots_.shape.sequences, 1) : 1;
  of.lower = lower_;
  of.inverse = inverse_;
  of.dmetric = Field(to.dmetric);
  of.through = int(covariance_ && p_.through && to.dk);
  of.shrink = shrink_;
  of.count = moments_.count;
  of.mean = moments_.mean;
  of.shift = shift_;
  of.room = room_;
  of.formed = int(slots_.prefix && multiplies() && !products_.half);
  return of;
}

void FullMetric::finish(const Gradients& to, Stream stream) {
  const LineSet queries = lines({0, slots_.chunks}, false);
  const Field q(p_.from.q), k(p_.from.k);
  if (to.dq) unwhiten_queries(Field(to.dq), dzq_, queries, stream);
  if (to.dq && multiplies()) unfold_queries(Field(to.dq), product_sums(), products_, stream);
  const MetricGradient of = gradient(to);
  if (wants_metric(to)) {
    if (of.formed) {
      form_prefix_gradient(of, product_sums(), q, k, products_, stream);
    } else if (multiplies()) {
      sum_gradient({sums_, parts_, 0}, product_sums(), q, k, products_, stream);
    }
    sum_outer({sums_, parts_, 1}, dzq_, zq_, queries, stream);
    form_gradient(of, stream);
  }
  if (to.dk && slots_.prefix && multiplies())
    unfold_prefix_keys(product_sums(), k, products_, stream);
  if (to.dk) spread_to_keys(Field(to.dk), dk_, k, of, stream);
  if (to.dk && multiplies() && !slots_.prefix) {
    Estimate through;
    if (of.through) through = {sums_, std::int64_t(parts_) * p_.size.D * p_.size.D};
    unfold_keys(Field(to.dk), product_sums(), k, through, products_, stream);
  }
  if (to.dv_prev) copy_out(to.dv_prev, nullptr, stream);
  if (!slots_.prefix) return;
  if (to.dv) copy_out(to.dv, dv_, stream);
  if (to.dkey_bias) copy_out(to.dkey_bias, dkey_bias_, stream);
}

}  // namespace foci::cuda
