// SPDX-License-Identifier: Apache-2.0
// Lines of numbers read and written in runs of one or eight neighbours, and how the threads of a
// block share out the columns of many lines.
#pragma once

#include "cuda/field.cuh"
#include "cuda/launch.cuh"

#include <initializer_list>
#include <type_traits>

namespace foci::cuda {

inline constexpr int line_threads = 256;  // of a block that works on lines

/// Whether every line of `fields`, D numbers each, may be read eight at a time; absent ones do.
inline bool in_eights(int D, int rank, std::initializer_list<Field> fields) {
  if (D % 8 != 0) return false;
  for (const Field& field : fields) {
    if (!field.data) continue;
    if (field.dtype == DType::f64 || field.strides[rank - 1] != 1) return false;
    const std::int64_t size = field.dtype == DType::f32 ? 4 : 2;
    if (reinterpret_cast<std::uintptr_t>(field.data) % 16 != 0) return false;
    for (int axis = 0; axis + 1 < rank; ++axis) {
      if (field.strides[axis] * size % 16 != 0) return false;
    }
  }
  return true;
}

/// Calls f with the width of a run, 8 where `eights` or 1, as a constant.
template <class F>
void with_width(bool eights, F&& f) {
  eights ? f(std::integral_constant<int, 8>{}) : f(std::integral_constant<int, 1>{});
}

FOCI_DEVICE void unpack(float (&x)[8], const uint4& raw, DType dtype) {
  const unsigned words[4] = {raw.x, raw.y, raw.z, raw.w};
  FOCI_UNROLL
  for (int w = 0; w < 4; ++w) {
    x[2 * w] = wide_of(std::uint16_t(words[w] & 0xffffu), dtype);
    x[2 * w + 1] = wide_of(std::uint16_t(words[w] >> 16), dtype);
  }
}

/// Rows runs of W numbers from those places on, all loads before any use.
template <int W, int Rows>
FOCI_DEVICE void load_runs(float (&x)[Rows][W], const Field& from, const std::int64_t (&at)[Rows]) {
  if constexpr (W == 1) {
    FOCI_UNROLL
    for (int r = 0; r < Rows; ++r) x[r][0] = from.load_at(at[r]);
  } else if (from.dtype == DType::f32) {
    FOCI_UNROLL
    for (int r = 0; r < Rows; ++r) {
      const auto* p = reinterpret_cast<const float4*>(static_cast<const float*>(from.data) + at[r]);
      const float4 low = p[0], high = p[1];
      const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
      FOCI_UNROLL
      for (int w = 0; w < 8; ++w) x[r][w] = all[w];
    }
  } else {
    uint4 raw[Rows];
    FOCI_UNROLL
    for (int r = 0; r < Rows; ++r)
      raw[r] =
          *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(from.data) + at[r]);
    FOCI_UNROLL
    for (int r = 0; r < Rows; ++r) unpack(x[r], raw[r], from.dtype);
  }
}

template <int W>
FOCI_DEVICE void store_run(const Field& to, std::int64_t at, const float (&x)[W]) {
  if constexpr (W == 1) {
    to.store_at(at, x[0]);
  } else if (to.dtype == DType::f32) {
    auto* p = reinterpret_cast<float4*>(static_cast<float*>(to.data) + at);
    p[0] = make_float4(x[0], x[1], x[2], x[3]);
    p[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    unsigned words[4];
    FOCI_UNROLL
    for (int w = 0; w < 4; ++w) {
      words[w] = narrow_of(x[2 * w], to.dtype) | unsigned(narrow_of(x[2 * w + 1], to.dtype)) << 16;
    }
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(to.data) + at) =
        make_uint4(words[0], words[1], words[2], words[3]);
  }
}

/// A number with all its digits, or as many as a float has.
template <class T>
FOCI_DEVICE T number_at(const Field& from, std::int64_t at) {
  if (from.dtype == DType::f64) return T(static_cast<const double*>(from.data)[at]);
  return T(from.load_at(at));
}

/// Neighbouring threads have neighbouring runs of a line, groups of them different lines.
struct Columns {
  int width, groups;  // threads side by side, lines at once
  int column, group;  // this thread's; group == groups: it has none

  /// How many lines a block works on at once.
  static constexpr int lines_at_once(int D, int W) {
    const int runs = int(parts(D, W));
    return runs < line_threads ? line_threads / runs : 1;
  }
  static FOCI_DEVICE Columns of(int D, int W) {
    const int runs = (D + W - 1) / W, width = runs < line_threads ? runs : line_threads;
    const int thread = int(threadIdx.x), groups = line_threads / width, group = thread / width;
    return {width, groups, thread % width, group < groups ? group : groups};
  }
  FOCI_DEVICE bool works() const { return group < groups; }
};

FOCI_DEVICE double warp_total(double x) {
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

}  // namespace foci::cuda
