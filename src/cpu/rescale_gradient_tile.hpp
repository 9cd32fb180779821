// SPDX-License-Identifier: Apache-2.0
// Backwards through a_ij = f(s_ij) / by_i, one query block against one key block:
//   da = do v'      dx = (da - d by / dx along) / by      ds = dx f'(s)      along_i = sum_j a da
// A kernel names f by an overload of weight(Kind, score, place). Included inside the namespace of
// one instruction set, after gradient_tile.hpp.

/// d by / dx: 0, 1, the sign of x, or a.
enum class Through { nothing, one, sign, share };

/// Where a vector of scores stands.
struct GradientPlace {
  const BackwardBlock* block;
  long row, column;
  const float* constants;  // of exp
};

struct Weight {
  V a;      // f(s) / by
  V slope;  // f'(s) / by
};

/// Weights of one tile, and in d_scores the slopes, where f has any but 1.
template <class Kind, bool Shifted>
FOCI_INLINE void weigh(const BackwardBlock& block, long r, long column) {
  V c[tile_rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  scores(c, block, r, column);
  const float* constants = exp_constants();
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const long at = (r + i) * stride + column + j * lanes;
      V s = c[i][j];
      if constexpr (Shifted)
        s = add(s, add(load(block.bias + column + j * lanes), all(block.low + r + i)));
      const Weight of =
          weight(Kind{}, s, GradientPlace{&block, r + i, column + j * lanes, constants});
      store(block.weights + at, of.a);
      if constexpr (Kind::steep) store(block.d_scores + at, of.slope);
    }
  }
}

/// ds of one tile.
template <class Kind, Through By>
FOCI_INLINE void differentiate(const BackwardBlock& block, long r, long column) {
  V c[tile_rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  product(c, block.d_o + r * panel, block.query_rows, block.values + column * block.E, block.E);
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
    const V minus_along = all(block.minus_delta + r + i);
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const long at = (r + i) * stride + column + j * lanes;
      V dx = c[i][j];
      if constexpr (By == Through::one) dx = add(dx, minus_along);
      if constexpr (By == Through::share) dx = fma(load(block.weights + at), minus_along, dx);
      if constexpr (By == Through::sign) {
        const V a = load(block.weights + at), zero = all(0.0f);
        const V negative = where_above(zero, a, sub(zero, minus_along), zero);
        dx = add(dx, where_above(a, zero, minus_along, negative));
      }
      const V slope =
          Kind::steep ? load(block.d_scores + at) : max(all(0.0f), all(block.inverse + r + i));
      store(block.d_scores + at, mul(dx, slope));
    }
  }
}

/// Rows that see no more keys than these are done again in double: by may be as small as their
/// scores happen to be, and da - along nothing but rounding errors over it.
static constexpr long few_keys = gradient_keys;

struct Exact {
  double x, slope;  // f(s), f'(s)
};

/// One row of column panels.
struct Line {
  const float* at;
  const float* m;     // nullptr, or how much each difference weighs
  const float* rest;  // nullptr, or what rounding took from it
  long rows, K;       // of the panels; columns
};

/// The row times each of the first n lines of packed panels, or its weighted distance from them.
static void measure(double (&to)[few_keys], const Line& a, const float* b, long n) {
  for (long j = 0; j < n; j += panel) {
    double sum[panel] = {};
    for (long k = 0; k < a.K; ++k) {
      const long at = k / panel * panel * a.rows + k % panel;
      const double x = double(a.at[at]) + (a.rest ? double(a.rest[at]) : 0.0);
      const double m = a.m ? double(a.m[at]) : 0;
      const float* line = b + j * a.K + k * panel;
      if (a.m) {
        for (long i = 0; i < panel; ++i) sum[i] += m * (x - line[i]) * (x - line[i]);
      } else {
        for (long i = 0; i < panel; ++i) sum[i] += x * line[i];
      }
    }
    for (long i = 0; i < panel; ++i) to[j + i] = sum[i];
  }
}

