// SPDX-License-Identifier: Apache-2.0
// Values f(x) of tokens x ~ N(0, I), f_e(x) = sum_d W_ed a_d sin x_d, a_d falling from 1 to 1/10.
// The variability of f in coordinate d is sum_e E|d f_e / d x_d| = a_d sum_e |W_ed| E|cos|. Either
// W = I, every output follows its own coordinate, or W is a rotation that mixes them. The layer
// below has the tokens x + change N(0, I).
#include "experiments/experiments.hpp"
#include "experiments/trial.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace foci::experiments {
namespace {

constexpr std::array<std::int64_t, 6> tokens = {8, 16, 32, 64, 128, 256};
constexpr std::array<double, 6> noises = {0.01, 0.03, 0.1, 0.3, 1, 3};
constexpr std::array<double, 6> changes = {0.01, 0.03, 0.1, 0.3, 1, 3};
constexpr double usual_change = 0.3;
constexpr std::array<const char*, 5> arms = {"layer-change, own coordinate", "layer-change, mixed",
                                             "jacobian, own coordinate", "jacobian, mixed",
                                             "flat (knows nothing)"};

/// Where one measurement stands.
struct Place {
  std::int64_t n = 0;
  double noise = 0, change = 0;
};

struct World {
  Matrix W;  // (outputs, coordinates)
  Vector amplitude, truth;
};

World world(Normal& normal, std::int64_t D, std::size_t arm) {
  World made{Matrix(D, D), Vector(std::size_t(D)), Vector(std::size_t(D))};
  if (arm % 2 == 1) {
    made.W = rotation(normal, D);
  } else {
    for (std::int64_t d = 0; d < D; ++d) made.W(d, d) = 1;
  }
  for (std::int64_t d = 0; d < D; ++d) {
    const double a = std::pow(0.1, double(d) / double(D - 1));
    made.amplitude[std::size_t(d)] = a;
    for (std::int64_t e = 0; e < D; ++e) made.truth[std::size_t(d)] += a * std::abs(made.W(e, d));
  }
  return made;
}

Matrix values_of(const World& in, const Matrix& x, Normal& normal, double noise) {
  Matrix g = x;
  for (std::int64_t i = 0; i < g.rows; ++i) {
    for (std::int64_t d = 0; d < g.columns; ++d)
      g(i, d) = in.amplitude[std::size_t(d)] * std::sin(x(i, d));
  }
  Matrix v = product_transposed(g, in.W);
  for (double& value : v.values) value += noise * normal();
  return v;
}

Vector estimate(const World& in, std::size_t arm, const Place& at, Normal& normal) {
  const std::int64_t D = in.W.rows;
  if (arm == 4) return Vector(std::size_t(D), 1.0);
  const Matrix x = normals(normal, at.n, D), step = normals(normal, at.n, D);
  Matrix below = x;
  for (std::size_t i = 0; i < below.values.size(); ++i)
    below.values[i] += at.change * step.values[i];
  const Matrix v = values_of(in, x, normal, at.noise);
  const Matrix v_prev = values_of(in, below, normal, at.noise);
  Inputs from{.q = x.view(), .k = x.view(), .v = v.view()};
  if (arm >= 2) return metric_of(from, {.metric = Jacobian{}});
  from.q = from.q.sliced(2, 0, 1);  // its queries do not count
  from.v_prev = v_prev.view();
  return metric_of(from, {.metric = LayerChange{}});
}

/// Mean ranks where numbers are equal.
Vector ranks(const Vector& of) {
  Vector made;
  for (const double x : of) {
    double below = 0, equal = 0;
    for (const double y : of) {
      below += y < x;
      equal += y == x;
    }
    made.push_back(below + (equal + 1) / 2);
  }
  return made;
}

double cosine(const Vector& a, const Vector& b) {
  const double aa = std::inner_product(a.begin(), a.end(), a.begin(), 0.0);
  const double bb = std::inner_product(b.begin(), b.end(), b.begin(), 0.0);
  const double ab = std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
  return aa == 0 || bb == 0 ? 0 : ab / std::sqrt(aa * bb);
}

/// Spearman's; 0 where all are equal.
double rank_correlation(const Vector& a, const Vector& b) {
  Vector x = ranks(a), y = ranks(b);
  for (Vector* of : {&x, &y}) {
    for (double& rank : *of) rank -= double(a.size() + 1) / 2;
  }
  return cosine(x, y);
}

/// One sweep: a pair of charts, rank correlation and cosine.
struct Sweep {
  Axis x;
  Vector at;
  std::vector<Place> places;
};

std::vector<Sweep> sweeps(const Recovery& of) {
  std::vector<Sweep> made(3);
  made[0].x = logarithmic("tokens");
  made[1].x = logarithmic("noise of the values");
  made[2].x = logarithmic("change: step between the layers");
  for (const std::int64_t n : tokens) {
    made[0].at.push_back(double(n));
    made[0].places.push_back({n, of.noise, usual_change});
  }
  for (const double noise : noises) {
    made[1].at.push_back(noise);
    made[1].places.push_back({of.keys, noise, usual_change});
  }
  for (const double change : changes) {
    made[2].at.push_back(change);
    made[2].places.push_back({of.keys, of.noise, change});
  }
  return made;
}

struct Agreement {
  Samples rank, cosine;
};

Agreement measure(const Recovery& of, const Setting& in, std::size_t arm,
                  const std::vector<Place>& places, std::uint64_t purpose) {
  Agreement found{Samples(places.size(), of.runs), Samples(places.size(), of.runs)};
  each_run(of.runs, in.threads, [&](std::int64_t run) {
    for (std::size_t p = 0; p < places.size(); ++p) {
      Normal normal = drawn_for(in.seed, run, purpose);  // the same world at every place
      const World here = world(normal, of.dim, arm);
      const Vector m = estimate(here, arm, places[p], normal);
      found.rank(p, run) = rank_correlation(m, here.truth);
      found.cosine(p, run) = cosine(m, here.truth);
    }
  });
  return found;
}

}  // namespace

Result run(const Recovery& of, const Setting& in) {
  Result result{{}, {"estimate, function", {"rank correlation", "cosine"}}};
  std::vector<Chart> below;  // the cosines
  std::uint64_t purpose = 0;
  for (const Sweep& sweep : sweeps(of)) {
    Chart rank{"order", sweep.x, linear("rank correlation with the truth")};
    Chart angle{"shape", sweep.x, linear("cosine to the truth")};
    for (std::size_t arm = 0; arm < arms.size(); ++arm) {
      const Agreement found = measure(of, in, arm, sweep.places, ++purpose);
      rank.series.push_back({arms[arm], Kind::measured, sweep.at, found.rank.means()});
      angle.series.push_back({arms[arm], Kind::measured, sweep.at, found.cosine.means()});
    }
    result.charts.push_back(rank);
    below.push_back(angle);
  }
  result.charts.insert(result.charts.end(), below.begin(), below.end());
  const std::vector<Place> usual = {{of.keys, of.noise, usual_change}};
  for (std::size_t arm = 0; arm < arms.size(); ++arm) {
    const Agreement found = measure(of, in, arm, usual, ++purpose);
    result.table.rows.push_back({arms[arm], {found.rank.means()[0], found.cosine.means()[0]}});
  }
  return result;
}

}  // namespace foci::experiments
