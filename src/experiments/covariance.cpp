// SPDX-License-Identifier: Apache-2.0
// P of key-covariance against the true inverse covariance of keys ~ N(0, C): with C = L L' the
// eigenvalues of L' P L are all 1 when P is right, so the error is the root mean square of their
// logarithms, 0.7 when a direction is typically off by a factor of two.
#include "experiments/experiments.hpp"
#include "experiments/symmetric.hpp"
#include "experiments/trial.hpp"

#include <foci/error.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace foci::experiments {
namespace {

constexpr double correlation = 0.7, momentum = 0.99;
constexpr std::int64_t queries = 16, along = 512, batch = 32, batches = 512;
constexpr std::array<double, 7> ratios = {0.25, 0.5, 1, 2, 4, 8, 16};  // n/D
constexpr std::size_t half = 1, most = 6;                              // of them
constexpr std::array<const char*, 4> shrinkages = {"ridge 1e-6", "ridge 0.01", "ridge 0.1",
                                                   "prior D"};
constexpr std::array<std::int64_t, 3> periods = {16, 64, 256};
constexpr std::array<const char*, 4> begins = {"identity", "first batch", "random",
                                               "none, bias-corrected (running)"};
constexpr std::array<std::int64_t, 8> looks = {1, 2, 4, 16, 64, 128, 256, 512};

KeyCovariance shrunk(std::size_t how, std::int64_t D) {
  if (how == 1) return {.ridge = 1e-2};
  if (how == 2) return {.ridge = 0.1};
  if (how == 3) return {.prior = double(D)};
  return {};
}

double root_mean_square_log(const Vector& eigenvalues) {
  double sum = 0;
  for (const double x : eigenvalues) sum += std::pow(std::log(std::max(x, 1e-300)), 2);
  return std::sqrt(sum / double(eigenvalues.size()));
}

double error_of(const Matrix& P, const Matrix& L) {
  Matrix transposed(L.columns, L.rows);
  for (std::int64_t i = 0; i < L.rows; ++i) {
    for (std::int64_t j = 0; j < L.columns; ++j) transposed(j, i) = L(i, j);
  }
  return root_mean_square_log(eigenvalues(product(product(transposed, P), L)));
}

double condition(const Matrix& P) {
  const Vector values = eigenvalues(P);
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *high / std::max(*low, 1e-300);
}

Matrix keys_of(Normal& normal, std::int64_t n, const Matrix& L) {
  return product_transposed(normals(normal, n, L.rows), L);
}

/// Of each shrinkage and n/D: condition number, error, effective keys as a share.
struct Health {
  std::vector<Samples> condition, error, effective;
};

void measure(Health& to, const Covariance& of, Normal& normal, std::size_t point,
             std::int64_t run) {
  const std::int64_t n = std::max<std::int64_t>(2, std::llround(ratios[point] * double(of.dim)));
  const Matrix L = correlated_factor(of.dim, correlation);
  const Matrix keys = keys_of(normal, n, L), q = keys_of(normal, queries, L), v(n, 1);
  const Inputs from{.q = q.view(), .k = keys.view(), .v = v.view()};
  for (std::size_t how = 0; how < shrinkages.size(); ++how) {
    const Options options{.metric = shrunk(how, of.dim), .scale = 1 / std::sqrt(double(of.dim))};
    Matrix P(of.dim, of.dim);
    P.values = metric_of(from, options);
    to.condition[how](point, run) = condition(P);
    to.error[how](point, run) = error_of(P, L);
    to.effective[how](point, run) = focus_of(from, options).effective_keys / double(n);
  }
}

/// Error of the metric that the query at each place of a causal sequence gets.
void follow_prefix(std::vector<Samples>& to, const Covariance& of, Normal& normal,
                   std::int64_t run) {
  const std::int64_t D = of.dim;
  const Matrix L = correlated_factor(D, correlation);
  const Matrix keys = keys_of(normal, along, L), v(along, 1);
  const Inputs from{.q = keys.view().sliced(2, 0, 1), .k = keys.view(), .v = v.view()};
  for (std::size_t p = 0; p < periods.size(); ++p) {
    const KeyCovariance metric{.prior = double(D), .period = periods[p]};
    const Vector all = metric_of(from, {.metric = metric, .causal = true});
    for (std::int64_t chunk = 0; chunk * periods[p] < along; ++chunk) {
      Matrix P(D, D);
      std::copy_n(all.begin() + chunk * D * D, D * D, P.values.begin());
      to[p](std::size_t(chunk), run) = error_of(P, L);
    }
  }
}

/// L^-1 of a lower triangle.
Matrix inverse(const Matrix& L) {
  Matrix made(L.rows, L.rows);
  for (std::int64_t column = 0; column < L.rows; ++column) {
    for (std::int64_t i = column; i < L.rows; ++i) {
      double rest = i == column ? 1 : 0;
      for (std::int64_t k = column; k < i; ++k) rest -= L(i, k) * made(k, column);
      made(i, column) = rest / L(i, i);
    }
  }
  return made;
}

/// z' z
Matrix scatter(const Matrix& z) {
  Matrix made(z.columns, z.columns);
  for (std::int64_t i = 0; i < z.rows; ++i) {
    for (std::int64_t d = 0; d < z.columns; ++d) {
      for (std::int64_t e = 0; e < z.columns; ++e) made(d, e) += z(i, d) * z(i, e);
    }
  }
  return made;
}

/// An average over batches from different beginnings, in the coordinates L^-1 k in which the truth
/// is the identity. Its inverse is as wrong as itself.
void follow_batches(std::vector<Samples>& to, const Covariance& of, Normal& normal,
                    std::int64_t run) {
  const std::int64_t D = of.dim;
  const Matrix back = inverse(correlated_factor(D, correlation));
  std::vector<Matrix> averages(begins.size(), Matrix(D, D));
  averages[0] = product_transposed(back, back);
  const Matrix draw = product(back, normals(normal, D, D));
  averages[2] = product_transposed(draw, draw);
  double weight = 0;  // of all batches so far, in the last average
  for (std::int64_t b = 1; b <= batches; ++b) {
    const Matrix sum = scatter(normals(normal, batch, D));
    weight = momentum * weight + (1 - momentum);
    for (std::size_t how = 0; how < begins.size(); ++how) {
      for (std::size_t i = 0; i < sum.values.size(); ++i) {
        double& x = averages[how].values[i];
        const double here = sum.values[i] / double(batch);
        x = how == 1 && b == 1 ? here : momentum * x + (1 - momentum) * here;
      }
    }
    const auto look = std::find(looks.begin(), looks.end(), b);
    if (look == looks.end()) continue;
    for (std::size_t how = 0; how < begins.size(); ++how) {
      Matrix now = averages[how];
      for (double& x : now.values) x /= how == 3 ? weight : 1;
      to[how](std::size_t(look - looks.begin()), run) = root_mean_square_log(eigenvalues(now));
    }
  }
}

std::vector<Samples> room(std::size_t series, std::size_t points, std::int64_t runs) {
  return std::vector<Samples>(series, Samples(points, runs));
}

Series series(const char* name, Vector x, const Samples& of) {
  return {name, Kind::measured, std::move(x), of.means()};
}

}  // namespace

