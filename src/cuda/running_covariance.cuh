// SPDX-License-Identifier: Apache-2.0
// key-covariance of a decoder: the moments of the chunks that are over, the factor of the last of
// them and every key as it sees them. A token costs D^2; when a chunk ends, its keys join the
// moments, which are factored, and all keys are whitened anew. For tokens that nobody masks.
#pragma once

#include "cuda/key_covariance.cuh"
#include "cuda/passes.cuh"
#include "cuda/step_tokens.cuh"

namespace foci::cuda {

class RunningCovariance {
 public:
  /// `cache` outlives this; most: queries of a step.
  RunningCovariance(Arena& arena, const Problem& cache, std::int64_t most);

  void reset() { known_ = taken_ = 0, chunk_ = -1; }
  /// How many tokens after `length` others still belong to the same chunk.
  std::int64_t until_next(std::int64_t length) const;
  /// Whether the token after `length` others is the first of a chunk, or others did not come this
  /// way: take() then wants it in the cache already.
  bool due(std::int64_t length) const { return length / period_ != chunk_ || taken_ < length; }
  /// The tokens join the cache k (B,G,capacity,D), and they and their queries become lines: those
  /// of the step's queries and of all its keys.
  Folded take(const Problem& step, const View& k, const StepTokens& tokens, Stream stream);

  /// (B,G) what became of the last factors.
  const std::int32_t* status() const { return status_; }

 private:
  Slots slots(std::int64_t keys) const;
  void learn(const View& k, std::int64_t begin, std::int64_t end, Stream stream);
  void renew(const View& k, std::int64_t length, Stream stream);

  const Problem& cache_;
  std::int64_t period_ = 1, most_ = 1;
  std::int64_t known_ = 0;                       // keys behind the moments
  std::int64_t taken_ = 0;                       // keys that are lines
  std::int64_t chunk_ = -1;                      // that W is of
  int* count_ = nullptr;                         // (B,G)
  double *mean_ = nullptr, *scatter_ = nullptr;  // (B,G,D) (B,G,D,D)
  float *W_ = nullptr, *centre_ = nullptr;       // (B,G,D,D) (B,G,D)
  double* inverse_ = nullptr;                    // (B,G,D,D) where factors need room
  std::int32_t* status_ = nullptr;               // (B,G)
  float *zk_ = nullptr, *zq_ = nullptr;          // (B,G,capacity,D) (B,H,most,D)
  std::int64_t parts_ = 1;                       // that a stretch of keys is summed up in
  Moments more_;                                 // of a stretch
};

}  // namespace foci::cuda
