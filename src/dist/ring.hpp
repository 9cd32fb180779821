// SPDX-License-Identifier: Apache-2.0
// Softmax attention over keys and values that go round: o_i = sum_j a_ij v_j, a = softmax of
// s_ij = q'_i . k_j + b_j. A chunk of queries may bring a bias of its own, -c/2 k' P k of the keys
// less its centre, which each rank forms where the keys come by.
#pragma once

#include <foci/dist.hpp>

#include <ATen/core/Tensor.h>

#include <vector>

namespace foci::dist {

/// Queries [first, end) of one batch entry that have the metric `index` of Chunks.
struct Chunk {
  std::int64_t batch = 0, first = 0, end = 0, index = 0;
};
struct Chunks {
  std::vector<Chunk> list = {};
  at::Tensor P = {};       ///< (J,G,D,D), symmetric; undefined: no chunks
  at::Tensor centre = {};  ///< (J,G,1,D), without a gradient
  double c = 1;
};

struct Scores {
  at::Tensor q = {};     ///< (B,H,n,D), scaled
  at::Tensor k = {};     ///< (B,G,n,D)
  at::Tensor bias = {};  ///< (B,G,n): -inf is masked
  Chunks chunks = {};
  bool causal = false;
};

struct Attended {
  at::Tensor o;    ///< (B,H,n,E)
  at::Tensor lse;  ///< (B,H,n), without a gradient
};

/// Differentiable in q, k, bias, P and v.
Attended ring_attend(Group& group, const Scores& scores, const at::Tensor& v);

/// Without gradients: for each query sum_j a_ij k_j v_j' (B,H,n,D,E).
at::Tensor ring_products(Group& group, const Scores& scores, const at::Tensor& v,
                         const at::Tensor& lse);

/// What every rank has, (K,...), differentiable.
at::Tensor of_everyone(Group& group, const at::Tensor& x);

}  // namespace foci::dist
