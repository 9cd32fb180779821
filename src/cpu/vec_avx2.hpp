// SPDX-License-Identifier: Apache-2.0
// Eight floats at a time with AVX2 and FMA. Sixteen registers: a tile of 6 rows x 2 vectors leaves
// four for operands.
#pragma once

#include <immintrin.h>

namespace foci::cpu::avx2 {

using V = __m256;
inline constexpr int lanes = 8;
inline constexpr int tile_rows = 6;

#define FOCI_INLINE static inline __attribute__((always_inline))

FOCI_INLINE V load(const float* p) { return _mm256_loadu_ps(p); }
FOCI_INLINE void store(float* p, V x) { _mm256_storeu_ps(p, x); }
FOCI_INLINE V all(float x) { return _mm256_set1_ps(x); }
FOCI_INLINE V all(const float* p) { return _mm256_broadcast_ss(p); }
FOCI_INLINE V fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
FOCI_INLINE float fma_one(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
FOCI_INLINE V add(V a, V b) { return _mm256_add_ps(a, b); }
FOCI_INLINE V sub(V a, V b) { return _mm256_sub_ps(a, b); }
FOCI_INLINE V mul(V a, V b) { return _mm256_mul_ps(a, b); }
FOCI_INLINE V div(V a, V b) { return _mm256_div_ps(a, b); }
FOCI_INLINE V max(V a, V b) { return _mm256_max_ps(a, b); }
/// |x|
FOCI_INLINE V magnitude(V x) { return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), x); }
FOCI_INLINE bool any_above(V a, V b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a, b, _CMP_GT_OQ)) != 0;
}
/// x where a > b, else y.
FOCI_INLINE V where_above(V a, V b, V x, V y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_GT_OQ));
}
/// x, and 0 where a < b; NaN counts as not below.
FOCI_INLINE V unless_below(V a, V b, V x) {
  return _mm256_and_ps(_mm256_cmp_ps(a, b, _CMP_NLT_UQ), x);
}
/// The first `count` lanes of x, the rest `other`.
FOCI_INLINE V keep_first(V x, float count, float other) {
  const V index = _mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_blendv_ps(all(other), x, _mm256_cmp_ps(index, all(count), _CMP_LT_OQ));
}
FOCI_INLINE float total(V x) {
  __m128 a = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
  a = _mm_add_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_add_ss(a, _mm_movehdup_ps(a)));
}

/// p * 2^n where t = n + 1.5 * 2^23 holds n in its low bits; n >= -127, where the result is 2^-127.
FOCI_INLINE V times_power(V p, V t) {
  const __m256i shifted = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), shifted));
}
/// p * 2^n, and 0 where a < b. NaN counts as not below.
FOCI_INLINE V scaled_unless_below(V a, V b, V p, V, V t) {
  return unless_below(a, b, times_power(p, t));
}

/// Rows become columns.
FOCI_INLINE void transpose(V (&x)[lanes]) {
  V y[lanes];
#pragma GCC unroll 4
  for (int i = 0; i < lanes; i += 2) {
    y[i] = _mm256_unpacklo_ps(x[i], x[i + 1]);
    y[i + 1] = _mm256_unpackhi_ps(x[i], x[i + 1]);
  }
#pragma GCC unroll 2
  for (int i = 0; i < lanes; i += 4) {  // now halves hold four rows of one column each
    x[i] = _mm256_shuffle_ps(y[i], y[i + 2], 0x44);
    x[i + 1] = _mm256_shuffle_ps(y[i], y[i + 2], 0xee);
    x[i + 2] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0x44);
    x[i + 3] = _mm256_shuffle_ps(y[i + 1], y[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const V a = x[i], b = x[i + 4];
    x[i] = _mm256_permute2f128_ps(a, b, 0x20);
    x[i + 4] = _mm256_permute2f128_ps(a, b, 0x31);
  }
}

}  // namespace foci::cpu::avx2