Result run(const Covariance& of, const Setting& in) {
  Health health{room(shrinkages.size(), ratios.size(), of.runs),
                room(shrinkages.size(), ratios.size(), of.runs),
                room(shrinkages.size(), ratios.size(), of.runs)};
  auto prefix = room(periods.size(), std::size_t(along / periods[0]), of.runs);
  auto running = room(begins.size(), looks.size(), of.runs);
  each_run(of.runs, in.threads, [&](std::int64_t run) {
    Normal normal = drawn_for(in.seed, run, 1);
    for (std::size_t point = 0; point < ratios.size(); ++point)
      measure(health, of, normal, point, run);
    follow_prefix(prefix, of, normal, run);
    follow_batches(running, of, normal, run);
  });
  const Axis ratio = logarithmic("keys per dimension, n/D");
  const Axis error = logarithmic("error of the metric (0: right)");
  Chart conditions{"conditioning", ratio, logarithmic("condition number")};
  Chart errors{"accuracy", ratio, error};
  Chart effective{"focus, scale 1/√D", ratio, linear("effective keys, as a share")};
  Result result{
      {},
      {"shrinkage",
       {"error, n/D = 1/2", "error, n/D = 16", "condition, n/D = 1/2", "condition, n/D = 16"}}};
  for (std::size_t how = 0; how < shrinkages.size(); ++how) {
    const Vector x(ratios.begin(), ratios.end());
    conditions.series.push_back(series(shrinkages[how], x, health.condition[how]));
    errors.series.push_back(series(shrinkages[how], x, health.error[how]));
    effective.series.push_back(series(shrinkages[how], x, health.effective[how]));
    const auto at = [&](const Chart& chart, std::size_t p) { return chart.series[how].y[p]; };
    result.table.rows.push_back(
        {shrinkages[how],
         {at(errors, half), at(errors, most), at(conditions, half), at(conditions, most)}});
  }
  const Matrix L = correlated_factor(of.dim, correlation);
  const double truth = condition(product_transposed(L, L));
  conditions.series.push_back(
      {"the true metric", Kind::closed, {ratios.front(), ratios.back()}, {{truth, 0}, {truth, 0}}});
  Chart staleness{"along a causal sequence, prior D", linear("position"), error};
  for (std::size_t p = 0; p < periods.size(); ++p) {
    Series steps{.name = "period " + std::to_string(periods[p])};
    const std::vector<Estimate> errors_of = prefix[p].means();
    for (std::int64_t chunk = 0; chunk * periods[p] < along; ++chunk) {
      for (const std::int64_t at : {chunk * periods[p], (chunk + 1) * periods[p] - 1}) {
        steps.x.push_back(double(at));
        steps.y.push_back(errors_of[std::size_t(chunk)]);
      }
    }
    staleness.series.push_back(steps);
  }
  Chart starts{"batches of 32, momentum 0.99", logarithmic("batches seen"), error};
  for (std::size_t how = 0; how < begins.size(); ++how) {
    starts.series.push_back(series(begins[how], Vector(looks.begin(), looks.end()), running[how]));
  }
  result.charts = {conditions, errors, effective, staleness, starts};
  return result;
}

}  // namespace foci::experiments
