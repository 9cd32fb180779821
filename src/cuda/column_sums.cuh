// SPDX-License-Identifier: Apache-2.0
// Eight numbers of a row at a time, and sums of columns in two stages: every block leaves those of
// its rows, a second kernel adds them up. No atomics, so the same bits every time.
#pragma once

#include "cuda/launch.cuh"
#include "cuda/mma.cuh"
#include "cuda/runs.cuh"

namespace foci::cuda {

inline constexpr int eight = 8;  // numbers that a thread takes at once

/// Eight neighbours as they lie in memory.
template <DType type>
struct RawEight {
  uint4 words;

  FOCI_DEVICE static RawEight load(const void* from, std::int64_t at) {
    const auto* numbers = static_cast<const std::uint16_t*>(from);
    return {__ldg(reinterpret_cast<const uint4*>(numbers + at))};
  }
  FOCI_DEVICE void get(float (&x)[eight]) const { unpack(x, words, type); }
};
template <>
struct RawEight<DType::f32> {
  float4 low, high;

  FOCI_DEVICE static RawEight load(const void* from, std::int64_t at) {
    const auto* p = reinterpret_cast<const float4*>(static_cast<const float*>(from) + at);
    return {__ldg(p), __ldg(p + 1)};
  }
  FOCI_DEVICE void get(float (&x)[eight]) const {
    const float all[eight] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
    FOCI_UNROLL
    for (int i = 0; i < eight; ++i) x[i] = all[i];
  }
};

template <DType type>
FOCI_DEVICE void store_eight(void* to, std::int64_t at, const float (&x)[eight]) {
  if constexpr (type == DType::f32) {
    auto* p = reinterpret_cast<float4*>(static_cast<float*>(to) + at);
    p[0] = make_float4(x[0], x[1], x[2], x[3]);
    p[1] = make_float4(x[4], x[5], x[6], x[7]);
  } else {
    *reinterpret_cast<uint4*>(static_cast<std::uint16_t*>(to) + at) =
        make_uint4(pack<type>(x[0], x[1]), pack<type>(x[2], x[3]), pack<type>(x[4], x[5]),
                   pack<type>(x[6], x[7]));
  }
}

/// Sums of blocks: (parts, columns). The first `split` columns go to `first`, others to `second`.
struct PartSums {
  float* sums;
  int parts, columns;
  float *first, *second;
  int split;
};

/// Bytes that sums of the columns of one matrix want.
std::size_t sums_workspace(std::int64_t columns);

/// Adds up the parts.
void finish_sums(const PartSums& sums, Stream stream);

}  // namespace foci::cuda
