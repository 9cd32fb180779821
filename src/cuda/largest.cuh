// SPDX-License-Identifier: Apache-2.0
// The largest of numbers that many blocks have.
#pragma once

#include "cuda/words.cuh"

namespace foci::cuda {

/// The largest of a warp's numbers, none below 0, as bits: NaN is the largest of all.
FOCI_DEVICE void raise(int* to, float x) {
  int bits = __float_as_int(x) & 0x7fffffff;
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(~0u, bits, step);
    bits = other > bits ? other : bits;
  }
  if (lane() == 0 && bits > *to) atomicMax(to, bits);  // most of the time it is not
}

}  // namespace foci::cuda
