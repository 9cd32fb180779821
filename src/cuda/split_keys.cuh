// SPDX-License-Identifier: Apache-2.0
// Softmax of few queries over many keys: the keys of a head are split over blocks, each of which
// has all query heads that share them, so that keys and values are read once; what the blocks found
// is then joined. A decoder's step is one launch: its tokens join the cache and the metric's mean
// there too. On tensor cores over 16 bits, else in float, over lines of any type.
#pragma once

#include "cuda/passes.cuh"
#include "cuda/step_tokens.cuh"

namespace foci::cuda {

/// How the keys are shared out.
struct Splits {
  int rows = 0;    // queries of all heads that share a key head, of the longest sequence
  int tile = 1;    // of them in a block
  int tiles = 1;   // blocks side by side over rows
  int keys = 0;    // of a block
  int splits = 1;  // blocks one after another over the keys of the longest sequence
};

class SplitKeys {
 public:
  /// Whether there are few queries and many keys.
  static bool pays(const Problem& problem, const Shape& shape);
  /// Whether step() may serve: however many keys there are.
  static bool few_rows(const Problem& problem, const Shape& shape);
  /// Numbers that a decoder keeps for step(), 0 before the first.
  static std::int64_t counters(const Problem& problem);

  SplitKeys(Arena& arena, const Problem& problem, const Shape& shape);

  /// Products, o and lse alone.
  bool serves(const Folded& folded, const Rows& to) const;
  void forward(const Folded& folded, const Rows& to, Stream stream) const;
  /// A decoder's: products, or distances of whitened lines in float. `tokens` may bring the last
  /// keys and their metric; with none, folded.k and folded.v have them.
  void step(const Folded& folded, const Rows& to, const StepTokens& tokens, int* arrived,
            Stream stream) const;

 private:
  void run(const Folded& folded, const Rows& to, const StepTokens& tokens, int* arrived,
           Stream stream) const;

  Shape shape_;
  Splits splits_;
  float* o_ = nullptr;       // (B,H,N,splits,E), each in units of its own sum
  float2* notes_ = nullptr;  // (B,H,N,splits): largest score, sum of exp(score - largest)
};

}  // namespace foci::cuda
