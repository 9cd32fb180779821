// SPDX-License-Identifier: Apache-2.0
// How the covariance of keys is pulled towards the identity before it is inverted, and what is said
// when that goes wrong: Sigma = (n S + n0 I)/(n + n0) + ridge I, S = scatter / max(n - 1, 1).
#pragma once

#include "metric/host_device.hpp"

#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>

namespace foci::metric {

/// How often a ridge that does not suffice is raised tenfold.
inline constexpr int most_raises = 6;

inline constexpr std::string_view at_the_mercy_of_rounding =
    "key-covariance: as few keys as head dimensions and hardly any ridge or prior: the metric is "
    "at the mercy of rounding (raise ridge, or set prior to the head size)";

struct Shrinkage {
  double ridge = 0, prior = 0;

  /// What a key's gradient is multiplied with: dk_j += slope(n) dSigma (k_j - mean).
  FOCI_HD double slope(std::int64_t n) const {
    const double rest = n > 1 ? double(n - 1) : 1.0;
    return n == 0 ? 0.0 : 2.0 * double(n) / ((double(n) + prior) * rest);
  }
  /// Sigma = weight(n) scatter + (own(n) + ridge) I.
  FOCI_HD double weight(std::int64_t n) const { return slope(n) / 2; }
  FOCI_HD double own(std::int64_t n) const { return n == 0 ? 1.0 : prior / (double(n) + prior); }

  /// `trace` of weight(n) scatter.
  bool hardly_any(std::int64_t n, std::int64_t D, double trace) const {
    return n > 0 && n <= D && prior == 0 && ridge < 1e-2 * trace / double(D);
  }
};

inline std::string unfactorable(std::int64_t sequence, std::int64_t g, std::int64_t n,
                                double ridge) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", ridge);
  return "key-covariance: the covariance of sequence " + std::to_string(sequence) + ", key head " +
         std::to_string(g) + " (" + std::to_string(n) +
         " keys) cannot be factored, not even with ridge " + text + " raised tenfold " +
         std::to_string(most_raises) + " times: raise ridge, or look for NaN or infinity in k";
}

inline std::string not_semidefinite(std::int64_t b, std::int64_t g) {
  return "metric given: P of batch " + std::to_string(b) + ", key head " + std::to_string(g) +
         " is not positive semidefinite";
}

}  // namespace foci::metric
