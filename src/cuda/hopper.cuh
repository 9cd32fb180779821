// SPDX-License-Identifier: Apache-2.0
// What Hopper (sm_90a) adds to the words that kernels are written in: barriers in shared memory
// that count arrivals and bytes, tensor maps and the copies that go by them, products of a
// warpgroup (wgmma) and how their operands lie in shared memory. Not emulated: FOCI_HOPPER is there
// in device code of sm_90a alone, and a kernel has no body without it.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/mma.cuh"

#ifndef FOCI_EMULATED
#include <cuda.h>

#include <atomic>

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FOCI_HOPPER 1
#endif

namespace foci::cuda {

inline constexpr int warpgroup = 128;

// ---- Tensor maps, on the host ----

/// (B,heads,tokens,columns) 16-bit numbers, side by side in a token, as a kernel fetches them: 64
/// columns (128 bytes, turned by the 128-byte pattern) of `rows` tokens of one head at a time.
/// Tokens past the end arrive as zeros and are not stored.
struct TileOf {
  const Field& field;
  int batches, heads, tokens, columns, rows;
};

/// Whether a tensor map describes it: strides of whole 16 bytes and above 0 where they count.
inline bool has_tensor_map(const TileOf& of) {
  const int sizes[] = {of.batches, of.heads, of.tokens};
  bool all = of.columns % 64 == 0 && of.field.strides[3] == 1;
  all = all && reinterpret_cast<std::uintptr_t>(of.field.data) % 16 == 0;
  for (int axis = 0; axis < 3; ++axis) {
    const std::int64_t step = of.field.strides[axis];
    all = all && (sizes[axis] == 1 || (step > 0 && step % 8 == 0 && step < std::int64_t(1) << 39));
  }
  return all;
}

inline CUtensorMap tensor_map(const TileOf& of) {
  using Encode = decltype(&cuTensorMapEncodeTiled);
  static std::atomic<Encode> found{nullptr};
  Encode encode = found.load(std::memory_order_relaxed);
  if (!encode) {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult answer;
    expect_success(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                    cudaEnableDefault, &answer),
                   "cuTensorMapEncodeTiled");
    if (!entry) throw DeviceError("cuda: the driver has no cuTensorMapEncodeTiled; update it");
    found.store(encode = reinterpret_cast<Encode>(entry), std::memory_order_relaxed);
  }
  const auto step = [&](int axis, int size) {
    return cuuint64_t(size == 1 ? 16 : 2 * of.field.strides[axis]);
  };
  const cuuint64_t sizes[] = {cuuint64_t(of.columns), cuuint64_t(of.tokens), cuuint64_t(of.heads),
                              cuuint64_t(of.batches)};
  const cuuint64_t steps[] = {step(2, of.tokens), step(1, of.heads), step(0, of.batches)};
  const cuuint32_t box[] = {64, cuuint32_t(of.rows), 1, 1}, each[] = {1, 1, 1, 1};
  CUtensorMap map;
  const CUresult code =
      encode(&map,
             of.field.dtype == DType::bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                           : CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
             4, of.field.data, sizes, steps, box, each, CU_TENSOR_MAP_INTERLEAVE_NONE,
             CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (code != CUDA_SUCCESS)
    throw DeviceError("cuda: cuTensorMapEncodeTiled: error " + std::to_string(int(code)));
  return map;
}

/// compute-sanitizer's initcheck does not see what goes out by tensor maps: FOCI_WATCHED builds
/// fill where it goes beforehand, with NaN.
inline void poison(const TileOf& of, Stream stream) {
#ifdef FOCI_WATCHED
  const std::int64_t count = std::int64_t(of.batches) * of.heads * of.tokens * of.columns;
  const bool whole = of.batches == 1 ? of.field.strides[1] * of.heads == count
                                     : of.field.strides[0] * of.batches == count;
  if (whole) fill(of.field.data, 0xff, 2 * std::size_t(count), stream);
#else
  static_cast<void>(of), static_cast<void>(stream);
#endif
}

/// Whether the GPU in use runs a kernel's code for sm_90a: without a body it has next to no
/// registers. `known`: what was found for each device, 0 before.
template <class... P>
bool runs_on_hopper(void (*kernel)(P...), std::atomic<signed char> (&known)[64]) {
  int device = 0, major = 0, minor = 0;
  if (cudaGetDevice(&device) != cudaSuccess || device >= 64) return false;
  if (const int before = known[device].load(std::memory_order_relaxed)) return before > 0;
  cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
  bool runs = major == 9 && minor == 0;
  cudaFuncAttributes of;
  runs = runs && cudaFuncGetAttributes(&of, kernel) == cudaSuccess && of.numRegs > 64;
  static_cast<void>(cudaGetLastError());
  known[device].store(runs ? 1 : -1, std::memory_order_relaxed);
  return runs;
}

/// Multiprocessors of the GPU in use: blocks that stay are no more.
inline int multiprocessors(const char* what) {
  int device = 0, count = 1;
  expect_success(cudaGetDevice(&device), what);
  expect_success(cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device), what);
  return count;
}

