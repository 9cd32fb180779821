// SPDX-License-Identifier: Apache-2.0
// Four floats at a time in the compilers' own vector types: any machine.
#pragma once

namespace foci::cpu::portable {

typedef float V __attribute__((vector_size(16)));
typedef int I __attribute__((vector_size(16)));
inline constexpr int lanes = 4;
inline constexpr int tile_rows = 4;

#define FOCI_INLINE static inline __attribute__((always_inline))

FOCI_INLINE V load(const float* p) {
  V x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}
FOCI_INLINE void store(float* p, V x) { __builtin_memcpy(p, &x, sizeof x); }
FOCI_INLINE V all(float x) { return V{x, x, x, x}; }
FOCI_INLINE V all(const float* p) { return all(*p); }
FOCI_INLINE V fma(V a, V b, V c) { return a * b + c; }
FOCI_INLINE float fma_one(float a, float b, float c) { return a * b + c; }
FOCI_INLINE V add(V a, V b) { return a + b; }
FOCI_INLINE V sub(V a, V b) { return a - b; }
FOCI_INLINE V mul(V a, V b) { return a * b; }
FOCI_INLINE V div(V a, V b) { return a / b; }
FOCI_INLINE V max(V a, V b) { return a > b ? a : b; }
/// |x|
FOCI_INLINE V magnitude(V x) {
  I bits;
  __builtin_memcpy(&bits, &x, sizeof bits);
  bits &= 0x7fffffff;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
FOCI_INLINE bool any_above(V a, V b) {
  const I above = a > b;
  return (above[0] | above[1] | above[2] | above[3]) != 0;
}
/// x where a > b, else y.
FOCI_INLINE V where_above(V a, V b, V x, V y) { return a > b ? x : y; }
/// x, and 0 where a < b; NaN counts as not below.
FOCI_INLINE V unless_below(V a, V b, V x) { return a < b ? all(0.0f) : x; }
/// The first `count` lanes of x, the rest `other`.
FOCI_INLINE V keep_first(V x, float count, float other) {
  const V index = {0, 1, 2, 3};
  return index < all(count) ? x : all(other);
}
FOCI_INLINE float total(V x) { return (x[0] + x[1]) + (x[2] + x[3]); }

/// p * 2^n where t = n + 1.5 * 2^23 holds n in its low bits; n >= -127, where the result is 2^-127.
FOCI_INLINE V times_power(V p, V t) {
  typedef unsigned Bits __attribute__((vector_size(16)));  // infinite p wraps around
  Bits bits, shift;
  __builtin_memcpy(&bits, &p, sizeof bits);
  __builtin_memcpy(&shift, &t, sizeof shift);
  bits += shift << 23;
  V x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
/// p * 2^n, and 0 where a < b. NaN counts as not below.
FOCI_INLINE V scaled_unless_below(V a, V b, V p, V, V t) {
  return unless_below(a, b, times_power(p, t));
}

/// Rows become columns.
FOCI_INLINE void transpose(V (&x)[lanes]) {
  const V a = x[0], b = x[1], c = x[2], d = x[3];
  for (int i = 0; i < lanes; ++i) x[i] = V{a[i], b[i], c[i], d[i]};
}

}  // namespace foci::cpu::portable
