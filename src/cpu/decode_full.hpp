// SPDX-License-Identifier: Apache-2.0
// The full metric of one (batch, key head) of a decoder: the moments of its keys, the whitening
// that its chunk or the caller's P stands for, and the cached keys as it sees them.
#pragma once

#include "cpu/decode_cache.hpp"
#include "cpu/full_metric.hpp"

namespace foci::cpu {

/// Scratch that all heads share.
struct WhiteningRoom {
  std::span<double> wide;
  std::span<double> centred, whitened;  // (whitened_keys, D)
  std::span<float> lines;               // (whitened_keys, D)

  static WhiteningRoom take(Arena& arena, const Problem& p, const Kernels& isa);
};

class RunningWhitening {
 public:
  /// Takes nothing unless the metric is full.
  static RunningWhitening take(Arena& arena, const Problem& p, const Kernels& isa);
  void reset();

  /// Before the next token: the estimate of its chunk, or the P that came with it. Throws, and
  /// leaves everything as it was, where that cannot be used; else cached keys are whitened anew
  /// where it is not the one before.
  void prepare(const DecodeCache& cache, const NextToken& token, const WhiteningRoom& room);
  /// Whitens the newest key.
  void append(const DecodeCache& cache, const WhiteningRoom& room);
  /// z (rows, step) = W (x - centre), rounded once
  void whiten(float* z, const float* x, std::int64_t rows, std::int64_t step,
              const WhiteningRoom& room) const;

 private:
  Moments moments(int which, std::int64_t n) const;
  void estimate(const DecodeCache& cache, const NextToken& token, const WhiteningRoom& room);
  void load_given(const DecodeCache& cache, const NextToken& token, const WhiteningRoom& room);
  void place(const DecodeCache& cache, const WhiteningRoom& room);

  const Problem* p_ = nullptr;
  const Kernels* isa_ = nullptr;
  std::int64_t D_ = 0, chunk_ = -1;
  std::int64_t known_ = 0;          // keys of the moments
  int now_ = 0;                     // which of the two moments they are
  bool given_ = false;              // whether `factor` holds a P
  std::span<double> means_, sums_;  // (2,D), (2,D,D)
  std::span<double> factor_;        // (D,D) W; given: P itself
  std::span<double> Wt_;            // (D,D)
  std::span<float> centre_;         // (D)
};

}  // namespace foci::cpu
