// SPDX-License-Identifier: Apache-2.0
// P = ((n S + n0 I)/(n + n0) + ridge I)^-1, S the covariance of the n keys; n = 0 gives (I + ridge
// I)^-1. If the factorisation fails the ridge is raised tenfold, six times at most. All in double.
// Gradient: dSigma = -P dP P, then dk_j += 2n/((n+n0) max(n-1,1)) dSigma (k_j - mean).
#pragma once

#include "metric/arena.hpp"
#include "metric/key_covariance.hpp"
#include "ref/factor.hpp"

#include <foci/error.hpp>

#include <algorithm>

namespace foci::ref {

/// n keys seen so far: their mean and centred scatter, one key at a time (Welford).
struct Scatter {
  std::int64_t n = 0, D = 0;
  std::span<double> mean;  // (D)
  std::span<double> sum;   // (D,D) of (k - mean)(k - mean)'
  std::span<double> step;  // (D) scratch

  static Scatter take(metric::Arena& arena, std::int64_t D) {
    return {0, D, arena.take<double>(D), arena.take<double>(D, D), arena.take<double>(D)};
  }
  void clear() {
    n = 0;
    std::fill(mean.begin(), mean.end(), 0.0);
    std::fill(sum.begin(), sum.end(), 0.0);
  }
  template <class T>
  void include(const T* k) {
    ++n;
    for (std::int64_t d = 0; d < D; ++d) step[d] = double(k[d]) - mean[d];
    const double share = double(n - 1) / double(n);
    for (std::int64_t d = 0; d < D; ++d) {
      mean[d] += step[d] / double(n);
      for (std::int64_t e = 0; e < D; ++e) sum[d * D + e] += share * step[d] * step[e];
    }
  }
};

struct Covariance : metric::Shrinkage {
  Factor factor;
  std::span<double> sigma;  // (D,D)

  static Covariance take(metric::Arena& arena, std::int64_t D) {
    Covariance of;
    of.factor.D = D;
    of.factor.L = arena.take<double>(D, D);
    of.sigma = arena.take<double>(D, D);
    return of;
  }

  /// Factors the metric of `keys` and returns how often the ridge was raised, or -1 when that did
  /// not help.
  int estimate(const Scatter& keys) const {
    const std::int64_t D = factor.D;
    double trace = 0;
    for (std::int64_t i = 0; i < D * D; ++i) sigma[i] = weight(keys.n) * keys.sum[i];
    for (std::int64_t d = 0; d < D; ++d) trace += sigma[d * D + d];
    if (hardly_any(keys.n, D, trace)) warn(metric::at_the_mercy_of_rounding);
    double raised = ridge;
    for (int raises = 0; raises <= metric::most_raises; ++raises, raised *= 10) {
      for (std::int64_t d = 0; d < D; ++d)
        sigma[d * D + d] = weight(keys.n) * keys.sum[d * D + d] + own(keys.n) + raised;
      if (factor.decompose(sigma.data(), 0.0)) return raises;
    }
    return -1;
  }
};

}  // namespace foci::ref