#ifdef FOCI_HOPPER

/// shared_memory() where tiles are fetched to: aligned to 1024 bytes.
FOCI_DEVICE std::byte* tile_memory() {
  extern __shared__ __align__(1024) unsigned char tiles[];
  return reinterpret_cast<std::byte*>(tiles);
}

// ---- Barriers in shared memory: a phase ends with its last arrival and its last byte ----

FOCI_DEVICE void set_up_barrier(Address at, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(arrivals) : "memory");
}
/// After the last set_up_barrier(), before the block's threads meet.
FOCI_DEVICE void show_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
FOCI_DEVICE void arrive(Address at) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
}
/// A warp arrives, whose lanes have met just now. compute-sanitizer's racecheck does not see what
/// one lane says for the others: FOCI_WATCHED builds have all of them say it.
#ifdef FOCI_WATCHED
inline constexpr int warp_arrivals = warp;
#else
inline constexpr int warp_arrivals = 1;
#endif
FOCI_DEVICE void arrive_as_warp(Address at) {
  if (lane() < warp_arrivals) arrive(at);
}
/// Arrives, and says how many bytes come on their own.
FOCI_DEVICE void arrive_expecting(Address at, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
/// Until the phase of this parity is over; the one before the first, 1, is.
FOCI_DEVICE void await(Address at, int parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again_%=:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again_%=;\n}\n" ::"r"(at),
      "r"(parity)
      : "memory");
}
/// What this thread wrote to shared memory is there for copies and products of a warpgroup.
FOCI_DEVICE void show_writes() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

/// Numbered barriers of `threads` threads: those that wait, and those that only arrive.
FOCI_DEVICE void meet(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}
FOCI_DEVICE void pass(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(barrier), "r"(threads) : "memory");
}

// ---- Copies by tensor map, of one thread ----

FOCI_DEVICE void fetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}
/// A tile to shared memory; its bytes arrive at `barrier`.
FOCI_DEVICE void fetch_tile(Address to, const CUtensorMap& map, Address barrier, int column,
                            int token, int head, int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(column), "r"(token), "r"(head), "r"(b)
      : "memory");
}
FOCI_DEVICE void store_tile(const CUtensorMap& map, Address from, int column, int token, int head,
                            int b) {
  asm volatile(
      "cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], "
      "[%1];" ::"l"(&map),
      "r"(from), "r"(column), "r"(token), "r"(head), "r"(b)
      : "memory");
}
/// Adds `bytes` of floats from shared memory to global memory, in any order; whole 16 bytes.
FOCI_DEVICE void add_floats(float* to, Address from, int bytes) {
  asm volatile(
      "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;" ::"l"(to),
      "r"(from), "r"(bytes)
      : "memory");
}
FOCI_DEVICE void commit_stores() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
/// Until shared memory of all but `pending` groups of stores has been read.
template <int pending>
FOCI_DEVICE void await_reads() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(pending) : "memory");
}
template <int pending>
FOCI_DEVICE void await_stores() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(pending) : "memory");
}

// ---- Registers of a warpgroup ----

template <int count>
FOCI_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <int count>
FOCI_DEVICE void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- Products of a warpgroup: 64 rows, 16 columns of the left side a step ----

