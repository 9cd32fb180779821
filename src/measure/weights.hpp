// SPDX-License-Identifier: Apache-2.0
// The weights of a call, a block of queries at a time, formed again from q, k and the metric that
// was used: what row statistics alone do not tell.
#pragma once

#include <foci/watch.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace foci::measure {

/// That are formed at once for a caller: 2 GiB in f32.
inline constexpr std::int64_t most_weights = std::int64_t(1) << 29;

/// Some samples of a call, seen as one: tensors are narrowed along the batch.
nn::Seen samples_of(const nn::Seen& call, std::int64_t first, std::int64_t count);

/// The metric that the call used; undefined for dot.
at::Tensor metric_of(const nn::Seen& call);
/// Whether it is a matrix per head.
bool is_full(const Metric& metric);

class Weights {
 public:
  /// Throws Unsupported for packed sequences.
  explicit Weights(const nn::Seen& call);
  /// a (B,H,count,M) of these queries. Rows that see no key are 0.
  at::Tensor rows(std::int64_t first, std::int64_t count) const;
  /// How many queries may come at once so that a block has some 4 million weights.
  std::int64_t block() const;

 private:
  at::Tensor visible(std::int64_t first, std::int64_t count) const;
  at::Tensor scores(std::int64_t first, std::int64_t count) const;
  at::Tensor scores_under(const at::Tensor& P, const at::Tensor& q) const;
  at::Tensor chunked_scores(const at::Tensor& q, std::int64_t first, std::int64_t count) const;
  at::Tensor weighed(const at::Tensor& s, const at::Tensor& seen) const;
  at::Tensor linear(const at::Tensor& q, const at::Tensor& seen) const;
  at::Tensor decayed(const at::Tensor& seen) const;
  void match(const nn::Seen& call);

  foci::Options how_;
  at::Tensor q_, k_;  // (B,H,N,D), (B,H,M,D): around the keys' mean where differences count
  at::Tensor m_, P_;  // (B|1,H,N|1,D); (B|1,H,D,D), under prefix (B,H,chunks,D,D)
  at::Tensor bias_, key_mask_;  // (B,H,M); (B,M)
  at::Tensor c_;                // (B,H,1,1) or ()
  bool distance_ = false;
};

}  // namespace foci::measure
