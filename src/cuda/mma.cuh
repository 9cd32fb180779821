// SPDX-License-Identifier: Apache-2.0
// Tensor cores as mma.sync (sm_80 and later) offers them: 16x16 times 16x8 products of bf16 or f16
// summed in float, their operands from shared memory by ldmatrix, which cp.async fills.
// A lane's place in an accumulator: rows lane / 4 and 8 below, columns 2 (lane % 4) and 1 beside.
#pragma once

#include "cuda/field.cuh"

namespace foci::cuda {

/// A place in the block's shared memory, in bytes.
using Address = unsigned;

FOCI_DEVICE Address shared_address() {
#ifdef FOCI_EMULATED
  return 0;
#else
  return Address(__cvta_generic_to_shared(shared_memory()));
#endif
}

/// Two numbers rounded to a word, the first in its lower half.
template <DType type>
FOCI_DEVICE unsigned pack(float first, float second) {
#ifdef FOCI_EMULATED
  return narrow_of(first, type) | unsigned(narrow_of(second, type)) << 16;
#else
  unsigned word;
  if constexpr (type == DType::bf16) {
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  } else {
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  }
  return word;
#endif
}

#ifdef FOCI_EMULATED
/// What a lane gives to a product: 4 words of the left side, 2 of the right.
template <DType type>
void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  float mine[12];
  const unsigned words[] = {a[0], a[1], a[2], a[3], b0, b1};
  for (int i = 0; i < 12; ++i) mine[i] = wide_of(std::uint16_t(words[i / 2] >> 16 * (i % 2)), type);
  auto* shown = emulate::exchange(mine, sizeof mine);
  const auto of = [&](int at, int i) { return reinterpret_cast<const float*>(shown[at])[i]; };
  const int row = lane() / 4;
  for (int i = 0; i < 4; ++i) {
    const int column = 2 * (lane() % 4) + i % 2;
    for (int k = 0; k < 16; ++k) {
      const int beside = k % 8 / 2, half = k / 8;
      c[i] += of(row * 4 + beside, 4 * half + 2 * (i / 2) + k % 2) *
              of(column * 4 + beside, 8 + 2 * half + k % 2);
    }
  }
}

template <bool transposed>
void load_matrices(unsigned (&to)[4], Address from) {
  auto* shown = emulate::exchange(&from, sizeof from);
  const std::byte* memory = emulate::shared_memory();
  const int row = lane() / 4, column = 2 * (lane() % 4);
  for (int i = 0; i < 4; ++i) {
    const auto at = [&](int r, int c) {
      std::uint16_t x;
      std::memcpy(&x, memory + emulate::shown_by<Address>(shown, 8 * i + r) + 2 * c, 2);
      return unsigned(x);
    };
    to[i] = transposed ? at(column, row) | at(column + 1, row) << 16
                       : at(row, column) | at(row, column + 1) << 16;
  }
}

inline void copy_async(Address to, const void* from, bool there) {
  std::byte* at = emulate::shared_memory() + to;
  there ? std::memcpy(at, from, 16) : std::memset(at, 0, 16);
}
inline void commit_copies() {}
template <int pending>
void await_copies() {}

#else

/// c += a b, a 16x16 (row-wise), b 16x8 (column-wise)
template <DType type>
FOCI_DEVICE void multiply(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
  if constexpr (type == DType::bf16) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

/// Four 8x8 matrices whose rows of 16 bytes lie where the lanes say, eight lanes a matrix.
template <bool transposed>
FOCI_DEVICE void load_matrices(unsigned (&to)[4], Address from) {
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
  }
}

/// 16 bytes to shared memory in the background; zeros where nothing is there.
FOCI_DEVICE void copy_async(Address to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from),
               "r"(there ? 16 : 0)
               : "memory");
}
FOCI_DEVICE void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
/// Until no more than `pending` of the groups committed by this thread are under way.
template <int pending>
FOCI_DEVICE void await_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}
#endif

