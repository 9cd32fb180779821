// SPDX-License-Identifier: Apache-2.0
// The covariance of a stretch of keys and the whitening that follows from it: z = W (x - centre)
// with W = L^-1, L L' = Sigma, so that P = W'W. All in double; stretches join by Chan's formula, so
// that an estimate is never built anew from its first key.
#pragma once

#include "cpu/matrix.hpp"
#include "metric/key_covariance.hpp"

#include <cstdint>

namespace foci::cpu {

/// n keys: their mean (D) and scatter (D,D) of (k - mean)(k - mean)'.
struct Moments {
  std::int64_t n;
  double* mean;
  double* sum;
};

/// Doubles that the functions below ask for as `room`.
std::int64_t covariance_room(const MatrixKernels& kernels, std::int64_t D);

/// to = the moments of x (to.n,D).
void gather(const Moments& to, const float* x, std::int64_t D, const MatrixKernels& kernels,
            double* room);

/// `to`, keys that follow those of `before`, becomes the moments of both together.
void join(const Moments& to, const Moments& before, std::int64_t D, const MatrixKernels& kernels,
          double* room);

/// W (D,D), lower, of the keys; may be their `sum` itself. Warns where few keys meet hardly any
/// ridge; returns how often the ridge was raised, -1 where that did not help.
int whiten(double* W, const Moments& keys, const metric::Shrinkage& shrink, std::int64_t D,
           const MatrixKernels& kernels, double* room);

/// P (D,D) = W'W, W lower.
void form_metric(double* P, const double* W, std::int64_t D, const MatrixKernels& kernels);

/// dP (D,D), the gradient of P = W'W, becomes slope times that of Sigma: -slope P dP P.
void pull_through(double* dP, const double* W, double slope, std::int64_t D,
                  const MatrixKernels& kernels, double* room);

}  // namespace foci::cpu
