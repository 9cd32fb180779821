// SPDX-License-Identifier: Apache-2.0
// One token's query heads against a cache: scores from panels of keys, then the weighted sum of
// values, each in one sweep over the cache's memory. Compiled once per instruction set.
#include "cpu/decode_row.hpp"

#include "cpu/vec_half.hpp"
#include "cpu/wide.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

/// Heads that meet a line of the cache together.
static constexpr long most_heads = 4;

/// Calls f with the cache as it lies in memory.
template <class F>
FOCI_INLINE void with_line(Line line, const void* cache, F&& f) {
  if (line == Line::f32) return f(static_cast<const float*>(cache));
  if (line == Line::bf16) return f(static_cast<const B16*>(cache));
  f(static_cast<const H16*>(cache));
}

static void widen(float* to, const void* from, Line line, std::int64_t count) {
  with_line(line, from, [&](const auto* x) {
    for (long i = 0; i < count; i += lanes) store(to + i, load(x + i));
  });
}

/// One line of a panel, as vectors of T.
template <class X>
FOCI_INLINE void load_line(V (&k)[2], const X* line) {
  k[0] = load(line);
  k[1] = load(line + lanes);
}
template <class X>
FOCI_INLINE void load_line(W (&k)[4], const X* line) {
  split(k[0], k[1], load(line));
  split(k[2], k[3], load(line + lanes));
}
FOCI_INLINE void store_line(float* to, const V (&s)[2]) {
  store(to, s[0]);
  store(to + lanes, s[1]);
}
FOCI_INLINE void store_line(float* to, const W (&s)[4]) {
  store(to, joined(s[0], s[1]));
  store(to + lanes, joined(s[2], s[3]));
}

/// Vectors of T, so many to a panel; as many chains of sums as keep the arithmetic busy.
template <class T, int Rows>
struct Tile;
template <int Rows>
struct Tile<float, Rows> {
  using X = V;
  static constexpr int vectors = 2, chains = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;
};
template <int Rows>
struct Tile<double, Rows> {
  using X = W;
  static constexpr int vectors = 4, chains = Rows == 1 ? 2 : 1;
};

/// c[r] += one line of the panel with each head's q (and w).
template <class T, int Rows, bool Distance, class Key, class X, int Vectors>
FOCI_INLINE void meet(X (&c)[Rows][Vectors], const Key* line, const T* q, const T* w, long step) {
  X k[Vectors];
  load_line(k, line);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const X x = all(q + r * step);
#pragma GCC unroll 4
    for (int v = 0; v < Vectors; ++v) {
      if constexpr (Distance) {
        const X apart = sub(x, k[v]);
        c[r][v] = fma(mul(all(w + r * step), apart), apart, c[r][v]);
      } else {
        c[r][v] = fma(x, k[v], c[r][v]);
      }
    }
  }
}

/// One panel of keys. Chains are short, so that their rounding stays small.
template <class T, int Rows, bool Distance, class Key>
static void score_panel(const CachedScores<T>& of, const Key* keys, long r0, long key) {
  using X = typename Tile<T, Rows>::X;
  constexpr int chains = Tile<T, Rows>::chains, vectors = Tile<T, Rows>::vectors;
  constexpr long stretch = 16 * chains;
  const long step = of.q_step;
  const T *q = of.q + r0 * step, *w = Distance ? of.w + r0 * step : q;
  X sum[Rows][vectors];
#pragma GCC unroll 8
  for (int t = 0; t < Rows * vectors; ++t) sum[t / vectors][t % vectors] = all(T(0));
  for (long first = 0; first < of.D; first += stretch) {
    const long end = of.D - first < stretch ? of.D : first + stretch;
    X c[chains][Rows][vectors];
#pragma GCC unroll 8
    for (int t = 0; t < chains * Rows * vectors; ++t)
      c[t / (Rows * vectors)][t / vectors % Rows][t % vectors] = all(T(0));
    long d = first;
    for (; d + chains <= end; d += chains) {
#pragma GCC unroll 4
      for (int t = 0; t < chains; ++t)
        meet<T, Rows, Distance>(c[t], keys + (d + t) * panel, q + d + t, w + d + t, step);
    }
    for (; d < end; ++d) meet<T, Rows, Distance>(c[0], keys + d * panel, q + d, w + d, step);
#pragma GCC unroll 8
    for (int t = 0; t < Rows * vectors; ++t) {
      const int r = t / vectors, v = t % vectors;
      X x = c[0][r][v];
      if constexpr (chains == 2) x = add(x, c[1][r][v]);
      if constexpr (chains == 4) x = add(add(x, c[1][r][v]), add(c[2][r][v], c[3][r][v]));
      sum[r][v] = add(sum[r][v], x);
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
    const long at = (r0 + r) * of.step + key;
    if (of.bias) {
      X bias[vectors];
      load_line(bias, of.bias + at);
#pragma GCC unroll 4
      for (int v = 0; v < vectors; ++v) sum[r][v] = add(sum[r][v], bias[v]);
    }
    store_line(of.s + at, sum[r]);
  }
}

template <int Rows, class T, class Key>
static void score_rows(const CachedScores<T>& of, const Key* keys, long r0, long key) {
  if (of.w) {
    score_panel<T, Rows, true>(of, keys, r0, key);
  } else {
    score_panel<T, Rows, false>(of, keys, r0, key);
  }
}

template <long Most, class T>
static void score_all(const CachedScores<T>& of) {
  with_line(of.line, of.keys, [&](const auto* keys) {
    for (long key = 0; key < of.n; key += panel) {
      const auto* at = keys + key * of.D;
      for (long r0 = 0; r0 < of.R; r0 += Most) {
        const long rows = of.R - r0 < Most ? of.R - r0 : Most;
        if (rows == 1) score_rows<1>(of, at, r0, key);
        if (rows == 2) score_rows<2>(of, at, r0, key);
        if constexpr (Most == 4) {
          if (rows == 3) score_rows<3>(of, at, r0, key);
          if (rows == 4) score_rows<4>(of, at, r0, key);
        }
      }
    }
  });
}

static void score(const CachedScores<float>& of) { score_all<most_heads>(of); }
static void score_wide(const CachedScores<double>& of) { score_all<2>(of); }

/// Keys whose values meet before they join the sum: near enough to be read again for other heads.
static constexpr long sum_keys = 64;

template <int Rows, int Vectors, class X>
static void gather_tile(const CachedSum& of, const X* values, long r0, long e, long first,
                        long count) {
  constexpr int chains = Rows == 1 && Vectors <= 4 ? 2 : 1;
  V c[chains][Rows][Vectors];
#pragma GCC unroll 32
  for (int t = 0; t < chains * Rows * Vectors; ++t)
    c[t / (Rows * Vectors)][t / Vectors % Rows][t % Vectors] = all(0.0f);
  const float* x = of.x + r0 * of.step + first;
  const X* line = values + first * of.E + e;
  const auto take = [&](V(&sum)[Rows][Vectors], long j) {
    V v[Vectors];
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) v[i] = load(line + j * of.E + i * lanes);
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const V weight = all(x + r * of.step + j);
#pragma GCC unroll 8
      for (int i = 0; i < Vectors; ++i) sum[r][i] = fma(weight, v[i], sum[r][i]);
    }
  };
  long j = 0;
  for (; j + chains <= count; j += chains) {
    take(c[0], j);
    if constexpr (chains == 2) take(c[1], j + 1);
  }
  if (j < count) take(c[0], j);
