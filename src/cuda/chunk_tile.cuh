// SPDX-License-Identifier: Apache-2.0
// Tiles of 64 x 64 floats in shared memory: loaded from lines of a tensor of any type, multiplied
// by 256 threads of which each holds 4 x 4 sums, and written back to lines.
#pragma once

#include "cuda/field.cuh"

namespace foci::cuda::chunks {

inline constexpr int side = 64;      // tokens of a chunk, rows and columns of a tile
inline constexpr int threads = 256;  // of a block

struct Four {
  float at[4];
};
FOCI_DEVICE Four four(const float* from) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  return {{x.x, x.y, x.z, x.w}};
}

/// Four floats more than needed keep neighbouring lines in other banks.
struct alignas(16) Tile {
  float at[side][side + 4];
};

/// A thread's part of a product: rows row() + r, columns column() + c.
struct Sums {
  float at[4][4];
};
FOCI_DEVICE int row() { return int(threadIdx.x) / 16 * 4; }
FOCI_DEVICE int column() { return int(threadIdx.x) % 16 * 4; }
/// Column c of a product by lines, which has its own order.
FOCI_DEVICE int column_by_lines(int c) { return int(threadIdx.x) % 16 + 16 * c; }

/// The token lines of one head, from one of them on; width floats each.
struct Lines {
  void* data = nullptr;
  DType dtype = DType::f32;
  bool wide = false;  // four at once
  int width = 0;
  std::int64_t step = 0, apart = 0;

  FOCI_DEVICE Lines(const Field& of, int b, int head, std::int64_t first, int size)
      : dtype(of.dtype), width(size), step(of.strides[2]), apart(of.strides[3]) {
    const int bytes = dtype == DType::f64 ? 8 : dtype == DType::f32 ? 4 : 2;
    data = static_cast<char*>(of.data) + bytes * of.offset(b, head, first);
    const auto address = reinterpret_cast<std::uintptr_t>(data);
    wide = apart == 1 && step % 4 == 0 && bytes < 8 && address % std::uintptr_t(4 * bytes) == 0;
  }
  FOCI_DEVICE float load(int line, int x) const {
    Field of;
    of.data = data;
    of.dtype = dtype;
    return of.load_at(line * step + x * apart);
  }
  /// Columns x to x + 3; 0 past the last.
  FOCI_DEVICE Four load4(int line, int x) const {
    const std::int64_t at = line * step + x;
    if (wide && x + 4 <= width) {
      if (dtype == DType::f32) return four(static_cast<const float*>(data) + at);
      const uint2 two =
          *reinterpret_cast<const uint2*>(static_cast<const std::uint16_t*>(data) + at);
      return {{wide_of(std::uint16_t(two.x), dtype), wide_of(std::uint16_t(two.x >> 16), dtype),
               wide_of(std::uint16_t(two.y), dtype), wide_of(std::uint16_t(two.y >> 16), dtype)}};
    }
    Four y{};
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) {
      if (x + c < width) y.at[c] = load(line, x + c);
    }
    return y;
  }
  FOCI_DEVICE void store4(int line, int x, const Four& y) const {
    const std::int64_t at = line * step + x;
    if (wide && x + 4 <= width && dtype == DType::f32) {
      *reinterpret_cast<float4*>(static_cast<float*>(data) + at) =
          make_float4(y.at[0], y.at[1], y.at[2], y.at[3]);
      return;
    }
    if (wide && x + 4 <= width) {
      unsigned bits[4];
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) bits[c] = narrow_of(y.at[c], dtype);
      *reinterpret_cast<uint2*>(static_cast<std::uint16_t*>(data) + at) =
          make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
      return;
    }
    Field of;
    of.data = data;
    of.dtype = dtype;
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) {
      if (x + c < width) of.store_at(line * step + (x + c) * apart, y.at[c]);
    }
  }
};

