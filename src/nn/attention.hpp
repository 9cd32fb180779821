// SPDX-License-Identifier: Apache-2.0
// What the files of the layer share: the tokens as heads, and text as a tensor.
#pragma once

#include "nn/mechanism.hpp"

#include <foci/error.hpp>
#include <foci/nn.hpp>

#include <string>

namespace foci::nn {

struct AttentionImpl::Projected {
  at::Tensor rows;      ///< (B,N,(H+2G)D): all three, as the projection left them
  at::Tensor q;         ///< (B,H,N,D)
  at::Tensor k, v;      ///< (B,G,N,D)
  at::Tensor v_prev;    ///< as v, or undefined
  at::Tensor key_mask;  ///< (B,N), or undefined
};

/// The text as a tensor of bytes, which every checkpoint format holds.
at::Tensor encoded(const std::string& text);
std::string decoded(const at::Tensor& bytes);

}  // namespace foci::nn
