// SPDX-License-Identifier: Apache-2.0
// Matrices, calls of attention and means, as plainly as small sizes allow.
#include "experiments/trial.hpp"

#include "metric/draw.hpp"

#include <foci/executor.hpp>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foci::experiments {

Matrix normals(Normal& normal, std::int64_t n, std::int64_t D) {
  Matrix made(n, D);
  for (double& x : made.values) x = normal();
  return made;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix made(a.rows, b.columns);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.columns; ++k) {
      for (std::int64_t j = 0; j < b.columns; ++j) made(i, j) += a(i, k) * b(k, j);
    }
  }
  return made;
}

Matrix product_transposed(const Matrix& a, const Matrix& b) {
  Matrix made(a.rows, b.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.rows; ++j) {
      for (std::int64_t k = 0; k < a.columns; ++k) made(i, j) += a(i, k) * b(j, k);
    }
  }
  return made;
}

Matrix rotation(Normal& normal, std::int64_t D) {
  Matrix made = normals(normal, D, D);
  for (std::int64_t i = 0; i < D; ++i) {
    for (int pass = 0; pass < 2; ++pass) {  // twice is enough for Gram and Schmidt
      for (std::int64_t j = 0; j < i; ++j) {
        double along = 0;
        for (std::int64_t d = 0; d < D; ++d) along += made(i, d) * made(j, d);
        for (std::int64_t d = 0; d < D; ++d) made(i, d) -= along * made(j, d);
      }
    }
    double square = 0;
    for (std::int64_t d = 0; d < D; ++d) square += made(i, d) * made(i, d);
    for (std::int64_t d = 0; d < D; ++d) made(i, d) /= std::sqrt(square);
  }
  return made;
}

Matrix correlated_factor(std::int64_t D, double correlation) {
  Matrix factor(D, D);  // of an autoregression: x_d = correlation x_{d-1} + the rest
  const double rest = std::sqrt(1 - correlation * correlation);
  for (std::int64_t i = 0; i < D; ++i) {
    const double spread = D == 1 ? 1 : std::pow(0.25, double(i) / double(D - 1));
    for (std::int64_t j = 0; j <= i; ++j)
      factor(i, j) = spread * std::pow(correlation, double(i - j)) * (j == 0 ? 1 : rest);
  }
  return factor;
}

namespace {

Tensor room_for_outputs(const Inputs& from) {
  return {DType::f64, {from.q.shape[0], from.q.shape[1], from.q.shape[2], from.v.shape[3]}};
}

double mean(const Tensor& of) {
  const Vector values = of.values();
  return std::accumulate(values.begin(), values.end(), 0.0) / double(values.size());
}

}  // namespace

Vector outputs(const Inputs& from, Options how) {
  how.backend = Backend::ref;
  const Tensor o = room_for_outputs(from);
  attend({.o = o}, from, how);
  return o.values();
}

Vector metric_of(const Inputs& from, Options how) {
  how.backend = Backend::ref;
  const Tensor o = room_for_outputs(from), metric(DType::f64, metric_shape(from, how));
  attend({.o = o, .metric = metric}, from, how);
  return metric.values();
}

Focus focus_of(const Inputs& from, Options how) {
  how.backend = Backend::ref;
  const Tensor o = room_for_outputs(from);
  const Shape rows = {from.q.shape[0], from.q.shape[1], from.q.shape[2]};
  const Tensor n(DType::f64, rows), entropy(DType::f64, rows);
  attend({.o = o, .effective_keys = n, .entropy = entropy}, from, how);
  return {o.values(), mean(n), mean(entropy)};
}

Normal drawn_for(std::uint64_t seed, std::int64_t run, std::uint64_t purpose) {
  return Normal(
      metric::scramble(metric::scramble(metric::scramble(seed) ^ std::uint64_t(run)) ^ purpose));
}

void each_run(std::int64_t runs, Executor* threads, const std::function<void(std::int64_t)>& task) {
  if (threads) {
    threads->run(runs, [&](std::int64_t run, int) { task(run); });
  } else {
    for (std::int64_t run = 0; run < runs; ++run) task(run);
  }
}

Axis linear(const char* name) { return {name, Spacing::linear}; }
Axis logarithmic(const char* name) { return {name, Spacing::logarithmic}; }

Estimate mean_of(std::span<const double> runs) {
  const double n = double(runs.size());
  const auto differs = [&](double x) { return x != runs[0]; };
  if (std::none_of(runs.begin(), runs.end(), differs)) return {runs[0], 0};
  const double mean = std::accumulate(runs.begin(), runs.end(), 0.0) / n;
  double square = 0;
  for (const double x : runs) square += (x - mean) * (x - mean);
  return {mean, std::sqrt(square / (n - 1) / n)};
}

std::vector<Estimate> Samples::means() const {
  std::vector<Estimate> made;
  for (const Vector& runs : of_) made.push_back(mean_of(runs));
  return made;
}

}  // namespace foci::experiments
