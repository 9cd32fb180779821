// SPDX-License-Identifier: Apache-2.0
// What the forward and the backward pass of softmax on tensor cores share:
// scores in powers of two, the bias of a key, sums over the four lanes of a
// row.
#pragma once

#include "cuda/mma.cuh"
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

/// Bias of key j in powers of two, -inf where it is masked; `kept` tells the
/// two apart.
struct KeyBias {
  float bias = nothing;
  float kept = 0;

  FOCI_DEVICE KeyBias(const Folded& folded, const Place& at, int h, int g, int j) {
    if (j < 0 || j >= at.M) return;
    const Field& mask = folded.key_mask;
    if (mask && !static_cast<const std::uint8_t*>(mask.data)[mask.offset(at.b, at.k0 + j)]) return;
    kept = 1;
    bias = folded.key_bias
               ? log2_e * folded.key_bias.load(at.b, folded.key_head_bias ? g : h, at.k0 + j)
               : 0.0f;
  }
};

/// Whether this lse is far from 0: too few digits behind the point for powers
/// of two.
FOCI_DEVICE bool is_far(float lse) { return fabsf(lse) > 1024 && lse != INFINITY; }

/// The weight of a sum of products whose row has this lse.
FOCI_DEVICE float weight_of(float x, float unit, float bias, float lse) {
  return power_of_two(fmaf(x, unit, bias - lse * log2_e));
}
/// The same where lse is far: it goes off the score rounded as the forward pass
/// rounded it.
FOCI_DEVICE float far_weight_of(float x, float unit, float bias, float lse) {
  if (!is_far(lse)) return weight_of(x, unit, bias, lse);
#ifdef FOCI_EMULATED
  return power_of_two((fmaf(x, unit, bias) * ln_2 - lse) * log2_e);
#else
  return power_of_two(__fadd_rn(__fmul_rn(fmaf(x, unit, bias), ln_2), -lse) * log2_e);
#endif
}

FOCI_DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(~0u, x, 1);
  return x + __shfl_xor_sync(~0u, x, 2);
}

FOCI_DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
  return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

/// Rows whose numbers lie side by side and begin at multiples of 16 bytes.
inline bool in_pieces(const Field& field) {
  bool aligned = reinterpret_cast<std::uintptr_t>(field.data) % 16 == 0 && field.strides[3] == 1;
  for (int axis = 0; axis < 3; ++axis) aligned = aligned && field.strides[axis] % 8 == 0;
  return aligned;
}

}  // namespace foci::cuda
