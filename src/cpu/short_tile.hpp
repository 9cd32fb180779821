// SPDX-License-Identifier: Apache-2.0
// What short sequences share, forward and backward: lines as rows of tiles or as lanes, and their
// products. Included inside the namespace of one instruction set, after tile.hpp.

static constexpr float hidden = -1e29f;

/// Tiles of fewer rows for what is left over.
static constexpr int rest = tile_rows % 3 == 0 ? tile_rows / 3 : tile_rows / 2;

/// Lines (n,D) as column panels of `rows` rows; the last line again and again.
static void copy_lines(float* to, const float* from, long n, long rows, long D) {
  pack_columns(to, from, n, rows, D);
  for (long d = 0; d < D && n > 0; d += panel) {
    float* lines = to + d * rows;
    for (long j = n; j < rows; ++j) {
      for (long x = 0; x < panel; x += lanes)
        store(lines + j * panel + x, load(lines + (n - 1) * panel + x));
    }
  }
}

/// `scale` times (count,D) lines as lanes, [D][panel]; those that are not there are zero.
template <int Vectors>
static void turn_lines(float* to, const float* from, float scale, long count, long D) {
  for (long v = 0; v < Vectors; ++v) {
    const long left = count - v * lanes;
    const float* lines = from + v * lanes * D;
    for (long d = 0; d < D; d += lanes) {
      V x[lanes];
#pragma GCC unroll 16
      for (long i = 0; i < lanes; ++i)
        x[i] = i < left ? mul(all(scale), load(lines + i * D + d)) : all(0.0f);
      transpose(x);
#pragma GCC unroll 16
      for (long i = 0; i < lanes; ++i) store(to + (d + i) * panel + v * lanes, x[i]);
    }
  }
}

/// c = a . b, a in column panels of `rows` rows at their first, b as lanes.
template <int Rows, int Vectors>
FOCI_INLINE void products(V (&c)[Rows][Vectors], const float* a, long rows, const float* b,
                          long D) {
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) c[t / Vectors][t % Vectors] = all(0.0f);
  for (long d = 0; d < D; d += panel) {
    multiply<Rows, Vectors, panel, 1>(c, a + d * rows, b + d * panel, panel,
                                      D - d < panel ? D - d : panel);
  }
}

/// Keeps the scores of keys [key, key + Rows) for the lanes that see them.
template <int Rows, int Vectors>
FOCI_INLINE void hide(V (&c)[Rows][Vectors], const float* sees, long key, float unseen) {
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) {
    V& x = c[t / Vectors][t % Vectors];
    x = where_above(load(sees + t % Vectors * lanes), all(float(key + t / Vectors)), x,
                    all(unseen));
  }
}

/// c += weights [key][panel] of some rows times lines (n,width) of the keys they see. Causal rows
/// stop where they see no further: an unseen line is not even multiplied with 0, for it may be
/// infinite.
template <int Rows, int Vectors>
FOCI_INLINE void sum_seen(V (&c)[Rows][Vectors], const float* weights, const float* lines,
                          long width, const std::int64_t* sees, long common, long last) {
  multiply<Rows, Vectors, 1, panel>(c, weights, lines, width, common);
  for (long j = common; j < last; ++j) {
#pragma GCC unroll 32
    for (int t = 0; t < Rows * Vectors; ++t) {
      V& x = c[t / Vectors][t % Vectors];
      if (sees[t / Vectors] > j) {
        x = fma(all(weights + j * panel + t / Vectors),
                load(lines + j * width + t % Vectors * lanes), x);
      }
    }
  }
}
