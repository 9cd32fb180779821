// SPDX-License-Identifier: Apache-2.0
// A block's steps as few passes over GPU memory, each with a gradient of its own, in the place of
// torch's operators where fuses() says so; elsewhere torch's operators, as ever.
#pragma once

#include <foci/nn.hpp>

#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

namespace foci::nn {

/// Whether x lies where kernels are (a GPU that this build knows), under autocast to 16 bits, and
/// nobody said Unfused.
bool fuses(const at::Tensor& x);

/// The type that autocast asks for where x lies.
at::ScalarType narrow_type(const at::Tensor& x);

/// x in 16 bits times weight (out,in), plus bias (out). Parameters are f32, and so are their
/// gradients, which no 16 bits round.
at::Tensor linear(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias);
/// The same by a module; the module itself where nothing is fused.
at::Tensor linear(torch::nn::LinearImpl& module, const at::Tensor& x);

/// second(gelu(first(x))), with the exact GELU.
at::Tensor perceptron(torch::nn::LinearImpl& first, torch::nn::LinearImpl& second,
                      const at::Tensor& x);

/// What a branch adds to the residual stream: scale (B) times y (B,N,dim); both may be undefined.
struct Branch {
  at::Tensor y = {}, scale = {};
};
struct Normed {
  at::Tensor x;  ///< (B,N,dim) with the branch in it
  at::Tensor y;  ///< its layer norm
};
/// x + branch in f32, and its layer norm in `type`.
Normed add_norm(const at::Tensor& x, const Branch& branch, torch::nn::LayerNormImpl& norm,
                at::ScalarType type);

/// Tokens as a projection left them, heads side by side.
struct Rows {
  at::Tensor qkv;               ///< (B,N,(H+2G)D)
  at::Tensor v_prev, key_mask;  ///< as those of Extras
  std::int64_t H = 0, G = 0, D = 0;
};
struct AttendedRows {
  at::Tensor o;  ///< (B,N,H D)
  at::Tensor v;  ///< (B,G,N,D)
};
/// Whether attend_rows() takes them.
bool attends_rows(const Rows& from, const Options& how);
/// Attention whose gradients go where the projection wants them: nothing is split, joined or
/// copied.
AttendedRows attend_rows(const Rows& from, const Options& how);

}  // namespace foci::nn
