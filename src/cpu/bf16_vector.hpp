// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the bf16 kernels: sixteen floats at a time, pairs of bf16 in 32 bits, packing.
// Included inside the namespace of one instruction set, after cpu/vec_avx512.hpp.

using avx512::add, avx512::all, avx512::any_above, avx512::fma, avx512::lanes, avx512::load;
using avx512::max, avx512::mul, avx512::store, avx512::total, avx512::V, avx512::where_above;

static constexpr long panel = 2 * lanes;
static constexpr int most_parts = 3;  // of a float: three times eight bits

static inline long padded(long x, long to) { return (x + to - 1) / to * to; }

/// Memory handed out in lines of 64 bytes, the first at a multiple of `align` bytes.
struct Room {
  char* left;

  Room(float* from, std::uintptr_t align) : left(reinterpret_cast<char*>(from)) {
    const std::uintptr_t over = reinterpret_cast<std::uintptr_t>(from) % align;
    left += over == 0 ? 0 : align - over;
  }
  template <class T>
  void take(T*& piece, long count) {
    piece = reinterpret_cast<T*>(left);
    left += padded(count * long(sizeof(T)), 64);
  }
};

static inline float widen(std::uint16_t x) {
  return _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128(int(unsigned(x) << 16))));
}
/// To nearest, ties to even; numbers below the smallest normal are zero.
static inline std::uint16_t narrow(float x) {
  const __m128i y = (__m128i)_mm_cvtneps_pbh(_mm_set1_ps(x));
  return std::uint16_t(_mm_extract_epi16(y, 0));
}

FOCI_INLINE V widen_16(const std::uint16_t* from) {
  const __m256i x = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m512i wide = _mm512_maskz_cvtepu16_epi32(0xffff, x);
  return _mm512_castsi512_ps(_mm512_maskz_slli_epi32(0xffff, wide, 16));
}

/// 32 neighbouring bf16 of two vectors of floats.
FOCI_INLINE void store_pairs(std::uint16_t* to, V low, V high) {
  _mm512_storeu_si512(to, (__m512i)_mm512_cvtne2ps_pbh(high, low));
}

/// A mask of the first `count` lanes, of any count.
FOCI_INLINE __mmask16 first_lanes(long count) {
  const unsigned most = count < 0 ? 0 : count > lanes ? lanes : unsigned(count);
  return __mmask16((1u << most) - 1);
}
FOCI_INLINE V keep(V x, __mmask16 which, float other) {
  return _mm512_mask_mov_ps(all(other), which, x);
}

FOCI_INLINE float largest(V x) {
  const __m256 half = _mm256_max_ps(_mm512_maskz_extractf32x8_ps(0xff, x, 0),
                                    _mm512_maskz_extractf32x8_ps(0xff, x, 1));
  __m128 a = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
  a = _mm_max_ps(a, _mm_movehl_ps(a, a));
  return _mm_cvtss_f32(_mm_max_ss(a, _mm_movehdup_ps(a)));
}

/// 2^x within 2 units in the last place, 0 far below, infinity far above; NaN stays NaN. On [0, 1)
/// by degree 5: relative error 8.3e-8 before rounding, and 2^0 is 1 exactly.
FOCI_INLINE V exp2(V x) {
  const V f = _mm512_maskz_reduce_ps(0xffff, x, 9);  // x - floor(x)
  V p = all(0.0018671302119512632f);
  p = fma(p, f, all(0.009017029962529613f));
  p = fma(p, f, all(0.055799913425224286f));
  p = fma(p, f, all(0.24016445003927303f));
  p = fma(p, f, all(0.6931513118176098f));
  p = fma(p, f, all(1.0f));
  return _mm512_maskz_scalef_ps(0xffff, p, x);  // times 2^floor(x)
}
