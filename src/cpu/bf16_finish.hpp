// SPDX-License-Identifier: Apache-2.0
// What the rows of a block over bf16 come to: outputs divided by the sums, lse, statistics; and
// floats rounded to where they are written.
// Included inside the namespace of one instruction set, after bf16_softmax.hpp.

/// log(x) of normal positive x within 2 units in the last place; -inf of 0, NaN of NaN, inf of inf.
FOCI_INLINE V log(V x) {
  const V m = _mm512_maskz_getmant_ps(0xffff, x, _MM_MANT_NORM_p75_1p5, _MM_MANT_SIGN_src);
  const __mmask16 halved = _mm512_cmp_ps_mask(m, all(1.0f), _CMP_LT_OQ);
  V e = _mm512_maskz_getexp_ps(0xffff, x);
  e = _mm512_mask_add_ps(e, halved, e, all(1.0f));
  const V f = avx512::sub(m, all(1.0f));
  V p = all(0.05413255790186219f);
  p = fma(p, f, all(-0.1206737473457522f));
  p = fma(p, f, all(0.14983916258875118f));
  p = fma(p, f, all(-0.16822810658044396f));
  p = fma(p, f, all(0.19977077200104f));
  p = fma(p, f, all(-0.24993442307313074f));
  p = fma(p, f, all(0.3333354855541563f));
  p = fma(p, f, all(-0.5000006064872901f));
  const V near = fma(mul(f, f), p, f);
  return fma(e, all(0.693145751953125f), fma(e, all(1.42860682030941723212e-6f), near));
}

/// The sum of each of 16 neighbouring lines of 16.
FOCI_INLINE V totals(const float* lines) {
  __m512i x[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) x[i] = _mm512_loadu_si512(lines + i * lanes);
  transpose(x);
#pragma GCC unroll 4
  for (int half = 8; half > 0; half /= 2) {
#pragma GCC unroll 8
    for (int i = 0; i < half; ++i) {
      const V sum = add(_mm512_castsi512_ps(x[i]), _mm512_castsi512_ps(x[i + half]));
      x[i] = _mm512_castps_si512(sum);
    }
  }
  return _mm512_castsi512_ps(x[0]);
}

/// The lowest index among the lanes that hold the largest score.
static void find_largest(const Running& run, const ForwardBlock& block, long r, float inverse) {
  float best = -INFINITY;
  long at = -1;
  for (long l = 0; l < lanes && run.low[r] != unset; ++l) {
    const float score = run.best[r * lanes + l];
    const long key = long(run.best_at[r * lanes + l]) + l;
    if (score > best || (score == best && key < at)) {
      best = score;
      at = key;
    }
  }
  const float largest = _mm512_cvtss_f32(exp2(all(best))) * inverse;
  block.largest[r] = at < 0 ? 0.0f * inverse : largest < 1 ? largest : 1.0f;
  block.largest_at[r] = at;
}

static void finish_statistics(const Running& run, const ForwardBlock& block, long r, bool empty) {
  const double sum = total(load(run.sum + r * lanes));
  const double squares = total(load(run.squares + r * lanes));
  const double mean = total(load(run.scored + r * lanes)) / sum;
  const float entropy = empty ? 0.0f : float(::log(sum) - mean * 0.6931471805599453);
  find_largest(run, block, r, empty ? 0.0f : float(1 / sum));
  block.sizes[r] = empty ? 0.0f : 1.0f;
  block.squares[r] = empty ? 0.0f : float(squares / (sum * sum));
  block.entropy[r] = entropy < 0x1p-21f ? 0.0f : entropy;  // what rounding leaves of 0
}

/// Natural units: the maximum, with what rounding the scale to powers of two did to it taken back,
/// and lse = log(sum) + r + maximum.
struct Tops {
  V maximum, lse;
};
FOCI_INLINE Tops tops_of(const Running& run, const ForwardBlock& block, long r, V sum, V from) {
  const double ratio = run.scale == 0 ? 0.6931471805599453 : double(block.scale) / run.scale;
  const float high = float(ratio), low = float(ratio - double(high));
  const V minus = avx512::sub(all(0.0f), load(run.low + r));
  const V top = mul(minus, all(high));
  const V left = fma(minus, all(low), _mm512_maskz_fmsub_ps(0xffff, minus, all(high), top));
  return {add(top, left), add(top, add(from, add(left, log(sum))))};
}

/// One row of outputs. + 0: zeros of unseen values may have any sign.
FOCI_INLINE void divide(float* to, const float* from, long E, float inverse, bool nothing) {
  const V factor = all(inverse), zero = all(0.0f);
  long e = 0;
  for (; e + lanes <= E; e += lanes)
    store(to + e, nothing ? zero : fma(load(from + e), factor, zero));
  if (e == E) return;
  const V rest = nothing ? zero : fma(load(from + e), factor, zero);
  _mm512_mask_storeu_ps(to + e, first_lanes(E - e), rest);
}

/// Divides by the sums; a row that saw nothing is zero.
static void finish(const Running& run, const ForwardBlock& block) {
  for (long r = 0; r < block.rows; r += lanes) {
    const __mmask16 here = first_lanes(block.rows - r);
    const V sum = totals(run.sum + r * lanes);
    // A NaN is something seen.
    const __mmask16 fresh = _mm512_cmp_ps_mask(load(run.low + r), all(unset), _CMP_EQ_OQ);
    const __mmask16 empty = fresh & _mm512_cmp_ps_mask(sum, sum, _CMP_ORD_Q);
    alignas(64) float inverse[lanes];
    const V weights = totals(run.rounded + r * lanes);
    store(inverse, _mm512_maskz_div_ps(__mmask16(~empty), all(1.0f), weights));
    const Tops tops = tops_of(run, block, r, sum, _mm512_maskz_loadu_ps(here, block.r + r));
    _mm512_mask_storeu_ps(block.by + r, here, keep(tops.lse, __mmask16(~empty), -INFINITY));
    const V shift = keep(tops.maximum, __mmask16(~empty), 0.0f);
    if (block.shift) _mm512_mask_storeu_ps(block.shift + r, here, shift);
    if (block.sum) _mm512_mask_storeu_ps(block.sum + r, here, sum);
    for (long i = 0; i < lanes && r + i < block.rows; ++i) {
      const bool nothing = empty >> i & 1;
      divide(block.o + (r + i) * block.E, run.o + (r + i) * run.E, block.E, inverse[i], nothing);
      if (block.statistics) finish_statistics(run, block, r + i, nothing);
    }
  }
}

/// To nearest, ties to even, small numbers too; NaN quiet.
FOCI_INLINE __m256i rounded(V x) {
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i odd =
      _mm512_and_si512(_mm512_maskz_srli_epi32(0xffff, bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __m512i quiet = _mm512_or_si512(_mm512_and_si512(bits, _mm512_set1_epi32(int(0x80000000))),
                                        _mm512_set1_epi32(0x7fc00000));
  const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i y = _mm512_mask_mov_epi32(up, nan, quiet);
  return _mm512_maskz_cvtepi32_epi16(0xffff, _mm512_maskz_srli_epi32(0xffff, y, 16));
}

static void store_lines(std::uint16_t* to, std::int64_t step, const float* from, std::int64_t count,
                        std::int64_t width) {
  for (long i = 0; i < count; ++i, to += step, from += width) {
    for (long d = 0; d < width; d += lanes) {
      const __mmask16 here = first_lanes(width - d);
      _mm256_mask_storeu_epi16(to + d, here, rounded(_mm512_maskz_loadu_ps(here, from + d)));
    }
  }
}
