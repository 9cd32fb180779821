// SPDX-License-Identifier: Apache-2.0
// What the tile passes share: lines of tensors in shared memory, the scores of a tile of rows and
// columns, sums of lines weighted by a tile, and who sees whom. 16 threads lie across a tile; a
// thread has rows ty + down * r and columns tx + 16 * c of it.
#pragma once

#include "cuda/passes.cuh"

/// Loops that are not worth their code many times over.
#ifdef FOCI_EMULATED
#define FOCI_ROLLED
#else
#define FOCI_ROLLED _Pragma("unroll 1")
#endif

namespace foci::cuda::tile {

inline constexpr int across = 16;
inline constexpr float log2_e = 1.44269504f;

/// `Down` threads of `R` rows each, `C` columns a thread, lines of up to `Width` floats.
template <int Down, int R, int C, int Width>
struct Tile {
  static constexpr int down = Down, each_row = R, each_column = C, width = Width;
  static constexpr int rows = Down * R, columns = across * C, threads = Down * across;
  // Neighbouring rows begin four banks apart, so that eight threads read float4s of eight rows.
  static constexpr int pitch = Width + 4, weights_pitch = columns + 4;
  static constexpr int quads = Width / (4 * across);  // float4s of a line that a thread sums
  static constexpr int row_floats = rows * pitch, column_floats = columns * pitch;
  static constexpr int weights = rows * weights_pitch;  // floats of a tile of weights
};

FOCI_DEVICE int tx() { return int(threadIdx.x) % across; }
FOCI_DEVICE int ty() { return int(threadIdx.x) / across; }

FOCI_DEVICE float4 load4(const float* from) { return *reinterpret_cast<const float4*>(from); }
FOCI_DEVICE void store4(float* to, float4 x) { *reinterpret_cast<float4*>(to) = x; }
/// to += w x
FOCI_DEVICE void add(float4& to, float w, float4 x) {
  to.x = fmaf(w, x.x, to.x), to.y = fmaf(w, x.y, to.y);
  to.z = fmaf(w, x.z, to.z), to.w = fmaf(w, x.w, to.w);
}
FOCI_DEVICE float4 minus(float4 x, float4 y) {
  return make_float4(x.x - y.x, x.y - y.y, x.z - y.z, x.w - y.w);
}
FOCI_DEVICE float4 times(float4 x, float4 y) {
  return make_float4(x.x * y.x, x.y * y.y, x.z * y.z, x.w * y.w);
}

/// Over the threads that share a row.
FOCI_DEVICE float sum_across(float x) {
  FOCI_UNROLL
  for (int step = across / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}
FOCI_DEVICE float max_across(float x) {
  FOCI_UNROLL
  for (int step = across / 2; step > 0; step /= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// A tensor's lines, along its last two axes.
struct Lines {
  Field of;
  std::int64_t token = 0, coordinate = 0;  // strides
  int width = 0;
  int by_fours = 0;  // whether four neighbours can be read at once
};

inline Lines lines_of(const Field& field, int axes, int width) {
  Lines lines{field, field.strides[axes - 2], field.strides[axes - 1], width, 0};
  const std::size_t bytes = field.dtype == DType::f32 ? 16 : 8;
  bool by_fours = lines.coordinate == 1 && width % 4 == 0 && field.dtype != DType::f64 &&
                  reinterpret_cast<std::uintptr_t>(field.data) % bytes == 0;
  for (int axis = 0; axis < axes - 1; ++axis) by_fours = by_fours && field.strides[axis] % 4 == 0;
  lines.by_fours = by_fours;
  return lines;
}

FOCI_DEVICE float4 wide_of(uint2 bits, DType dtype) {
  return make_float4(cuda::wide_of(std::uint16_t(bits.x), dtype),
                     cuda::wide_of(std::uint16_t(bits.x >> 16), dtype),
                     cuda::wide_of(std::uint16_t(bits.y), dtype),
                     cuda::wide_of(std::uint16_t(bits.y >> 16), dtype));
}

/// A float4 of shared memory at step `step` of a thread: read(row, d) where kept(row), else zeros.
template <class T, class Kept, class Read>
FOCI_DEVICE void fill_four(float* to, int step, int width, const Kept& kept, const Read& read) {
  constexpr int in_line = T::width / 4;
  const int at = int(threadIdx.x) + step * T::threads, row = at / in_line, d = at % in_line * 4;
  float4 x = make_float4(0, 0, 0, 0);
  if (d < width && kept(row)) x = read(row, d);
  store4(to + row * T::pitch + d, x);
}

/// `Rows` lines from offset `from` on.
template <class T, int Rows, class Kept>
FOCI_DEVICE void load_lines(float* to, const Lines& lines, std::int64_t from, const Kept& kept) {
  constexpr int steps = Rows * T::width / 4 / T::threads;
  static_assert(Rows * T::width % (4 * T::threads) == 0);
  const Field& of = lines.of;
  if (lines.by_fours && of.dtype == DType::f32) {
    const float* data = static_cast<const float*>(of.data) + from;
    FOCI_UNROLL
    for (int step = 0; step < steps; ++step)
      fill_four<T>(to, step, lines.width, kept,
                   [&](int row, int d) { return load4(data + row * lines.token + d); });
  } else if (lines.by_fours) {
    const std::uint16_t* data = static_cast<const std::uint16_t*>(of.data) + from;
    FOCI_UNROLL
    for (int step = 0; step < steps; ++step)
      fill_four<T>(to, step, lines.width, kept, [&](int row, int d) {
        return wide_of(*reinterpret_cast<const uint2*>(data + row * lines.token + d), of.dtype);
      });
  } else {
    FOCI_ROLLED
    for (int step = 0; step < steps; ++step)
      fill_four<T>(to, step, lines.width, kept, [&](int row, int d) {
        const std::int64_t at = from + row * lines.token + d * lines.coordinate;
        float x[4] = {};
        FOCI_UNROLL
        for (int e = 0; e < 4; ++e)
          if (d + e < lines.width) x[e] = of.load_at(at + e * lines.coordinate);
        return make_float4(x[0], x[1], x[2], x[3]);
      });
  }
}

/// A thread's part of a tile to shared memory.
template <class T>
FOCI_DEVICE void put(float* to, const float (&s)[T::each_row][T::each_column]) {
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c)
      to[(ty() + r * T::down) * T::weights_pitch + tx() + c * across] = s[r][c];
  }
}

/// A thread's part of sums over columns: rows ty + down * r, coordinates 4 (tx + 16 * quad).
template <class T>
struct Sums {
  float4 at[T::each_row][T::quads];

  FOCI_DEVICE void clear() {
    FOCI_UNROLL
    for (int r = 0; r < T::each_row; ++r) {
      FOCI_UNROLL
      for (int quad = 0; quad < T::quads; ++quad) at[r][quad] = make_float4(0, 0, 0, 0);
    }
  }
  FOCI_DEVICE void scale_row(int r, float by) {
    FOCI_UNROLL
    for (int quad = 0; quad < T::quads; ++quad)
      at[r][quad] = times(at[r][quad], make_float4(by, by, by, by));
  }
};

/// Calls each(w, column, quad) with the weights w[R] of a column, for every column and quad.
template <class T, class Each>
FOCI_DEVICE void over_columns(const float* weights, const Each& each) {
  weights += ty() * T::weights_pitch;
  for (int column = 0; column < T::columns; column += 4) {
    float w[4][T::each_row];
    FOCI_UNROLL
    for (int r = 0; r < T::each_row; ++r) {
      const float4 four = load4(weights + r * T::down * T::weights_pitch + column);
      w[0][r] = four.x, w[1][r] = four.y, w[2][r] = four.z, w[3][r] = four.w;
    }
    FOCI_UNROLL
    for (int one = 0; one < 4; ++one) {
      FOCI_UNROLL
      for (int quad = 0; quad < T::quads; ++quad) each(w[one], column + one, quad);
    }
  }
}

/// Where a thread finds its quad of a line.
template <class T>
FOCI_DEVICE const float* quad_of(const float* lines, int line, int quad) {
  return lines + line * T::pitch + 4 * (tx() + across * quad);
}

/// to += weights y
template <class T>
FOCI_DEVICE void gather(Sums<T>& to, const float* weights, const float* y) {
  over_columns<T>(weights, [&](const float* w, int column, int quad) {
    const float4 line = load4(quad_of<T>(y, column, quad));
    FOCI_UNROLL
    for (int r = 0; r < T::each_row; ++r) add(to.at[r][quad], w[r], line);
  });
}

/// Lines of sums to a tensor, by way of `room` in shared memory (rows * pitch, which nobody needs
/// any more), from offset `from` on; added to what is there where `onto`.
template <class T>
FOCI_DEVICE void store_lines(const Lines& to, std::int64_t from, int count, const Sums<T>& sums,
                             float* room, bool onto = false) {
  __syncthreads();
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    FOCI_UNROLL
    for (int quad = 0; quad < T::quads; ++quad)
      store4(room + (ty() + r * T::down) * T::pitch + 4 * (tx() + across * quad), sums.at[r][quad]);
  }
  __syncthreads();
  FOCI_ROLLED
  for (int at = int(threadIdx.x); at < count * T::width; at += T::threads) {
    const int row = at / T::width, d = at % T::width;
    if (d >= to.width) continue;
    const std::int64_t place = from + row * to.token + d * to.coordinate;
    const float x = room[row * T::pitch + d];
    to.of.store_at(place, onto ? to.of.load_at(place) + x : x);
  }
}

}  // namespace foci::cuda::tile
