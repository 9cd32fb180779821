// SPDX-License-Identifier: Apache-2.0
// The products of bf16_products.hpp with AVX512-BF16: an instruction multiplies sixteen pairs and
// adds both products to sixteen floats. Register tiles of 8 rows x 2 vectors.
// Included inside the namespace of one instruction set.

static constexpr long tile_rows = 8;
static constexpr bool multiplies_aside = false;
FOCI_INLINE void open_tiles() {}
FOCI_INLINE void close_tiles() {}

/// c[i][j] += sum over pairs of a(i) b(j): rows of a every `step` bf16, b one line of 32 pairs
/// after the other.
template <int Rows, int Vectors>
FOCI_INLINE void multiply(V (&c)[Rows][Vectors], const std::uint16_t* a, long step, const float* b,
                          long pairs) {
#pragma GCC unroll 4
  for (long k = 0; k < pairs; ++k, a += 2, b += panel) {
    __m512bh line[Vectors];
#pragma GCC unroll 2
    for (int j = 0; j < Vectors; ++j) line[j] = (__m512bh)_mm512_loadu_si512(b + j * lanes);
#pragma GCC unroll 8
    for (int i = 0; i < Rows; ++i) {
      int pair;
      __builtin_memcpy(&pair, a + i * step, sizeof pair);
      const __m512bh x = (__m512bh)_mm512_set1_epi32(pair);
#pragma GCC unroll 2
      for (int j = 0; j < Vectors; ++j) c[i][j] = _mm512_dpbf16_ps(c[i][j], x, line[j]);
    }
  }
}

static void product(const Product& of) {
  for (long r = 0; r < of.rows; r += tile_rows) {
    V c[tile_rows][2];
#pragma GCC unroll 8
    for (auto& row : c) row[0] = row[1] = all(0.0f);
    for (int part = of.parts - 1; part >= 0; --part) {
      multiply(c, of.a + part * of.a_part + r * of.a_step, of.a_step, of.b + part * of.b_part,
               (of.depth + 1) / 2);
    }
    float* out = of.out + r * panel;
#pragma GCC unroll 8
    for (int i = 0; i < tile_rows; ++i) {
      store(out + i * panel, c[i][0]);
      store(out + i * panel + lanes, c[i][1]);
    }
  }
}

/// `pairs` pairs of lines onto Rows rows of out.
template <int Rows, int Vectors>
FOCI_INLINE void gather(float* out, long step, const std::uint16_t* a, const float* lines,
                        long pairs) {
  V c[Rows][Vectors];
#pragma GCC unroll 16
  for (int t = 0; t < Rows * Vectors; ++t)
    c[t / Vectors][t % Vectors] = load(out + (t / Vectors) * step + (t % Vectors) * lanes);
  multiply(c, a, stride, lines, pairs);
#pragma GCC unroll 16
  for (int t = 0; t < Rows * Vectors; ++t)
    store(out + (t / Vectors) * step + (t % Vectors) * lanes, c[t / Vectors][t % Vectors]);
}

/// Half of a pair onto one row: which = 0 for its first line, 1 for its second.
template <int Vectors>
static void gather_half(float* out, const std::uint16_t* a, const float* lines, int which) {
  float half[panel];
  const __m512i mask = _mm512_set1_epi32(which == 0 ? 0xffff : int(0xffff0000));
  for (int j = 0; j < Vectors; ++j) {
    const __m512i pair = _mm512_loadu_si512(lines + j * lanes);
    _mm512_storeu_si512(half + j * lanes, _mm512_and_si512(pair, mask));
  }
  gather<1, Vectors>(out, 0, a, half, 1);
}

/// Lines [begin, end) onto one row.
template <int Vectors>
static void gather_row(float* out, const std::uint16_t* a, const float* lines, long begin,
                       long end) {
  if (begin >= end) return;
  if (begin % 2 == 1) {
    gather_half<Vectors>(out, a + begin - 1, lines + begin / 2 * panel, 1);
    ++begin;
  }
  if (begin < end)
    gather<1, Vectors>(out, 0, a + begin, lines + begin / 2 * panel, (end - begin) / 2);
  if (begin < end && end % 2 == 1)
    gather_half<Vectors>(out, a + end - 1, lines + end / 2 * panel, 0);
}

/// Rows [r, r + tile_rows): what all of them meet in one go, the rest row by row.
template <int Vectors>
static void sum_tile(const Sum& of, long r) {
  float* out = of.out + r * of.out_step;
  const std::uint16_t* a = of.a + r * stride;
  for (long i = 0; i < tile_rows && of.first; ++i) {
    for (int j = 0; j < Vectors; ++j) store(out + i * of.out_step + j * lanes, all(0.0f));
  }
  long begin = 0, end = padded(of.count, 2);
  if (of.meets == Meets::before) end = bound_of(of, r) == of.count ? end : bound_of(of, r) / 2 * 2;
  if (of.meets == Meets::after) begin = padded(bound_of(of, r + tile_rows - 1), 2);
  for (long i = 0; i < tile_rows && of.meets == Meets::after; ++i)
    gather_row<Vectors>(out + i * of.out_step, a + i * stride, of.lines, bound_of(of, r + i),
                        begin < of.count ? begin : of.count);
  if (begin < end)
    gather<tile_rows, Vectors>(out, of.out_step, a + begin, of.lines + begin / 2 * panel,
                               (end - begin) / 2);
  for (long i = 0; i < tile_rows && of.meets == Meets::before; ++i)
    gather_row<Vectors>(out + i * of.out_step, a + i * stride, of.lines, end, bound_of(of, r + i));
}

static void sum(const Sum& of) {
  for (long r = 0; r < of.rows; r += tile_rows) {
    if (of.columns > lanes) {
      sum_tile<2>(of, r);
    } else {
      sum_tile<1>(of, r);
    }
  }
}
