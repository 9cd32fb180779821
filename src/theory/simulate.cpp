// SPDX-License-Identifier: Apache-2.0
// Concentration by drawing keys. Weights are kept as logarithms until the largest is known, so that
// the largest is 1 and none overflows.
#include "theory/checks.hpp"
#include "theory/draws.hpp"

#include <algorithm>
#include <cmath>

namespace foci::theory {
namespace {

constexpr std::int64_t most_draws = 100'000'000;  // their logarithms are kept: 800 MB

/// S of weights given by their logarithms (-inf: 0), and its error: with A and B the means of a and
/// a^2, S = A / sqrt(B) changes by a/sqrt(B) - A a^2 / (2 B^1.5) with each key.
Simulated summary(const std::vector<double>& logs) {
  const double most = *std::max_element(logs.begin(), logs.end()), n = double(logs.size());
  if (!std::isfinite(most))
    throw InvalidArgument("no key of the simulation has a weight above 0: draw more");
  double A = 0, B = 0;
  for (const double x : logs) {
    const double a = std::exp(x - most);
    A += a / n;
    B += a * a / n;
  }
  const double S = A / std::sqrt(B);
  double spread = 0;
  for (const double x : logs) {
    const double a = std::exp(x - most);
    const double change = a / std::sqrt(B) - A * a * a / (2 * B * std::sqrt(B)) - S / 2;
    spread += change * change / (n - 1);
  }
  return {S, std::sqrt(spread / n)};
}

struct Draw {
  std::int64_t draws;
  Normal normal;

  template <class Log>
  Simulated over(Log&& log) {
    std::vector<double> logs(static_cast<std::size_t>(draws));
    for (double& x : logs) x = log();
    return summary(logs);
  }

  Simulated operator()(const Softmax& f) {
    return over([&] { return f.scores.gamma * normal(); });
  }
  Simulated operator()(const Identity& f) {
    return over([&] { return std::log(std::abs(f.scores.beta + f.scores.gamma * normal())); });
  }
  Simulated operator()(const Relu2& f) {
    return over(
        [&] { return 2 * std::log(std::max(f.scores.beta + f.scores.gamma * normal(), 0.0)); });
  }
  Simulated operator()(const Linear& f) {
    const std::size_t D = f.query.size();
    std::vector<double> logs(D * D);  // covariance of the logarithms
    for (std::size_t d = 0; d < D; ++d) {
      for (std::size_t e = 0; e < D; ++e) {
        const double x = f.covariance[d * D + e], by = f.mean[d] * f.mean[e];
        logs[d * D + e] = x == 0 ? 0 : std::log1p(x / by);
      }
    }
    const bool there = std::all_of(logs.begin(), logs.end(), [](double x) { return x < INFINITY; });
    const std::vector<double> factor = there ? root(logs, D) : std::vector<double>();
    if (factor.empty()) {
      throw InvalidArgument(
          "no features with normal logarithms have this mean and covariance: leave simulate out");
    }
    std::vector<double> e(D);
    return over([&] {
      double weight = 0;
      for (std::size_t d = 0; d < D; ++d) {
        e[d] = normal();
        double g = -logs[d * D + d] / 2;
        for (std::size_t k = 0; k <= d; ++k) g += factor[d * D + k] * e[k];
        weight += f.query[d] * f.mean[d] * std::exp(g);
      }
      return std::log(weight);
    });
  }
  Simulated operator()(const Decay& f) const {
    double sum = 0, squares = 0, weight = 1;
    for (std::int64_t age = 0; age < f.keys && weight > 0; ++age, weight *= f.rate) {
      sum += weight;
      squares += weight * weight;
    }
    return {sum / std::sqrt(double(f.keys) * squares), 0};
  }
  Simulated operator()(const Ellipsoid& f) {
    const double z = std::sqrt(f.distance2);  // along the first direction
    return over([&] {
      const double first = z - normal();
      double square = first * first;
      for (std::int64_t d = 1; d < f.dim; ++d) {
        const double y = normal();
        square += y * y;
      }
      return -square / (2 * f.temperature);
    });
  }
};

}  // namespace

Simulated simulate(const Form& form, std::int64_t draws, std::uint64_t seed) {
  check(form);
  if (draws < 2) throw InvalidArgument(std::to_string(draws) + " keys to simulate; 2 or more");
  if (draws > most_draws) {
    throw InvalidArgument(std::to_string(draws) + " keys to simulate; at most " +
                          std::to_string(most_draws));
  }
  return std::visit(Draw{draws, Normal(seed)}, form);
}

}  // namespace foci::theory
