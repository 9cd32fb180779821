// SPDX-License-Identifier: Apache-2.0
// Sixteen-bit floats beside the vectors of isa.hpp: widened as they are read.
#pragma once

#include "cpu/isa.hpp"

namespace foci::cpu::FOCI_ISA {

struct B16 {
  unsigned short bits;
};
struct H16 {
  unsigned short bits;
};

#if defined(FOCI_ISA_AVX512)

FOCI_INLINE V load(const B16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, bits);
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
}
FOCI_INLINE V load(const H16* p) {
  return _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}

#elif defined(FOCI_ISA_AVX2)

FOCI_INLINE V load(const B16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
FOCI_INLINE V load(const H16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

#else

FOCI_INLINE V as_floats(I bits) {
  V x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}
template <class X>
FOCI_INLINE I bits_of(const X* p) {
  return I{p[0].bits, p[1].bits, p[2].bits, p[3].bits};
}
FOCI_INLINE V load(const B16* p) { return as_floats(bits_of(p) << 16); }
/// The exponent moves by 112, subnormals included; infinity and NaN get the largest one.
FOCI_INLINE V load(const H16* p) {
  const I bits = bits_of(p), size = bits & 0x7fff;
  const V scaled = as_floats(size << 13) * all(0x1p112f);
  I x;
  __builtin_memcpy(&x, &scaled, sizeof x);
  return as_floats(x | ((size >= 0x7c00) & 0x7f800000) | ((bits & 0x8000) << 16));
}

#endif

}  // namespace foci::cpu::FOCI_ISA
