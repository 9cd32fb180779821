// SPDX-License-Identifier: Apache-2.0
// Keys as a full metric sees them, panel by panel: z = W (x - centre) and |z|^2. The triangle of W
// that is zero is not multiplied. Compiled once per instruction set.
#include "cpu/isa.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

std::int64_t whitening_room(std::int64_t D);
std::int64_t whitening_room(std::int64_t D) { return padded(D, tile_rows) * D + D * panel; }

/// Slivers of tile_rows rows: [row/tile_rows][D][tile_rows], zero padded.
static void pack_factor(float* to, const float* W, long D) {
  for (long r = 0; r < D; r += tile_rows) {
    for (long d = 0; d < D; ++d) {
      for (long i = 0; i < tile_rows; ++i)
        to[(r * D) + d * tile_rows + i] = r + i < D ? W[(r + i) * D + d] : 0;
    }
  }
}

/// Rows [r, r + Rows) of z for one panel; W has nothing outside [begin, end).
template <int Rows>
FOCI_INLINE void whiten_tile(float* z, V (&norm)[2], const float* slivers, const float* x, long D,
                             long r, long begin, long end) {
  V c[Rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  multiply<Rows, 2, 1, tile_rows>(c, slivers + r * D + begin * tile_rows, x + begin * panel, panel,
                                  end - begin);
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
  pack_factor(slivers, of.W, D);
  for (long key = 0; key < of.n; key += panel) {
    const float* raw = of.keys + key * D;
    for (long d = 0; d < D; ++d) {
      const V centre = all(of.centre + d);
      for (long j = 0; j < panel; j += lanes)
        store(x + d * panel + j, sub(load(raw + d * panel + j), centre));
    }
    V norm[2] = {all(0.0f), all(0.0f)};
    for (long r = 0; r < D; r += tile_rows) {
      const long last = r + tile_rows < D ? r + tile_rows : D;
      const long begin = of.lower ? 0 : r, end = of.lower ? last : D;
      if (last - r <= few_rows) {
        whiten_tile<few_rows>(of.z + key * D, norm, slivers, x, D, r, begin, end);
      } else {
        whiten_tile<tile_rows>(of.z + key * D, norm, slivers, x, D, r, begin, end);
      }
    }
    for (int j = 0; j < 2; ++j) store(of.norms + key + j * lanes, norm[j]);
  }
}

}  // namespace foci::cpu::FOCI_ISA
