// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward pass of softmax on tensor cores share:
// scores in powers of two, the bias of a key, sums over the four lanes of a
// row.
#pragma once

#include "cuda/mma.cuh"
#include "cuda/runs.cuh"
#include "cuda/softmax_mma.cuh"

namespace foci::cuda {

inline constexpr float log2_e = 1.44269504088896341f, ln_2 = 0.693147180559945309f;
inline constexpr float nothing = -INFINITY;
/// Scores in powers of two beyond this have too few digits behind the point:
/// the maximum is taken from them before they are scaled.
inline constexpr float far = 1 << 12;

/// blockIdx.x, looked up again each time: numbers made from it need not stay in
/// registers.
FOCI_DEVICE int block_index() {
#ifdef FOCI_EMULATED
  return int(blockIdx.x);
#else
  int x;
  asm volatile("mov.u32 %0, %%ctaid.x;" : "=r"(x));
  return x;
#endif
}

FOCI_DEVICE float scale_of(const Folded& folded, const Shape& shape, int s, int g) {
  return folded.scales ? folded.scale * folded.scales[s * shape.G + g] : folded.scale;
}

/// Whether the kernels here are to leave a key head to others.
FOCI_DEVICE bool is_left(const Folded& folded, const Shape& shape, int s, int g) {
  return folded.by_mma && !folded.by_mma[s * shape.G + g];
}

/// Passes for heads that others leave over, mostly none: no more than these blocks start, look
/// whether a head is marked, and if so go over all of them. What starts and finds nothing costs a
/// microsecond for every block of a multiprocessor.
inline constexpr std::int64_t few_blocks = 264;
FOCI_DEVICE bool any_marked(const int* marks, int count) {
  int any = 0;
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) any |= marks[i];
  return __syncthreads_or(any) != 0;
}

/// Whether queries are not what keys meet but have to be made so, in 16 bits or several times 16.
inline bool has_lines(const Folded& folded) {
  return folded.m.data || folded.q.dtype != folded.k.dtype;
}

/// Queries [begin, end) of a chunk; none beyond the last.
struct ChunkSpan {
  int begin = 0, end = 0;
  FOCI_DEVICE ChunkSpan(const Folded& folded, int s, int chunk) {
    if (chunk >= folded.most_chunks) return;
    const int* spans = folded.spans + std::int64_t(s) * (folded.most_chunks + 1) + chunk;
    begin = spans[0], end = spans[1];
  }
};

/// Some queries' numbers 8 piece .. 8 piece + 7 as keys meet them: q, times m where there is one.
struct QueryPiece {
  const Folded& folded;
  const Place& at;
  int s, h, head_m;  // head_m: of m

  FOCI_DEVICE QueryPiece(const Folded& lines, const Shape& shape, const Place& place, int sequence,
                         int head)
      : folded(lines),
        at(place),
        s(sequence),
        h(head),
        head_m(lines.key_head_m ? shape.key_head(head) : head) {}

  template <int count>
  FOCI_DEVICE void load(float (&x)[count][8], const int (&row)[count],
                        const int (&piece)[count]) const {
    std::int64_t in[count];
    FOCI_UNROLL
    for (int n = 0; n < count; ++n) in[n] = folded.q.offset(at.b, h, at.q0 + row[n], 8 * piece[n]);
    load_runs<8, count>(x, folded.q, in);
    if (!folded.m) return;
    float m[count][8];
    FOCI_UNROLL
    for (int n = 0; n < count; ++n)
      in[n] = folded.m.offset(s, head_m, at.q0 + row[n], 8 * piece[n]);
    load_runs<8, count>(m, folded.m, in);
    FOCI_UNROLL
    for (int i = 0; i < 8 * count; ++i) x[i / 8][i % 8] *= m[i / 8][i % 8];
  }
};

/// x in several 16-bit numbers each, which add up to it but for the last one's rounding.
template <DType type, int parts>
FOCI_DEVICE void split(uint4 (&to)[parts], float (&x)[8]) {
  FOCI_UNROLL
  for (int part = 0; part < parts; ++part) {
    unsigned words[4];
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      words[i] = pack<type>(x[2 * i], x[2 * i + 1]);
      x[2 * i] -= wide_of(std::uint16_t(words[i]), type);
      x[2 * i + 1] -= wide_of(std::uint16_t(words[i] >> 16), type);
    }
    to[part] = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// Bias of key j, -inf where it is masked; `kept` tells the two apart.
struct KeyBias {
  float bias = nothing;
  float kept = 0;

  FOCI_DEVICE KeyBias(const Folded& folded, const Place& at, int h, int g, int j) {
    if (!look(folded, at, j)) return;
    bias = folded.key_bias ? folded.key_bias.load(at.b, folded.key_head_bias ? g : h, at.k0 + j)
                           : 0.0f;
  }
  /// Along the prefix, where every chunk of queries has biases of its own.
  static FOCI_DEVICE KeyBias of_chunk(const Folded& folded, const Place& at, int chunk, int g,
                                      int j) {
    KeyBias to;
    if (to.look(folded, at, j)) to.bias = folded.key_bias.load(chunk, at.b, g, at.k0 + j);
    return to;
  }

 private:
  KeyBias() = default;
  FOCI_DEVICE bool look(const Folded& folded, const Place& at, int j) {
    if (j < 0 || j >= at.M) return false;
    const Field& mask = folded.key_mask;
    if (mask && !static_cast<const std::uint8_t*>(mask.data)[mask.offset(at.b, at.k0 + j)])
      return false;
    kept = 1;
    return true;
  }
};

/// x y, rounded before anything is added to it.
FOCI_DEVICE float rounded_product(float x, float y) {
#ifdef FOCI_EMULATED
  return x * y;
#else
  return __fmul_rn(x, y);
#endif
}

/// Whether this lse is far from 0: too few digits behind the point for powers
/// of two.
FOCI_DEVICE bool is_far(float lse) { return fabsf(lse) > 1024 && lse != INFINITY; }

/// The weight of a sum of products whose row has this lse. Where all biases are far from 0 so is
/// lse: one is taken off the other before anything is rounded. `more` is what the rounding of lse
/// itself left over, in powers of two.
template <bool biased>
FOCI_DEVICE float weight_of(float x, float unit, float bias, float lse, float more) {
  return power_of_two(fmaf(x, unit, biased ? fmaf(bias - lse, log2_e, more) : -lse * log2_e));
}
/// The same where lse is far, and not because of the bias: it goes off the score rounded as the
/// forward pass rounded it.
template <bool biased>
FOCI_DEVICE float far_weight_of(float x, float unit, float bias, float lse, float more) {
  if (!is_far(biased ? lse - bias : lse)) return weight_of<biased>(x, unit, bias, lse, more);
  const float score = fmaf(x, unit, biased ? log2_e * bias : 0.0f);
  return power_of_two((rounded_product(score, ln_2) - lse) * log2_e);
}

FOCI_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

FOCI_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/// Rows of 16-bit numbers or floats that lie side by side and begin at multiples of 16 bytes.
inline bool in_pieces(const Field& field) {
  const int step = field.dtype == DType::f32 ? 4 : 8;
  bool aligned = reinterpret_cast<std::uintptr_t>(field.data) % 16 == 0 && field.strides[3] == 1;
  for (int axis = 0; axis < 3; ++axis) aligned = aligned && field.strides[axis] % step == 0;
  return aligned;
}

}  // namespace foci::cuda
