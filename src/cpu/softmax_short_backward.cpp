// SPDX-License-Identifier: Apache-2.0
// The way back of softmax where all keys fit at once, queries as lanes like on the way there. The
// weights are found again from all scores, so nothing needs to be remembered; sums are in double,
// which matters where there are only a few keys. Compiled once per instruction set.
#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/short_tile.hpp"

/// Keys whose errors do not average out.
static constexpr long few = 32;

/// A block of queries at work, panel by panel.
struct Short {
  const ShortBackward& block;
  long key_rows = 0;                              // padded; the last key again and again
  float *keys = nullptr, *values = nullptr;       // column panels of key_rows rows
  float* q = nullptr;                             // (rows,D) scaled
  float *q_lanes = nullptr, *o_lanes = nullptr;   // [D][panel], [E][panel]: of the panel at hand
  float *weights = nullptr, *d_scores = nullptr;  // [rows/panel][key_rows][panel]
  long first = 0;                                 // row of lane 0
  float sees[panel], top[panel];

  explicit Short(const ShortBackward& of) : block(of) {}
  float* at_hand(float* of) const { return of + first * key_rows; }
};

std::int64_t short_backward_scratch(std::int64_t n, std::int64_t D, std::int64_t E);
std::int64_t short_backward_scratch(std::int64_t n, std::int64_t D, std::int64_t E) {
  return padded(n, rest) * (padded(D, panel) + padded(E, panel) + 2 * block_rows) + block_rows * D +
         (D + E) * panel;
}

/// Scores and da of at most `Rows` keys.
template <int Rows, int Vectors>
static void score(Short& at, long key, long count) {
  if constexpr (Rows > rest) {
    if (count <= Rows - rest) return score<Rows - rest, Vectors>(at, key, count);
  }
  const ShortBackward& block = at.block;
  const long end = key + Rows < block.n ? key + Rows : block.n;
  const bool hides = block.causal && at.sees[0] < float(end);
  V c[Rows][Vectors];
  products(c, at.keys + key * panel, at.key_rows, at.q_lanes, block.D);
  if (hides) hide(c, at.sees, key, 10 * hidden);
  float *weights = at.at_hand(at.weights) + key * panel,
        *d_scores = at.at_hand(at.d_scores) + key * panel;
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    V top = load(at.top + v * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      top = max(c[i][v], top);  // NaN is left out
      store(weights + i * panel + v * lanes, c[i][v]);
    }
    store(at.top + v * lanes, top);
  }
  products(c, at.values + key * panel, at.key_rows, at.o_lanes, block.E);
  if (hides) hide(c, at.sees, key, 0.0f);
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t)
    store(d_scores + t / Vectors * panel + t % Vectors * lanes, c[t / Vectors][t % Vectors]);
}

/// One vector of rows: scores and da of n keys become weights and ds. Many keys average out what
/// floats round.
static void weigh_many(const Short& at, long n, long v) {
  const float* constants = &exp_table.line[0][0];
  float *weights = at.at_hand(at.weights) + v * lanes,
        *d_scores = at.at_hand(at.d_scores) + v * lanes;
  const V top = load(at.top + v * lanes), shift = where_above(top, all(hidden), top, all(0.0f));
  V sum[2], dot[2];
  for (int i = 0; i < 2; ++i) sum[i] = dot[i] = all(0.0f);
  for (long j = 0; j < n; j += 2) {
#pragma GCC unroll 2
    for (long i = 0; i < 2; ++i) {
      if (j + i >= n) break;
      const V p = exp(sub(load(weights + (j + i) * panel), shift), constants);
      store(weights + (j + i) * panel, p);
      sum[i] = add(sum[i], p);
      dot[i] = fma(p, load(d_scores + (j + i) * panel), dot[i]);
    }
  }
  const V total = add(sum[0], sum[1]), one = all(1.0f);
  const V by = where_above(total, all(0.0f), div(one, total), add(total, one));  // NaN stays
  const V mean = mul(add(dot[0], dot[1]), by);
  for (long j = 0; j < n; ++j) {
    const V p = mul(load(weights + j * panel), by);
    store(weights + j * panel, p);
    store(d_scores + j * panel, mul(p, sub(load(d_scores + j * panel), mean)));
  }
}

