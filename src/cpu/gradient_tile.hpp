// SPDX-License-Identifier: Apache-2.0
// What the backward blocks of all weightings share: products of packed panels, and the sums of
// d_scores and weights with lines that make dq, dk, dv. Included inside the namespace of one
// instruction set, after tile.hpp.

static constexpr long stride = gradient_stride;

/// Rows x panel of a times b', a in column panels of `rows` rows, b in key panels.
template <int Rows>
FOCI_INLINE void product(V (&c)[Rows][2], const float* a, long rows, const float* b, long K) {
  for (long p = 0; p < K; p += panel) {
    multiply<Rows, 2, panel, 1>(c, a + p * rows, b + p * panel, panel,
                                K - p < panel ? K - p : panel);
  }
}

/// c += q . k, or the weighted distance; of few rows only products.
template <int Rows>
FOCI_INLINE void scores(V (&c)[Rows][2], const BackwardBlock& block, long r, long column) {
  const float* keys = block.keys + column * block.D;
  if (Rows < tile_rows || __builtin_expect(block.m == nullptr, 1)) {
    product(c, block.q + r * panel, block.query_rows, keys, block.D);
    return;
  }
  float tile[tile_rows * panel];
  for (int t = 0; t < 2 * tile_rows; ++t) store(tile + t * lanes, c[t / 2][t % 2]);
  for (long p = 0; p < block.D; p += panel) {
    const long at = p * block.query_rows + r * panel;
    const auto add = block.wide ? add_distances_wide<panel, 1> : add_distances<panel, 1>;
    add(tile, block.q + at, block.m + at, keys + p * panel,
        block.D - p < panel ? block.D - p : panel);
  }
  for (int t = 0; t < 2 * tile_rows; ++t) c[t / 2][t % 2] = load(tile + t * lanes);
}

/// Sums over lines: out_i (rows of a column panel) += sum_k a(i,k) line_k, k in [begin, end).
struct Sum {
  float* out;          // at the tile's first row
  const float* a;      // a(i,k) at i * RowStep + k * KStep
  const float* lines;  // one every `panel` floats
};

template <int Rows, int Vectors, long RowStep, long KStep>
FOCI_INLINE void accumulate(const Sum& of, long begin, long end) {
  V c[Rows][Vectors];
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t)
    c[t / Vectors][t % Vectors] = load(of.out + (t / Vectors) * panel + (t % Vectors) * lanes);
  multiply<Rows, Vectors, RowStep, KStep>(c, of.a + begin * KStep, of.lines + begin * panel, panel,
                                          end - begin);
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t)
    store(of.out + (t / Vectors) * panel + (t % Vectors) * lanes, c[t / Vectors][t % Vectors]);
}

template <long RowStep, long KStep>
FOCI_INLINE void accumulate(const Sum& of, long begin, long end, long rows, long width) {
  if (end <= begin) return;
  if (width <= lanes) {
    accumulate<tile_rows, 1, RowStep, KStep>(of, begin, end);
  } else if (rows <= few_rows) {
    accumulate<few_rows, 2, RowStep, KStep>(of, begin, end);
  } else {
    accumulate<tile_rows, 2, RowStep, KStep>(of, begin, end);
  }
}

/// One output row alone, for the lines that only some rows of its tile may meet.
template <long KStep>
static void accumulate_row(float* out, const float* a, const float* lines, long begin, long end) {
  for (long k = begin; k < end; ++k) {
    const V x = all(a + k * KStep);
    for (long v = 0; v < panel; v += lanes)
      store(out + v, fma(x, load(lines + k * panel + v), load(out + v)));
  }
}

/// dv or dk: rows are keys, lines are queries. Causal: a key meets only the queries that see it,
/// from some row on; nothing else is multiplied, not even with 0, for it may be infinite.
static void sum_queries(const BackwardBlock& block, const Sum& of, long width) {
  for (long j = 0; j < block.n; j += tile_rows) {
    const long last = (j + tile_rows < block.n ? j + tile_rows : block.n) - 1;
    const Sum tile = {of.out + j * panel, of.a + j, of.lines};
    long whole = 0;  // the first row that sees every key of the tile
    if (block.causal) {
      while (whole < block.rows && block.sees[whole] <= block.key + last) ++whole;
      long from = 0;
      for (long i = 0; i <= last - j; ++i) {
        while (from < whole && block.sees[from] <= block.key + j + i) ++from;
        accumulate_row<stride>(tile.out + i * panel, tile.a + i, tile.lines, from, whole);
      }
    }
    accumulate<1, stride>(tile, whole, block.rows, block.n - j, width);
  }
}

