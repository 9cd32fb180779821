// SPDX-License-Identifier: Apache-2.0
// What both passes of softmax over short sequences share: rows of 64 numbers in shared memory, the
// estimate of layer-change and flat by the block that has the values, queries times m.
#pragma once

#include "cuda/softmax_rest.cuh"
#include "cuda/softmax_short.cuh"

namespace foci::cuda {

inline constexpr int short_width = 64;         // of heads
inline constexpr int short_most = 256;         // queries, keys
inline constexpr int short_two_parts = 128;    // up to so many keys the rounding of m q shows
inline constexpr int short_bias_heads = 8;     // a block has room for biases of
inline constexpr Address short_line = 2 * 64;  // bytes of a row

/// Rows in shared memory, as many as there are.
using ShortRows = Tile<16, short_width>;

/// m of a key head: numbers of its own, or the block's estimate.
struct ShortMetric {
  TokenMean mean;
  int estimates = 0;
};

/// Rows of `from` from `first` on, on their way to `rows` of the tile at `to`.
FOCI_DEVICE void bring(Address to, const Lines& from, int first, int rows, int thread,
                       int threads) {
  for (int i = thread; i < rows * 8; i += threads) {
    const int row = i / 8, piece = i % 8, token = first + row;
    const bool there = token < from.count;
    const std::int64_t at = there ? token * from.stride + piece * 8 : 0;
    copy_async(to + ShortRows::at(row, piece), from.data + at, there);
  }
}

FOCI_DEVICE uint4& piece_at(Address tile, int row, int piece) {
  return *reinterpret_cast<uint4*>(shared_memory() + tile + ShortRows::at(row, piece));
}

/// sum += |v - before| of eight columns
template <DType type>
FOCI_DEVICE void add_change(float (&sum)[8], const uint4& v, const uint4& before) {
  float x[8], y[8];
  unpack(x, v, type);
  unpack(y, before, type);
  FOCI_UNROLL
  for (int w = 0; w < 8; ++w) sum[w] += fabsf(x[w] - y[w]);
}

/// This thread's part of the sums of |v - v_prev| over tokens that count, in columns
/// 8 (threadIdx.x % 8) on. Values lie at `v`, once wait() is over; v_prev is on its way before.
template <DType type, class Wait>
FOCI_DEVICE void add_changes(double (&total)[8], const TokenMean& mean, const Place& at, int head,
                             Address v, const Wait& wait) {
  constexpr int batch = 8, whole = 4;  // on their way; summed up in float
  const int thread = int(threadIdx.x), step = int(blockDim.x) / 8, piece = thread % 8;
  const Field& before = mean.of.y;
  const Terms::Span span{at.b, at.k0, at.M, 0};
  const auto* from =
      static_cast<const std::uint16_t*>(before.data) + before.offset(at.b, head, at.k0, 8 * piece);
  for (int begin = 0; begin < at.M; begin += batch * step) {
    uint4 some[batch];
    const auto row = [&](int n) { return begin + thread / 8 + n * step; };
    FOCI_UNROLL
    for (int n = 0; n < batch; ++n)
      some[n] = *reinterpret_cast<const uint4*>(from + min(row(n), at.M - 1) * before.strides[2]);
    if (begin == 0) wait();
    FOCI_UNROLL
    for (int first = 0; first < batch; first += whole) {
      float sum[8] = {};
      FOCI_UNROLL
      for (int n = first; n < first + whole; ++n) {
        if (row(n) < at.M && mean.of.counts(span, row(n)))
          add_change<type>(sum, piece_at(v, row(n), piece), some[n]);
      }
      FOCI_UNROLL
      for (int w = 0; w < 8; ++w) total[w] += double(sum[w]);
    }
  }
}

/// How many tokens count; by a whole warp.
FOCI_DEVICE int count_tokens(const TokenMean& mean, const Place& at) {
  if (!mean.of.mask) return at.M;
  int count = 0;
  for (int j = lane(); j < at.M; j += warp) count += mean.of.counts({at.b, at.k0, at.M, 0}, j);
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) count += __shfl_xor_sync(~0u, count, step);
  return count;
}

