// SPDX-License-Identifier: Apache-2.0
// |o(q + d) - o(q)| <= tanh(R/4) max|v_i - v_j|, R = c max|d' M (k_i - k_j)|: tried on random
// queries, keys, values, moves and metrics, and on those that a search makes as bad as it can. The
// move is scaled so that R is what was asked for; the search follows the gradient and, where that
// has a kink, random steps.
#include "experiments/experiments.hpp"
#include "experiments/trial.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

namespace foci::experiments {
namespace {

constexpr std::array<double, 7> drifts = {0.03, 0.1, 0.3, 1, 3, 10, 30};  // R
constexpr std::array<const char*, 3> geometries = {"dot", "diagonal", "full"};
constexpr std::int64_t value_size = 2, steps = 120, guesses = 8, starts = 2;

/// All that can be chosen, as one row of numbers: q, d, keys, values, metric.
struct Problem {
  std::int64_t n, D;
  std::size_t geometry;
  double drift;

  std::int64_t metric_size() const {
    return geometry == 0 ? 0 : geometry == 1 ? D : D * (D + 1) / 2;
  }
  std::int64_t size() const { return 2 * D + n * (D + value_size) + metric_size(); }
  std::span<const double> keys(std::span<const double> of) const {
    return of.subspan(std::size_t(2 * D), std::size_t(n * D));
  }
  std::span<const double> values(std::span<const double> of) const {
    return of.subspan(std::size_t((2 + n) * D), std::size_t(n * value_size));
  }

  /// M (D,D): the identity, exp of what was chosen, or L L'.
  Matrix metric(std::span<const double> of) const {
    Matrix M(D, D), L(D, D);
    const auto chosen = of.last(std::size_t(metric_size()));
    std::size_t at = 0;
    for (std::int64_t i = 0; i < D; ++i) {
      if (geometry == 0) M(i, i) = 1;
      if (geometry == 1) M(i, i) = std::exp(std::clamp(chosen[std::size_t(i)], -8.0, 8.0));
      for (std::int64_t j = 0; j <= i && geometry == 2; ++j) L(i, j) = chosen[at++];
    }
    if (geometry < 2) return M;
    Matrix P = product_transposed(L, L);
    double trace = 1e-300;
    for (std::int64_t i = 0; i < D; ++i) trace += P(i, i);
    for (std::int64_t i = 0; i < D; ++i)
      P(i, i) += 1e-9 * trace;  // or rounding may sink it below 0
    return P;
  }
};

/// How near a choice comes to the bound.
struct Tightness {
  double moved = 0;     ///< |o(q + d) - o(q)| / max|v_i - v_j|
  double to_bound = 0;  ///< that over tanh(R/4)
  double to_norms = 0;  ///< over c/4 |d|_M max|k_i - k_j|_M, which is never less
};

double largest_distance(std::span<const double> points, std::int64_t width, const Matrix* M) {
  double most = 0;
  const std::int64_t n = std::int64_t(points.size()) / width;
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < i; ++j) {
      double square = 0;
      for (std::int64_t a = 0; a < width; ++a) {
        const double x = points[std::size_t(i * width + a)] - points[std::size_t(j * width + a)];
        for (std::int64_t b = M ? 0 : a; b <= (M ? width - 1 : a); ++b) {
          const double y = points[std::size_t(i * width + b)] - points[std::size_t(j * width + b)];
          square += x * y * (M ? (*M)(a, b) : 1);
        }
      }
      most = std::max(most, square);
    }
  }
  return std::sqrt(most);
}

/// All rows of choices for one call: each a sequence with two queries, q and q + d.
struct Batch {
  const Problem& of;
  Vector q = {}, k = {}, v = {}, metrics = {};
  Vector norms = {};  ///< c/4 |d|_M max|k_i - k_j|_M
  double c = 1 / std::sqrt(double(of.D));

  void add(std::span<const double> choice) {
    const std::int64_t D = of.D, n = of.n;
    const Matrix M = of.metric(choice);
    const auto keys = of.keys(choice), values = of.values(choice);
    Matrix move(1, D), at(n, D);
    std::copy_n(choice.begin() + D, D, move.values.begin());
    std::copy(keys.begin(), keys.end(), at.values.begin());
    const Matrix pull = product(move, M), scores = product_transposed(pull, at);  // d'M, d'M k_j
    const auto [low, high] = std::minmax_element(scores.values.begin(), scores.values.end());
    const double stretch = *high > *low ? of.drift / (c * (*high - *low)) : 0;
    const double length = stretch * std::sqrt(std::max(product_transposed(pull, move)(0, 0), 0.0));
    norms.push_back(c / 4 * length * largest_distance(keys, D, &M));
    q.insert(q.end(), choice.begin(), choice.begin() + D);
    for (std::int64_t d = 0; d < D; ++d) q.push_back(choice[std::size_t(d)] + stretch * move(0, d));
    k.insert(k.end(), keys.begin(), keys.end());
    v.insert(v.end(), values.begin(), values.end());
    for (std::int64_t d = 0; d < D && of.geometry == 1; ++d) metrics.push_back(M(d, d));
    if (of.geometry == 2) metrics.insert(metrics.end(), M.values.begin(), M.values.end());
  }