/// dq: rows are queries, lines are keys.
static void sum_keys(const BackwardBlock& block, const Sum& of, long width) {
  for (long r = 0; r < block.rows; r += tile_rows) {
    const long end = r + tile_rows < block.rows ? r + tile_rows : block.rows;
    const Sum tile = {of.out + r * panel, of.a + r * stride, of.lines};
    const long first = block.sees[r] - block.key;
    const long whole = !block.causal || first > block.n ? block.n : first < 0 ? 0 : first;
    accumulate<stride, 1>(tile, 0, whole, block.rows - r, width);
    for (long i = r; i < end && whole < block.n; ++i) {
      const long seen = block.sees[i] - block.key;
      accumulate_row<1>(of.out + i * panel, of.a + i * stride, of.lines, whole,
                        seen < block.n ? seen : block.n);
    }
  }
}

/// dbias and dr: sums of the columns and the rows of d_scores, in double: what follows subtracts
/// them from sums of their size. Either may be nullptr.
static void sum_both(const BackwardBlock& block) {
  constexpr long strips = 6;  // vectors of a row at a time: their sums stay in registers
  double rows[block_rows] = {};
  for (long first = 0; first < block.n; first += strips * lanes) {
    W columns[strips][2];
    for (long i = 0; i < strips; ++i) columns[i][0] = columns[i][1] = all(0.0);
    for (long r = 0; r < block.rows; ++r) {
      const long seen = block.causal ? block.sees[r] - block.key : block.n;
      const long count = (seen < block.n ? seen : block.n) - first;
      const float* line = block.d_scores + r * stride + first;
      W row = all(0.0), other = all(0.0);
      if (__builtin_expect(count >= strips * lanes, 1)) {
#pragma GCC unroll 6
        for (long i = 0; i < strips; ++i) {
          W low, high;
          split(low, high, load(line + i * lanes));
          columns[i][0] = add(columns[i][0], low);
          columns[i][1] = add(columns[i][1], high);
          row = add(row, low);
          other = add(other, high);
        }
      } else {
#pragma GCC unroll 6
        for (long i = 0; i < strips; ++i) {
          if (i * lanes >= count) break;
          W low, high;
          split(low, high, keep_first(load(line + i * lanes), float(count - i * lanes), 0.0f));
          columns[i][0] = add(columns[i][0], low);
          columns[i][1] = add(columns[i][1], high);
          row = add(row, low);
          other = add(other, high);
        }
      }
      double sums[wide_lanes];
      store(sums, add(row, other));
      for (long i = 0; i < wide_lanes; i += 2) rows[r] += sums[i] + sums[i + 1];
    }
    double sums[strips * lanes];
    for (long i = 0; i < 2 * strips; ++i) store(sums + i * wide_lanes, columns[i / 2][i % 2]);
    for (long j = 0; block.dbias && j < strips * lanes && first + j < block.n; ++j)
      block.dbias[first + j] = float(double(block.dbias[first + j]) + sums[j]);
  }
  for (long r = 0; r < block.rows && block.dr; ++r)
    block.dr[r] = float(double(block.dr[r]) + rows[r]);
}

/// dm: squares of differences, weighted with d_scores.
static void sum_squares(const BackwardBlock& block, long d) {
  for (long r = 0; r < block.rows; ++r) {
    const long seen = block.causal ? block.sees[r] - block.key : block.n;
    const long count = seen < block.n ? seen : block.n;
    const float* q = block.dm_lines + d * block.query_rows + r * panel;
    float* dm = block.dm + d * block.query_rows + r * panel;
    const float* k = block.key_lines + d * block.key_rows;
    V left = load(dm), right = load(dm + lanes);
    for (long j = 0; j < count; ++j) {
      const V by = all(block.d_scores + r * stride + j);
      const V l = sub(load(q), load(k + j * panel));
      const V t = sub(load(q + lanes), load(k + j * panel + lanes));
      left = fma(mul(by, l), l, left);
      right = fma(mul(by, t), t, right);
    }
    store(dm, left);
    store(dm + lanes, right);
  }
}

/// dbias, dr and dv.
static void sum_sides(const BackwardBlock& block) {
  if (block.dbias || block.dr) sum_both(block);
  for (long e = 0; e < block.E; e += panel) {
    sum_queries(block,
                {block.dv + e * gradient_keys, block.weights, block.d_o + e * block.query_rows},
                block.E - e);
  }
}

/// Everything that is summed up from a block's weights and d_scores.
static void sum_up(const BackwardBlock& block) {
  sum_sides(block);
  for (long d = 0; d < block.line_width; d += panel) {
    sum_queries(
        block, {block.dk + d * gradient_keys, block.d_scores, block.q_lines + d * block.query_rows},
        block.line_width - d);
  }
  for (long d = 0; d < block.D; d += panel) {
    sum_keys(
        block,
        {block.dq + d * block.query_rows, block.d_scores, block.key_lines + d * block.key_rows},
        block.D - d);
    if (block.dm) sum_squares(block, d);
  }
}
