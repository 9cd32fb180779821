// SPDX-License-Identifier: Apache-2.0
// linear, identity and decay of a decoder: what all tokens so far add up to, S = sum_j phi(k_j)
// v_j', kept from step to step in double. A token costs D E, however many came before it.
#pragma once

#include "cuda/chunked.cuh"
#include "cuda/step_tokens.cuh"

namespace foci::cuda {

class RunningSums {
 public:
  /// Doubles of all heads' sums; 0 where a problem is not one that chunks serve.
  static std::int64_t size(const Problem& problem);

  RunningSums(const Problem& problem, const Shape& shape, double* sums);

  /// Takes the tokens one after the other, and writes o of their queries: one launch.
  void forward(const Field& q, float scale, const Field& o, const StepTokens& tokens,
               Stream stream) const;

 private:
  Shape shape_;
  chunks::Map map_ = chunks::Map::none;
  chunks::Divisor divisor_ = chunks::Divisor::nothing;
  int content_ = 1;
  double log2_rate_ = 0;
  double* sums_ = nullptr;
};

/// The last N keys of a problem as tokens that the cache has already.
StepTokens last_keys(const Problem& problem);

}  // namespace foci::cuda
