// SPDX-License-Identifier: Apache-2.0
// Decoding on the CUDA backend: keys, values and the metric's running estimate lie in device
// memory; a step appends its tokens and attends their queries, without a word to the host in
// between.
#pragma once

#include "metric/problem.hpp"

#include <memory>

namespace foci::cuda {

class Decoding {
 public:
  /// `cache` describes the whole cache, one query and `capacity` keys of its q's type, and outlives
  /// this.
  explicit Decoding(const metric::Problem& cache);
  ~Decoding();
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  void reset();
  /// Tokens [begin, end) of a checked step whose tensors lie in device memory, after `length`
  /// others. Nothing waits for the host: a covariance that cannot be factored leaves NaN.
  void step(const Outputs& to, const metric::Problem& tokens, std::int64_t begin, std::int64_t end,
            std::int64_t length);
  /// The same, then waits; throws where a metric could not be factored. key-covariance: one token.
  void careful_step(const Outputs& to, const metric::Problem& tokens, std::int64_t begin,
                    std::int64_t end, std::int64_t length);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foci::cuda
