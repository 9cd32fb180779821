// SPDX-License-Identifier: Apache-2.0
// Keys x ~ N(0, I) with values f(x) + noise, f(x) = sin 2x_1 + 1/2 sin 2x_2: its variability
// E|d f / d x_d| is in the ratio 1 : 1/2 : 0 : ... Attention with form distance estimates f at
// fixed queries, at every scale; each neighbourhood is judged at the scale that suits it best.
#include "experiments/experiments.hpp"
#include "experiments/trial.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace foci::experiments {
namespace {

constexpr std::int64_t queries = 24, scales = 19;
constexpr std::array<double, 5> levels = {0, 0.1, 0.2, 0.4,
                                          0.8};  // of noise; then the one asked for
constexpr std::size_t columns = levels.size() + 1;
constexpr std::array<const char*, 5> arms = {"sphere (dot)", "true variability",
                                             "estimated (jacobian)", "random", "flat"};

double scale_at(std::int64_t k) { return 0.25 * std::pow(2.0, double(k) / 2); }

double function(std::span<const double> x) {
  return std::sin(2 * x[0]) + (x.size() > 1 ? std::sin(2 * x[1]) / 2 : 0);
}

/// o of every run: (runs, queries) for each arm, scale and column.
struct Estimates {
  std::vector<Matrix> of;

  explicit Estimates(std::int64_t runs)
      : of(arms.size() * std::size_t(scales) * columns, Matrix(runs, queries)) {}
  Matrix& at(std::size_t arm, std::int64_t scale, std::size_t column) {
    return of[(arm * std::size_t(scales) + std::size_t(scale)) * columns + column];
  }
};

struct Judged {
  Estimate error, variance;
};

/// Mean squared error, and the part of it that is variance over runs.
Judged judge(const Matrix& o, const Vector& truth) {
  Vector error(std::size_t(o.rows)), variance(error);
  for (std::int64_t i = 0; i < queries; ++i) {
    double mean = 0;
    for (std::int64_t r = 0; r < o.rows; ++r) mean += o(r, i) / double(o.rows);
    for (std::int64_t r = 0; r < o.rows; ++r) {
      const double wrong = o(r, i) - truth[std::size_t(i)], apart = o(r, i) - mean;
      error[std::size_t(r)] += wrong * wrong / double(queries);
      variance[std::size_t(r)] +=
          apart * apart / double(queries) * double(o.rows) / double(o.rows - 1);
    }
  }
  return {mean_of(error), mean_of(variance)};
}

class World {
 public:
  World(const Ellipse& of, std::int64_t dim, const Setting& in) : of_(of), D_(dim), in_(in) {
    Normal normal = drawn_for(in.seed, -1, std::uint64_t(dim));
    queries_ = normals(normal, queries, D_);
    for (std::int64_t i = 0; i < queries; ++i) truth_.push_back(function(queries_.row(i)));
  }

  /// The columns that `wanted` names are filled in.
  Estimates estimate(std::span<const std::size_t> wanted) const {
    Estimates all(of_.runs);
    each_run(of_.runs, in_.threads, [&](std::int64_t run) { one_run(all, run, wanted); });
    return all;
  }
  const Vector& truth() const { return truth_; }

 private:
  double noise(std::size_t column) const {
    return column < levels.size() ? levels[column] : of_.noise;
  }

  /// m of every arm, normalised by its largest entry.
  Vector metric(std::size_t arm, const Matrix& keys, const Matrix& values, std::int64_t run) const {
    Vector m(std::size_t(D_), 1.0);
    if (arm == 1 || arm == 4) {
      std::fill(m.begin(), m.end(), 0.0);
      m[0] = 1;
      if (D_ > 1) m[1] = 0.5;
    }
    if (arm == 4) std::fill(m.begin(), m.end(), (D_ > 1 ? 1.5 : 1) / double(D_));
    const Inputs from{.q = keys.view(), .k = keys.view(), .v = values.view()};
    if (arm == 2) return metric_of(from, {.metric = Jacobian{}});
    if (arm == 3) {
      const std::uint64_t seed = in_.seed * std::uint64_t(of_.runs) + std::uint64_t(run);
      return metric_of({.q = keys.view().sliced(2, 0, 1), .k = from.k, .v = from.v},
                       {.metric = foci::Random{.seed = seed}});
    }
    return m;
  }