/// m of a key head into m[64], by all threads of the block, at least 64. wait() makes the values at
/// `v` visible to all. `room`: 64 doubles a warp and 64 floats.
template <DType type, class Wait>
FOCI_DEVICE void take_metric(float* m, const ShortMetric& metric, const Folded& folded,
                             const Place& at, int s, int g, Address v, double* room,
                             const Wait& wait) {
  const int thread = int(threadIdx.x), warps = int(blockDim.x) / warp;
  if (!metric.estimates) {
    wait();
    if (thread < short_width) m[thread] = folded.m.load(s, g, 0, thread);
    __syncthreads();
    return;
  }
  const TokenMean& mean = metric.mean;
  double total[8] = {};
  add_changes<type>(total, mean, at, g, v, wait);
  FOCI_UNROLL
  for (int w = 0; w < 8; ++w) {
    total[w] += __shfl_xor_sync(~0u, total[w], 8);
    total[w] += __shfl_xor_sync(~0u, total[w], 16);
    if (lane() < 8) room[thread / warp * short_width + 8 * lane() + w] = total[w];
  }
  auto* line = reinterpret_cast<float*>(room + warps * short_width);
  const int counted = count_tokens(mean, at);
  __syncthreads();
  if (thread < short_width) {
    double sum = 0;
    for (int part = 0; part < warps; ++part) sum += room[part * short_width + thread];
    line[thread] = counted > 0 ? float(sum / double(counted)) : 0.0f;
  }
  normalize_line(mean, s, g, line, counted);
  // Each thread reads what it wrote.
  if (thread < short_width) m[thread] = mean.m[(std::int64_t(s) * mean.of.heads + g) * 64 + thread];
  __syncthreads();
}

/// Bytes of take_metric's room.
constexpr Address metric_room(int warps) { return Address(warps * 64 * 8 + 64 * 4); }

/// Two neighbours of a query times those of m, rounded to 16 bits each.
template <DType type>
FOCI_DEVICE unsigned folded_pair(unsigned two, const float2& m) {
  return pack<type>(wide_of(std::uint16_t(two), type) * m.x,
                    wide_of(std::uint16_t(two >> 16), type) * m.y);
}
/// What that leaves over.
template <DType type>
FOCI_DEVICE unsigned rest_of_pair(unsigned two, const float2& m) {
  const unsigned rounded = folded_pair<type>(two, m);
  const float x = wide_of(std::uint16_t(two), type) * m.x;
  const float y = wide_of(std::uint16_t(two >> 16), type) * m.y;
  return pack<type>(x - wide_of(std::uint16_t(rounded), type),
                    y - wide_of(std::uint16_t(rounded >> 16), type));
}

/// What both passes ask of shapes and lines beside what softmax_mma asks.
inline bool short_shape(const Shape& shape, const Folded& folded, const TokenMean* mean) {
  if (shape.D != short_width || shape.E != short_width || shape.q_offsets) return false;
  if (shape.sequences < 1 || shape.N < 1 || shape.N > short_most) return false;
  if (shape.longest_n != shape.N || shape.longest_m != shape.M) return false;
  if (shape.M <= 64 || shape.M > short_most) return false;
  if (folded.spans || folded.scales || folded.by_mma || folded.row_bias.data) return false;
  if (folded.q.dtype != folded.k.dtype) return false;
  if (folded.key_bias.data && !folded.key_head_bias && shape.H / shape.G > short_bias_heads)
    return false;
  if (mean)
    return !mean->prefix && !mean->median && !mean->carried.any && !mean->wide && mean->of.y.data &&
           mean->of.y.dtype == folded.v.dtype && in_pieces(mean->of.y);
  const bool by_key_head = folded.key_head_m || shape.H == shape.G;
  return !folded.m.data || (by_key_head && folded.m.strides[2] == 0);
}

}  // namespace foci::cuda
