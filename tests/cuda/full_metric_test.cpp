// SPDX-License-Identifier: Apache-2.0
// Full metrics of the CUDA backend around plain passes, against ref: estimates, lines, and the
// gradient's way back, over awkward shapes.
#include "cuda/full_metric.cuh"

#include "attend/check.hpp"
#include "cpu/three.hpp"
#include "cuda/plain_pass.hpp"

#include <gtest/gtest.h>

namespace foci::cuda {
namespace {

using namespace cases;
using CudaShape = foci::cuda::Shape;

/// Offsets of packed sequences, where there are some.
struct Packed {
  std::vector<int> q, k;

  Inputs of(Inputs from) const {
    if (q.empty()) return from;
    const auto entries = std::int64_t(q.size());
    from.q_offsets = View(q.data(), {entries});
    from.k_offsets = View(k.data(), {entries});
    return from;
  }
};

CudaShape shape_of(const Problem& p, const Packed& packed) {
  CudaShape shape;
  shape.sequences = int(p.sequences);
  shape.H = int(p.size.H), shape.G = int(p.size.G), shape.N = int(p.size.N),
  shape.M = int(p.size.M);
  shape.D = int(p.size.D), shape.E = int(p.size.E);
  shape.longest_n = int(p.longest_n), shape.longest_m = int(p.longest_m);
  shape.causal = int(p.how.causal);
  if (!packed.q.empty()) shape.q_offsets = packed.q.data(), shape.k_offsets = packed.k.data();
  return shape;
}

/// What is compared.
Outputs outputs_of(Made& made, const Inputs& from, const Options& how) {
  const Case& c = made.c;
  Outputs to;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  const metric::Index shape = checks::metric_shape(checks::check(from, how));
  to.metric = made.fresh("metric_used", {shape.sizes().begin(), shape.sizes().end()},
                         made.dtype == DType::f64 ? DType::f64 : DType::f32);
  return to;
}
Gradients gradients_of(Made& made, const Inputs& from, const Options& how) {
  const Case& c = made.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  Gradients to;
  to.d_o = made.find("d_o");
  to.dq = made.fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  to.dk = made.fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  to.dv = made.fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  to.dv_prev = made.fresh("dv_prev", {c.B, c.G, c.M, c.E}, made.dtype);
  const metric::Index shape = checks::metric_shape(checks::check(from, how));
  to.dmetric = made.fresh("dmetric", {shape.sizes().begin(), shape.sizes().end()}, wide);
  if (const View bias = made.find("key_bias"))
    to.dkey_bias = made.fresh("dkey_bias", {bias.sizes().begin(), bias.sizes().end()}, wide);
  return to;
}

void run_here(Made& made, const Options& how, const Packed& packed) {
  const Inputs from = packed.of(made.inputs());
  const Problem p = checks::check(from, how);
  const CudaShape shape = shape_of(p, packed);
  const Outputs to = outputs_of(made, from, how);
  const Gradients back = gradients_of(made, from, how);
  Arena counting;
  FullMetric(counting, p, shape, FullMetric::Pass::backward);
  std::vector<std::byte> memory(counting.used() + Arena::alignment, std::byte{0xff});
  Arena arena(memory);
  FullMetric metric(arena, p, shape, FullMetric::Pass::backward);
  metric.estimate(to, nullptr);
  const Sinks sinks = metric.sinks(back);
  const Kind kind = std::holds_alternative<Softmax>(how.weighting) ? Kind::softmax : Kind::identity;
  for (int wave = 0; wave < metric.waves(); ++wave) {
    PlainPass pass(shape, metric.fold(wave, nullptr), kind);
    pass.run(Field(to.o), Field(back.d_o), sinks);
    metric.gather(wave, back, nullptr);
  }
  metric.finish(back, nullptr);
}

void run_ref(Made& made, Options how, const Packed& packed) {
  how.backend = Backend::ref;
  const Inputs from = packed.of(made.inputs());
  const Outputs to = outputs_of(made, from, how);
  attend(to, from, how);
  attend_backward(gradients_of(made, from, how), from, to, how);
}

/// Adds a draw to the rule.
void draw(Rule& rule, Three& three, const Options& how, const Packed& packed = {}) {
  for (const char* name : {"q", "k", "v", "v_prev", "d_o", "metric", "key_bias", "key_mask"})
    three.share(name);
  if (three.ours.find("metric"))  // its type says how far rounding may leave it from semidefinite
    three.exact.put("metric", Tensor::copy(three.ours["metric"], DType::f32));
  run_here(three.ours, how, packed);
  run_ref(three.naive, how, packed);
  run_ref(three.exact, how, packed);
  rule.add(three.ours, three.naive, three.exact);
}

struct Named {
  const char* name;
  Options how;
};

std::vector<Named> ways() {
  const KeyCovariance raw{.ridge = 1e-2}, prior{.ridge = 1e-2, .prior = 3.0};
  const KeyCovariance chunks{.ridge = 1e-2, .prior = 3.0, .period = 4};
  KeyCovariance free = chunks;
  free.scope = Scope::prefix;
  const Given given{Form::product, Extent::full};
  const Identity plain{Rescale::none};
  return {
      {"sequence", {.metric = raw}},
      {"prior", {.metric = prior, .scale = 0.4, .metric_grad = MetricGrad::detached}},
      {"sequence_identity", {.metric = prior, .weighting = plain}},
      {"given", {.metric = given}},
      {"given_causal", {.metric = given, .causal = true}},
      {"given_identity", {.metric = given, .weighting = plain}},
      {"prefix", {.metric = chunks, .causal = true}},
      {"prefix_detached", {.metric = chunks, .causal = true, .metric_grad = MetricGrad::detached}},
      {"prefix_free", {.metric = free}},
      {"prefix_identity", {.metric = chunks, .weighting = plain, .causal = true}},
  };
}

/// The largest error of a handful of numbers says nothing: small shapes are drawn several times,
/// and what is off is judged with more.
void expect_agreement(const Named& way, const Case& c, DType dtype, double size = 1) {
  const int draws = c.N * c.M * c.D > 1000 ? 1 : 4;
  Rule rule;
  for (int seed = 1; seed <= 4 * draws && (seed <= draws || !rule.holds()); ++seed) {
    Three three(c, dtype, size, std::uint64_t(seed));
    give_metric(three.ours, way.how.metric);
    if (seed % 2 == 0) three.ours.normal("key_bias", {c.B, seed % 4 ? c.G : c.H, c.M}, 1);
    draw(rule, three, way.how);
  }
  rule.expect(std::string(way.name) + " " + c.name);
}

TEST(FullMetricOnDevice, agrees_with_ref) {
  for (const Named& way : ways()) {
    for (const Case& c : shapes()) expect_agreement(way, c, DType::f32);
  }
}

/// Over a tile of columns, and of a size that shared memory does not hold.
TEST(FullMetricOnDevice, heads_of_any_size) {
  for (const Named& way : ways()) {
    expect_agreement(way, {"wide", 1, 2, 1, 70, 83, 67, 5}, DType::f32);
  }
  expect_agreement(ways().front(), {"widest", 1, 1, 1, 9, 170, 150, 3}, DType::f32);
}

TEST(FullMetricOnDevice, sixteen_bits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Named& way : ways())
      expect_agreement(way, {"half", 2, 4, 2, 21, 34, 7, 6, Masked::holes}, dtype);
  }
}