  /// o at q and at q + d, of each.
  Vector attended() const {
    const std::int64_t B = std::int64_t(norms.size()), D = of.D;
    Inputs from{.q = View(q.data(), {B, 1, 2, D}),
                .k = View(k.data(), {B, 1, of.n, D}),
                .v = View(v.data(), {B, 1, of.n, value_size})};
    Options how{.scale = c};
    if (of.geometry == 1) {
      how.metric = Given{};
      from.metric = View(metrics.data(), {B, 1, 1, D});
    } else if (of.geometry == 2) {
      how.metric = Given{.extent = Extent::full};
      from.metric = View(metrics.data(), {B, 1, D, D});
    }
    return outputs(from, how);
  }
};

std::vector<Tightness> judge(const Problem& of, const Matrix& choices) {
  Batch batch{of};
  for (std::int64_t b = 0; b < choices.rows; ++b) batch.add(choices.row(b));
  const Vector o = batch.attended();
  std::vector<Tightness> found(std::size_t(choices.rows));
  for (std::size_t b = 0; b < found.size(); ++b) {
    double square = 0;
    for (std::size_t e = 0; e < value_size; ++e) {
      const double moved = o[(2 * b + 1) * value_size + e] - o[2 * b * value_size + e];
      square += moved * moved;
    }
    const auto values = of.values(choices.row(std::int64_t(b)));
    const double spread = largest_distance(values, value_size, nullptr);
    if (spread == 0 || batch.norms[b] == 0) continue;
    found[b].moved = std::sqrt(square) / spread;
    found[b].to_bound = found[b].moved / std::tanh(of.drift / 4);
    found[b].to_norms = found[b].moved / batch.norms[b];
  }
  return found;
}

/// What one cell (a geometry and a drift) has shown.
struct Cell {
  Tightness largest;   ///< each on its own
  double climbed = 0;  ///< to_bound, before the search began where the theorem is an equation
  Vector random;       ///< to_bound of random choices
  std::int64_t tried = 0, violations = 0;

  void see(const std::vector<Tightness>& found) {
    for (const Tightness& one : found) {
      largest.moved = std::max(largest.moved, one.moved);
      largest.to_bound = std::max(largest.to_bound, one.to_bound);
      largest.to_norms = std::max(largest.to_norms, one.to_norms);
      ++tried;
      violations += one.to_bound > 1 + 1e-9 || one.to_norms > 1 + 1e-9;
    }
  }
};

Matrix random_choices(const Problem& of, Normal& normal, std::int64_t count) {
  Matrix choices = normals(normal, count, of.size());
  for (std::int64_t b = 0; b < count; ++b) {
    const double focus = std::exp(3 * normal());  // from weights that are even to one key alone
    for (std::int64_t d = 0; d < of.D; ++d) choices(b, d) *= focus;
  }
  return choices;
}

/// Where the theorem is an equation, and a violation would be nearest: two heaps of keys and
/// values, and a move along the line between them that swaps their weights.
Matrix two_heaps(const Problem& of) {
  Matrix choice(1, of.size());
  std::int64_t ahead = 0;  // keys in the heap that the move favours
  for (std::int64_t j = 0; j < of.n; ++j) {
    const double side = j % 2 == 0 ? 1 : -1;
    ahead += j % 2 == 0;
    choice(0, (2 + j) * of.D) = side;
    choice(0, (2 + of.n) * of.D + j * value_size) = side;
  }
  const double c = 1 / std::sqrt(double(of.D));
  choice(0, 0) = -(of.drift / 2 + std::log(double(ahead) / double(of.n - ahead))) / (2 * c);  // q
  choice(0, of.D) = 1;                                                                        // d
  std::int64_t at = of.size() - of.metric_size();
  for (std::int64_t i = 0; i < of.D && of.geometry == 2; at += ++i + 1) choice(0, at) = 1;
  return choice;
}

/// What a search makes as large as it can.
using Aim = double Tightness::*;

