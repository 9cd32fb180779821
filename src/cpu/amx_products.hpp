// SPDX-License-Identifier: Apache-2.0
// The products of bf16_products.hpp with AMX: two by two tiles, tiles 0 to 3 collect, 4 and 5 are
// rows of the left side, 6 and 7 pairs of the right side. 1 or 2 tiles of rows at a time.
// Included inside the namespace of one instruction set, after amx_tile.hpp.

static constexpr long tile_rows = 16;
static constexpr bool multiplies_aside = true;
static constexpr long line_bytes = panel * sizeof(float);

/// Tiles 0 to 3 += 32 columns of a times 32 lines.
template <int Tiles>
FOCI_INLINE void multiply(const std::uint16_t* a, long a_step, const float* lines) {
  const long step = a_step * sizeof a[0];
  tile_load<4>(a, step);
  tile_load<6>(lines, line_bytes);
  tile_load<7>(lines + lanes, line_bytes);
  tile_multiply<0, 4, 6>();
  tile_multiply<1, 4, 7>();
  if constexpr (Tiles == 2) {
    tile_load<5>(a + tile_rows * a_step, step);
    tile_multiply<2, 5, 6>();
    tile_multiply<3, 5, 7>();
  }
}

template <int Tiles>
FOCI_INLINE void zero_tiles() {
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (Tiles == 2) {
    tile_zero<2>();
    tile_zero<3>();
  }
}

template <int Tiles>
FOCI_INLINE void load_tiles(const float* from, long step) {
  tile_load<0>(from, step * sizeof(float));
  tile_load<1>(from + lanes, step * sizeof(float));
  if constexpr (Tiles == 2) {
    tile_load<2>(from + tile_rows * step, step * sizeof(float));
    tile_load<3>(from + tile_rows * step + lanes, step * sizeof(float));
  }
}

template <int Tiles>
FOCI_INLINE void store_tiles(float* to, long step) {
  tile_store<0>(to, step * sizeof(float));
  tile_store<1>(to + lanes, step * sizeof(float));
  if constexpr (Tiles == 2) {
    tile_store<2>(to + tile_rows * step, step * sizeof(float));
    tile_store<3>(to + tile_rows * step + lanes, step * sizeof(float));
  }
}

template <int Tiles>
FOCI_INLINE void product(const Product& of) {
  zero_tiles<Tiles>();
  for (int part = of.parts - 1; part >= 0; --part) {
    const std::uint16_t* a = of.a + part * of.a_part;
    const float* b = of.b + part * of.b_part;
    for (long d = 0; d < of.depth; d += 32) multiply<Tiles>(a + d, of.a_step, b + d / 2 * panel);
  }
  store_tiles<Tiles>(of.out, panel);
}

static void product(const Product& of) {
  if (of.rows > tile_rows) {
    product<2>(of);
  } else {
    product<1>(of);
  }
}

/// Whether 32 lines of a panel hold nothing infinite and no NaN.
static bool all_finite(const float* lines) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 bad = 0;
  for (long i = 0; i < 16 * panel; i += lanes) {
    const __m512i x = _mm512_and_si512(_mm512_loadu_si512(lines + i), exponent);
    bad |= _mm512_cmpeq_epi16_mask(x, exponent);
  }
  return bad == 0;
}

/// 32 lines from k on with those cleared that row i does not meet.
static void clear_unmet(float* to, const Sum& of, long i, long k) {
  const bool before = of.meets == Meets::before;
  for (long j = 0; j < 16 * panel; j += lanes) {
    const long line = k + j / panel * 2, bound = bound_of(of, i);
    const unsigned low = (line < bound) == before ? 0xffff : 0;
    const unsigned high = (line + 1 < bound) == before ? 0xffff0000 : 0;
    const __m512i pair = _mm512_loadu_si512(of.lines + k / 2 * panel + j);
    _mm512_storeu_si512(to + j, _mm512_and_si512(pair, _mm512_set1_epi32(int(low | high))));
  }
}

/// 32 lines of which some rows do not meet all, and that are not all finite: each row by itself
/// with what it does not meet cleared, in the same order of sums, so that its bits are those of
/// finite lines.
template <int Tiles>
static __attribute__((noinline)) void multiply_apart(const Sum& of, long k) {
  constexpr long size = tile_rows * panel;
  alignas(64) float from[Tiles * size], rows[Tiles * size], to[size], cleared[16 * panel];
  store_tiles<Tiles>(from, panel);
  for (long i = 0; i < Tiles * tile_rows; ++i) {
    const long r = i / tile_rows * tile_rows;
    clear_unmet(cleared, of, i, k);
    load_tiles<1>(from + r * panel, panel);
    multiply<1>(of.a + r * stride + k, stride, cleared);
    store_tiles<1>(to, panel);
    store(rows + i * panel, load(to + (i - r) * panel));
    store(rows + i * panel + lanes, load(to + (i - r) * panel + lanes));
  }
  load_tiles<Tiles>(rows, panel);
}

template <int Tiles>
FOCI_INLINE void sum(const Sum& of) {
  if (of.first) {
    zero_tiles<Tiles>();
  } else {
    load_tiles<Tiles>(of.out, of.out_step);
  }
  constexpr long last = Tiles * tile_rows - 1;
  const bool before = of.meets == Meets::before, after = of.meets == Meets::after;
  const long begin = after ? bound_of(of, 0) / 32 * 32 : 0;  // what any row meets
  const long end = before ? bound_of(of, last) : of.count;
  const long all_begin = after ? bound_of(of, last) : 0;  // what every row meets
  const long all_end = before ? bound_of(of, 0) : of.count;
  for (long k = begin; k < end; k += 32) {
    const float* lines = of.lines + k / 2 * panel;
    const long stop = k + 32 < of.count ? k + 32 : of.count;
    if ((k >= all_begin && stop <= all_end) || all_finite(lines)) {
      multiply<Tiles>(of.a + k, stride, lines);
    } else {
      multiply_apart<Tiles>(of, k);
    }
  }
  store_tiles<Tiles>(of.out, of.out_step);
}

/// Whether the upper of two tiles meets none of some 32 lines that the lower does: what stands in a
/// there was never made.
static bool apart(const Sum& of) {
  return of.meets == Meets::before &&
         padded(bound_of(of, tile_rows - 1), 32) < padded(bound_of(of, 2 * tile_rows - 1), 32);
}

static void sum(Sum of) {
  if (of.rows > tile_rows && !apart(of)) {
    sum<2>(of);
    return;
  }
  for (long r = 0; r < of.rows; r += tile_rows) {
    sum<1>(of);
    of.out += tile_rows * of.out_step;
    of.a += tile_rows * stride;
    of.bound += tile_rows;
  }
}
