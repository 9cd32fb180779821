// SPDX-License-Identifier: Apache-2.0
// Attention over sequences that are split over the ranks of a group: each has its tokens, keys and
// values go round in a ring, and what a metric needs to know of all tokens is summed.
#pragma once

#include <foci/export.h>
#include <foci/call.hpp>
#include <foci/dist.hpp>

#include <ATen/core/Tensor.h>

namespace foci::dist {

/// This rank's tokens; those of all ranks follow one another. H a multiple of G; undefined =
/// absent.
struct Tokens {
  at::Tensor q = {};          ///< (B,H,n,D), f32 or f64
  at::Tensor k = {}, v = {};  ///< (B,G,n,D), (B,G,n,E)
  at::Tensor v_prev = {};     ///< (B,G,n,E): layer-change and flat
  at::Tensor key_mask = {};   ///< (B,n) bool, true = keep
  at::Tensor metric = {};     ///< metric `given`: m (B,G,1,D) or P (B,G,D,D), the same in all ranks
};

/// o (B,H,n,E), as one rank with all tokens would have it, differentiable through all ranks: the
/// gradient of `metric` is this rank's part, those of all ranks add up. Softmax with any metric,
/// over the whole sequence or along the prefix; memory grows with the rank's own tokens. Throws
/// Unsupported for other weightings, reduce median, scale auto, the jacobian's gradient through and
/// a sequence-wide estimate of a causal call.
FOCI_API at::Tensor attend(Group& group, const Tokens& tokens, const Options& how = {});

}  // namespace foci::dist