/// Uphill from one choice, in steps that shrink where nothing is better.
void climb(Cell& cell, const Problem& of, Normal& normal, Matrix at, Aim aim) {
  const std::int64_t size = of.size();
  double value = judge(of, at)[0].*aim;
  constexpr double nudge = 1e-6, widest = 0.5;
  double step = widest;
  for (std::int64_t left = steps; left > 0; --left) {
    Matrix nudged(size, size);
    for (std::int64_t p = 0; p < size; ++p) {
      std::copy(at.values.begin(), at.values.end(), &nudged(p, 0));
      nudged(p, p) += nudge;
    }
    const auto around = judge(of, nudged);
    cell.see(around);
    Vector gradient;
    double length = 1e-300;
    for (const Tightness& one : around) {
      gradient.push_back((one.*aim - value) / nudge);
      length += gradient.back() * gradient.back();
    }
    Matrix guess(2 * guesses, size);
    for (std::int64_t g = 0; g < 2 * guesses; ++g) {
      const double far = step * std::pow(4.0, 1 - double(g % guesses));
      for (std::int64_t p = 0; p < size; ++p) {
        const double along = gradient[std::size_t(p)] / std::sqrt(length);
        guess(g, p) = at(0, p) + far * (g < guesses ? along : normal());
      }
    }
    const auto found = judge(of, guess);
    cell.see(found);
    const auto best = std::max_element(found.begin(), found.end(),
                                       [&](auto& a, auto& b) { return a.*aim < b.*aim; });
    if ((*best).*aim > value) {
      value = (*best).*aim;
      std::copy_n(&guess(best - found.begin(), 0), size, at.values.begin());
      step = std::min(2 * step, widest);
    } else {
      step = step < 1e-7 ? widest : step / 4;
    }
  }
}

Cell search(const Problem& of, const PerturbedQuery& how, Normal normal) {
  Cell cell;
  const Matrix choices = random_choices(of, normal, how.runs);
  const auto found = judge(of, choices);
  cell.see(found);
  for (const Tightness& one : found) cell.random.push_back(one.to_bound);
  constexpr std::array<Aim, 2> aims = {&Tightness::to_bound, &Tightness::to_norms};
  for (const Aim aim : aims) {
    std::vector<std::size_t> order(found.size());
    std::iota(order.begin(), order.end(), std::size_t(0));
    std::stable_sort(order.begin(), order.end(),
                     [&](std::size_t a, std::size_t b) { return found[a].*aim > found[b].*aim; });
    for (std::int64_t s = 0; s < std::min(starts, how.runs); ++s) {
      Matrix at(1, of.size());
      const auto from = choices.row(std::int64_t(order[std::size_t(s)]));
      std::copy(from.begin(), from.end(), at.values.begin());
      climb(cell, of, normal, at, aim);
    }
  }
  cell.climbed = cell.largest.to_bound;
  for (const Aim aim : aims) climb(cell, of, normal, two_heaps(of), aim);
  return cell;
}

}  // namespace

Result run(const PerturbedQuery& of, const Setting& in) {
  std::vector<Cell> cells(geometries.size() * drifts.size());
  each_run(std::int64_t(cells.size()), in.threads, [&](std::int64_t at) {
    const std::size_t g = std::size_t(at) / drifts.size(), r = std::size_t(at) % drifts.size();
    const Problem problem{of.keys, of.dim, g, drifts[r]};
    cells[std::size_t(at)] = search(problem, of, drawn_for(in.seed, at, 1));
  });
  const Axis drift = logarithmic("R: how far the move drives two scores apart");
  Chart moved{"how far the output moves", drift, logarithmic("|o(q+d) − o(q)| / max|vᵢ − vⱼ|")};
  Chart share{"as a share of the bound", drift, linear("|o(q+d) − o(q)| / bound")};
  Series bound{"tanh(R/4)", Kind::closed}, straight{"R/4", Kind::closed};
  for (const double R : drifts) {
    for (Series* series : {&bound, &straight}) series->x.push_back(R);
    bound.y.push_back({std::tanh(R / 4), 0});
    straight.y.push_back({R / 4, 0});
  }
  moved.series = {bound, straight};
  Result result{{},
                {"metric",
                 {"choices tried", "violations", "largest share of the bound",
                  "reached from random", "of the bound by norms", "random ones, mean"}}};
  for (std::size_t g = 0; g < geometries.size(); ++g) {
    const std::string name = geometries[g];
    Series largest{"largest found, " + name, Kind::extreme}, random{"random, " + name}, of_bound;
    double tried = 0, violations = 0, most = 0, climbed = 0, most_by_norms = 0;
    Vector shares;
    for (std::size_t r = 0; r < drifts.size(); ++r) {
      const Cell& cell = cells[g * drifts.size() + r];
      for (Series* series : {&largest, &random}) series->x.push_back(drifts[r]);
      largest.y.push_back({cell.largest.moved, 0});
      random.y.push_back(mean_of(cell.random));
      of_bound.y.push_back({cell.largest.to_bound, 0});
      tried += double(cell.tried);
      violations += double(cell.violations);
      most = std::max(most, cell.largest.to_bound);
      climbed = std::max(climbed, cell.climbed);
      most_by_norms = std::max(most_by_norms, cell.largest.to_norms);
      shares.insert(shares.end(), cell.random.begin(), cell.random.end());
    }
    moved.series.push_back(largest);
    share.series.push_back({largest.name, Kind::extreme, largest.x, of_bound.y});
    share.series.push_back(random);
    result.table.rows.push_back({name,
                                 {{tried, 0},
                                  {violations, 0},
                                  {most, 0},
                                  {climbed, 0},
                                  {most_by_norms, 0},
                                  mean_of(shares)}});
  }
  result.charts = {moved, share};
  return result;
}

}  // namespace foci::experiments
