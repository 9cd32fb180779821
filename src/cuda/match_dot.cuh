// SPDX-License-Identifier: Apache-2.0
// scale auto: for each (sequence, key head) the c of a full metric at which the mean concentration
// over its queries equals dot attention's. By bisection on log c in a fixed number of rounds, each
// a forward pass; nobody waits for the device. The key bias is left out; c gets no gradient.
#pragma once

#include "cuda/passes.cuh"

namespace foci::cuda {

/// Passes at scales of the full metric that are always enough: 1 at c = 1, 6 until the scale lies
/// in between, 30 to halve what is at most 32 wide.
inline constexpr int match_rounds = 1 + 6 + 30;

/// The search of one (sequence, key head).
struct ScaleSearch {
  double target, low, high, step, at;  // of log c but for the first
  enum class Stage : int { start, falling, rising, halving, done } stage;
};

struct ScaleMatch {
  Shape shape;
  int B = 1;
  float* concentration = nullptr;  // (B,H,N) where passes leave it
  float* scales = nullptr;  // (sequences,G) what the next pass runs at; in the end the answer
  ScaleSearch* searches = nullptr;  // (sequences,G)

  static ScaleMatch take(Arena& arena, const Shape& shape, int B);
  Rows rows() const;
};

/// After dot attention's pass: its concentration is the target.
void begin_match(const ScaleMatch& of, Stream stream);
/// After a pass of the full metric at `scales`.
void advance_match(const ScaleMatch& of, Stream stream);

}  // namespace foci::cuda
