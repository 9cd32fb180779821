// SPDX-License-Identifier: Apache-2.0
// Keys as a full metric sees them, panel by panel: z = W (x - centre) and |z|^2, and the way back.
// The triangle of W that is zero is not multiplied. Compiled once per instruction set.
#include "cpu/wide.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

std::int64_t whitening_room(std::int64_t D);
std::int64_t whitening_room(std::int64_t D) { return padded(D, tile_rows) * D + D * panel; }

/// What a row of a triangular matrix has, from the first row of a tile to the last.
struct Reach {
  long begin, end;
};
FOCI_INLINE Reach reach_of(long r, long D, bool lower) {
  const long last = r + tile_rows < D ? r + tile_rows : D;
  return lower ? Reach{0, last} : Reach{r, D};
}

/// Slivers of tile_rows rows of a triangular matrix: [row/tile_rows][D][tile_rows], zero padded, as
/// far as they reach. From the transpose, where the numbers of a line are neighbours; a line is
/// stored as a whole vector where that stays within it, and what lies behind is written next.
static void pack_factor(float* to, const float* transposed, long D, bool lower) {
  for (long r = 0; r < D; r += tile_rows) {
    const Reach reach = reach_of(r, D, lower);
    const long count = D - r < tile_rows ? D - r : tile_rows;
    for (long d = reach.begin; d < reach.end; ++d) {
      const float* line = transposed + d * D + r;
      float* sliver = to + r * D + d * tile_rows;
      if (r + lanes <= D && lanes <= 2 * tile_rows && d + 1 < D) {
        store(sliver, load(line));
        for (long i = lanes; i < tile_rows; ++i) sliver[i] = line[i];
      } else {
        for (long i = 0; i < tile_rows; ++i) sliver[i] = i < count ? line[i] : 0;
      }
    }
  }
}

/// Rows [r, r + Rows) of W x for one panel, beyond what c starts with; W has nothing outside
/// [begin, end).
template <int Rows>
FOCI_INLINE void multiply_tile(V (&c)[Rows][2], const float* slivers, const float* x, long D,
                               long r, Reach reach) {
  multiply<Rows, 2, 1, tile_rows>(c, slivers + r * D + reach.begin * tile_rows,
                                  x + reach.begin * panel, panel, reach.end - reach.begin);
}

template <int Rows>
FOCI_INLINE void whiten_tile(float* z, V (&norm)[2], const float* slivers, const float* x, long D,
                             long r, Reach reach) {
  V c[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  multiply_tile(c, slivers, x, D, r, reach);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    if (r + i >= D) break;
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      store(z + (r + i) * panel + j * lanes, c[i][j]);
      norm[j] = fma(c[i][j], c[i][j], norm[j]);  // in the order a product with itself would sum
    }
  }
}

void whiten_panels(const WhitenedPanels& of);
void whiten_panels(const WhitenedPanels& of) {
  const long D = of.D;
  float *slivers = of.room, *x = slivers + padded(D, tile_rows) * D;
  pack_factor(slivers, of.Wt, D, of.lower);
  for (long key = 0; key < of.n; key += panel) {
    const float* raw = of.keys + key * D;
    for (long d = 0; d < D; ++d) {
      const V centre = all(of.centre + d);
      for (long j = 0; j < panel; j += lanes)
        store(x + d * panel + j, sub(load(raw + d * panel + j), centre));
    }
    V norm[2] = {all(0.0f), all(0.0f)};
    for (long r = 0; r < D; r += tile_rows) {
      const Reach reach = reach_of(r, D, of.lower);
      if (D - r <= few_rows) {
        whiten_tile<few_rows>(of.z + key * D, norm, slivers, x, D, r, reach);
      } else {
        whiten_tile<tile_rows>(of.z + key * D, norm, slivers, x, D, r, reach);
      }
    }
    for (int j = 0; j < 2; ++j) store(of.norms + key + j * lanes, norm[j]);
  }
}

