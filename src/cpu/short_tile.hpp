// SPDX-License-Identifier: Apache-2.0
// What short sequences share, forward and backward: lines as rows of tiles or as lanes, and their
// products. Included inside the namespace of one instruction set, after tile.hpp.

static constexpr float hidden = -1e29f;

/// Tiles of fewer rows for what is left over.
static constexpr int rest = tile_rows % 3 == 0 ? tile_rows / 3 : tile_rows / 2;

/// Lines (n,D) as column panels of `rows` rows; the last line again and again.
static void copy_lines(float* to, const float* from, long n, long rows, long D) {
  for (long d = 0; d < D; d += lanes, from += lanes) {
    float* out = to + d / panel * panel * rows + d % panel;
    for (long j = 0; j < n; ++j) store(out + j * panel, load(from + j * D));
    for (long j = n; j < rows && n > 0; ++j) store(out + j * panel, load(from + (n - 1) * D));
  }
}

/// Some of lanes x lanes numbers, `scale` times them, as lanes.
template <bool Some>
FOCI_INLINE void turn(float* to, const float* from, float scale, long count, long D) {
  V x[lanes];
#pragma GCC unroll 16
  for (long i = 0; i < lanes; ++i)
    x[i] = !Some || i < count ? mul(all(scale), load(from + i * D)) : all(0.0f);
  transpose(x);
#pragma GCC unroll 16
  for (long i = 0; i < lanes; ++i) store(to + i * panel, x[i]);
}

/// `scale` times (count,D) lines as lanes, [D][panel]; those that are not there are zero.
template <int Vectors>
static void turn_lines(float* to, const float* from, float scale, long count, long D) {
  for (long v = 0; v < Vectors; ++v) {
    const long left = count - v * lanes;
    const float* lines = from + v * lanes * D;
    float* out = to + v * lanes;
    for (long d = 0; d < D; d += lanes) {
      left < lanes ? turn<true>(out + d * panel, lines + d, scale, left, D)
                   : turn<false>(out + d * panel, lines + d, scale, left, D);
    }
  }
}

/// What the rows of a panel see, as floats; the last of them again and again.
static void place_sees(float* to, const std::int64_t* sees, long rows) {
  for (long i = 0; i < panel; ++i) to[i] = float(sees[i < rows ? i : rows - 1]);
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
    const long row = t / Vectors;
    V& x = c[row][t % Vectors];
    x = where_above(load(sees + t % Vectors * lanes), all(float(key + row)), x, all(unseen));
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