/// Scores of 1e8 tell one key from the others; of 1e-8 none.
TEST(FullMetricOnDevice, large_and_small) {
  for (const double size : {1e4, 1e-4}) {
    for (Named way : ways()) {
      if (!std::holds_alternative<Softmax>(way.how.weighting)) continue;
      const auto* covariance = std::get_if<KeyCovariance>(&way.how.metric);
      if (covariance && covariance->period == 4) way.how.scale = 1 / (size * size);
      expect_agreement(way, {"size", 1, 2, 2, 30, 30, 6, 6}, DType::f32, size);
    }
  }
}

/// Keys and queries far from the origin, but not from each other.
TEST(FullMetricOnDevice, far_away) {
  for (const Named& way : ways()) {
    Rule rule;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Three three({"far", 1, 2, 1, 33, 40, 6, 6}, DType::f32, 1, seed);
      give_metric(three.ours, way.how.metric);
      for (const char* name : {"q", "k"}) {
        float* x = three.ours[name].data<float>();
        for (std::int64_t i = 0; i < three.ours[name].view().count(); ++i) x[i] += 1e3f;
      }
      draw(rule, three, way.how);
    }
    rule.expect(way.name);
  }
}

TEST(FullMetricOnDevice, packed_sequences) {
  const Packed packed{{0, 9, 9, 30, 37}, {0, 14, 17, 40, 40}};
  for (const Named& way : ways()) {
    Rule rule;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Three three({"packed", 1, 4, 2, 37, 40, 5, 4, Masked::holes}, DType::f32, 1, seed);
      if (std::holds_alternative<Given>(way.how.metric)) {
        three.ours.c.B = seed == 1 ? 1 : 4;  // one for all, or one each
        give_metric(three.ours, way.how.metric);
        three.ours.c.B = 1;
      }
      draw(rule, three, way.how, packed);
    }
    rule.expect(way.name);
  }
}

/// One metric for a whole batch: its gradient is the sum over sequences.
TEST(FullMetricOnDevice, a_given_metric_may_be_shared) {
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Three three({"shared", 3, 2, 2, 12, 13, 5, 4}, DType::f32, 1, seed);
    three.ours.c.B = 1;
    give_metric(three.ours, Given{Form::product, Extent::full});
    three.ours.c.B = 3;
    draw(rule, three, {.metric = Given{Form::product, Extent::full}});
  }
  rule.expect("shared");
}

/// Some directions do not count; the gradient knows them nevertheless.
TEST(FullMetricOnDevice, a_given_metric_may_be_flat) {
  for (const std::int64_t rank : {0, 1, 3}) {
    Rule rule;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      Three three({"flat", 1, 2, 2, 12, 13, 9, 4}, DType::f32, 1, seed);
      Tensor P(DType::f64, {1, 2, 9, 9});
      const Tensor half = Tensor::copy(three.ours.normal("half", {2, 9, 5}, 1), DType::f64);
      for (int i = 0; i < 90; ++i)
        half.data<double>()[i] = std::round(4 * half.data<double>()[i]) / 4;  // P is exact
      for (int i = 0; i < 162; ++i) {
        for (int l = 0; l < rank; ++l)
          P.data<double>()[i] += half.data<double>()[i / 9 * 5 + l] *
                                 half.data<double>()[(i / 81 * 9 + i % 9) * 5 + l];
      }
      three.ours.put("metric", Tensor::copy(P, DType::f32));
      draw(rule, three, {.metric = Given{Form::product, Extent::full}});
    }
    rule.expect("rank " + std::to_string(rank));
  }
}

}  // namespace
}  // namespace foci::cuda
