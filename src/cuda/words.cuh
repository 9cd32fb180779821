// SPDX-License-Identifier: Apache-2.0
// The words that kernels are written in. nvcc knows them; a build without it takes them from
// emulate.hpp, which runs a block's threads as fibers, so that kernels are tested where no GPU is.
#pragma once

#ifdef FOCI_EMULATED
#include "cuda/emulate.hpp"
#else
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#endif

#include <cstddef>
#include <cstdint>

#define FOCI_DEVICE __device__ __forceinline__
#ifdef FOCI_EMULATED
#define FOCI_UNROLL
#else
#define FOCI_UNROLL _Pragma("unroll")
#endif

namespace foci::cuda {

inline constexpr int warp = 32;

/// The block's dynamic shared memory, aligned to 128 bytes.
FOCI_DEVICE std::byte* shared_memory() {
#ifdef FOCI_EMULATED
  return emulate::shared_memory();
#else
  extern __shared__ __align__(128) unsigned char memory[];
  return reinterpret_cast<std::byte*>(memory);
#endif
}

FOCI_DEVICE int lane() { return int(threadIdx.x) % warp; }

FOCI_DEVICE float warp_sum(float x) {
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
FOCI_DEVICE float warp_max(float x) {
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// 2^x, to two units in the last place; 0 far below, so never of a number that is not finite.
FOCI_DEVICE float power_of_two(float x) {
#ifdef FOCI_EMULATED
  return ::exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

}  // namespace foci::cuda