/// to(r, x) .. to(r, x + 3) = value(r, x), for every x that is a multiple of 4.
template <class Value>
FOCI_DEVICE void load_tile(Tile& to, Value&& value) {
  FOCI_UNROLL
  for (int part = 0; part < side * side / 4 / threads; ++part) {
    const int index = int(threadIdx.x) + part * threads, r = index / 16, x = index % 16 * 4;
    const Four y = value(r, x);
    *reinterpret_cast<float4*>(&to.at[r][x]) = make_float4(y.at[0], y.at[1], y.at[2], y.at[3]);
  }
}
/// The same, rows becoming columns.
template <class Value>
FOCI_DEVICE void load_across(Tile& to, Value&& value) {
  FOCI_UNROLL
  for (int part = 0; part < side * side / 4 / threads; ++part) {
    const int index = int(threadIdx.x) + part * threads, r = index / 16, x = index % 16 * 4;
    const Four y = value(r, x);
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) to.at[x + c][r] = y.at[c];
  }
}

FOCI_DEVICE void add(Sums& sums, const Four (&x)[4], const Four (&y)[4]) {
  FOCI_UNROLL
  for (int k = 0; k < 4; ++k) {
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) {
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) sums.at[r][c] = fmaf(x[r].at[k], y[k].at[c], sums.at[r][c]);
    }
  }
}

/// sums += a(row, k) b(k, column) for k in [0, end), rounded up to four.
FOCI_DEVICE void product(Sums& sums, const Tile& a, const Tile& b, int end) {
  for (int k = 0; k < end; k += 4) {
    Four x[4], y[4];
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) x[r] = four(&a.at[row() + r][k]);
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) y[r] = four(&b.at[k + r][column()]);
    add(sums, x, y);
  }
}

/// The same where row r meets k <= r alone: what lies beyond is never touched.
FOCI_DEVICE void product_below(Sums& sums, const Tile& a, const Tile& b) {
  product(sums, a, b, row());
  FOCI_UNROLL
  for (int k = 0; k < 4; ++k) {
    const Four y = four(&b.at[row() + k][column()]);
    FOCI_UNROLL
    for (int r = k; r < 4; ++r) {
      const float x = a.at[row() + r][row() + k];
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) sums.at[r][c] = fmaf(x, y.at[c], sums.at[r][c]);
    }
  }
}

/// sums += a(k, row) b(k, column) for k in [begin, side).
FOCI_DEVICE void product_across(Sums& sums, const Tile& a, const Tile& b, int begin = 0) {
#pragma unroll 4
  for (int k = begin; k < side; ++k) {
    const Four x = four(&a.at[k][row()]), y = four(&b.at[k][column()]);
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) {
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) sums.at[r][c] = fmaf(x.at[r], y.at[c], sums.at[r][c]);
    }
  }
}

/// The same where row r meets k >= r alone.
FOCI_DEVICE void product_after(Sums& sums, const Tile& a, const Tile& b) {
  FOCI_UNROLL
  for (int k = 0; k < 4; ++k) {
    const Four x = four(&a.at[row() + k][row()]), y = four(&b.at[row() + k][column()]);
    FOCI_UNROLL
    for (int r = 0; r <= k; ++r) {
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) sums.at[r][c] = fmaf(x.at[r], y.at[c], sums.at[r][c]);
    }
  }
  product_across(sums, a, b, row() + 4);
}

/// sums += a(row, k) b(column, k) for k in [0, end); columns in the order of column_by_lines().
FOCI_DEVICE void product_by_lines(Sums& sums, const Tile& a, const Tile& b, int end) {
  for (int k = 0; k < end; k += 4) {
    Four x[4], y[4];
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) x[r] = four(&a.at[row() + r][k]);
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) y[c] = four(&b.at[column_by_lines(c)][k]);
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) {
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) {
        FOCI_UNROLL
        for (int step = 0; step < 4; ++step)
          sums.at[r][c] = fmaf(x[r].at[step], y[c].at[step], sums.at[r][c]);
      }
    }
  }
}

}  // namespace foci::cuda::chunks
