// SPDX-License-Identifier: Apache-2.0
// Calls as a training step makes them, o and lse for the way back and gradients of the tensors,
// held to `ref` by the tolerance rule: for tests.
#pragma once

#include "cpu/three.hpp"
#include "cuda/gpu.hpp"

namespace foci::cases {

/// Only what a training step asks for.
inline void train(Made& made, Options how, bool deterministic) {
  const Case& c = made.c;
  const Inputs from = made.inputs();
  how.backend = made.dtype == DType::f64 ? Backend::ref : how.backend;
  std::vector<std::byte> workspace(need(from, how, 1).workspace);
  const Call call{.workspace = workspace, .deterministic = deterministic, .lse_for_backward = true};
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  Outputs to;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  if (std::holds_alternative<Softmax>(how.weighting))
    to.lse = made.fresh("rough", {c.B, c.H, c.N}, wide);
  attend(to, from, how, call);
  Gradients back{.d_o = made.find("d_o")};
  back.dq = made.fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  back.dk = made.fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  back.dv = made.fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  back.dv_prev = made.fresh("dv_prev", {c.B, c.G, c.M, c.E}, made.dtype);
  if (made.find("key_bias")) back.dkey_bias = made.fresh("dkey_bias", {c.B, c.H, c.M}, wide);
  attend_backward(back, from, to, how, call);
}

/// By the CUDA backend, and the others over what it got.
inline void train(Three& three, Options how, bool deterministic) {
  for (const char* name : {"q", "k", "v", "v_prev", "d_o", "key_mask", "key_bias"})
    three.share(name);
  how.backend = Backend::cuda;
  train(three.ours, how, deterministic);
  how.backend = Backend::ref;
  train(three.naive, how, true);
  train(three.exact, how, true);
}

/// Biases, if there are some, are all near `bias`.
inline void expect_rule(const Case& c, DType dtype, Options how, double size,
                        const std::string& what, float bias = 0) {
  FOCI_WANT_GPU();
  Rule rule;
  for (const bool deterministic : {false, true}) {
    Three three(c, dtype, size, deterministic ? 5 : 6);
    if (bias != 0) {
      three.ours.normal("key_bias", {c.B, c.H, c.M}, 1);
      Tensor near = Tensor::copy(three.ours["key_bias"], DType::f32);
      for (std::int64_t i = 0; i < near.view().count(); ++i) near.data<float>()[i] += bias;
      three.ours.put("key_bias", std::move(near));
    }
    train(three, how, deterministic);
    rule.add(three.ours, three.naive, three.exact);
  }
  rule.expect(what + " " + std::string(name_of(dtype)) + " size " + std::to_string(size));
}

}  // namespace foci::cases
