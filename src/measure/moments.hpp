// SPDX-License-Identifier: Apache-2.0
// Means over samples and their standard errors, a batch at a time (Chan, Golub and LeVeque).
#pragma once

#include <foci/measure.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

namespace foci::measure {

/// Of one number.
struct Moment {
  std::int64_t n = 0;
  double mean = 0, squares = 0;  // of what lies off the mean

  void add(double x) {
    if (!std::isfinite(x)) return;
    ++n;
    const double off = x - mean;
    mean += off / double(n);
    squares += off * (x - mean);
  }
  Value value() const {
    const double error = n > 1 ? std::sqrt(squares / (double(n) * double(n - 1))) : 0;
    return {mean, error, n};
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

/// Health of several batches as one: extremes, and means by the samples of each.
struct HealthMoments {
  double samples = 0;
  Health sum;

  void add(const Health& one, double n) {
    if (samples == 0) {
      sum = one;
    } else {
      const double share = n / (samples + n);
      sum.least = std::min(sum.least, one.least);
      sum.most = std::max(sum.most, one.most);
      for (double Health::*of : {&Health::mean, &Health::variation, &Health::anisotropy,
                                 &Health::condition, &Health::entropy, &Health::at_floor})
        sum.*of += share * (one.*of - sum.*of);
      sum.typical = sum.typical + share * (one.typical - sum.typical);
    }
    samples += n;
  }
};

struct LayerSums {
  std::int64_t heads = 0, queries = 0, keys = 0;
  std::string mechanism;
  RowMoments rows;
  Moment head_distance, rollout_keys, key_change;
  HealthMoments health;
  TokenMoments tokens;
  at::Tensor by_query, by_query_counts;  // (4,H,N), (H,N)
};

}  // namespace foci::measure