/// How an operand lies in shared memory: where, and how far on the next 8 rows are and, where it
/// counts, the next columns. Where tiles of 64 columns were fetched (rows of 128 bytes, begun at a
/// multiple of 1024): rows along the sum (K-major) 1024 apart, the next 16 columns 32 bytes on.
/// Columns along the sum (turned): the next 8 rows 1024 on, the next 64 columns `across`.
FOCI_DEVICE std::uint64_t operand(Address at, int across, int along, bool turned_pieces = true) {
  return std::uint64_t((at & 0x3ffff) >> 4) | std::uint64_t(across >> 4) << 16 |
         std::uint64_t(along >> 4) << 32 | std::uint64_t(turned_pieces) << 62;
}
/// An operand so many bytes on.
FOCI_DEVICE std::uint64_t on(std::uint64_t operand, int bytes) { return operand + (bytes >> 4); }

/// Before products: registers that they read or add to are written.
FOCI_DEVICE void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
FOCI_DEVICE void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int pending>
FOCI_DEVICE void await_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}
/// Keeps reads and writes of sums on their side of a wait.
template <int count>
FOCI_DEVICE void pin(float (&sums)[count]) {
  FOCI_UNROLL
  for (int i = 0; i < count; ++i) asm volatile("" : "+f"(sums[i])::"memory");
}

// Lists of a product's operands.
#define FOCI_8(d, i)                                                                          \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define FOCI_32(d, i) FOCI_8(d, i), FOCI_8(d, i + 8), FOCI_8(d, i + 16), FOCI_8(d, i + 24)
#define FOCI_64(d) FOCI_32(d, 0), FOCI_32(d, 32)
#define FOCI_NAMES_32                                                                          \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define FOCI_NAMES_64                                                         \
  FOCI_NAMES_32                                                               \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49," \
  "%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define FOCI_WGMMA(columns, type) \
  "wgmma.mma_async.sync.aligned.m64n" #columns "k16.f32." #type "." #type " {"

/// d (+)= a b': both in shared memory; a bit each says that columns are along the sum (turned).
/// Then the same with the left side in registers, as mma.sync has it.
#define FOCI_PRODUCTS(columns, count, names, sums, p0, p1, p2, p3, p4, p5, p6, type)               \
  template <DType t, bool a_turned = false, bool b_turned = false>                                 \
  requires(t == DType::type) FOCI_DEVICE void multiply(float(&d)[count], std::uint64_t a,          \
                                                       std::uint64_t b, int add) {                 \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " p2 ", 0;\n" FOCI_WGMMA(columns, type)     \
                     names "}, " p0 ", " p1 ", add, 1, 1, " p3 ", " p4 ";\n}\n"                    \
                 : sums                                                                            \
                 : "l"(a), "l"(b), "r"(add), "n"(int(a_turned)), "n"(int(b_turned)));              \
  }                                                                                                \
  template <DType t, bool b_turned = false>                                                        \
  requires(t == DType::type) FOCI_DEVICE void multiply(float(&d)[count], unsigned a0, unsigned a1, \
                                                       unsigned a2, unsigned a3, std::uint64_t b,  \
                                                       int add) {                                  \
    asm volatile("{\n.reg .pred add;\nsetp.ne.b32 add, " p5 ", 0;\n" FOCI_WGMMA(columns, type)     \
                     names "}, {" p0 "," p1 "," p2 "," p3 "}, " p4 ", add, 1, 1, " p6 ";\n}\n"     \
                 : sums                                                                            \
                 : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(add), "n"(int(b_turned)));      \
  }
#define FOCI_PRODUCTS_OF(type)                                                                  \
  FOCI_PRODUCTS(64, 32, FOCI_NAMES_32, FOCI_32(d, 0), "%32", "%33", "%34", "%35", "%36", "%37", \
                "%38", type)                                                                    \
  FOCI_PRODUCTS(128, 64, FOCI_NAMES_64, FOCI_64(d), "%64", "%65", "%66", "%67", "%68", "%69",   \
                "%70", type)
FOCI_PRODUCTS_OF(bf16)
FOCI_PRODUCTS_OF(f16)

#endif  // FOCI_HOPPER

}  // namespace foci::cuda
#endif  // FOCI_EMULATED
