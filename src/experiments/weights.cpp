// SPDX-License-Identifier: Apache-2.0
// Keys and queries ~ N(0, C), C correlated. Under a metric m the scores of a query are normal,
// their spread gamma is known, and so are S = exp(-gamma^2/2) and the share of the weight that the
// heaviest keys hold, Phi(gamma + Phi^-1(their share)). The full metric's S is that of Ellipsoid at
// |z|^2 = q' C^-1 q.
#include "experiments/experiments.hpp"
#include "experiments/trial.hpp"

#include <foci/theory.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace foci::experiments {
namespace {

constexpr std::int64_t queries = 16, most_sorted = 256;
constexpr double usual_correlation = 0.7;
constexpr std::array<double, 6> correlations = {0, 0.3, 0.5, 0.7, 0.9, 0.99};
constexpr std::array<std::int64_t, 5> counts = {64, 128, 256, 512, 1024};
constexpr std::array<double, 10> heaviest = {.005, .01, .02, .05, .1, .2, .3, .5, .7, 1};
constexpr std::array<const char*, 4> arms = {"dot", "diagonal", "full, c = 1", "full, scale auto"};

/// Keys, queries and what the theory knows of them.
struct Draw {
  Matrix keys, queries, covariance;
  Vector m;           ///< diagonal: the spread of each coordinate, the largest is 1
  Vector distances2;  ///< q' C^-1 q of each query

  Draw(Normal& normal, std::int64_t n, std::int64_t D, double correlation) {
    const Matrix L = correlated_factor(D, correlation);
    covariance = product_transposed(L, L);
    const Matrix z = normals(normal, experiments::queries, D);
    queries = product_transposed(z, L);
    keys = product_transposed(normals(normal, n, D), L);
    for (std::int64_t d = 0; d < D; ++d) m.push_back(std::sqrt(covariance(d, d)));
    for (std::int64_t i = 0; i < z.rows; ++i) {
      double square = 0;
      for (const double x : z.row(i)) square += x * x;
      distances2.push_back(square);
    }
  }

  Inputs inputs(const Matrix& v, std::size_t arm) const {
    Inputs from{.q = queries.view(), .k = keys.view(), .v = v.view()};
    if (arm == 1) from.metric = View(m.data(), {1, 1, 1, keys.columns});
    return from;
  }
  static Options options(std::size_t arm) {
    if (arm == 0) return {};
    if (arm == 1) return {.metric = Given{}};
    if (arm == 2) return {.metric = KeyCovariance{}};
    return {.metric = KeyCovariance{}, .scale = MatchDot{}};
  }

