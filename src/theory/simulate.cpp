// SPDX-License-Identifier: Apache-2.0
// Concentration by drawing keys. A few keys in the tail may have most of E a^2, and a plain sample
// of any size that can be had holds none of them: so keys are drawn where the weights are, from an
// even mixture of densities near a p and a^2 p, and count by p over the mixture's density. No key
// then has more than a bounded share of either mean, and the error that is told is the error.
#include "theory/checks.hpp"
#include "theory/draws.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace foci::theory {
namespace {

constexpr std::int64_t most_draws = 100'000'000;       // two logarithms of each are kept: 1.6 GB
constexpr std::int64_t most_numbers = 10'000'000'000;  // some minutes

/// A key's weight and how much it counts, as logarithms; a weight of 0 is -inf.
struct Drawn {
  double weight = 0, counts = 0;
};

/// The mean of counts a^power over e^log.
struct Mean {
  double log = -INFINITY, scaled = 0;
};
Mean mean_of(const std::vector<Drawn>& keys, int power) {
  Mean of;
  for (const Drawn& key : keys) of.log = std::max(of.log, key.counts + power * key.weight);
  if (!std::isfinite(of.log))
    throw InvalidArgument("no key of the simulation has a weight above 0: draw more");
  for (const Drawn& key : keys)
    of.scaled += std::exp(key.counts + power * key.weight - of.log) / double(keys.size());
  return of;
}

/// S and its error: with A and B the means of a and a^2, a key moves the logarithm of
/// S = A / sqrt(B) by a/A - a^2/2B - 1/2. Logarithms are rounded, which is an error too.
Simulated summary(const std::vector<Drawn>& keys) {
  const Mean A = mean_of(keys, 1), B = mean_of(keys, 2);
  const double n = double(keys.size());
  const double S = std::exp(A.log - B.log / 2 + std::log(A.scaled) - std::log(B.scaled) / 2);
  double spread = 0;
  for (const Drawn& key : keys) {
    const double a = std::exp(key.counts + key.weight - A.log) / A.scaled;
    const double square = std::exp(key.counts + 2 * key.weight - B.log) / B.scaled;
    const double change = a - square / 2 - 0.5;
    spread += change * change / (n - 1);
  }
  const double rounding =
      std::numeric_limits<double>::epsilon() * (std::abs(A.log) + std::abs(B.log));
  return {S, S * std::hypot(std::sqrt(spread / n), rounding)};
}

/// ln of p over the even mixture of two densities, from ln of each over p.
double counts_of(const std::array<double, 2>& over) {
  const double most = std::max(over[0], over[1]);
  return std::log(2.0) - most - std::log(std::exp(over[0] - most) + std::exp(over[1] - most));
}

/// 1 + r + .. + r^(keys-1), r = rate^power, by doubling: nothing is subtracted, and a billion keys
/// are 30 steps.
double sum_of_powers(double rate, double power, std::int64_t keys) {
  double sum = 0;
  std::int64_t count = 0;
  for (int bit = 62; bit >= 0; --bit) {
    sum += std::pow(rate, power * double(count)) * sum;
    count *= 2;
    if ((keys >> bit) % 2 == 0) continue;
    sum += std::pow(rate, power * double(count));
    ++count;
  }
  return sum;
}

struct Draw {
  std::int64_t draws;
  Normal normal;

  std::size_t one_of_two() { return normal.uniform() < 0.5 ? 0 : 1; }

  template <class Key>
  Simulated over(Key&& key) {
    std::vector<Drawn> keys(static_cast<std::size_t>(draws));
    for (Drawn& one : keys) one = key();
    return summary(keys);
  }

  /// Keys N(shift, 1) for each of two shifts; log(e) is the logarithm of the weight.
  template <class Log>
  Simulated shifted(const std::array<double, 2>& shifts, Log&& log) {
    return over([&]() -> Drawn {
      const double e = shifts[one_of_two()] + normal();
      std::array<double, 2> density{};
      for (std::size_t k = 0; k < 2; ++k) density[k] = shifts[k] * (e - shifts[k] / 2);
      return {log(e), counts_of(density)};
    });
  }

