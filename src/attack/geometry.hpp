// SPDX-License-Identifier: Apache-2.0
// Balls inside the box of pixels, and planes: lengths and nearest points, a row a sample.
#pragma once

#include <foci/attack.hpp>

namespace foci::attack {

/// (B) as (B,1,1,1) beside x.
at::Tensor beside(const at::Tensor& column, const at::Tensor& x);

/// x over its length; 0 stays 0.
at::Tensor unit(const at::Tensor& x, Norm norm);

/// The point of the ball around `center` and of [0,1] that stands for x: clamped under linf; under
/// l2 pulled to the ball and then clamped; under l1 the nearest.
at::Tensor projected(const at::Tensor& x, const at::Tensor& center, Norm norm, double eps);

/// The nearest perturbation to d (B,D) with length at most eps in l1 and x + d in [0,1].
at::Tensor project_l1(const at::Tensor& x, const at::Tensor& d, double eps);

/// The shortest d (B,D) with w (t + d) = b and t + d in [0,1]; as far as the box lets it where it
/// cannot be reached. t, w (B,D), b (B).
at::Tensor to_plane(const at::Tensor& t, const at::Tensor& w, const at::Tensor& b, Norm norm);

}  // namespace foci::attack
