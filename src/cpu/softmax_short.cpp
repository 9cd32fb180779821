// SPDX-License-Identifier: Apache-2.0
// Softmax attention where all keys fit at once: nothing is packed but the queries of a panel, whose
// lanes they become, so that maxima and sums need no look across a vector. The true maximum is
// known before the first weight, and outputs are divided on their way to memory. Compiled once per
// instruction set.
#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/short_tile.hpp"

/// A panel of queries at work.
struct Short {
  const ForwardBlock& block;
  float* keys = nullptr;     // column panels of key_rows rows
  long key_rows = 0;         // padded; the last key again and again
  float* q = nullptr;        // [D][panel]
  float* weights = nullptr;  // [key][panel]: scores at first
  long first = 0;            // row of lane 0
  float sees[panel], top[panel], inverse[panel];

  explicit Short(const ForwardBlock& of) : block(of) {}
};

std::int64_t short_scratch(std::int64_t D);
std::int64_t short_scratch(std::int64_t D) {
  return (short_keys + tile_rows) * (padded(D, panel) + panel) + D * panel;
}

/// Scores of at most `Rows` keys, and what they do to the maxima.
template <int Rows, int Vectors>
static void score(Short& at, long key, long count) {
  if constexpr (Rows > rest) {
    if (count <= Rows - rest) return score<Rows - rest, Vectors>(at, key, count);
  }
  const ForwardBlock& block = at.block;
  V c[Rows][Vectors];
  products(c, at.keys + key * panel, at.key_rows, at.q, block.D);
  if (block.biased) {
#pragma GCC unroll 32
    for (int t = 0; t < Rows * Vectors; ++t) {
      V& x = c[t / Vectors][t % Vectors];
      x = add(x, all(block.bias + key + t / Vectors));
    }
  }
  const long end = key + Rows < block.n ? key + Rows : block.n;
  if (block.causal && at.sees[0] < float(end)) hide(c, at.sees, key, 10 * hidden);
#pragma GCC unroll 2
  for (int v = 0; v < Vectors; ++v) {
    V top = load(at.top + v * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      top = max(c[i][v], top);  // NaN is left out
      store(at.weights + (key + i) * panel + v * lanes, c[i][v]);
    }
    store(at.top + v * lanes, top);
  }
}

/// to = ln(x), x >= 1; -infinity for 0.
static void logarithms(float* to, const float* x) {
  for (long i = 0; i < lanes; ++i) {
    unsigned bits;
    __builtin_memcpy(&bits, x + i, sizeof bits);
    const int power = int(bits - 0x3f3504f3u) >> 23;  // so that sqrt(1/2) <= y < sqrt(2)
    const unsigned rest_bits = bits - (unsigned(power) << 23);
    float y;
    __builtin_memcpy(&y, &rest_bits, sizeof y);
    // ln(y) = 2 artanh(s), s = (y - 1) / (y + 1), |s| < 0.172
    const float s = (y - 1) / (y + 1), z = s * s;
    const float series = z * (2.0f / 3 + z * (2.0f / 5 + z * (2.0f / 7 + z * (2.0f / 9))));
    to[i] = float(power) * 0.693359375f + (float(power) * -2.12194440e-4f + (2 * s + s * series));
  }
  store(to, where_above(load(x), all(0.0f), load(to), sub(load(x), all(INFINITY))));
}

/// What a vector of rows gathers while its scores become weights; in double what ends up in small
/// differences.
struct Gathered {
  V shift, sum[2];  // of keys with even and odd index
  W total[2], squares[2], scored[2];
  V best, best_at;
};

template <bool Statistics>
FOCI_INLINE void weigh_one(Gathered& to, float* weights, long key, V& sum) {
  const float* constants = &exp_table.line[0][0];
  const V score = load(weights), x = sub(score, to.shift), p = exp(x, constants);
  store(weights, p);
  sum = add(sum, p);
  if constexpr (Statistics) {
    W a[2], b[2];
    split(a[0], a[1], p);
    split(b[0], b[1], max(load(constants + lowest_exponent), x));
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      to.total[i] = add(to.total[i], a[i]);
      to.squares[i] = fma(a[i], a[i], to.squares[i]);
      to.scored[i] = fma(a[i], b[i], to.scored[i]);
    }
    to.best_at = where_above(score, to.best, all(float(key)), to.best_at);
    to.best = max(score, to.best);
  }
}

