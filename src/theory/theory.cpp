// SPDX-License-Identifier: Apache-2.0
// Concentration in closed form. identity and relu2 are homogeneous: S depends on beta/gamma alone,
// and is written in that ratio, so that nothing overflows.
#include <foci/theory.hpp>

#include "theory/checks.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace foci::theory {
namespace {

using std::numbers::pi;

/// E|x| / sqrt(E x^2) of x = t + e.
double of_identity(double t) {
  const double length = std::hypot(t, 1.0);
  return (std::sqrt(2 / pi) * std::exp(-t * t / 2) + t * std::erf(t / std::sqrt(2.0))) / length;
}

/// I_k = integral over y > 0 of y^k exp(-s y - y^2/2), k = 2 and 4, s > 0. They obey I_{k+1} =
/// k I_{k-1} - s I_k, which cancels upwards and does not downwards (Miller's way); I_1 + s I_0 = 1.
struct Tails {
  double second, fourth;
};
Tails tails(double s) {
  double above = 0, here = 1e200, second = 0, fourth = 0;  // I_{k+1}, I_k
  for (int k = 400; k >= 1; --k) {
    const double below = (above + s * here) / k;
    above = here;
    here = below;
    if (k == 5) fourth = here;
    if (k == 3) second = here;
    if (here < 1e-200) {  // their scale is free until the end
      for (double* x : {&above, &here, &second, &fourth}) *x *= 1e200;
    }
  }
  const double scale = above + s * here;
  return {second / scale, fourth / scale};
}

/// E[x+^2] / sqrt(E[x+^4]) of x = t + e.
double of_relu2(double t) {
  if (t < -60) return 0;  // less than a double holds
  if (t < -1) {
    const auto [second, fourth] = tails(-t);
    return std::pow(2 * pi, -0.25) * std::exp(-t * t / 4) * second / std::sqrt(fourth);
  }
  if (t > 1e3) return (1 + 1 / (t * t)) / std::sqrt(1 + 6 / (t * t) + 3 / (t * t * t * t));
  const double t2 = t * t, density = std::exp(-t2 / 2) / std::sqrt(2 * pi);
  const double share = 0.5 * std::erfc(-t / std::sqrt(2.0));  // of keys above 0
  const double second = t * density + (t2 + 1) * share;
  const double fourth = t * (t2 + 5) * density + (t2 * t2 + 6 * t2 + 3) * share;
  return second / std::sqrt(fourth);
}

struct Closed {
  double operator()(const Softmax& f) const {
    return std::exp(-f.scores.gamma * f.scores.gamma / 2);
  }
  double operator()(const Identity& f) const {
    return f.scores.gamma == 0 ? 1 : of_identity(ratio(f.scores));
  }
  double operator()(const Relu2& f) const {
    return f.scores.gamma == 0 ? 1 : of_relu2(ratio(f.scores));
  }
  double operator()(const Linear& f) const {
    const Moments of = moments(f);
    const long double spread = std::sqrt(std::max(of.variance, 0.0L)) / of.mean;
    return double(1 / std::hypot(1.0L, spread));
  }
  double operator()(const Decay& f) const {
    const double n = double(f.keys);
    if (f.rate == 1) return 1;
    const double left = std::exp(n * std::log(f.rate));  // rate^n
    const double gone = -std::expm1(n * std::log(f.rate));
    return std::sqrt(gone / (1 - f.rate) * (1 + f.rate) / (1 + left) / n);
  }
  double operator()(const Ellipsoid& f) const {
    // (1 + 2/tau) / (1 + 1/tau)^2 = tau (tau + 2) / (tau + 1)^2 = 1 - 1/(tau + 1)^2: neither form
    // overflows, and each cancels nowhere on its side of 1.
    const double D = double(f.dim), tau = f.temperature, share = 1 / (tau + 1);
    const double log = tau < 1 ? std::log(tau) + std::log(tau + 2) - 2 * std::log1p(tau)
                               : std::log1p(-share * share);
    return std::exp(D / 4 * log - f.distance2 * share / (2 * (tau + 2)));
  }
};

}  // namespace

Scores scores_of(std::span<const double> q, std::span<const double> m, std::span<const double> mean,
                 std::span<const double> covariance, double c) {
  const std::size_t D = q.size();
  if (m.size() != D || mean.size() != D || covariance.size() != D * D) {
    throw InvalidArgument("a query of " + std::to_string(D) + " numbers, a metric of " +
                          std::to_string(m.size()) + ", a mean of " + std::to_string(mean.size()) +
                          " and a covariance of " + std::to_string(covariance.size()) +
                          ": they must be D, D, D and D x D");
  }
  double beta = 0, square = 0;
  for (std::size_t d = 0; d < D; ++d) {
    beta += q[d] * m[d] * mean[d];
    for (std::size_t e = 0; e < D; ++e) square += q[d] * m[d] * covariance[d * D + e] * m[e] * q[e];
  }
  return {c * beta, std::abs(c) * std::sqrt(std::max(square, 0.0))};
}

double concentration(const Form& form) {
  check(form);
  return std::visit(Closed(), form);
}

double temperature_at(double concentration, std::int64_t dim, std::span<const double> distance2) {
  want(concentration > 0 && concentration < 1, "concentration", concentration,
       "above 0 and below 1");
  if (distance2.empty()) throw InvalidArgument("no query to find a temperature for");
  for (const double square : distance2) check(Ellipsoid{dim, square, 1});
  const auto mean = [&](double log_temperature) {
    double sum = 0;
    for (const double square : distance2)
      sum += Closed()(Ellipsoid{dim, square, std::exp(log_temperature)});
    return sum / double(distance2.size());
  };
  double low = -1, high = 1;  // S rises with the temperature from 0 to 1
  while (mean(low) > concentration && low > -512) low *= 2;
  while (mean(high) < concentration && high < 512) high *= 2;
  for (int halvings = 0; halvings < 80; ++halvings) {
    const double middle = (low + high) / 2;
    (mean(middle) < concentration ? low : high) = middle;
  }
  return std::exp((low + high) / 2);
}

}  // namespace foci::theory
