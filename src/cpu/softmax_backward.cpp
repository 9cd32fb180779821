// SPDX-License-Identifier: Apache-2.0
// One query block against one key block, backwards: weights again from lse, then
//   dv += P' do      dS = P (do v' - delta)      dk += dS' q      dq += dS k      dbias += column
//   sums of dS
// Compiled once per instruction set.
#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/gradient_tile.hpp"

/// Scores of one tile, their bias added.
template <bool Biased, int Rows>
FOCI_INLINE void score(V (&c)[Rows][2], const BackwardBlock& block, long r, long column) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  scores(c, block, r, column);
  if constexpr (Biased) {
#pragma GCC unroll 32
    for (int t = 0; t < 2 * Rows; ++t)
      c[t / 2][t % 2] = add(c[t / 2][t % 2], load(block.bias + column + t % 2 * lanes));
  }
}

/// Weights of one tile.
template <int Rows, bool Biased, bool Causal>
FOCI_INLINE void weigh(const BackwardBlock& block, long r, long column) {
  V c[Rows][2];
  score<Biased>(c, block, r, column);
  const float* constants = exp_constants();
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    const float count = Causal ? float(block.sees[r + i] - block.key - column) : 0.0f;
    const V low = all(block.low + r + i);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      V p = exp(add(c[i][j], low), constants);
      if constexpr (Causal) p = keep_first(p, count - float(j * lanes), 0.0f);
      store(block.weights + (r + i) * stride + column + j * lanes, p);
    }
  }
}

/// da of one tile.
template <int Rows>
FOCI_INLINE void pull(V (&c)[Rows][2], const BackwardBlock& block, long r, long column) {
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  product(c, block.d_o + r * panel, block.query_rows, block.values + column * block.E, block.E);
}

template <int Rows, bool Causal>
FOCI_INLINE void differentiate(const BackwardBlock& block, long r, long column) {
  V c[Rows][2];
  pull(c, block, r, column);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
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

template <int Rows, bool Causal>
static void score_tile(const BackwardBlock& block, long r, long column, bool biased) {
  biased ? weigh<Rows, true, Causal>(block, r, column)
         : weigh<Rows, false, Causal>(block, r, column);
  differentiate<Rows, Causal>(block, r, column);
}

template <bool Causal>
FOCI_INLINE void score_rows(const BackwardBlock& block, long r, long column, bool biased) {
  if (block.rows - r <= few_rows && !block.m) {
    score_tile<few_rows, Causal>(block, r, column, biased);
  } else {
    score_tile<tile_rows, Causal>(block, r, column, biased);
  }
}

static void score_tiles(const BackwardBlock& block) {
  for (long column = 0; column < block.n; column += panel) {
    const bool biased = block.biased || column + panel > block.n;
    for (long r = 0; r < block.rows; r += tile_rows) {
      const long key = block.key + column;
      if (block.causal && block.sees[r] < key + panel) {
        const long last = r + tile_rows < block.rows ? r + tile_rows : block.rows;
        if (block.sees[last - 1] > key) score_rows<true>(block, r, column, biased);
      } else {
        score_rows<false>(block, r, column, biased);
      }
    }
  }
}

/// Scores into weights and da into d_scores, for one tile of a block that has all keys.
template <bool Biased>
FOCI_INLINE void store_scores(const BackwardBlock& block, long r, long column) {
  V c[tile_rows][2];
  score<Biased>(c, block, r, column);
#pragma GCC unroll 32
  for (int t = 0; t < 2 * tile_rows; ++t)
    store(block.weights + (r + t / 2) * stride + column + t % 2 * lanes, c[t / 2][t % 2]);
  pull(c, block, r, column);
#pragma GCC unroll 32
  for (int t = 0; t < 2 * tile_rows; ++t)
    store(block.d_scores + (r + t / 2) * stride + column + t % 2 * lanes, c[t / 2][t % 2]);
}

/// A row of scores and da becomes its weights and ds; n keys are seen. Nothing here was rounded on
/// its way through memory as lse and o are, and sums are in double, which matters where there are
/// only a few keys.
static void finish_row(float* weights, float* d_scores, long n) {
  float top = -INFINITY;
  for (long j = 0; j < n; ++j) top = weights[j] < top ? top : weights[j];  // NaN stays
  const V shift = all(top == -INFINITY ? 0.0f : top);
  const float* constants = exp_constants();
  for (long j = 0; j < n; j += lanes)
    store(weights + j,
          keep_first(exp(sub(load(weights + j), shift), constants), float(n - j), 0.0f));
  double sum = 0, dot = 0;
  for (long j = 0; j < n; ++j) {
    sum += double(weights[j]);
    dot += double(weights[j]) * double(d_scores[j]);
  }
  const double by = sum == 0 ? 1.0 : 1 / sum, mean = dot * by;
  for (long j = 0; j < n; ++j) {
    const double a = double(weights[j]) * by;
    d_scores[j] = float(a * (double(d_scores[j]) - mean));
    weights[j] = float(a);
  }
  for (long j = n; j % lanes != 0; ++j) d_scores[j] = 0;
}

static void score_whole(const BackwardBlock& block) {
  for (long column = 0; column < block.n; column += panel) {
    for (long r = 0; r < block.rows; r += tile_rows) {
      block.biased ? store_scores<true>(block, r, column) : store_scores<false>(block, r, column);
    }
  }
  for (long r = 0; r < block.rows; ++r) {
    const long seen = block.sees[r] < block.n ? block.sees[r] : block.n;
    finish_row(block.weights + r * stride, block.d_scores + r * stride, seen);
  }
}

void softmax_backward(const BackwardBlock& block);
void softmax_backward(const BackwardBlock& block) {
  block.whole ? score_whole(block) : score_tiles(block);
  sum_up(block);
}

}  // namespace foci::cpu::FOCI_ISA