  Simulated operator()(const Softmax& f) {
    const double gamma = f.scores.gamma;
    if (gamma > 40) return {};  // S is less than a double holds
    return shifted({gamma, 2 * gamma}, [&](double e) { return gamma * e; });
  }
  Simulated operator()(const Identity& f) {
    if (f.scores.gamma == 0) return {1, 0};
    return over([&, t = ratio(f.scores)]() -> Drawn {
      return {std::log(std::abs(t + normal())), 0};
    });
  }
  Simulated operator()(const Relu2& f) {
    if (f.scores.gamma == 0) return {1, 0};
    const double t = ratio(f.scores);
    if (t < -60) return {};  // as above
    // Where (t + e)^power exp(-e^2/2) is largest.
    const auto mode = [&](double power) {
      const double root = std::sqrt(t * t + 4 * power);
      return t > 0 ? 2 * power / (t + root) : (root - t) / 2;
    };
    return shifted({mode(2), mode(4)},
                   [&](double e) { return 2 * std::log(std::max(t + e, 0.0)); });
  }
  Simulated operator()(const Linear& f);
  Simulated operator()(const Decay& f) const {
    const double sum = sum_of_powers(f.rate, 1, f.keys);
    const double squares = sum_of_powers(f.rate, 2, f.keys);
    return {sum / std::sqrt(squares) / std::sqrt(double(f.keys)), 0};
  }
  /// Both densities are normal: a^k p has mean k z / (T + k) and variance T / (T + k). Lengths are
  /// in sqrt(T) and from the query on, r = (z - y) / sqrt(T), so that no temperature is too small.
  Simulated operator()(const Ellipsoid& f) {
    const double T = f.temperature, D = double(f.dim), z = std::sqrt(f.distance2);
    const double far = z * std::sqrt(T);  // r of the means is far / (T + k)
    return over([&]() -> Drawn {
      const double own = double(one_of_two()) + 1;
      const double first = far / (T + own) - normal() / std::sqrt(T + own);
      double others = 0;  // squared
      for (std::int64_t d = 1; d < f.dim; ++d) {
        const double e = normal();
        others += e * e / (T + own);
      }
      const double y = z - std::sqrt(T) * first;
      const double plain = -(y * y + T * others) / 2;
      std::array<double, 2> density{};
      for (std::size_t k = 0; k < 2; ++k) {
        const double by = T + double(k + 1), off = first - far / by;
        density[k] = D / 2 * (std::log(by) - std::log(T)) - by * (off * off + others) / 2 - plain;
      }
      return {-(first * first + others) / 2, counts_of(density)};
    });
  }
};

/// Features whose logarithms are normal. a p is then a mixture of normals, each with one
/// logarithm's covariances added to the mean, and a^2 p one over pairs of them.
Simulated Draw::operator()(const Linear& f) {
  const std::size_t D = f.query.size();
  const long double mean = moments(f).mean;
  std::vector<double> parts(D), logs(D * D);  // of the mean; covariance of the logarithms
  for (std::size_t d = 0; d < D; ++d) {
    parts[d] = double(f.query[d] * static_cast<long double>(f.mean[d]) / mean);
    for (std::size_t e = 0; e < D; ++e) {
      const long double by = static_cast<long double>(f.mean[d]) * f.mean[e];
      const double x = f.covariance[d * D + e];
      logs[d * D + e] = x == 0 ? 0 : std::log1p(double(x / by));
    }
  }
  const bool there = std::all_of(logs.begin(), logs.end(), [](double x) { return x < INFINITY; });
  const std::vector<double> factor = there ? root(logs, D) : std::vector<double>();
  if (factor.empty()) {
    throw InvalidArgument(
        "no features with normal logarithms have this mean and covariance: leave simulate out");
  }
  std::vector<double> singles(D), pairs(D * D);  // summed up
  double single = 0, pair = 0;
  for (std::size_t d = 0; d < D; ++d) {
    singles[d] = single += parts[d];
    for (std::size_t e = 0; e < D; ++e)
      pairs[d * D + e] = pair += parts[d] * parts[e] * std::exp(logs[d * D + e]);
  }
  const auto picked = [&](const std::vector<double>& sums) {
    const auto found = std::upper_bound(sums.begin(), sums.end(), normal.uniform() * sums.back());
    return std::size_t(std::min(found, sums.end() - 1) - sums.begin());
  };
  std::vector<double> e(D);
  const auto towards = [&](std::size_t d) {
    for (std::size_t k = 0; k <= d; ++k) e[k] += factor[d * D + k];
  };
  return over([&]() -> Drawn {
    for (double& x : e) x = normal();
    const bool two = one_of_two() == 1;
    const std::size_t at = picked(two ? pairs : singles);
    towards(at % D);
    if (two) towards(at / D);
    double weight = 0;  // 1 in the mean
    for (std::size_t d = 0; d < D; ++d) {
      double g = -logs[d * D + d] / 2;
      for (std::size_t k = 0; k <= d; ++k) g += factor[d * D + k] * e[k];
      weight += parts[d] * std::exp(g);
    }
    const double log = std::log(weight);
    return {log, counts_of({log - std::log(single), 2 * log - std::log(pair)})};
  });
}

}  // namespace

Simulated simulate(const Form& form, std::int64_t draws, std::uint64_t seed) {
  check(form);
  if (draws < 2) throw InvalidArgument(std::to_string(draws) + " keys to simulate; 2 or more");
  if (draws > most_draws) {
    throw InvalidArgument(std::to_string(draws) + " keys to simulate; at most " +
                          std::to_string(most_draws));
  }
  const auto* ellipsoid = std::get_if<Ellipsoid>(&form);
  if (ellipsoid && ellipsoid->dim > most_numbers / draws) {
    throw InvalidArgument(std::to_string(draws) + " keys of " + std::to_string(ellipsoid->dim) +
                          " numbers to simulate; at most " + std::to_string(most_numbers) +
                          " numbers in all");
  }
  return std::visit(Draw{draws, Normal(seed)}, form);
}

}  // namespace foci::theory