/// The same for few keys: sums in double.
static void weigh(const Short& at, long n, long v) {
  const float* constants = &exp_table.line[0][0];
  float *weights = at.at_hand(at.weights) + v * lanes,
        *d_scores = at.at_hand(at.d_scores) + v * lanes;
  const V top = load(at.top + v * lanes), shift = where_above(top, all(hidden), top, all(0.0f));
  W sum[2], dot[2], p[2], da[2];
  for (int i = 0; i < 2; ++i) sum[i] = dot[i] = all(0.0);
  for (long j = 0; j < n; ++j) {
    const V x = exp(sub(load(weights + j * panel), shift), constants);
    store(weights + j * panel, x);
    split(p[0], p[1], x);
    split(da[0], da[1], load(d_scores + j * panel));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      sum[i] = add(sum[i], p[i]);
      dot[i] = fma(p[i], da[i], dot[i]);
    }
  }
  double by[lanes], mean[lanes];
  for (int i = 0; i < 2; ++i) {
    store(by + i * wide_lanes, sum[i]);
    store(mean + i * wide_lanes, dot[i]);
  }
  for (long i = 0; i < lanes; ++i) {
    by[i] = by[i] == 0 ? 1.0 : 1 / by[i];
    mean[i] *= by[i];
  }
  for (long j = 0; j < n; ++j) {
    split(p[0], p[1], load(weights + j * panel));
    split(da[0], da[1], load(d_scores + j * panel));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      p[i] = mul(p[i], load(by + i * wide_lanes));
      da[i] = mul(p[i], sub(da[i], load(mean + i * wide_lanes)));
    }
    store(weights + j * panel, joined(p[0], p[1]));
    store(d_scores + j * panel, joined(da[0], da[1]));
  }
}

/// dq of at most `Rows` rows.
template <int Rows, int Vectors>
static void sum_keys(const Short& at, long row, long count, long d) {
  if constexpr (Rows > rest) {
    if (count <= Rows - rest) return sum_keys<Rows - rest, Vectors>(at, row, count, d);
  }
  const ShortBackward& block = at.block;
  const std::int64_t* sees = block.sees + at.first + row;
  const long common = block.causal ? sees[0] : block.n, last = block.causal ? sees[count - 1] : 0;
  V c[Rows][Vectors];
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) c[t / Vectors][t % Vectors] = all(0.0f);
  sum_seen(c, at.at_hand(at.d_scores) + row, block.keys + d, block.D, sees, common, last);
  float* dq = block.dq + (at.first + row) * block.D + d;
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) {
    if (t / Vectors >= count) break;
    store(dq + (t / Vectors) * block.D + (t % Vectors) * lanes,
          mul(all(block.back), c[t / Vectors][t % Vectors]));
  }
}

/// What dk or dv is made of.
struct Sum {
  float* out;          // (n,width)
  const float* a;      // weights or d_scores
  const float* lines;  // (rows,width)
  long width;
};

