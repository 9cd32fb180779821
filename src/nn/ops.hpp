// SPDX-License-Identifier: Apache-2.0
// The operators torch.ops.foci.*: what they take and give in C++, and calls that go through torch's
// dispatcher. Outputs that a mechanism does not have come back with shape (0).
#pragma once

#include "nn/views.hpp"

#include <array>
#include <string>
#include <tuple>
#include <variant>

namespace foci::nn {

using Attended = std::tuple<at::Tensor, at::Tensor>;  // o, lse
// dq, dk, dv, dv_prev, dkey_bias, dmetric
using Differentiated =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// o, lse, concentration, effective_keys, entropy, largest, largest_at, metric
using Measured = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor,
                            at::Tensor, at::Tensor>;

/// Beside the tensors of the call: what came in from above, what the forward pass gave, and which
/// of the six gradients are asked for.
struct BackwardTensors {
  at::Tensor d_o;
  Tensors from;
  at::Tensor o, lse;
  std::array<bool, 6> wanted{};
};

/// Options as the operators take them; the last text made on a thread is remembered.
std::string text_of(const Options& how);

Attended call_attend(const Tensors& from, const std::string& how);
Differentiated call_attend_backward(const BackwardTensors& from, const std::string& how);
Measured call_measure(const Tensors& from, const std::string& how);

/// Whether rows are probabilities.
inline bool has_entropy(const Weighting& weighting) {
  const auto* decay = std::get_if<Decay>(&weighting);
  return std::holds_alternative<Softmax>(weighting) || std::holds_alternative<Linear>(weighting) ||
         (decay != nullptr && !decay->content);
}

/// f as an operator's schema wants it: every tensor a parameter.
template <auto f>
auto flat(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
          const OptionalTensor& v_prev, const OptionalTensor& key_mask,
          const OptionalTensor& key_bias, const OptionalTensor& metric,
          const OptionalTensor& q_offsets, const OptionalTensor& k_offsets,
          const std::string& how) {
  return f(Tensors::of(q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets), how);
}

template <auto f>
Differentiated flat_backward(const at::Tensor& d_o, const at::Tensor& q, const at::Tensor& k,
                             const at::Tensor& v, const OptionalTensor& v_prev,
                             const OptionalTensor& key_mask, const OptionalTensor& key_bias,
                             const OptionalTensor& metric, const OptionalTensor& q_offsets,
                             const OptionalTensor& k_offsets, const at::Tensor& o,
                             const at::Tensor& lse, const std::string& how,
                             std::array<bool, 6> wanted) {
  return f({d_o, Tensors::of(q, k, v, v_prev, key_mask, key_bias, metric, q_offsets, k_offsets), o,
            lse, wanted},
           how);
}

}  // namespace foci::nn
