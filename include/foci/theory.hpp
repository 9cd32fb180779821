// SPDX-License-Identifier: Apache-2.0
// How well attention can concentrate: S = E|a| / sqrt(E[a^2]) over the keys of one query, 1 when
// all weigh the same, 1/sqrt(n) when one of n does alone. In closed form for many keys, and by
// simulation. n S^2 is the number of keys that count.
#pragma once

#include <foci/export.h>

#include <cstdint>
#include <span>
#include <variant>
#include <vector>

namespace foci::theory {

/// A query's scores over keys: beta + gamma e, e ~ N(0,1); gamma >= 0.
struct Scores {
  double beta = 0, gamma = 1;
};
/// Under a diagonal metric m, of keys ~ N(mean, covariance (D,D)):
/// beta = c q.(m mean), gamma^2 = c^2 (m q)' covariance (m q).
FOCI_API Scores scores_of(std::span<const double> q, std::span<const double> m,
                          std::span<const double> mean, std::span<const double> covariance,
                          double c);

/// a = exp(x)
struct Softmax {
  Scores scores = {};
};
/// a = x
struct Identity {
  Scores scores = {};
};
/// a = max(x, 0)^2
struct Relu2 {
  Scores scores = {};
};
/// a = query.phi(k) of features that are never negative, phi(k) having this mean (D) and
/// covariance (D,D); neither does the query have negative parts.
struct Linear {
  std::vector<double> query = {}, mean = {}, covariance = {};
};
/// a = rate^age, ages 0 to keys - 1; rate in (0, 1].
struct Decay {
  double rate = 0.9;
  std::int64_t keys = 1;
};
/// softmax under the inverse covariance of normal keys: a = exp(-|z - y|^2 / (2 temperature)),
/// y ~ N(0, 1) in `dim` directions, |z|^2 = distance2 that of the query to the keys' mean.
struct Ellipsoid {
  std::int64_t dim = 64;
  double distance2 = 0, temperature = 1;
};
using Form = std::variant<Softmax, Identity, Relu2, Linear, Decay, Ellipsoid>;

/// S in closed form, at the limits too. Throws InvalidArgument when a form has no S (all weights
/// are 0) or its numbers mean nothing.
FOCI_API double concentration(const Form& form);

/// scale auto in closed form: the temperature at which the mean of Ellipsoid's S over queries at
/// these squared distances is `concentration`, which lies between 0 and 1. With dot attention's S
/// it is the temperature at which both look at as many keys.
FOCI_API double temperature_at(double concentration, std::int64_t dim,
                               std::span<const double> distance2);

struct Simulated {
  double concentration = 0;
  double standard_error = 0;  ///< of the estimate, by the delta method
};
/// The same from `draws` keys, 2 to 10^8, drawn where weights are and counted by how likely they
/// are there; decay, where nothing is random, by its sums. Linear draws features whose logarithms
/// are normal, and throws InvalidArgument where none have this mean and covariance.
FOCI_API Simulated simulate(const Form& form, std::int64_t draws, std::uint64_t seed);

}  // namespace foci::theory
