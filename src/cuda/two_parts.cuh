// SPDX-License-Identifier: Apache-2.0
// Floats on tensor cores: x = high + low, both of 16 bits, which leaves 2^-17 of |x| (f16: 2^-23,
// or 2^-25 where x is small). A product of two such is three, the smallest is left out. Lines of 64
// tokens, a warp to 16 rows of sums.
#pragma once

#include "cuda/full_slots.cuh"
#include "cuda/mma.cuh"

namespace foci::cuda {

/// Eight neighbours.
struct Eight {
  float x[8];
};

FOCI_DEVICE Eight load_eight(const float* from) {
  const auto* data = reinterpret_cast<const float4*>(from);
  const float4 a = data[0], b = data[1];
  return {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
}
/// From 16 bytes of 16-bit numbers, or 32 of floats.
FOCI_DEVICE Eight load_eight(const Field& from, std::int64_t at) {
  if (from.dtype == DType::f32) return load_eight(static_cast<const float*>(from.data) + at);
  Eight to;
  const auto* data = static_cast<const std::uint16_t*>(from.data) + at;
  const uint4 four = *reinterpret_cast<const uint4*>(data);
  const unsigned words[] = {four.x, four.y, four.z, four.w};
  FOCI_UNROLL
  for (int i = 0; i < 8; ++i)
    to.x[i] = wide_of(std::uint16_t(words[i / 2] >> 16 * (i % 2)), from.dtype);
  return to;
}

/// Fills a tile with eight(row, piece) rounded, by `threads` threads.
template <DType type, class T, int threads, class F>
FOCI_DEVICE void fill_rounded(Address tile, const F& eight) {
  constexpr int pieces = T::width / 8;
  FOCI_UNROLL
  for (int i = int(threadIdx.x); i < T::rows * pieces; i += threads) {
    const Eight from = eight(i / pieces, i % pieces);
    unsigned words[4];
    FOCI_UNROLL
    for (int n = 0; n < 4; ++n) words[n] = pack<type>(from.x[2 * n], from.x[2 * n + 1]);
    *reinterpret_cast<uint4*>(shared_memory() + tile + T::at(i / pieces, i % pieces)) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// Masked keys of a tile that begins at key t become 0.
template <class X, int threads>
FOCI_DEVICE void forget_masked(Address tile, const Slots& slots, const Place& at, int t, int end) {
  constexpr int pieces = X::width / 8;
  for (int i = int(threadIdx.x); i < X::rows * pieces; i += threads) {
    const int j = t + i / pieces;
    if (j < end && !slots.keeps(at, j))
      *reinterpret_cast<uint4*>(shared_memory() + tile + X::at(i / pieces, i % pieces)) =
          make_uint4(0, 0, 0, 0);
  }
  __syncthreads();
}

/// Both parts of a tile: the high ones, then the low ones.
template <DType type_, int rows_, int width_>
struct TwoParts {
  static constexpr DType type = type_;
  using Part = Tile<rows_, width_>;
  static constexpr int rows = rows_, width = width_, pieces = width / 8;
  static constexpr Address low = Part::bytes, bytes = 2 * Part::bytes;

  /// Eight numbers of a row, at `tile` of the block's shared memory.
  FOCI_DEVICE static void put(Address tile, int row, int piece, const Eight& from) {
    unsigned high[4], rest[4];
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float x = from.x[2 * i], y = from.x[2 * i + 1];
      high[i] = pack<type>(x, y);
      rest[i] = pack<type>(x - wide_of(std::uint16_t(high[i]), type),
                           y - wide_of(std::uint16_t(high[i] >> 16), type));
    }
    std::byte* to = shared_memory() + tile + Part::at(row, piece);
    *reinterpret_cast<uint4*>(to) = make_uint4(high[0], high[1], high[2], high[3]);
    *reinterpret_cast<uint4*>(to + low) = make_uint4(rest[0], rest[1], rest[2], rest[3]);
  }

  /// Fills the tile with eight(row, piece), by `threads` threads. A thread has one piece of a row
  /// alone, threadIdx.x % pieces.
  template <int threads, class F>
  FOCI_DEVICE static void fill(Address tile, const F& eight) {
    static_assert(threads % pieces == 0);
    FOCI_UNROLL
    for (int i = int(threadIdx.x); i < rows * pieces; i += threads)
      put(tile, i / pieces, i % pieces, eight(i / pieces, i % pieces));
  }

  /// 16x16 operands of both parts.
  template <bool transposed>
  FOCI_DEVICE static void operands(unsigned (&to)[2][4], Address mine, int row) {
    Part::template operands<transposed>(to[0], mine, row);
    Part::template operands<transposed>(to[1], mine + low, row);
  }
};

/// A warp's 16 rows of sums: rows lane / 4 and 8 below, columns 8 n + 2 (lane % 4) and beside.
template <int width>
using RowSums = float[width / 8][4];

template <int width>
FOCI_DEVICE void clear(RowSums<width>& sums) {
  FOCI_UNROLL
  for (int i = 0; i < width / 2; ++i) sums[i / 4][i % 4] = 0;
}

/// sums += a b, 16x16 each
template <DType type>
FOCI_DEVICE void multiply_both(float (&left)[4], float (&right)[4], const unsigned (&a)[4],
                               const unsigned (&b)[4]) {
  multiply<type>(left, a, b[0], b[1]);
  multiply<type>(right, a, b[2], b[3]);
}

/// sums += x m' of the warp's 16 rows of x, from `row` on; x (64,width), of one part unless split,
/// m (width,width).
template <DType type, int width, bool split>
FOCI_DEVICE void add_lines(RowSums<width>& sums, Address x, Address m, int row) {
  using X = TwoParts<type, 64, width>;
  using M = TwoParts<type, width, width>;
  x += shared_address() + X::Part::along();
  m += shared_address() + M::Part::across();
  FOCI_UNROLL
  for (int step = 0; step < width / 16; ++step) {
    unsigned a[2][4];
    const Address x_here = X::Part::beside(x, step), m_here = M::Part::beside(m, step);
    X::Part::template operands<false>(a[0], x_here, row);
    if constexpr (split) X::Part::template operands<false>(a[1], x_here + X::low, row);
    FOCI_UNROLL
    for (int n = 0; n < width / 16; ++n) {
      unsigned b[2][4];
      M::template operands<false>(b, m_here, 16 * n);
      multiply_both<type>(sums[2 * n], sums[2 * n + 1], a[0], b[1]);
      if constexpr (split) multiply_both<type>(sums[2 * n], sums[2 * n + 1], a[1], b[0]);
      multiply_both<type>(sums[2 * n], sums[2 * n + 1], a[0], b[0]);
    }
  }
}

/// The same of one part of each.
template <DType type, int width>
FOCI_DEVICE void add_rounded(RowSums<width>& sums, Address x, Address m, int row) {
  using X = Tile<64, width>;
  using M = Tile<width, width>;
  x += shared_address() + X::along();
  m += shared_address() + M::across();
  FOCI_UNROLL
  for (int step = 0; step < width / 16; ++step) {
    unsigned a[4], b[4];
    X::template operands<false>(a, X::beside(x, step), row);
    const Address m_here = M::beside(m, step);
    FOCI_UNROLL
    for (int n = 0; n < width / 16; ++n) {
      M::template operands<false>(b, m_here, 16 * n);
      multiply_both<type>(sums[2 * n], sums[2 * n + 1], a, b);
    }
  }
}

/// sums += x' y over 64 tokens, rows of sums from column 16 `rows` of x on; x, y (64,width).
template <DType type, int width>
FOCI_DEVICE void add_outer(RowSums<width>& sums, Address x, Address y, int rows) {
  using X = Tile<64, width>;
  const Address left = X::beside(x + shared_address() + X::across(), rows);
  y += shared_address() + X::along();
  FOCI_UNROLL
  for (int step = 0; step < 4; ++step) {
    unsigned a[4], b[4];
    X::template operands<true>(a, left, 16 * step);
    FOCI_UNROLL
    for (int n = 0; n < width / 16; ++n) {
      X::template operands<true>(b, X::beside(y, n), 16 * step);
      multiply_both<type>(sums[2 * n], sums[2 * n + 1], a, b);
    }
  }
}

/// Lane l of four has part l of every piece; then it has all of piece l.
FOCI_DEVICE void turn_pieces(unsigned (&words)[4]) {
  FOCI_UNROLL
  for (int step = 1; step <= 2; step *= 2) {
    const bool high = (lane() & step) != 0;
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (i & step) continue;
      const unsigned got = __shfl_xor_sync(~0u, high ? words[i] : words[i | step], step);
      words[i] = high ? got : words[i];
      words[i | step] = high ? words[i | step] : got;
    }
  }
}

/// A row of 16-bit numbers of which each of four lanes has every fourth pair, in whole pieces.
template <int width>
FOCI_DEVICE void write_row(std::uint16_t* to, const unsigned (&pairs)[width / 8], bool there,
                           int D) {
  FOCI_UNROLL
  for (int first = 0; first < width / 8; first += 4) {
    unsigned words[4] = {pairs[first], pairs[first + 1], pairs[first + 2], pairs[first + 3]};
    turn_pieces(words);
    const int d = 8 * (first + lane() % 4);
    if (there && d < D)
      *reinterpret_cast<uint4*>(to + d) = make_uint4(words[0], words[1], words[2], words[3]);
  }
}

}  // namespace foci::cuda
