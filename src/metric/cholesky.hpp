// SPDX-License-Identifier: Apache-2.0
// A Cholesky factor by the textbook: of matrices that are positive definite, and of those that are
// semidefinite but for rounding.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

namespace foci::metric {

enum class Definite { surely, semi };

/// A pivot must keep more than this share of its diagonal entry: what rounding may have left of it.
inline double slack_of(bool f64, std::int64_t D) { return double(D) * (f64 ? 0x1p-52 : 0x1p-23); }

/// L L' = A (D,D), lower; false when A is not positive definite. `slack` forgives rounding: a
/// semidefinite A may have a pivot that lost all but `slack` of its diagonal entry, and on which
/// nothing hangs; it is left out.
inline bool cholesky(double* L, const double* A, std::int64_t D, Definite how, double slack) {
  for (std::int64_t j = 0; j < D; ++j) {
    double pivot = A[j * D + j];
    for (std::int64_t l = 0; l < j; ++l) pivot -= L[j * D + l] * L[j * D + l];
    const double floor = slack * A[j * D + j];
    const bool flat = how == Definite::semi && std::abs(pivot) <= floor;
    if (!flat && !(pivot > floor && pivot < std::numeric_limits<double>::infinity())) return false;
    L[j * D + j] = flat ? 0.0 : std::sqrt(pivot);
    for (std::int64_t i = 0; i < j; ++i) L[i * D + j] = 0.0;
    for (std::int64_t i = j + 1; i < D; ++i) {
      double sum = A[i * D + j];
      for (std::int64_t l = 0; l < j; ++l) sum -= L[i * D + l] * L[j * D + l];
      if (flat && !(std::abs(sum) <= std::sqrt(floor * A[i * D + i]))) return false;
      L[i * D + j] = flat ? 0.0 : sum / L[j * D + j];
    }
  }
  return true;
}

}  // namespace foci::metric
