// SPDX-License-Identifier: Apache-2.0
// Normalising a diagonal metric, m = raw / divisor, and its gradient. One row of D numbers.
// A divisor of 0, or an estimate over no token, gives m = 1 and no gradient.
#pragma once

#include "metric/host_device.hpp"

#include <foci/metric.hpp>

#include <cstdint>

namespace foci::metric {

/// max_d raw, mean_d raw or 1.
template <class T>
FOCI_HD T divisor(Normalize how, const T* raw, std::int64_t D) {
  if (how == Normalize::none) return T(1);
  T largest = raw[0], sum = 0;
  for (std::int64_t d = 0; d < D; ++d) {
    if (raw[d] > largest) largest = raw[d];
    sum += raw[d];
  }
  return how == Normalize::max ? largest : sum / T(D);
}

/// m = m / divisor in place; returns the divisor, 0 where m became 1. `counted`: tokens behind the
/// row.
template <class T>
FOCI_HD T normalise(Normalize how, std::int64_t counted, T* m, std::int64_t D) {
  const T by = counted == 0 ? T(0) : divisor(how, m, D);
  for (std::int64_t d = 0; d < D; ++d) m[d] = by == T(0) ? T(1) : m[d] / by;
  return by;
}

/// dm of the normalised m -> gradient of the raw one, in place. `by` is what normalise() returned.
template <class T>
FOCI_HD void normalise_backward(Normalize how, T by, T* dm, const T* m, std::int64_t D) {
  T dot = 0;
  std::int64_t ties = 0;
  for (std::int64_t d = 0; d < D; ++d) {
    dot += dm[d] * m[d];
    ties += m[d] == T(1);
  }
  for (std::int64_t d = 0; d < D; ++d) {
    if (by == T(0)) {
      dm[d] = 0;
      continue;
    }
    T through = 0;  // the divisor's own share
    if (how == Normalize::max && m[d] == T(1)) through = dot / T(ties);
    if (how == Normalize::mean) through = dot / T(D);
    dm[d] = (dm[d] - through) / by;
  }
}

/// flat: every m_d becomes the mean over d; a gradient spreads out alike.
template <class T>
FOCI_HD void flatten(T* m, std::int64_t D) {
  T sum = 0;
  for (std::int64_t d = 0; d < D; ++d) sum += m[d];
  for (std::int64_t d = 0; d < D; ++d) m[d] = sum / T(D);
}

}  // namespace foci::metric