/// dk or dv of at most `Rows` keys. Causal: a key meets only the queries that see it, from some row
/// on; nothing else is multiplied, not even with 0, for it may be infinite.
template <int Rows, int Vectors>
static void sum_queries(const Short& at, const Sum& of, long key, long count, long d) {
  if constexpr (Rows > rest) {
    if (count <= Rows - rest) return sum_queries<Rows - rest, Vectors>(at, of, key, count, d);
  }
  const ShortBackward& block = at.block;
  float* out = of.out + key * of.width + d;
  V c[Rows][Vectors];
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) {
    c[t / Vectors][t % Vectors] = block.joins && t / Vectors < count
                                      ? load(out + (t / Vectors) * of.width + (t % Vectors) * lanes)
                                      : all(0.0f);
  }
  long row = 0;
  for (; block.causal && row < block.rows && block.sees[row] < key + count; ++row) {
    const float* a = of.a + row / panel * panel * at.key_rows + key * panel + row % panel;
#pragma GCC unroll 32
    for (int t = 0; t < Rows * Vectors; ++t) {
      if (block.sees[row] > key + t / Vectors) {
        c[t / Vectors][t % Vectors] = fma(all(a + t / Vectors * panel),
                                          load(of.lines + row * of.width + d + t % Vectors * lanes),
                                          c[t / Vectors][t % Vectors]);
      }
    }
  }
  while (row < block.rows) {
    const long next = row / panel * panel + panel, end = next < block.rows ? next : block.rows;
    multiply<Rows, Vectors, panel, 1>(
        c, of.a + row / panel * panel * at.key_rows + key * panel + row % panel,
        of.lines + row * of.width + d, of.width, end - row);
    row = end;
  }
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) {
    if (t / Vectors >= count) break;
    store(out + (t / Vectors) * of.width + (t % Vectors) * lanes, c[t / Vectors][t % Vectors]);
  }
}

static void sum_queries(const Short& at, const Sum& of) {
  const long n = at.block.n;
  for (long d = 0; d < of.width; d += panel) {
    for (long j = 0; j < n; j += tile_rows) {
      const long count = n - j < tile_rows ? n - j : tile_rows;
      of.width - d > lanes ? sum_queries<tile_rows, 2>(at, of, j, count, d)
                           : sum_queries<tile_rows, 1>(at, of, j, count, d);
    }
  }
}

template <int Vectors>
static void differentiate_panel(Short& at) {
  const ShortBackward& block = at.block;
  constexpr int rows = Vectors == 1 ? tile_rows + rest : tile_rows;
  const long left = block.rows - at.first, width = left < panel ? left : panel;
  const long n = block.causal ? block.sees[at.first + width - 1] : block.n;
  if (block.causal) place_sees(at.sees, block.sees + at.first, width);
  for (long v = 0; v < Vectors; ++v) store(at.top + v * lanes, all(-INFINITY));
  turn_lines<Vectors>(at.q_lanes, at.q + at.first * block.D, 1, left, block.D);
  turn_lines<Vectors>(at.o_lanes, block.d_o + at.first * block.E, 1, left, block.E);
  for (long j = 0; j < n; j += rows) score<rows, Vectors>(at, j, n - j < rows ? n - j : rows);
  for (long v = 0; v < Vectors; ++v) block.n > few ? weigh_many(at, n, v) : weigh(at, n, v);
  for (long r = 0; r < width; r += tile_rows) {
    const long count = width - r < tile_rows ? width - r : tile_rows;
    for (long d = 0; d < block.D; d += panel) {
      block.D - d > lanes ? sum_keys<tile_rows, 2>(at, r, count, d)
                          : sum_keys<tile_rows, 1>(at, r, count, d);
    }
  }
}

void softmax_short_backward(const ShortBackward& block);
void softmax_short_backward(const ShortBackward& block) {
  Short at(block);
  at.keys = block.scratch;
  at.key_rows = padded(block.n, rest);
  at.values = at.keys + at.key_rows * padded(block.D, panel);
  at.q = at.values + at.key_rows * padded(block.E, panel);
  at.q_lanes = at.q + block_rows * block.D;
  at.o_lanes = at.q_lanes + block.D * panel;
  at.weights = at.o_lanes + block.E * panel;
  at.d_scores = at.weights + block_rows * at.key_rows;
  copy_lines(at.keys, block.keys, block.n, at.key_rows, block.D);
  copy_lines(at.values, block.values, block.n, at.key_rows, block.E);
  for (long i = 0; i < block.rows * block.D; i += lanes)
    store(at.q + i, mul(all(block.scale), load(block.q + i)));
  for (; at.first < block.rows; at.first += panel)
    block.rows - at.first > lanes ? differentiate_panel<2>(at) : differentiate_panel<1>(at);
  sum_queries(at, {block.dv, at.weights, block.d_o, block.E});
  sum_queries(at, {block.dk, at.d_scores, at.q, block.D});
}

}  // namespace foci::cpu::FOCI_ISA
