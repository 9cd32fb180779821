// SPDX-License-Identifier: Apache-2.0
// Row statistics in the forward pass on Hopper: what a thread keeps of its rows while tiles of keys
// go by, and what the four threads of a row make of it at the end.
#pragma once

#include "cuda/softmax_wgmma_block.cuh"

namespace foci::cuda {

#ifdef FOCI_HOPPER

/// Sums of p^2 and of p log2 p over a tile: long sums of many small numbers would lose digits.
struct PartStatistics {
  float squares = 0, logs = 0;

  FOCI_DEVICE void add(float weight, float power) {
    squares = fmaf(weight, weight, squares);
    logs = fmaf(weight, fmaxf(power, -256.0f), logs);  // not 0 times infinity
  }
};

/// Those of a thread's rows so far, its part of them, and where the largest score stands.
struct RowStatistics {
  float squares[2], logs[2];
  int place[2];

  FOCI_DEVICE void begin() {
    squares[0] = squares[1] = logs[0] = logs[1] = 0;
    place[0] = place[1] = -1;
  }
  /// Weights, whose sum is `sum`, become 2^grown = `shrink` of themselves.
  FOCI_DEVICE void raise(int half, float grown, float shrink, float sum) {
    logs[half] = shrink > 0 ? shrink * fmaf(grown, sum, logs[half]) : 0.0f;
    squares[half] *= shrink * shrink;
  }
  FOCI_DEVICE void add(const PartStatistics (&tile)[2]) {
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half)
      squares[half] += tile[half].squares, logs[half] += tile[half].logs;
  }
  /// Of n visible keys, whose weights sum up to `sum`; the largest is 2^high. All four lanes of a
  /// row come, one writes.
  FOCI_DEVICE void write(const Rows& to, int half, float sum, float high, int n, int s, int h,
                         int token, bool writes) const {
    const float all_squares = quad_sum(squares[half]), all_logs = quad_sum(logs[half]);
    if (!writes) return;
    const bool any = sum > 0;
    const float share = any ? 1 / sum : 0, keys = float(n);
    if (to.concentration)
      to.concentration.store(any ? sum / sqrtf(keys * all_squares) : 0.0f, s, h, token);
    if (to.effective_keys)  // few roundings: not n times the square of the former
      to.effective_keys.store(any ? sum * (sum / all_squares) : 0.0f, s, h, token);
    const float entropy = any ? ln_2 * (log2f(sum) - all_logs * share) : 0;
    if (to.entropy) to.entropy.store(fmaxf(entropy, 0.0f), s, h, token);
    if (to.largest) to.largest.store(share * power_of_two(high), s, h, token);
    if (to.largest_at)
      static_cast<std::int64_t*>(to.largest_at.data)[to.largest_at.offset(s, h, token)] =
          place[half];
  }
};
struct NoStatistics {};

#endif  // FOCI_HOPPER

}  // namespace foci::cuda
