// SPDX-License-Identifier: Apache-2.0
// What every experiment is made of: matrices of tokens, calls of attention by ref in f64, runs that
// are drawn apart, and means with standard errors.
#pragma once

#include <foci/attention.hpp>
#include <foci/experiments.hpp>

#include "theory/draws.hpp"

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

namespace foci::experiments {

using Vector = std::vector<double>;
using theory::Normal;

/// (rows, columns), row by row.
struct Matrix {
  std::int64_t rows = 0, columns = 0;
  Vector values = {};

  Matrix() = default;
  Matrix(std::int64_t n, std::int64_t D) : rows(n), columns(D), values(std::size_t(n * D)) {}
  double& operator()(std::int64_t i, std::int64_t d) {
    return values[std::size_t(i * columns + d)];
  }
  double operator()(std::int64_t i, std::int64_t d) const {
    return values[std::size_t(i * columns + d)];
  }
  std::span<const double> row(std::int64_t i) const {
    return std::span(values).subspan(std::size_t(i * columns), std::size_t(columns));
  }
  View view() const { return {values.data(), {1, 1, rows, columns}}; }
};

Matrix normals(Normal& normal, std::int64_t n, std::int64_t D);
Matrix product(const Matrix& a, const Matrix& b);
/// a b'
Matrix product_transposed(const Matrix& a, const Matrix& b);
/// D by D with orthonormal rows, drawn uniformly.
Matrix rotation(Normal& normal, std::int64_t D);

/// Of keys whose coordinates are correlated and differ in spread: a coordinate's standard deviation
/// falls from 1 to 1/4, neighbours correlate with `correlation`. Lower triangle L of the covariance
/// L L'.
Matrix correlated_factor(std::int64_t D, double correlation);

/// o (B,H,N,E), row by row.
Vector outputs(const Inputs& from, Options how);
/// The metric that attention uses, of metric_shape().
Vector metric_of(const Inputs& from, Options how);
/// o, and means over queries.
struct Focus {
  Vector o;
  double effective_keys = 0, entropy = 0;
};
Focus focus_of(const Inputs& from, Options how);

/// The generator of one run, apart from those of others and from other purposes.
Normal drawn_for(std::uint64_t seed, std::int64_t run, std::uint64_t purpose);

/// Calls task(run) for every run, on the threads there are.
void each_run(std::int64_t runs, Executor* threads, const std::function<void(std::int64_t)>& task);

Axis linear(const char* name);
Axis logarithmic(const char* name);

/// Over runs.
Estimate mean_of(std::span<const double> runs);

/// One number for every x and run; becomes the ys of a Series.
class Samples {
 public:
  Samples(std::size_t points, std::int64_t runs) : of_(points, Vector(std::size_t(runs))) {}
  double& operator()(std::size_t point, std::int64_t run) { return of_[point][std::size_t(run)]; }
  std::size_t size() const { return of_.size(); }
  std::span<const double> at(std::size_t point) const { return of_[point]; }
  std::vector<Estimate> means() const;

 private:
  std::vector<Vector> of_;
};

}  // namespace foci::experiments