  void one_run(Estimates& all, std::int64_t run, std::span<const std::size_t> wanted) const {
    Normal normal = drawn_for(in_.seed, run, std::uint64_t(D_));
    const Matrix keys = normals(normal, of_.keys, D_);
    Matrix values(of_.keys, std::int64_t(columns));
    for (std::int64_t j = 0; j < of_.keys; ++j) {
      const double error = normal();
      for (std::size_t c = 0; c < columns; ++c)
        values(j, std::int64_t(c)) = function(keys.row(j)) + noise(c) * error;
    }
    for (std::size_t arm = 0; arm < arms.size(); ++arm) {
      if (arm != 2) {
        store(all, {arm, run}, wanted, keys, values, metric(arm, keys, values, run));
        continue;
      }
      for (const std::size_t column : wanted) {  // noise reaches the metric too
        Matrix noisy(of_.keys, 1);
        for (std::int64_t j = 0; j < of_.keys; ++j) noisy(j, 0) = values(j, std::int64_t(column));
        const std::array<std::size_t, 1> one = {column};
        store(all, {arm, run}, one, keys, values, metric(arm, keys, noisy, run));
      }
    }
  }

  struct Place {
    std::size_t arm;
    std::int64_t run;
  };

  /// One call for all scales, a batch entry each: the scale is folded into m.
  void store(Estimates& all, const Place& at, std::span<const std::size_t> wanted,
             const Matrix& keys, const Matrix& values, const Vector& m) const {
    Matrix metrics(scales, D_);
    for (std::int64_t k = 0; k < scales; ++k) {
      for (std::int64_t d = 0; d < D_; ++d) metrics(k, d) = scale_at(k) * m[std::size_t(d)];
    }
    const auto repeated = [](View view) {
      view.shape[0] = scales;
      view.strides[0] = 0;
      return view;
    };
    Inputs from{
        .q = repeated(queries_.view()), .k = repeated(keys.view()), .v = repeated(values.view())};
    from.metric = View(metrics.values.data(), {scales, 1, 1, D_});
    const Vector o = outputs(from, {.metric = Given{.form = Form::distance}, .scale = 1.0});
    for (std::int64_t k = 0; k < scales; ++k) {
      for (const std::size_t c : wanted) {
        for (std::int64_t i = 0; i < queries; ++i) {
          all.at(at.arm, k, c)(at.run, i) = o[std::size_t(k * queries + i) * columns + c];
        }
      }
    }
  }

  const Ellipse& of_;
  std::int64_t D_;
  const Setting& in_;
  Matrix queries_;
  Vector truth_;
};

/// At the scale with the least error.
Judged best(Estimates& all, std::size_t arm, std::size_t column, const Vector& truth) {
  Judged least = judge(all.at(arm, 0, column), truth);
  for (std::int64_t k = 1; k < scales; ++k) {
    const Judged here = judge(all.at(arm, k, column), truth);
    if (here.error.value < least.error.value) least = here;
  }
  return least;
}

std::vector<Chart> empty_charts(const Ellipse& of) {
  const std::string here = "D = " + std::to_string(of.dim);
  std::vector<Chart> charts;
  for (const char* what : {"squared error", "variance"}) {
    const Axis y = logarithmic(what);
    charts.push_back({here + ", every scale", logarithmic("scale c"), y});
    charts.push_back({here + ", best scale", linear("noise of the values"), y});
    charts.push_back({"best scale", logarithmic("dimension D"), y});
  }
  for (Chart& chart : charts) {
    for (const char* arm : arms) chart.series.push_back({.name = arm});
  }
  return charts;
}

void add(std::vector<Chart>& charts, std::size_t chart, std::size_t arm, double x,
         const Judged& y) {
  charts[chart].series[arm].x.push_back(x);
  charts[chart].series[arm].y.push_back(y.error);
  charts[chart + 3].series[arm].x.push_back(x);
  charts[chart + 3].series[arm].y.push_back(y.variance);
}

}  // namespace

Result run(const Ellipse& of, const Setting& in) {
  Result result{empty_charts(of), {"neighbourhood", {"squared error", "of it variance"}}};
  std::vector<std::int64_t> dims = {1, 2, 4, 8, 16};
  if (std::find(dims.begin(), dims.end(), of.dim) == dims.end()) dims.push_back(of.dim);
  std::sort(dims.begin(), dims.end());
  constexpr std::array<std::size_t, columns> every = {0, 1, 2, 3, 4, 5};
  for (const std::int64_t D : dims) {
    const World world(of, D, in);
    const bool here = D == of.dim;
    Estimates all = world.estimate(std::span(every).last(here ? columns : 1));
    for (std::size_t arm = 0; arm < arms.size(); ++arm) {
      const Judged at = best(all, arm, columns - 1, world.truth());
      add(result.charts, 2, arm, double(D), at);
      if (!here) continue;
      result.table.rows.push_back({arms[arm], {at.error, at.variance}});
      for (std::int64_t k = 0; k < scales; ++k)
        add(result.charts, 0, arm, scale_at(k), judge(all.at(arm, k, columns - 1), world.truth()));
      for (std::size_t c = 0; c < levels.size(); ++c)
        add(result.charts, 1, arm, levels[c], best(all, arm, c, world.truth()));
    }
  }
  return result;
}

}  // namespace foci::experiments