/// x ^ y, computed where it stands: the compiler would keep all of a loop's in registers.
FOCI_DEVICE Address turned(Address x, Address y) {
#ifdef FOCI_EMULATED
  return x ^ y;
#else
  Address z;
  asm volatile("xor.b32 %0, %1, %2;" : "=r"(z) : "r"(x), "r"(y));
  return z;
#endif
}

/// rows_ x width_ 16-bit numbers in shared memory: panels of up to 64 columns, in whose rows pieces
/// of 16 bytes change places so that eight rows of one piece lie in different banks.
template <int rows_, int width_>
struct Tile {
  static constexpr int rows = rows_, width = width_;
  static constexpr int panel = width % 64 == 0 ? 64 : width % 32 == 0 ? 32 : 16;
  static constexpr int pieces = panel / 8;
  static constexpr Address bytes = rows * width * 2;
  static_assert(width % 16 == 0 && bytes % 128 == 0);

  /// Of columns 8 piece .. 8 piece + 7.
  FOCI_DEVICE static Address at(int row, int piece) {
    const int turned = piece % pieces ^ row / (8 / pieces) % pieces;
    return Address(piece / pieces * rows * panel * 2 + row * panel * 2 + turned * 16);
  }

  /// The lane's part of an address for operands(): rows lane % 16, pieces lane / 16; that is a left
  /// side, or with transposition a right side whose rows are summed over.
  FOCI_DEVICE static Address along() { return at(lane() % 16, lane() / 16); }
  /// The same with rows lane % 8 and 8 below for lanes from 16, the piece beside for odd eights: a
  /// right side whose columns are summed over, or with transposition a left side.
  FOCI_DEVICE static Address across() { return at(lane() % 8 + lane() / 16 * 8, lane() / 8 % 2); }
  /// The same 16 step columns on, for a lane whose part, the tile's address added, is `mine`.
  FOCI_DEVICE static Address beside(Address mine, int step) {
    return turned(mine, Address(2 * step % pieces * 16)) +
           Address(2 * step / pieces * rows * panel * 2);
  }
  /// The 16x16 block `row` rows below `mine`.
  template <bool transposed>
  FOCI_DEVICE static void operands(unsigned (&to)[4], Address mine, int row) {
    load_matrices<transposed>(to, mine + Address(row * panel * 2));
  }
};

/// Tokens of one head whose numbers lie side by side, aligned to 16 bytes; what is not there reads
/// as 0.
struct Lines {
  const std::uint16_t* data;
  std::int64_t stride;  // from token to token
  int count, width;

  FOCI_DEVICE static Lines of(const Field& field, int b, int head, int first, int count,
                              int width) {
    return {static_cast<const std::uint16_t*>(field.data) + field.offset(b, head, first),
            field.strides[2], count, width};
  }
};

/// Rows first.. of `from` on their way into the tile at `to`, by `threads` threads.
template <class T, int threads>
FOCI_DEVICE void load_tile(Address to, const Lines& from, int first) {
  constexpr int pieces = T::width / 8, rounds = (T::rows * pieces + threads - 1) / threads;
  const bool whole = first + T::rows <= from.count && from.width == T::width;
  const int thread = int(threadIdx.x);
  if (whole && threads % pieces == 0 && T::rows * pieces % threads == 0) {
    const int row = thread / pieces, piece = thread % pieces;
    const std::uint16_t* at = from.data + (first + row) * from.stride + piece * 8;
    FOCI_UNROLL
    for (int i = 0; i < rounds; ++i) {
      copy_async(to + T::at(row + i * (threads / pieces), piece), at, true);
      at += from.stride * (threads / pieces);
    }
    return;
  }
#ifndef FOCI_EMULATED
#pragma unroll 1  // unrolled, its addresses fill the registers of the loop around it
#endif
  for (int i = 0; i < rounds; ++i) {
    const int row = (thread + i * threads) / pieces, piece = (thread + i * threads) % pieces;
    if (row >= T::rows) break;
    const bool there = first + row < from.count && piece * 8 < from.width;
    const std::int64_t at = there ? (first + row) * from.stride + piece * 8 : 0;
    copy_async(to + T::at(row, piece), from.data + at, there);
  }
}

}  // namespace foci::cuda
