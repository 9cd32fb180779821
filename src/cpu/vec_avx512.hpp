// SPDX-License-Identifier: Apache-2.0
// Sixteen floats at a time with AVX-512. Thirty-two registers: a tile of 12 rows x 2 vectors.
#pragma once

#include <immintrin.h>

namespace foci::cpu::avx512 {

using V = __m512;
inline constexpr int lanes = 16;
inline constexpr int tile_rows = 12;

#define FOCI_INLINE static inline __attribute__((always_inline))

FOCI_INLINE V load(const float* p) { return _mm512_loadu_ps(p); }
FOCI_INLINE void store(float* p, V x) { _mm512_storeu_ps(p, x); }
FOCI_INLINE V all(float x) { return _mm512_set1_ps(x); }
FOCI_INLINE V all(const float* p) { return _mm512_set1_ps(*p); }
FOCI_INLINE V fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
FOCI_INLINE float fma_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FOCI_INLINE V add(V a, V b) { return _mm512_add_ps(a, b); }
FOCI_INLINE V sub(V a, V b) { return _mm512_sub_ps(a, b); }
FOCI_INLINE V mul(V a, V b) { return _mm512_mul_ps(a, b); }
FOCI_INLINE V div(V a, V b) { return _mm512_div_ps(a, b); }
FOCI_INLINE V max(V a, V b) { return _mm512_maskz_max_ps(0xffff, a, b); }
/// |x|
FOCI_INLINE V magnitude(V x) { return _mm512_andnot_ps(_mm512_set1_ps(-0.0f), x); }
FOCI_INLINE bool any_above(V a, V b) { return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ) != 0; }
/// x where a > b, else y.
FOCI_INLINE V where_above(V a, V b, V x, V y) {
  return _mm512_mask_mov_ps(y, _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ), x);
}
/// x, and 0 where a < b; NaN counts as not below.
FOCI_INLINE V unless_below(V a, V b, V x) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), x);
}
/// The first `count` lanes of x, the rest `other`.
FOCI_INLINE V keep_first(V x, float count, float other) {
  const V index = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return _mm512_mask_mov_ps(all(other), _mm512_cmp_ps_mask(index, all(count), _CMP_LT_OQ), x);
}
FOCI_INLINE float total(V x) {
  const __m256 half = _mm256_add_ps(_mm512_maskz_extractf32x8_ps(0xff, x, 0),
                                    _mm512_maskz_extractf32x8_ps(0xff, x, 1));
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/// p * 2^n, and 0 where a < b; t = n + 1.5 * 2^23. NaN counts as not below.
FOCI_INLINE V scaled_unless_below(V a, V b, V p, V n, V) {
  return _mm512_maskz_scalef_ps(_mm512_cmp_ps_mask(a, b, _CMP_NLT_UQ), p, n);
}

/// Rows become columns.
FOCI_INLINE void transpose(V (&x)[lanes]) {
  const auto low = [](V a, V b) { return _mm512_maskz_unpacklo_ps(0xffff, a, b); };
  const auto high = [](V a, V b) { return _mm512_maskz_unpackhi_ps(0xffff, a, b); };
  const auto low_pairs = [](V a, V b) {
    return _mm512_castpd_ps(
        _mm512_maskz_unpacklo_pd(0xff, _mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto high_pairs = [](V a, V b) {
    return _mm512_castpd_ps(
        _mm512_maskz_unpackhi_pd(0xff, _mm512_castps_pd(a), _mm512_castps_pd(b)));
  };
  const auto even = [](V a, V b) { return _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0x88); };
  const auto odd = [](V a, V b) { return _mm512_maskz_shuffle_f32x4(0xffff, a, b, 0xdd); };
  V y[lanes];
#pragma GCC unroll 8
  for (int i = 0; i < lanes; i += 2) {
    y[i] = low(x[i], x[i + 1]);
    y[i + 1] = high(x[i], x[i + 1]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < lanes; i += 4) {  // now quarters hold four rows of one column each
    x[i] = low_pairs(y[i], y[i + 2]);
    x[i + 1] = high_pairs(y[i], y[i + 2]);
    x[i + 2] = low_pairs(y[i + 1], y[i + 3]);
    x[i + 3] = high_pairs(y[i + 1], y[i + 3]);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V a = even(x[i], x[i + 4]), b = odd(x[i], x[i + 4]);
    const V c = even(x[i + 8], x[i + 12]), d = odd(x[i + 8], x[i + 12]);
    x[i] = even(a, c);
    x[i + 4] = even(b, d);
    x[i + 8] = odd(a, c);
    x[i + 12] = odd(b, d);
  }
}

}  // namespace foci::cpu::avx512
