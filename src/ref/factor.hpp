// SPDX-License-Identifier: Apache-2.0
// A Cholesky factor L of a full metric: of its inverse, P = (L L')^-1, or of itself, P = L L'.
// Factored in double, applied in T; P is never formed by inverting, only by solving.
#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace foci::ref {

enum class Of { inverse, itself };

struct Factor {
  Of of = Of::inverse;
  std::int64_t D = 0;
  std::span<double> L;  // (D,D), lower

  double& at(std::int64_t i, std::int64_t j) const { return L[i * D + j]; }

  /// L L' = A; false when A is not positive definite. `slack` forgives rounding: with Of::itself a
  /// pivot that lost all but `slack` of its diagonal entry, and on which nothing hangs, is left out
  /// instead, for P may be semidefinite.
  bool decompose(const double* A, double slack) const {
    for (std::int64_t j = 0; j < D; ++j) {
      double pivot = A[j * D + j];
      for (std::int64_t l = 0; l < j; ++l) pivot -= at(j, l) * at(j, l);
      const double floor = slack * A[j * D + j];
      const bool flat = of == Of::itself && std::abs(pivot) <= floor;
      if (!flat && !(pivot > floor && pivot < std::numeric_limits<double>::infinity()))
        return false;
      at(j, j) = flat ? 0.0 : std::sqrt(pivot);
      for (std::int64_t i = 0; i < j; ++i) at(i, j) = 0.0;
      for (std::int64_t i = j + 1; i < D; ++i) {
        double sum = A[i * D + j];
        for (std::int64_t l = 0; l < j; ++l) sum -= at(i, l) * at(j, l);
        if (flat && !(std::abs(sum) <= std::sqrt(floor * A[i * D + i]))) return false;
        at(i, j) = flat ? 0.0 : sum / at(j, j);
      }
    }
    return true;
  }

  /// z with |z|^2 = x' P x.
  template <class T>
  void whiten(T* z, const T* x) const {
    if (of == Of::itself) {
      for (std::int64_t i = 0; i < D; ++i) {
        z[i] = 0;
        for (std::int64_t l = i; l < D; ++l) z[i] += T(at(l, i)) * x[l];
      }
      return;
    }
    for (std::int64_t i = 0; i < D; ++i) {
      T sum = x[i];
      for (std::int64_t l = 0; l < i; ++l) sum -= T(at(i, l)) * z[l];
      z[i] = sum / T(at(i, i));
    }
  }

  /// y = P x; scratch (D).
  template <class T>
  void apply(T* y, const T* x, T* scratch) const {
    whiten(scratch, x);
    if (of == Of::itself) {
      for (std::int64_t i = 0; i < D; ++i) {
        y[i] = 0;
        for (std::int64_t l = 0; l <= i; ++l) y[i] += T(at(i, l)) * scratch[l];
      }
      return;
    }
    for (std::int64_t i = D; i-- > 0;) {
      T sum = scratch[i];
      for (std::int64_t l = i + 1; l < D; ++l) sum -= T(at(l, i)) * y[l];
      y[i] = sum / T(at(i, i));
    }
  }
};

}  // namespace foci::ref