/// Divisions, not products with 1 / by: a row's only key has the weight 1 or -1, and no gradient.
template <class Kind, Through By>
static void refine_row(const BackwardBlock& block, long r) {
  const long n = block.sees[r];
  double s[few_keys], da[few_keys];
  const long rows = block.query_rows;
  const float* m = block.m ? block.m + r * panel : nullptr;
  const float* rest = block.q_rest ? block.q_rest + r * panel : nullptr;
  measure(s, {block.q + r * panel, m, rest, rows, block.D}, block.keys, n);
  measure(da, {block.d_o + r * panel, nullptr, nullptr, rows, block.E}, block.values, n);
  double sum = 0, squares = 0, along = 0;
  for (long j = 0; j < n; ++j) {
    s[j] += double(block.low[r]) + (block.biased ? double(block.bias[j]) : 0);
    const double x = exact(Kind{}, s[j]).x;
    sum += x < 0 ? -x : x;
    squares += x * x;
  }
  const double by = By == Through::share ? sqrt(squares) : sum;
  for (long j = 0; j < n && by != 0; ++j) along += exact(Kind{}, s[j]).x / by * da[j];
  for (long j = 0; j < n; ++j) {
    const Exact of = exact(Kind{}, s[j]);
    const double a = by == 0 ? 0 : of.x / by, sign = a > 0 ? 1 : a < 0 ? -1 : 0;
    const double dx = by == 0 ? 0 : (da[j] - along * (By == Through::share ? a : sign)) / by;
    block.weights[r * stride + j] = float(a);
    block.d_scores[r * stride + j] = float(dx * of.slope);
  }
}

template <class Kind, Through By>
static void refine_rows(const BackwardBlock& block) {
  for (long r = 0; r < block.rows && block.key == 0; ++r) {
    if (block.sees[r] <= few_keys && block.sees[r] <= block.n) refine_row<Kind, By>(block, r);
  }
}

/// to (panel) += sum_k a(k) line_k, the sum in double.
static void add_line(float* to, const float* a, long step, const float* lines, long begin,
                     long end) {
  double sum[panel] = {};
  for (long k = begin; k < end; ++k) {
    const double x = double(a[k * step]);
    for (long i = 0; i < panel; ++i) sum[i] += x * double(lines[k * panel + i]);
  }
  for (long i = 0; i < panel; ++i) to[i] = float(double(to[i]) + sum[i]);
}

/// sum_up() for a block that has all keys: where these are few, what is made of dq and dk may be
/// far smaller than they are.
static void sum_few(const BackwardBlock& block) {
  sum_sides(block);
  for (long d = 0; d < block.D; d += panel) {
    if (block.dm) sum_squares(block, d);
    for (long r = 0; r < block.rows; ++r) {
      const long seen = block.sees[r] < block.n ? block.sees[r] : block.n;
      add_line(block.dq + d * block.query_rows + r * panel, block.d_scores + r * stride, 1,
               block.key_lines + d * block.key_rows, 0, seen);
    }
  }
  for (long d = 0; d < block.line_width; d += panel) {
    long first = 0;  // the first row that sees the key
    for (long j = 0; j < block.n; ++j) {
      while (first < block.rows && block.sees[first] <= j) ++first;
      add_line(block.dk + d * gradient_keys + j * panel, block.d_scores + j, stride,
               block.q_lines + d * block.query_rows, first, block.rows);
    }
  }
}

/// What a row does not see is computed all the same, whatever it is: sum_up looks away.
template <class Kind, Through By>
static void rescaled_backward(const BackwardBlock& block) {
  bool shifted = block.biased;
  for (long r = 0; r < block.rows; ++r) shifted |= block.low[r] != 0;
  for (long column = 0; column < block.n; column += panel) {
    for (long r = 0; r < block.rows; r += tile_rows) {
      const long end = r + tile_rows < block.rows ? r + tile_rows : block.rows;
      if (block.causal && block.sees[end - 1] <= block.key + column) continue;
      shifted ? weigh<Kind, true>(block, r, column) : weigh<Kind, false>(block, r, column);
      differentiate<Kind, By>(block, r, column);
    }
  }
  if constexpr (By != Through::nothing) refine_rows<Kind, By>(block);
  block.whole ? sum_few(block) : sum_up(block);
}