template <int Rows>
FOCI_INLINE void unwhiten_tile(float* to, const float* slivers, const float* x, long D, long r,
                               Reach reach) {
  V c[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    const float* line = to + (r + i < D ? r + i : D - 1) * panel;
    c[i][0] = load(line);
    c[i][1] = load(line + lanes);
  }
  multiply_tile(c, slivers, x, D, r, reach);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    if (r + i >= D) break;
    store(to + (r + i) * panel, c[i][0]);
    store(to + (r + i) * panel + lanes, c[i][1]);
  }
}

void unwhiten_panels(const UnwhitenedPanels& of);
void unwhiten_panels(const UnwhitenedPanels& of) {
  const long D = of.D;
  float *slivers = of.room, *x = slivers + padded(D, tile_rows) * D;
  pack_factor(slivers, of.W, D, !of.lower);
  for (long key = 0; key < of.n; key += panel) {
    const float* z = of.z + key * D;
    for (long j = 0; j < panel; j += lanes) {
      // Keys behind the last may be infinite, which even 0 would not take back.
      const float count = float(of.n - key - j);
      const V by = keep_first(load(of.by + key + j), count, 0.0f);
      for (long d = 0; d < D; ++d)
        store(x + d * panel + j, keep_first(mul(by, load(z + d * panel + j)), count, 0.0f));
    }
    for (long r = 0; r < D; r += tile_rows) {
      const Reach reach = reach_of(r, D, !of.lower);
      if (D - r <= few_rows) {
        unwhiten_tile<few_rows>(of.to + key * D, slivers, x, D, r, reach);
      } else {
        unwhiten_tile<tile_rows>(of.to + key * D, slivers, x, D, r, reach);
      }
    }
  }
}

static constexpr int scatter_rows = tile_rows < 8 ? 4 : 8;  // whole ones in a panel

/// scatter_rows rows of the sum, Vectors vectors of its columns.
template <int Vectors>
static void scatter_tile(double* sum, long step, const float* a, const float* lines, long n,
                         bool adds) {
  V c[scatter_rows][Vectors];
#pragma GCC unroll 16
  for (int t = 0; t < scatter_rows * Vectors; ++t) c[t / Vectors][t % Vectors] = all(0.0f);
  multiply<scatter_rows, Vectors, 1, panel>(c, a, lines, panel, n);
#pragma GCC unroll 16
  for (int t = 0; t < scatter_rows * Vectors; ++t) {
    double* to = sum + t / Vectors * step + t % Vectors * lanes;
    W low, high;
    split(low, high, c[t / Vectors][t % Vectors]);
    store(to, adds ? add(load(to), low) : low);
    store(to + wide_lanes, adds ? add(load(to + wide_lanes), high) : high);
  }
}

void scatter_lines(const ScatteredLines& of);
void scatter_lines(const ScatteredLines& of) {
  const long step = padded(of.D, panel);
  for (long d = 0; d < of.D; d += panel) {
    for (long j = 0; j < of.n; ++j) {
      const long at = d * of.rows + j * panel;
      for (long x = 0; x < panel; x += lanes)
        store(of.room + at + x, mul(all(of.by + j), load(of.lines + at + x)));
    }
  }
  for (long first = 0; first < of.n; first += of.most) {
    const long n = of.n - first < of.most ? of.n - first : of.most;
    const bool adds = of.adds || first > 0;
    for (long d = 0; d < of.D; d += scatter_rows) {
      const float* a = of.room + d / panel * panel * of.rows + first * panel + d % panel;
      for (long e = d / panel * panel; e < of.D; e += panel) {
        const float* lines = of.lines + e * of.rows + first * panel;
        double* sum = of.sum + d * step + e;
        if (e + lanes <= d) {
          scatter_tile<1>(sum + lanes, step, a, lines + lanes, n, adds);
        } else {
          scatter_tile<2>(sum, step, a, lines, n, adds);
        }
      }
    }
  }
}

}  // namespace foci::cpu::FOCI_ISA
