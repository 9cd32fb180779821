// SPDX-License-Identifier: Apache-2.0
// Decay: powers of the rate, what a row's weights sum to, and the weighting without content, whose
// weights come from positions alone: a running sum over the values, o_i = (r^gap o_before + v) / W.
#pragma once

#include "cpu/chunk.hpp"
#include "cpu/tokens.hpp"

namespace foci::cpu {

/// rate^gap for every gap that float can tell from 0.
struct Powers {
  double rate = 1;
  std::span<float> falling;  // rate^gap at size - 1 - gap

  /// `least`: gaps that must be there.
  static Powers take(Arena& arena, const Problem& p, std::int64_t least);
  void fill();

  float of(std::int64_t gap) const {
    const std::int64_t size = std::int64_t(falling.size());
    return gap < size ? falling[size - 1 - gap] : 0.0f;
  }
  /// rate^(last - at_j) for `count` keys; in `room` unless they stand side by side.
  const float* row(float* room, std::int64_t last, const std::int64_t* at,
                   std::int64_t count) const;
};

/// by (N): the sum over visible keys of rate^(last - at_j), last the row's last key.
void decay_divisors(float* by, const Tokens& tokens, double rate);

/// Statistics of rows without content, for every head.
void decay_statistics(const Outputs& to, const Problem& p, const Tokens& tokens);

/// Decay without content.
std::size_t decay_workspace(const Problem& p, int threads);
void decay_forward(const Outputs& to, const Problem& p, std::span<std::byte> memory,
                   Executor* threads);
void decay_backward(const Gradients& to, const Problem& p, std::span<std::byte> memory,
                    Executor* threads);

}  // namespace foci::cpu
