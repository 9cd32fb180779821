// SPDX-License-Identifier: Apache-2.0
// P = ((n S + n0 I)/(n + n0) + ridge I)^-1, S the covariance of the n keys; n = 0 gives (I + ridge
// I)^-1. If the factorisation fails the ridge is raised tenfold, six times at most. All in double.
// Gradient: dSigma = -P dP P, then dk_j += 2n/((n+n0) max(n-1,1)) dSigma (k_j - mean).
#pragma once

#include "metric/arena.hpp"
#include "ref/factor.hpp"

#include <foci/error.hpp>

#include <algorithm>
#include <string>

namespace foci::ref {

inline constexpr int most_raises = 6;

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

struct Covariance {
  double ridge = 0, prior = 0;
  Factor factor;
  std::span<double> sigma;  // (D,D)

  static Covariance take(metric::Arena& arena, std::int64_t D) {
    Covariance of;
    of.factor.D = D;
    of.factor.L = arena.take<double>(D, D);
    of.sigma = arena.take<double>(D, D);
    return of;
  }

  /// What a key's gradient is multiplied with: dk_j += slope(n) dSigma (k_j - mean).
  double slope(std::int64_t n) const {
    return n == 0
               ? 0.0
               : 2.0 * double(n) / ((double(n) + prior) * double(std::max<std::int64_t>(n - 1, 1)));
  }

  /// Factors the metric of `keys` and returns how often the ridge was raised, or -1 when that did
  /// not help.
  int estimate(const Scatter& keys) const {
    const std::int64_t D = factor.D;
    const double n = double(keys.n), weight = slope(keys.n) / 2,
                 own = keys.n == 0 ? 1.0 : prior / (n + prior);
    double trace = 0;
    for (std::int64_t i = 0; i < D * D; ++i) sigma[i] = weight * keys.sum[i];
    for (std::int64_t d = 0; d < D; ++d) trace += sigma[d * D + d];
    if (keys.n > 0 && keys.n <= D && prior == 0 && ridge < 1e-2 * trace / double(D)) {
      warn(
          "key-covariance: as few keys as head dimensions and hardly any ridge or prior: the "
          "metric is at "
          "the mercy of rounding (raise ridge, or set prior to the head size)");
    }
    double raised = ridge;
    for (int raises = 0; raises <= most_raises; ++raises, raised *= 10) {
      for (std::int64_t d = 0; d < D; ++d)
        sigma[d * D + d] = weight * keys.sum[d * D + d] + own + raised;
      if (factor.decompose(sigma.data(), 0.0)) return raises;
    }
    return -1;
  }
};

}  // namespace foci::ref
