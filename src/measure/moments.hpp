// SPDX-License-Identifier: Apache-2.0
// Means over samples and their standard errors, a batch at a time (Chan, Golub and LeVeque).
#pragma once

#include "measure/health.hpp"

#include <foci/measure.hpp>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace foci::measure {

/// Of one number.
struct Moment {
  std::int64_t n = 0;
  double mean = 0, squares = 0;  // of what lies off the mean
  double own = 0;                // squared errors of the numbers themselves

  void add(double x, double error = 0) {
    if (!std::isfinite(x)) return;
    ++n;
    const double off = x - mean;
    mean += off / double(n);
    squares += off * (x - mean);
    own += error * error;
  }
  void add(const Estimate& x) { add(x.value, x.error); }
  Value value() const {
    const double count = double(n), spread = n > 1 ? squares / (count * (count - 1)) : 0;
    return {mean, n > 0 ? std::sqrt(spread + own / (count * count)) : 0, n};
  }
};

/// Of one number per head, and of their mean over the heads.
class HeadMoments {
 public:
  /// x (B,H) f64 on the processor; what is not finite was not there.
  void add(const at::Tensor& x) {
    const at::Tensor rows = x.to(at::kCPU, at::kDouble).contiguous();
    const std::int64_t H = rows.size(1);
    if (std::int64_t(heads.size()) < H) heads.resize(std::size_t(H));
    for (std::int64_t b = 0; b < rows.size(0); ++b) {
      Moment own;
      for (std::int64_t h = 0; h < H; ++h) {
        const double value = rows.data_ptr<double>()[b * H + h];
        heads[std::size_t(h)].add(value);
        own.add(value);
      }
      if (own.n > 0) all.add(own.mean);
    }
  }
  Value value(std::int64_t head) const {
    return std::size_t(head) < heads.size() ? heads[std::size_t(head)].value() : Value{};
  }

  Moment all;
  std::vector<Moment> heads;
};

struct RowMoments {
  HeadMoments concentration, effective_keys, entropy, largest, distance, top;

  Rows of_all() const {
    return {concentration.all.value(), effective_keys.all.value(), entropy.all.value(),
            largest.all.value(),       distance.all.value(),       top.all.value()};
  }
  Rows of(std::int64_t h) const {
    return {concentration.value(h), effective_keys.value(h), entropy.value(h),
            largest.value(h),       distance.value(h),       top.value(h)};
  }
};

struct TokenMoments {
  Moment cosine, high_low, residual, dirichlet, dirichlet_relative;
  Moment effective_rank, effective_rank_squares, stable_rank, participation;

  Tokens values() const {
    return {cosine.value(),
            high_low.value(),
            residual.value(),
            dirichlet.value(),
            dirichlet_relative.value(),
            effective_rank.value(),
            effective_rank_squares.value(),
            stable_rank.value(),
            participation.value()};
  }
};

/// Health of several batches as one: extremes, and means over samples. `times`: samples that have
/// this one metric in common.
struct HealthMoments {
  std::array<Moment, health_means.size()> means;
  double least = INFINITY, most = -INFINITY;
  at::Tensor typical;  // summed up
  std::int64_t samples = 0;

  void add(const Healths& of, std::int64_t times) {
    least = std::min(least, of.least);
    most = std::max(most, of.most);
    for (std::size_t i = 0; i < means.size(); ++i) {
      for (const double x : of.means[i]) {
        for (std::int64_t again = 0; again < times; ++again) means[i].add(x);
      }
    }
    const at::Tensor more = of.typical * double(times);
    typical = typical.defined() ? typical + more : more;
    samples += std::int64_t(of.means[0].size()) * times;
  }
  Health value() const {
    Health health;
    health.least = least;
    health.most = most;
    for (std::size_t i = 0; i < means.size(); ++i) health.*health_means[i] = means[i].mean;
    health.typical = typical / double(samples);
    return health;
  }
  /// Extremes and the drift have none.
  Health error() const {
    Health error{.least = NAN, .most = NAN, .drift = NAN, .typical = {}};
    for (std::size_t i = 0; i < means.size(); ++i) error.*health_means[i] = means[i].value().error;
    return error;
  }
};

/// Means of each head and query over samples: (numbers,H,N), which is as long as the longest.
class QueryMoments {
 public:
  /// x and which of it counts, (B,H,N).
  void add(std::int64_t number, const at::Tensor& x, const at::Tensor& counts);
  /// NaN where nothing counted; undefined before the first.
  at::Tensor means() const;

 private:
  at::Tensor sums_, counts_;
};

struct LayerSums {
  std::int64_t heads = 0, queries = 0, keys = 0;
  std::string mechanism;
  RowMoments rows;
  Moment head_distance, rollout_keys, key_change;
  HealthMoments health;
  TokenMoments tokens;
  QueryMoments by_query;
  std::int64_t looked = 0;
};

}  // namespace foci::measure