static void find_statistics(const ForwardBlock& block, const Gathered& of, long row) {
  double total[lanes], squares[lanes], scored[lanes];
  float best_at[lanes];
  for (int i = 0; i < 2; ++i) {
    store(total + i * wide_lanes, of.total[i]);
    store(squares + i * wide_lanes, of.squares[i]);
    store(scored + i * wide_lanes, of.scored[i]);
  }
  store(best_at, where_above(of.best, all(hidden), of.best_at, all(-1.0f)));
  for (long i = 0; i < lanes && row + i < block.rows; ++i) {
    const double sum = total[i];
    const bool none = best_at[i] < 0, empty = none && sum == sum;
    block.largest[row + i] = none ? float(0 * sum) : float(1 / sum);
    block.largest_at[row + i] = std::int64_t(best_at[i]);
    block.sizes[row + i] = empty ? 0.0f : 1.0f;
    block.squares[row + i] = empty ? 0.0f : float(squares[i] / (sum * sum));
    block.entropy[row + i] = empty ? 0.0f : float(::log(sum) - scored[i] / sum);
  }
}

/// Scores of n keys become weights; sums, lse and what outputs are to be multiplied with.
template <bool Statistics>
static void weigh(Short& at, long n, long v) {
  const V top = load(at.top + v * lanes), zero = all(0.0f);
  Gathered of = {};
  of.shift = where_above(top, all(hidden), top, zero);
  of.sum[0] = of.sum[1] = zero;
  of.best = all(-INFINITY);
  of.best_at = all(-1.0f);
  float* weights = at.weights + v * lanes;
  long j = 0;
  for (; j + 2 <= n; j += 2) {
    weigh_one<Statistics>(of, weights + j * panel, j, of.sum[0]);
    weigh_one<Statistics>(of, weights + (j + 1) * panel, j + 1, of.sum[1]);
  }
  if (j < n) weigh_one<Statistics>(of, weights + j * panel, j, of.sum[0]);
  const V sum = add(of.sum[0], of.sum[1]);
  const long row = at.first + v * lanes;
  // A row that saw nothing is 0; a NaN is something seen.
  store(at.inverse + v * lanes, where_above(top, all(hidden), div(all(1.0f), sum), sub(sum, sum)));
  store(at.block.sum + row, sum);
  store(at.block.shift + row, of.shift);
  logarithms(at.block.by + row, at.block.sum + row);
  store(at.block.by + row, add(load(at.block.by + row), of.shift));
  if constexpr (Statistics) find_statistics(at.block, of, row);
}

/// Outputs of at most `Rows` rows, `Vectors` vectors of them.
template <int Rows, int Vectors>
static void gather(const Short& at, long row, long count, long e) {
  if constexpr (Rows > rest) {
    if (count <= Rows - rest) return gather<Rows - rest, Vectors>(at, row, count, e);
  }
  const ForwardBlock& block = at.block;
  const std::int64_t* sees = block.sees + at.first + row;
  const long common = block.causal ? sees[0] : block.n, last = block.causal ? sees[count - 1] : 0;
  V c[Rows][Vectors];
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) c[t / Vectors][t % Vectors] = all(0.0f);
  sum_seen(c, at.weights + row, block.values + e, block.E, sees, common, last);
  float* o = block.o + (at.first + row) * block.E + e;
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) {
    if (t / Vectors >= count) break;
    const V by = all(at.inverse + row + t / Vectors);
    const V x = where_above(by, all(0.0f), mul(c[t / Vectors][t % Vectors], by), by);
    store(o + (t / Vectors) * block.E + (t % Vectors) * lanes, x);
  }
}

template <int Vectors>
static void attend_panel(Short& at) {
  const ForwardBlock& block = at.block;
  constexpr int rows = Vectors == 1 ? tile_rows + rest : tile_rows;
  const long left = block.rows - at.first, width = left < panel ? left : panel;
  const long n = block.causal ? block.sees[at.first + width - 1] : block.n;
  if (block.causal) place_sees(at.sees, block.sees + at.first, width);
  for (long v = 0; v < Vectors; ++v) store(at.top + v * lanes, all(-INFINITY));
  turn_lines<Vectors>(at.q, block.q + at.first * block.D, block.scale, left, block.D);
  for (long j = 0; j < n; j += rows) score<rows, Vectors>(at, j, n - j < rows ? n - j : rows);
  for (long v = 0; v < Vectors; ++v)
    block.statistics ? weigh<true>(at, n, v) : weigh<false>(at, n, v);
  for (long r = 0; r < width; r += tile_rows) {
    const long count = width - r < tile_rows ? width - r : tile_rows;
    for (long e = 0; e < block.E; e += panel) {
      block.E - e > lanes ? gather<tile_rows, 2>(at, r, count, e)
                          : gather<tile_rows, 1>(at, r, count, e);
    }
  }
}

void softmax_short(const ForwardBlock& block);
void softmax_short(const ForwardBlock& block) {
  Short at(block);
  at.keys = block.scratch;
  at.key_rows = padded(block.n, rest);
  at.q = at.keys + at.key_rows * padded(block.D, panel);
  at.weights = at.q + block.D * panel;
  copy_lines(at.keys, block.keys, block.n, at.key_rows, block.D);
  for (; at.first < block.rows; at.first += panel)
    block.rows - at.first > lanes ? attend_panel<2>(at) : attend_panel<1>(at);
}

}  // namespace foci::cpu::FOCI_ISA
