// SPDX-License-Identifier: Apache-2.0
// CUDA's words for a compiler that has none: the threads of a block run one after the other as
// fibers that change places at barriers and shuffles, every other block backwards, so that a
// barrier that is missing shows. Shared memory starts as NaN. For tests; nothing here is fast.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>

#define __global__
#define __device__
#define __host__
#define __shared__ static
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define threadIdx (::foci::emulate::now->thread)
#define blockIdx (::foci::emulate::block)
#define blockDim (::foci::emulate::threads)
#define gridDim (::foci::emulate::blocks)

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  unsigned x = 1, y = 1, z = 1;
  dim3() = default;
  template <class X, class Y = unsigned, class Z = unsigned>
  dim3(X x_, Y y_ = 1, Z z_ = 1) : x(unsigned(x_)), y(unsigned(y_)), z(unsigned(z_)) {}
};
struct alignas(8) float2 {
  float x, y;
};
struct alignas(16) float4 {
  float x, y, z, w;
};
struct alignas(16) double2 {
  double x, y;
};
struct alignas(8) int2 {
  int x, y;
};
struct alignas(16) int4 {
  int x, y, z, w;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

namespace foci::emulate {

/// A thread of the block that runs.
struct Fiber {
  uint3 thread;
  int index = 0;                           // in the block
  void* stack_top = nullptr;               // where it left off
  unsigned block_turn = 0, warp_turn = 0;  // barriers passed
  enum class Waits { no, block, warp, done } waits = Waits::no;
};

inline constexpr int lanes = 32, slot_bytes = 64;

/// What the lanes of a warp show each other; two sets, taken in turn.
struct Warp {
  alignas(16) std::byte slots[2][lanes][slot_bytes];
  unsigned turn = 0;
  int arrived = 0, alive = 0;
};

extern Fiber* now;
extern uint3 block;
extern dim3 threads, blocks;

std::byte* shared_memory();
void sync_block();
void sync_warp();
/// Shows `bytes` to the warp; every lane gets the slots of all, good until the next exchange but
/// one.
std::byte (*exchange(const void* mine, std::size_t bytes))[slot_bytes];

/// Calls kernel(context) for every thread of every block.
void run_erased(dim3 blocks, dim3 threads, std::size_t shared, void (*kernel)(void*),
                void* context);
template <class F>
void run(dim3 blocks, dim3 threads, std::size_t shared, const F& f) {
  run_erased(
      blocks, threads, shared, [](void* g) { (*static_cast<const F*>(g))(); },
      const_cast<void*>(static_cast<const void*>(&f)));
}

template <class T>
T shown_by(std::byte (*slots)[slot_bytes], int lane) {
  T x;
  std::memcpy(&x, slots[lane], sizeof x);
  return x;
}

template <class T>
T shuffle(T x, int from) {
  static_assert(sizeof(T) <= slot_bytes);
  auto* slots = exchange(&x, sizeof x);
  return from < 0 || from >= lanes ? x : shown_by<T>(slots, from);
}

}  // namespace foci::emulate

inline void __syncthreads() { foci::emulate::sync_block(); }
inline void __syncwarp(unsigned = ~0u) { foci::emulate::sync_warp(); }
inline void __threadfence() {}
inline void __threadfence_block() {}

inline int foci_lane() { return foci::emulate::now->index % foci::emulate::lanes; }
template <class T>
T __shfl_sync(unsigned, T x, int from, int width = 32) {
  const int first = foci_lane() / width * width;
  return foci::emulate::shuffle(x, first + (from % width));
}
template <class T>
T __shfl_xor_sync(unsigned, T x, int bits, int = 32) {
  return foci::emulate::shuffle(x, foci_lane() ^ bits);
}
template <class T>
T __shfl_up_sync(unsigned, T x, int by, int width = 32) {
  const int at = foci_lane();
  return foci::emulate::shuffle(x, at % width < by ? at : at - by);
}
template <class T>
T __shfl_down_sync(unsigned, T x, int by, int width = 32) {
  const int at = foci_lane();
  return foci::emulate::shuffle(x, at % width + by >= width ? at : at + by);
}
inline unsigned __ballot_sync(unsigned, int yes) {
  auto* slots = foci::emulate::exchange(&yes, sizeof yes);
  unsigned bits = 0;
  for (int lane = 0; lane < foci::emulate::lanes; ++lane)
    bits |= unsigned(foci::emulate::shown_by<int>(slots, lane) != 0) << lane;
  return bits;
}
inline int __any_sync(unsigned mask, int yes) { return __ballot_sync(mask, yes) != 0; }
inline int __all_sync(unsigned mask, int yes) { return __ballot_sync(mask, !yes) == 0; }
inline int __syncthreads_or(int yes) {
  static int any;
  __syncthreads();
  any = 0;
  __syncthreads();
  any |= yes != 0;
  __syncthreads();
  return any;
}
inline int __syncthreads_and(int yes) { return !__syncthreads_or(!yes); }

template <class T>
T atomicAdd(T* to, T x) {
  const T old = *to;
  *to = T(old + x);
  return old;
}
template <class T>
T atomicMax(T* to, T x) {
  const T old = *to;
  if (x > old) *to = x;
  return old;
}
template <class T>
T atomicExch(T* to, T x) {
  const T old = *to;
  *to = x;
  return old;
}

template <class T>
T __ldg(const T* from) {
  return *from;
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline int __popc(unsigned x) { return std::popcount(x); }
inline int __clz(unsigned x) { return std::countl_zero(x); }
inline int __ffs(unsigned x) { return x == 0 ? 0 : std::countr_zero(x) + 1; }
inline float __expf(float x) { return std::exp(x); }
inline float __logf(float x) { return std::log(x); }
inline float __log2f(float x) { return std::log2(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1 / x; }
inline float rsqrtf(float x) { return 1 / std::sqrt(x); }
template <class T>
constexpr T min(T x, T y) {
  return y < x ? y : x;
}
template <class T>
constexpr T max(T x, T y) {
  return x < y ? y : x;
}
