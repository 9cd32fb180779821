// SPDX-License-Identifier: Apache-2.0
// A problem with a full metric through FullMetric and a pass in between, plain loops or tiles, and
// beside it ref in the same type and in double.
#pragma once

#include "cuda/full_metric.cuh"

#include "attend/check.hpp"
#include "cpu/three.hpp"
#include "cuda/plain_pass.hpp"

#include <gtest/gtest.h>

namespace foci::cuda {

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

inline CudaShape shape_of(const Problem& p, const Packed& packed) {
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
inline Outputs outputs_of(Made& made, const Inputs& from, const Options& how, bool metric = true) {
  const Case& c = made.c;
  Outputs to;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  const Problem p = checks::check(from, how);
  const auto fresh = [&](const char* name, const metric::Index& shape, DType dtype) {
    return made.fresh(name, {shape.sizes().begin(), shape.sizes().end()}, dtype);
  };
  if (metric) to.metric = fresh("metric_used", checks::metric_shape(p), wide);
  to.scale = fresh("scale", {p.sequences, p.size.G}, wide);
  if (p.metric<KeyCovariance>()) to.status = fresh("status", checks::status_shape(p), DType::i32);
  return to;
}
inline Gradients gradients_of(Made& made, const Inputs& from, const Options& how,
                              bool metric = true) {
  const Case& c = made.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  Gradients to;
  to.d_o = made.find("d_o");
  to.dq = made.fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  to.dk = made.fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  to.dv = made.fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  to.dv_prev = made.fresh("dv_prev", {c.B, c.G, c.M, c.E}, made.dtype);
  const metric::Index shape = checks::metric_shape(checks::check(from, how));
  if (metric)
    to.dmetric = made.fresh("dmetric", {shape.sizes().begin(), shape.sizes().end()}, wide);
  if (const View bias = made.find("key_bias"))
    to.dkey_bias = made.fresh("dkey_bias", {bias.sizes().begin(), bias.sizes().end()}, wide);
  return to;
}

/// The passes in between: plain loops, or those of the backend, softmax alone.
enum class Between { loops, tiles };

struct Way {
  Between between = Between::loops;
  std::int64_t wave_bytes = FullMetric::standard_wave;
  bool products = false;  // where a head allows it
};

inline void run_tiles(const CudaShape& shape, const Folded& folded, const Outputs& to,
                      const Gradients& back, const Sinks& sinks) {
  const std::size_t rows = std::size_t(to.o.shape[0] * to.o.shape[1] * to.o.shape[2]);
  std::vector<float> lse(rows), delta(rows);
  Rows forward;
  forward.o = Field(to.o);
  forward.lse = Field::of(lse.data(), {to.o.shape[0], to.o.shape[1], to.o.shape[2]});
  tile_forward(shape, folded, Weigh{}, forward, nullptr);
  Saved saved;
  saved.d_o = Field(back.d_o), saved.o = forward.o, saved.lse = forward.lse;
  saved.delta = delta.data();
  tile_backward(shape, folded, Weigh{}, saved, sinks, nullptr);
}

struct Ran {
  int waves;
  std::vector<int> multiplied;  // (sequences,G)
};

inline Ran run_here(Made& made, const Options& how, const Packed& packed, const Way& way = {}) {
  const Inputs from = packed.of(made.inputs());
  const Problem p = checks::check(from, how);
  const CudaShape shape = shape_of(p, packed);
  const Outputs to = outputs_of(made, from, how, !way.products);
  const Gradients back = gradients_of(made, from, how, !way.products);
  constexpr auto pass = FullMetric::Pass::backward;
  Arena counting;
  FullMetric(counting, p, shape_of(p, {}), pass, way.wave_bytes);  // offsets have no memory yet
  std::vector<std::byte> memory(counting.used() + Arena::alignment, std::byte{0xff});
  Arena arena(memory);
  FullMetric metric(arena, p, shape, pass, way.wave_bytes);
  Ran ran{metric.waves(), {}};
  if (way.products) {
    EXPECT_TRUE(metric.offers_products());
    metric.allow_products();
  }
  metric.estimate(to, nullptr);
  const Sinks sinks = metric.sinks(back);
  const Kind kind = std::holds_alternative<Softmax>(how.weighting) ? Kind::softmax : Kind::identity;
  if (way.products) {
    const Folded folded = metric.products();
    PlainPass(shape, folded, kind).run(Field(to.o), Field(back.d_o), metric.product_sinks(back));
    ran.multiplied.assign(folded.by_mma, folded.by_mma + p.sequences * p.size.G);
  }
  for (int wave = 0; wave < metric.waves(); ++wave) {
    const Folded folded = metric.fold(wave, nullptr);
    if (way.between == Between::tiles) {
      run_tiles(shape, folded, to, back, sinks);
    } else {
      PlainPass(shape, folded, kind).run(Field(to.o), Field(back.d_o), sinks);
    }
    metric.gather(wave, back, nullptr);
  }
  metric.finish(back, nullptr);
  return ran;
}

inline void run_ref(Made& made, Options how, const Packed& packed) {
  how.backend = Backend::ref;
  const Inputs from = packed.of(made.inputs());
  const Outputs to = outputs_of(made, from, how);
  attend(to, from, how);
  attend_backward(gradients_of(made, from, how), from, to, how);
}

/// Adds a draw to the rule.
inline Ran draw(Rule& rule, Three& three, const Options& how, const Packed& packed = {},
                const Way& way = {}) {
  for (const char* name : {"q", "k", "v", "v_prev", "d_o", "metric", "key_bias", "key_mask"})
    three.share(name);
  if (three.ours.find("metric"))  // its type says how far rounding may leave it from semidefinite
    three.exact.put("metric", Tensor::copy(three.ours["metric"], DType::f32));
  Ran ran = run_here(three.ours, how, packed, way);
  run_ref(three.naive, how, packed);
  run_ref(three.exact, how, packed);
  rule.add(three.ours, three.naive, three.exact);
  if (three.ours.find("status")) {
    EXPECT_EQ(three.ours["status"].values(), three.exact["status"].values());
  }
  return ran;
}

}  // namespace foci::cuda
