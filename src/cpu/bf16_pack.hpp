// SPDX-License-Identifier: Apache-2.0
// Lines of bf16 as the products want them. A pair is two neighbours along the summed dimension in
// 32 bits; panels hold 32 keys or columns side by side.
// Included inside the namespace of one instruction set, after bf16_vector.hpp.

static inline std::int64_t keys_room(std::int64_t n, std::int64_t D) {
  return padded(n, panel) * padded(D, 32) / 2;
}
static inline std::int64_t values_room(std::int64_t n, std::int64_t E) {
  return padded(n, panel) * padded(E, panel) / 2;
}

/// Line `i` of `lines` from element x on, 32 of them, zero past the ends.
FOCI_INLINE __m512i line_at(const NarrowLines& lines, long i, long x) {
  if (i >= lines.count) return _mm512_setzero_si512();
  const std::uint16_t* from = lines.from + i * lines.step + x;
  if (lines.width - x >= 32) return _mm512_loadu_si512(from);
  return _mm512_maskz_loadu_epi16((1u << (lines.width - x)) - 1, from);
}

/// 16 x 16 of 32 bits, in place.
FOCI_INLINE void transpose(__m512i (&x)[16]) {
  __m512i y[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_maskz_unpacklo_epi32(0xffff, x[i], x[i + 1]);
    y[i + 1] = _mm512_maskz_unpackhi_epi32(0xffff, x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      x[i + 2 * j] = _mm512_maskz_unpacklo_epi64(0xff, y[i + j], y[i + j + 2]);
      x[i + 2 * j + 1] = _mm512_maskz_unpackhi_epi64(0xff, y[i + j], y[i + j + 2]);
    }
  }
  // x[4 g + c] holds in quarter l what belongs to row 4 l + c, columns 4 g and on.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    y[c] = _mm512_maskz_shuffle_i32x4(0xffff, x[c], x[4 + c], 0x88);
    y[4 + c] = _mm512_maskz_shuffle_i32x4(0xffff, x[8 + c], x[12 + c], 0x88);
    y[8 + c] = _mm512_maskz_shuffle_i32x4(0xffff, x[c], x[4 + c], 0xdd);
    y[12 + c] = _mm512_maskz_shuffle_i32x4(0xffff, x[8 + c], x[12 + c], 0xdd);
  }
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    x[c] = _mm512_maskz_shuffle_i32x4(0xffff, y[c], y[4 + c], 0x88);
    x[8 + c] = _mm512_maskz_shuffle_i32x4(0xffff, y[c], y[4 + c], 0xdd);
    x[4 + c] = _mm512_maskz_shuffle_i32x4(0xffff, y[8 + c], y[12 + c], 0x88);
    x[12 + c] = _mm512_maskz_shuffle_i32x4(0xffff, y[8 + c], y[12 + c], 0xdd);
  }
}

static void pack_keys(float* to, const NarrowLines& lines, std::int64_t first) {
  const long D = padded(lines.width, 32);
  for (long i = 0; i < lines.count; i += lanes) {
    const long key = first + i;
    float* out = to + (key / panel * panel) * D / 2 + key % panel;
    for (long d = 0; d < D; d += 32) {
      __m512i x[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) x[r] = line_at(lines, i + r, d);
      transpose(x);
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) _mm512_storeu_si512(out + (d / 2 + r) * panel, x[r]);
    }
  }
  const long end = first + lines.count;
  if (end % panel == 0 || end % panel > lanes) return;
  float* out = to + (end / panel * panel) * D / 2 + lanes;
  for (long d = 0; d < D / 2; ++d) store(out + d * panel, all(0.0f));
}

static void pack_values(float* to, const NarrowLines& lines, std::int64_t first, std::int64_t n) {
  const __m512i spread = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  const long rows = padded(n, panel);
  for (long e = 0; e < lines.width; e += panel) {
    float* out = to + (e * rows + first * panel) / 2;
    for (long i = 0; i < padded(lines.count, panel); i += 2, out += panel) {
      const __m512i a = _mm512_maskz_permutexvar_epi64(0xff, spread, line_at(lines, i, e));
      const __m512i b = _mm512_maskz_permutexvar_epi64(0xff, spread, line_at(lines, i + 1, e));
      _mm512_storeu_si512(out, _mm512_unpacklo_epi16(a, b));
      _mm512_storeu_si512(out + lanes, _mm512_unpackhi_epi16(a, b));
    }
  }
}

/// 32 floats in parts of eight bits, the first the nearest bf16, each next what is left. any[i]
/// collects the bits of part i.
FOCI_INLINE void store_parts(std::uint16_t* to, long part, int parts, V low, V high, __m512i* any) {
  for (int i = 0; i < parts; ++i, to += part) {
    const __m512i x = (__m512i)_mm512_cvtne2ps_pbh(high, low);
    _mm512_storeu_si512(to, x);
    any[i] = _mm512_or_si512(any[i], x);
    low = avx512::sub(low, widen_16(to));
    high = avx512::sub(high, widen_16(to + lanes));
  }
}

/// lines.count rows of floats, or of lines where `from` is null -> `parts` times (rows, padded
/// width), zero padded. Gives back how many parts are not all zero, at least one.
static int pack_rows(std::uint16_t* to, const float* from, const NarrowLines& lines, long rows,
                     int parts) {
  const long D = padded(lines.width, 32);
  __m512i any[most_parts] = {};
  for (long i = 0; i < rows; ++i, to += D) {
    for (long d = 0; d < D; d += 32) {
      if (!from || i >= lines.count) {
        _mm512_storeu_si512(to + d, line_at(lines, i, d));
        for (int p = 1; p < parts; ++p)
          _mm512_storeu_si512(to + p * rows * D + d, _mm512_setzero_si512());
        continue;
      }
      const float* x = from + i * lines.width + d;
      const V low = _mm512_maskz_loadu_ps(first_lanes(lines.width - d), x);
      const V high = _mm512_maskz_loadu_ps(first_lanes(lines.width - d - lanes), x + lanes);
      store_parts(to + d, rows * D, parts, low, high, any);
    }
  }
  while (parts > 1 && _mm512_test_epi32_mask(any[parts - 1], any[parts - 1]) == 0) --parts;
  return parts;
}