#pragma GCC unroll 4
  for (int r = 0; r < Rows; ++r) {
#pragma GCC unroll 8
    for (int i = 0; i < Vectors; ++i) {
      float* o = of.o + (r0 + r) * of.E + e + i * lanes;
      V sum = c[0][r][i];
      if constexpr (chains == 2) sum = add(sum, c[1][r][i]);
      store(o, add(load(o), sum));
    }
  }
}

/// As many columns at once as registers allow.
template <int Rows, class X>
static void gather_heads(const CachedSum& of, const X* values, long r0, long first, long count) {
  constexpr int most = Rows == 1 ? 8 : lanes == 16 || Rows == 2 ? 4 : 2;
  long e = 0;
  for (; e + most * lanes <= of.E; e += most * lanes)
    gather_tile<Rows, most>(of, values, r0, e, first, count);
  for (; most > 4 && e + 4 * lanes <= of.E; e += 4 * lanes)
    gather_tile < Rows, most<4 ? most : 4>(of, values, r0, e, first, count);
  for (; e + 2 * lanes <= of.E; e += 2 * lanes)
    gather_tile<Rows, 2>(of, values, r0, e, first, count);
  for (; e < of.E; e += lanes) gather_tile<Rows, 1>(of, values, r0, e, first, count);
}

static void gather(const CachedSum& of) {
  for (long i = 0; i < of.R * of.E; i += lanes) store(of.o + i, all(0.0f));
  with_line(of.line, of.values, [&](const auto* values) {
    for (long first = 0; first < of.n; first += sum_keys) {
      const long count = of.n - first < sum_keys ? of.n - first : sum_keys;
      for (long r0 = 0; r0 < of.R; r0 += most_heads) {
        const long rows = of.R - r0;
        if (rows == 1) {
          gather_heads<1>(of, values, r0, first, count);
        } else if (rows == 2) {
          gather_heads<2>(of, values, r0, first, count);
        } else if (rows == 3) {
          gather_heads<3>(of, values, r0, first, count);
        } else {
          gather_heads<4>(of, values, r0, first, count);
        }
      }
    }
  });
}

// decode_weigh.cpp
Exponentials exponentiate(float* x, std::int64_t n, bool statistics);
void fade(float* x, const std::int64_t* at, std::int64_t last, float slope, std::int64_t n);
void square_positive(float* x, std::int64_t n);
Sizes measure(const float* x, std::int64_t n);
void divide(float* x, float by, std::int64_t n);
// decode_state.cpp
void features(float* to, const float* x, Phi phi, std::int64_t count);
void run(const RunningSum& of);
float dot(const float* x, const float* y, std::int64_t count);

const DecodeKernels decode_kernels = {.lanes = lanes,
                                      .keeps_narrow = lanes > 4,
                                      .widen = widen,
                                      .score = score,
                                      .score_wide = score_wide,
                                      .gather = gather,
                                      .exponentiate = exponentiate,
                                      .fade = fade,
                                      .square_positive = square_positive,
                                      .measure = measure,
                                      .divide = divide,
                                      .features = features,
                                      .run = run,
                                      .dot = dot};

}  // namespace foci::cpu::FOCI_ISA
