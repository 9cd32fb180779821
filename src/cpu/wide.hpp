// SPDX-License-Identifier: Apache-2.0
// Vectors of doubles beside the vectors of floats of isa.hpp: W, as many bytes as V; split() and
// joined() go between one V and two W. max gives its second operand where one is NaN; times_power
// is p * 2^n where t = n + 1.5 * 2^52, n >= -1022.
#pragma once

#include "cpu/isa.hpp"

namespace foci::cpu::FOCI_ISA {

#if defined(FOCI_ISA_AVX512)

using W = __m512d;
FOCI_INLINE W load(const double* p) { return _mm512_loadu_pd(p); }
FOCI_INLINE void store(double* p, W x) { _mm512_storeu_pd(p, x); }
FOCI_INLINE W all(double x) { return _mm512_set1_pd(x); }
FOCI_INLINE W all(const double* p) { return _mm512_set1_pd(*p); }
FOCI_INLINE W fma(W a, W b, W c) { return _mm512_fmadd_pd(a, b, c); }
FOCI_INLINE W add(W a, W b) { return _mm512_add_pd(a, b); }
FOCI_INLINE W sub(W a, W b) { return _mm512_sub_pd(a, b); }
FOCI_INLINE W mul(W a, W b) { return _mm512_mul_pd(a, b); }
FOCI_INLINE W max(W a, W b) { return _mm512_maskz_max_pd(0xff, a, b); }
FOCI_INLINE W times_power(W p, W t) {
  const __m512i shifted = _mm512_maskz_slli_epi64(0xff, _mm512_castpd_si512(t), 52);
  return _mm512_castsi512_pd(_mm512_add_epi64(_mm512_castpd_si512(p), shifted));
}
FOCI_INLINE W load_wide(const float* p) { return _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(p)); }
FOCI_INLINE void split(W& low, W& high, V x) {
  low = _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, x, 0));
  high = _mm512_maskz_cvtps_pd(0xff, _mm512_maskz_extractf32x8_ps(0xff, x, 1));
}
FOCI_INLINE V joined(W low, W high) {
  const V half = _mm512_castps256_ps512(_mm512_maskz_cvtpd_ps(0xff, low));
  return _mm512_maskz_insertf32x8(0xffff, half, _mm512_maskz_cvtpd_ps(0xff, high), 1);
}

#elif defined(FOCI_ISA_AVX2)

using W = __m256d;
FOCI_INLINE W load(const double* p) { return _mm256_loadu_pd(p); }
FOCI_INLINE void store(double* p, W x) { _mm256_storeu_pd(p, x); }
FOCI_INLINE W all(double x) { return _mm256_set1_pd(x); }
FOCI_INLINE W all(const double* p) { return _mm256_broadcast_sd(p); }
FOCI_INLINE W fma(W a, W b, W c) { return _mm256_fmadd_pd(a, b, c); }
FOCI_INLINE W add(W a, W b) { return _mm256_add_pd(a, b); }
FOCI_INLINE W sub(W a, W b) { return _mm256_sub_pd(a, b); }
FOCI_INLINE W mul(W a, W b) { return _mm256_mul_pd(a, b); }
FOCI_INLINE W max(W a, W b) { return _mm256_max_pd(a, b); }
FOCI_INLINE W times_power(W p, W t) {
  const __m256i shifted = _mm256_slli_epi64(_mm256_castpd_si256(t), 52);
  return _mm256_castsi256_pd(_mm256_add_epi64(_mm256_castpd_si256(p), shifted));
}
FOCI_INLINE W load_wide(const float* p) { return _mm256_cvtps_pd(_mm_loadu_ps(p)); }
FOCI_INLINE void split(W& low, W& high, V x) {
  low = _mm256_cvtps_pd(_mm256_castps256_ps128(x));
  high = _mm256_cvtps_pd(_mm256_extractf128_ps(x, 1));
}
FOCI_INLINE V joined(W low, W high) {
  return _mm256_set_m128(_mm256_cvtpd_ps(high), _mm256_cvtpd_ps(low));
}

#else

typedef double W __attribute__((vector_size(16)));
FOCI_INLINE W load(const double* p) {
  W x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
FOCI_INLINE void store(double* p, W x) { __builtin_memcpy(p, &x, sizeof x); }
FOCI_INLINE W all(double x) { return W{x, x}; }
FOCI_INLINE W all(const double* p) { return all(*p); }
FOCI_INLINE W fma(W a, W b, W c) { return a * b + c; }
FOCI_INLINE W add(W a, W b) { return a + b; }
FOCI_INLINE W sub(W a, W b) { return a - b; }
FOCI_INLINE W mul(W a, W b) { return a * b; }
FOCI_INLINE W max(W a, W b) { return a > b ? a : b; }
FOCI_INLINE W times_power(W p, W t) {
  typedef unsigned long long Bits __attribute__((vector_size(16)));
  return (W)((Bits)p + ((Bits)t << 52));
}
FOCI_INLINE W load_wide(const float* p) { return W{double(p[0]), double(p[1])}; }
FOCI_INLINE void split(W& low, W& high, V x) {
  low = W{double(x[0]), double(x[1])};
  high = W{double(x[2]), double(x[3])};
}
FOCI_INLINE V joined(W low, W high) {
  return V{float(low[0]), float(low[1]), float(high[0]), float(high[1])};
}

#endif

inline constexpr int wide_lanes = lanes / 2;

}  // namespace foci::cpu::FOCI_ISA
