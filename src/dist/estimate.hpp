// SPDX-License-Identifier: Apache-2.0
// What metrics know of all tokens: sums over the ranks, along the prefix those of the ranks before
// and a running sum here. Differentiable where metric_grad may be `through`.
#pragma once

#include "dist/ring.hpp"

#include <foci/context.hpp>

namespace foci::dist {

/// A metric of queries: m (B,G or H,1 or n,D).
at::Tensor change_estimate(Group& group, const Tokens& tokens, Normalize how, bool prefix);
at::Tensor jacobian_estimate(Group& group, const Tokens& tokens, Normalize how, double c,
                             bool causal, bool prefix);

/// As spec'd for the keys' covariance; x are the keys less `shift`.
struct Geometry {
  at::Tensor shift;   ///< (B,G,1,D)
  at::Tensor P;       ///< (B,G,D,D), along the prefix (J,G,D,D)
  at::Tensor centre;  ///< (B,G,1,D), along the prefix (J,G,1,D); of x
  std::vector<Chunk> chunks = {};
};
Geometry covariance_geometry(Group& group, const Tokens& tokens, const KeyCovariance& how);
Geometry prefix_geometry(Group& group, const Tokens& tokens, const KeyCovariance& how);

/// The first unmasked key of all, zeros where there is none; and the mean of the unmasked ones:
/// (B,G,1,D) in double, without a gradient.
at::Tensor first_key(Group& group, const Tokens& tokens);
at::Tensor mean_key(Group& group, const Tokens& tokens);

/// 1 for tokens that count, (B,1,n,1) in double.
at::Tensor counted(const Tokens& tokens);

}  // namespace foci::dist