  /// gamma of query i.
  double spread(std::size_t arm, std::int64_t i) const {
    const Vector none(std::size_t(keys.columns)), ones(none.size(), 1.0);
    return theory::scores_of(queries.row(i), arm == 0 ? ones : m, none, covariance.values,
                             1 / std::sqrt(double(keys.columns)))
        .gamma;
  }
  double closed(std::size_t arm, std::int64_t i, double temperature) const {
    if (arm < 2) return theory::concentration(theory::Softmax{{0, spread(arm, i)}});
    return theory::concentration(
        theory::Ellipsoid{keys.columns, distances2[std::size_t(i)], temperature});
  }
  /// Mean of n S^2 by the closed form.
  double closed_keys(std::size_t arm) const {
    double S = 0, squares = 0;
    for (std::int64_t i = 0; i < queries.rows; ++i) S += closed(0, i, 1) / double(queries.rows);
    const double temperature = arm == 3 ? theory::temperature_at(S, keys.columns, distances2) : 1;
    for (std::int64_t i = 0; i < queries.rows; ++i)
      squares += std::pow(closed(arm, i, temperature), 2) / double(queries.rows);
    return double(keys.rows) * squares;
  }
};

/// Standard normal: the share below x, and back.
double share_below(double x) { return std::erfc(-x / std::sqrt(2.0)) / 2; }
double point_at(double share) {
  double low = -40, high = 40;
  for (int halvings = 0; halvings < 80; ++halvings) {
    const double middle = (low + high) / 2;
    (share_below(middle) < share ? low : high) = middle;
  }
  return (low + high) / 2;
}

/// Effective keys, measured and by the closed form, over the xs of one chart.
struct Pair {
  Samples measured, closed;
  Pair(std::size_t points, std::int64_t runs) : measured(points, runs), closed(points, runs) {}
};

using Pairs = std::vector<Pair>;  // of each arm

void count_keys(Pairs& to, const Draw& draw, std::size_t point, std::int64_t run) {
  const Matrix v(draw.keys.rows, 1);
  for (std::size_t arm = 0; arm < arms.size(); ++arm) {
    to[arm].measured(point, run) = focus_of(draw.inputs(v, arm), Draw::options(arm)).effective_keys;
    to[arm].closed(point, run) = draw.closed_keys(arm);
  }
}

/// What the heaviest keys hold together, a mean over queries. Values that are unit vectors give the
/// weights back.
void sort_weights(Pairs& to, const Draw& draw, std::int64_t run) {
  const std::int64_t n = draw.keys.rows;
  Matrix unit(n, n);
  for (std::int64_t j = 0; j < n; ++j) unit(j, j) = 1;
  for (std::size_t arm = 0; arm < arms.size(); ++arm) {
    Vector weights = outputs(draw.inputs(unit, arm), Draw::options(arm));
    for (std::int64_t i = 0; i < queries; ++i) {
      const auto row = weights.begin() + i * n;
      std::sort(row, row + n, std::greater<>());
      double held = 0;
      std::int64_t taken = 0;
      for (std::size_t p = 0; p < heaviest.size(); ++p) {
        const double upto = heaviest[p] * double(n);
        while (double(taken + 1) <= upto) held += row[taken++];
        const double part = taken < n ? (upto - double(taken)) * row[taken] : 0;
        to[arm].measured(p, run) += (held + part) / double(queries);
        if (arm < 2) {
          to[arm].closed(p, run) +=
              share_below(draw.spread(arm, i) + point_at(heaviest[p])) / double(queries);
        }
      }
    }
  }
}

template <class Xs>
void add(Chart& chart, const Pairs& pairs, const Xs& xs) {
  for (std::size_t arm = 0; arm < arms.size(); ++arm) {
    const Vector x(xs.begin(), xs.end());
    chart.series.push_back({arms[arm], Kind::measured, x, pairs[arm].measured.means()});
    std::vector<Estimate> closed = pairs[arm].closed.means();
    if (closed.back().value == 0) continue;           // there is none
    for (Estimate& y : closed) y.standard_error = 0;  // on the same queries
    chart.series.push_back({arms[arm], Kind::closed, x, closed});
  }
}

}  // namespace

Result run(const Weights& of, const Setting& in) {
  const auto room = [&](std::size_t points) { return Pairs(arms.size(), Pair(points, of.runs)); };
  Pairs by_count = room(counts.size()), by_correlation = room(correlations.size()),
        by_share = room(heaviest.size()), usual = room(1);
  each_run(of.runs, in.threads, [&](std::int64_t run) {
    for (std::size_t p = 0; p < counts.size(); ++p) {
      Normal normal = drawn_for(in.seed, run, 1);
      count_keys(by_count, Draw(normal, counts[p], of.dim, usual_correlation), p, run);
    }
    for (std::size_t p = 0; p < correlations.size(); ++p) {
      Normal normal = drawn_for(in.seed, run, 2);
      count_keys(by_correlation, Draw(normal, of.keys, of.dim, correlations[p]), p, run);
    }
    Normal normal = drawn_for(in.seed, run, 3);
    count_keys(usual, Draw(normal, of.keys, of.dim, usual_correlation), 0, run);
    const std::int64_t sorted = std::min(of.keys, most_sorted);
    sort_weights(by_share, Draw(normal, sorted, of.dim, usual_correlation), run);
  });
  Chart share{"correlation 0.7", logarithmic("heaviest keys, as a share of all"),
              linear("share of the weight they hold")};
  Chart count{"correlation 0.7", logarithmic("keys"), logarithmic("effective keys")};
  Chart correlation{std::to_string(of.keys) + " keys",
                    linear("correlation of neighbouring coordinates"), linear("effective keys")};
  add(share, by_share, heaviest);
  add(count, by_count, counts);
  add(correlation, by_correlation, correlations);
  Result result{{share, count, correlation},
                {"metric", {"effective keys", "by the closed form", "measured / closed"}}};
  for (std::size_t arm = 0; arm < arms.size(); ++arm) {
    Vector ratios;
    for (std::size_t run = 0; run < std::size_t(of.runs); ++run)
      ratios.push_back(usual[arm].measured.at(0)[run] / usual[arm].closed.at(0)[run]);
    const Estimate closed{usual[arm].closed.means()[0].value, 0};
    result.table.rows.push_back(
        {arms[arm], {usual[arm].measured.means()[0], closed, mean_of(ratios)}});
  }
  return result;
}

}  // namespace foci::experiments
