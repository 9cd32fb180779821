// SPDX-License-Identifier: Apache-2.0
// A Cholesky factor L of a full metric: of its inverse, P = (L L')^-1, or of itself, P = L L'.
// Factored in double, applied in T; P is never formed by inverting, only by solving.
#pragma once

#include "metric/cholesky.hpp"

#include <cstdint>
#include <span>

namespace foci::ref {

enum class Of { inverse, itself };

struct Factor {
  Of of = Of::inverse;
  std::int64_t D = 0;
  std::span<double> L;  // (D,D), lower

  double& at(std::int64_t i, std::int64_t j) const { return L[i * D + j]; }

  /// L L' = A; false when A is not positive definite. With Of::itself it may be semidefinite.
  bool decompose(const double* A, double slack) const {
    const auto how = of == Of::itself ? metric::Definite::semi : metric::Definite::surely;
    return metric::cholesky(L.data(), A, D, how, slack);
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
