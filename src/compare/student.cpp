// SPDX-License-Identifier: Apache-2.0
// Student's distribution by the incomplete beta function, as a continued fraction.
#include <foci/compare.hpp>

#include <cmath>
#include <limits>

namespace foci::compare {
namespace {

/// Lentz's way through the continued fraction of I_x(a, b), for x < (a+1)/(a+b+2).
double beta_fraction(double a, double b, double x) {
  constexpr double tiny = 1e-300, enough = 1e-15;
  const auto away = [](double value) { return std::abs(value) < tiny ? tiny : value; };
  double c = 1, d = 1 / away(1 - (a + b) * x / (a + 1)), all = d;
  for (int m = 1; m < 500; ++m) {
    const double even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m));
    d = 1 / away(1 + even * d);
    c = away(1 + even / c);
    all *= d * c;
    const double odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1));
    d = 1 / away(1 + odd * d);
    c = away(1 + odd / c);
    const double step = d * c;
    all *= step;
    if (std::abs(step - 1) < enough) break;
  }
  return all;
}

/// The regularised incomplete beta function.
double beta_share(double a, double b, double x) {
  if (x <= 0) return 0;
  if (x >= 1) return 1;
  const double front = std::exp(std::lgamma(a + b) - std::lgamma(a) - std::lgamma(b) +
                                a * std::log(x) + b * std::log1p(-x));
  if (x < (a + 1) / (a + b + 2)) return front * beta_fraction(a, b, x) / a;
  return 1 - front * beta_fraction(b, a, 1 - x) / b;
}

}  // namespace

double student_tail(double t, double freedom) {
  if (std::isnan(t) || !(freedom > 0)) return std::numeric_limits<double>::quiet_NaN();
  if (std::isinf(t)) return 0;
  if (freedom > 1e7) return std::erfc(std::abs(t) / std::sqrt(2.0));
  return beta_share(freedom / 2, 0.5, freedom / (freedom + t * t));
}

double student_quantile(double tail, double freedom) {
  double low = 0, high = 1;
  while (student_tail(high, freedom) > tail && high < 1e12) high *= 2;
  for (int i = 0; i < 200 && high - low > 1e-13 * high; ++i) {
    const double middle = (low + high) / 2;
    (student_tail(middle, freedom) > tail ? low : high) = middle;
  }
  return (low + high) / 2;
}

}  // namespace foci::compare
