// SPDX-License-Identifier: Apache-2.0
// scale auto: the c at which the mean concentration over queries equals dot attention's, by
// bisection on log c. Who asks brings the mean concentration.
#pragma once

#include <foci/error.hpp>

#include <cmath>

namespace foci::metric {

/// excess(log c): mean concentration at c minus dot attention's; it falls as c grows. Stops where
/// log c is known to `width`.
template <class Excess>
double match_dot(Excess&& excess, double width = 1e-14) {
  double low = 0, high = 0, below = excess(0.0), above = below;
  for (double step = 1; low > -60 && below < 0; step *= 2) below = excess(low -= step);
  for (double step = 1; high < 60 && above > 0; step *= 2) above = excess(high += step);
  if (below < 0 || above > 0) {
    warn(
        "scale auto: no scale gives this metric the concentration of dot attention; it stays at 1");
    return 1;
  }
  for (int halvings = 0; halvings < 60 && high - low > width; ++halvings) {
    const double middle = (low + high) / 2;
    (excess(middle) > 0 ? low : high) = middle;
  }
  return std::exp((low + high) / 2);
}

}  // namespace foci::metric
