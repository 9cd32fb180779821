// SPDX-License-Identifier: Apache-2.0
// What simulations draw: normal numbers that are the same with every standard library, and the
// factor that gives them a covariance.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <random>
#include <vector>

namespace foci::theory {

/// N(0,1). The engine is standard, the standard's distributions are not the same everywhere.
class Normal {
 public:
  explicit Normal(std::uint64_t seed) : engine_(seed) {}
  double operator()() {
    if (kept_ != kept_) {
      const double radius = std::sqrt(-2 * std::log(uniform())), angle = 2 * pi * uniform();
      kept_ = radius * std::sin(angle);
      return radius * std::cos(angle);
    }
    const double now = kept_;
    kept_ = std::numeric_limits<double>::quiet_NaN();
    return now;
  }
  double uniform() { return (double(engine_() >> 11) + 0.5) * 0x1p-53; }  // in (0, 1)

 private:
  static constexpr double pi = std::numbers::pi;
  std::mt19937_64 engine_;
  double kept_ = std::numeric_limits<double>::quiet_NaN();
};

/// Lower triangle of the Cholesky factor of a (D,D), whose pivots may be 0; empty when it has none.
inline std::vector<double> root(std::vector<double> a, std::size_t D) {
  double most = 0;
  for (std::size_t d = 0; d < D; ++d) most = std::max(most, a[d * D + d]);
  for (std::size_t j = 0; j < D; ++j) {
    double& pivot = a[j * D + j];
    for (std::size_t k = 0; k < j; ++k) pivot -= a[j * D + k] * a[j * D + k];
    if (pivot < -1e-12 * most) return {};
    pivot = std::sqrt(std::max(pivot, 0.0));
    for (std::size_t i = j + 1; i < D; ++i) {
      double x = a[i * D + j];
      for (std::size_t k = 0; k < j; ++k) x -= a[i * D + k] * a[j * D + k];
      if (pivot == 0 && std::abs(x) > 1e-9 * most) return {};
      a[i * D + j] = pivot > 0 ? x / pivot : 0;
    }
  }
  return a;
}

}  // namespace foci::theory
