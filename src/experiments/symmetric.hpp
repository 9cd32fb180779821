// SPDX-License-Identifier: Apache-2.0
// Eigenvalues of a small symmetric matrix, by Jacobi's rotations.
#pragma once

#include "experiments/trial.hpp"

#include <cmath>

namespace foci::experiments {

/// In no order. `a` is symmetric.
inline Vector eigenvalues(Matrix a) {
  const std::int64_t D = a.rows;
  for (int sweep = 0; sweep < 60; ++sweep) {
    double off = 0, on = 0;
    for (std::int64_t i = 0; i < D; ++i) {
      on += a(i, i) * a(i, i);
      for (std::int64_t j = 0; j < i; ++j) off += a(i, j) * a(i, j);
    }
    if (off <= 1e-30 * on) break;
    for (std::int64_t p = 0; p < D; ++p) {
      for (std::int64_t q = p + 1; q < D; ++q) {
        if (a(p, q) == 0) continue;
        const double theta = (a(q, q) - a(p, p)) / (2 * a(p, q));
        const double t = std::copysign(1.0, theta) / (std::abs(theta) + std::hypot(theta, 1.0));
        const double c = 1 / std::hypot(t, 1.0), s = t * c;
        for (std::int64_t k = 0; k < D; ++k) {
          const double x = a(k, p), y = a(k, q);
          a(k, p) = c * x - s * y;
          a(k, q) = s * x + c * y;
        }
        for (std::int64_t k = 0; k < D; ++k) {
          const double x = a(p, k), y = a(q, k);
          a(p, k) = c * x - s * y;
          a(q, k) = s * x + c * y;
        }
      }
    }
  }
  Vector values;
  for (std::int64_t d = 0; d < D; ++d) values.push_back(a(d, d));
  return values;
}

}  // namespace foci::experiments
