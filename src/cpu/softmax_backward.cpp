// SPDX-License-Identifier: Apache-2.0
// One query block against one key block, backwards: weights again from lse, then
//   dv += P' do      dS = P (do v' - delta)      dk += dS' q      dq += dS k      dbias += column
//   sums of dS
// Compiled once per instruction set.
#include "cpu/isa.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/gradient_tile.hpp"

/// Weights of one tile, and dS in place of nothing yet.
template <bool Biased, bool Causal>
FOCI_INLINE void weigh(const BackwardBlock& block, long r, long column) {
  V c[tile_rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
    const V low = all(block.low + r + i);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j)
      c[i][j] = Biased ? add(low, load(block.bias + column + j * lanes)) : low;
  }
  product(c, block.q + r * panel, block.query_rows, block.keys + column * block.D, block.D);
  const float* constants = exp_constants();
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
    const float count = Causal ? float(block.sees[r + i] - block.key - column) : 0.0f;
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      V p = exp(c[i][j], constants);
      if constexpr (Causal) p = keep_first(p, count - float(j * lanes), 0.0f);
      store(block.weights + (r + i) * stride + column + j * lanes, p);
    }
  }
}

template <bool Causal>
FOCI_INLINE void differentiate(const BackwardBlock& block, long r, long column) {
  V c[tile_rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  product(c, block.d_o + r * panel, block.query_rows, block.values + column * block.E, block.E);
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
    const float count = Causal ? float(block.sees[r + i] - block.key - column) : 0.0f;
    const V minus_delta = all(block.minus_delta + r + i);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const long at = (r + i) * stride + column + j * lanes;
      // Subtracted last: where one key has all the weight the difference is exactly 0.
      V ds = mul(add(c[i][j], minus_delta), load(block.weights + at));
      if constexpr (Causal) ds = keep_first(ds, count - float(j * lanes), 0.0f);
      store(block.d_scores + at, ds);
    }
  }
}

template <bool Causal>
static void score_tile(const BackwardBlock& block, long r, long column, bool biased) {
  biased ? weigh<true, Causal>(block, r, column) : weigh<false, Causal>(block, r, column);
  differentiate<Causal>(block, r, column);
}

static void score_tiles(const BackwardBlock& block) {
  for (long column = 0; column < block.n; column += panel) {
    const bool biased = block.biased || column + panel > block.n;
    for (long r = 0; r < block.rows; r += tile_rows) {
      const long key = block.key + column;
      if (block.causal && block.sees[r] < key + panel) {
        const long last = r + tile_rows < block.rows ? r + tile_rows : block.rows;
        if (block.sees[last - 1] > key) score_tile<true>(block, r, column, biased);
      } else {
        score_tile<false>(block, r, column, biased);
      }
    }
  }
}

void row_dots(float* to, const float* a, const float* b, std::int64_t rows, std::int64_t E);
void row_dots(float* to, const float* a, const float* b, std::int64_t rows, std::int64_t E) {
  constexpr long width = 8;  // independent sums hide the latency
  for (long r = 0; r < rows; r += width) {
    const long count = rows - r < width ? rows - r : width;
    float sum[width] = {};
    for (long e = 0; e < E; ++e) {
      for (long i = 0; i < count; ++i) {
        const long at = (r + i) * E + e;
        sum[i] = fma_one(b[at], a[at], sum[i]);
      }
    }
    for (long i = 0; i < count; ++i) to[r + i] = sum[i];
  }
}

void softmax_backward(const BackwardBlock& block);
void softmax_backward(const BackwardBlock& block) {
  score_tiles(block);
  sum_up(block);
}

}  // namespace foci::cpu::FOCI_ISA
