// SPDX-License-Identifier: Apache-2.0
// What a decoder's step brings, as the kernel that attends to it sees it: tokens that join the
// cache, and of layer-change and flat the mean that they join. Every block works out the step's m
// for itself from the sums of before; one block leaves the sums of after in another place.
#pragma once

#include "cuda/token_mean.cuh"

namespace foci::cuda {

struct StepTokens {
  int n = 0, G = 0, R = 0, D = 0, E = 0;
  Field k, v, mask, bias;              // (B,G,n,D) (B,G,n,E) (B,n) (B,G|H,n)
  Field to_k, to_v, to_mask, to_bias;  // the cache from the first of them on, absent: it has them
  int key_head_bias = 0;
  // layer-change and flat.
  Field v_prev;  // (B,G,n,D) absent: m is in the queries already
  int flat = 0;
  Normalize normalize = Normalize::max;
  const double* sums = nullptr;  // (B,G,D)
  const int* counts = nullptr;   // (B,G)
  double* next_sums = nullptr;
  int* next_counts = nullptr;
  Field metric;  // (B,G,n,D) where m is asked for

  FOCI_DEVICE bool keeps(int b, int i) const {
    return !mask || static_cast<const std::uint8_t*>(mask.data)[mask.offset(b, i)] != 0;
  }

  /// Token i of a key head joins the cache; by a whole block.
  FOCI_DEVICE void append(int b, int g, int i) const {
    const int thread = int(threadIdx.x), threads = int(blockDim.x);
    for (int d = thread; d < D; d += threads) to_k.store(k.load(b, g, i, d), b, g, i, d);
    for (int e = thread; e < E; e += threads) to_v.store(v.load(b, g, i, e), b, g, i, e);
    for (int r = thread; r < R && to_bias; r += threads) {
      const int h = g * R + r;
      to_bias.store(bias ? bias.load(b, key_head_bias ? g : h, i) : 0.0f, b, h, i);
    }
    if (thread == 0)
      static_cast<std::uint8_t*>(to_mask.data)[to_mask.offset(b, i)] = std::uint8_t(keeps(b, i));
  }

  /// Bytes that find_metric() needs.
  static std::size_t room(int n, int D) { return std::size_t(n) * std::size_t(D + 1) * 4; }

  /// m (n, D) of every token of a key head into shared memory, by a whole block, which ends with a
  /// barrier; `last_word`: whether this block leaves the sums and m for others.
  FOCI_DEVICE void find_metric(float* m, int b, int g, bool last_word) const {
    auto* counted = reinterpret_cast<int*>(m + n * D);  // (n)
    const std::int64_t line = std::int64_t(b) * G + g;
    for (int d = int(threadIdx.x); d < D; d += int(blockDim.x)) {
      double sum = sums[line * D + d];
      int count = counts[line];
      for (int i = 0; i < n; ++i) {
        const bool counts_too = keeps(b, i);
        if (counts_too) sum += double(fabsf(v.load(b, g, i, d) - v_prev.load(b, g, i, d)));
        count += counts_too;
        m[i * D + d] = count > 0 ? float(sum) / float(count) : 0.0f;
        if (d == 0) counted[i] = count;
      }
      if (last_word) next_sums[line * D + d] = sum;
      if (last_word && d == 0) next_counts[line] = count;
    }
    __syncthreads();
    for (int i = int(threadIdx.x) / warp; i < n; i += int(blockDim.x) / warp) {
      float* of = m + i * D;
      const float by = divisor_of(normalize, of, D, counted[i]);
      const float all = flat ? flat_of(of, D, by) : 0.0f;
      for (int d = lane(); d < D; d += warp) {
        of[d] = flat ? all : by == 0 ? 1.0f : of[d] / by;
        if (last_word && metric) metric.store(of[d], b, g, i, d);
      }
    }
    __syncthreads();
  }
};

}  // namespace foci::cuda
