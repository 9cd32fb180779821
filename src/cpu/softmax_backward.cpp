// SPDX-License-Identifier: Apache-2.0
// One query block against one key block, backwards: weights again from lse, then
//   dv += P' do      dS = P (do v' - delta)      dk += dS' q      dq += dS k      dbias += column
//   sums of dS
// Compiled once per instruction set.
#include "cpu/isa.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

static constexpr long stride = gradient_stride;

/// tile_rows x panel of a times b', a in column panels of `rows` rows, b in key panels.
FOCI_INLINE void product(V (&c)[tile_rows][2], const float* a, long rows, const float* b, long K) {
  for (long p = 0; p < K; p += panel) {
    multiply<tile_rows, 2, panel, 1>(c, a + p * rows, b + p * panel, panel,
                                     K - p < panel ? K - p : panel);
  }
}

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
  for (int i = 0; i < tile_rows; ++i) c[i][0] = c[i][1] = all(block.minus_delta + r + i);
  product(c, block.d_o + r * panel, block.query_rows, block.values + column * block.E, block.E);
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
    const float count = Causal ? float(block.sees[r + i] - block.key - column) : 0.0f;
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const long at = (r + i) * stride + column + j * lanes;
      V ds = mul(c[i][j], load(block.weights + at));
      if constexpr (Causal) ds = keep_first(ds, count - float(j * lanes), 0.0f);
      store(block.d_scores + at, ds);
    }
  }
}

/// out (tile_rows rows of a column panel, Vectors wide) += a' b over K lines of b.
template <int Vectors, long RowStep, long KStep>
FOCI_INLINE void accumulate(float* out, const float* a, const float* b, long K) {
  V c[tile_rows][Vectors];
#pragma GCC unroll 32
  for (int t = 0; t < tile_rows * Vectors; ++t)
    c[t / Vectors][t % Vectors] = load(out + (t / Vectors) * panel + (t % Vectors) * lanes);
  multiply<tile_rows, Vectors, RowStep, KStep>(c, a, b, panel, K);
#pragma GCC unroll 32
  for (int t = 0; t < tile_rows * Vectors; ++t)
    store(out + (t / Vectors) * panel + (t % Vectors) * lanes, c[t / Vectors][t % Vectors]);
}

/// Every tile of `count` rows of one column panel.
template <long RowStep, long KStep>
static void accumulate_panel(float* out, const float* a, const float* b, long count, long K,
                             long width) {
  for (long i = 0; i < count; i += tile_rows) {
    if (width > lanes) {
      accumulate<2, RowStep, KStep>(out + i * panel, a + i * RowStep, b, K);
    } else {
      accumulate<1, RowStep, KStep>(out + i * panel, a + i * RowStep, b, K);
    }
  }
}

static void score_tiles(const BackwardBlock& block) {
  for (long column = 0; column < block.n; column += panel) {
    const bool biased = block.biased || column + panel > block.n;
    for (long r = 0; r < padded(block.rows, tile_rows); r += tile_rows) {
      if (block.causal && block.sees[r] < block.key + column + panel) {
        weigh<true, true>(block, r, column);
        differentiate<true>(block, r, column);
        continue;
      }
      biased ? weigh<true, false>(block, r, column) : weigh<false, false>(block, r, column);
      differentiate<false>(block, r, column);
    }
  }
}

void softmax_backward(const BackwardBlock& block);
void softmax_backward(const BackwardBlock& block) {
  score_tiles(block);
  if (block.dbias) {
    for (long r = 0; r < block.rows; ++r) {
      for (long j = 0; j < block.n; ++j) block.dbias[j] += block.d_scores[r * stride + j];
    }
  }
  const long key_tiles = padded(block.n, tile_rows), row_tiles = padded(block.rows, tile_rows);
  for (long e = 0; e < block.E; e += panel) {
    accumulate_panel<1, stride>(block.dv + e * gradient_keys, block.weights,
                                block.d_o + e * block.query_rows, key_tiles, block.rows,
                                block.E - e);
  }
  for (long d = 0; d < block.D; d += panel) {
    accumulate_panel<1, stride>(block.dk + d * gradient_keys, block.d_scores,
                                block.q + d * block.query_rows, key_tiles, block.rows, block.D - d);
    accumulate_panel<stride, 1>(block.dq + d * block.query_rows, block.d_scores,
                                block.key_lines + d * block.key_rows, row_tiles, block.n,
                                block.D - d);
  }
}

}  // namespace foci::cpu::FOCI_ISA
