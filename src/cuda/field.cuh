// SPDX-License-Identifier: Apache-2.0
// A tensor as kernels see it: a pointer, a type and strides, read and written as float. And what
// kernels know of a problem: its sizes and where each sequence lies.
#pragma once

#include "cuda/words.cuh"

#include "metric/chunk.hpp"
#include "metric/problem.hpp"

namespace foci::cuda {

FOCI_DEVICE float wide_of(std::uint16_t bits, DType dtype) {
#ifdef FOCI_EMULATED
  if (dtype == DType::bf16) return metric::convert<float>(std::bit_cast<Bf16>(bits));
  return float(std::bit_cast<F16>(bits));
#else
  if (dtype == DType::bf16) return __uint_as_float(unsigned(bits) << 16);
  return __half2float(__ushort_as_half(bits));
#endif
}
FOCI_DEVICE std::uint16_t narrow_of(float x, DType dtype) {
#ifdef FOCI_EMULATED
  return dtype == DType::bf16 ? metric::narrow_bf16(x).bits : metric::narrow_f16(x).bits;
#else
  if (dtype == DType::bf16) return __bfloat16_as_ushort(__float2bfloat16_rn(x));
  return __half_as_ushort(__float2half_rn(x));
#endif
}

/// Up to five axes; f32, bf16, f16, f64, i64, i32, bool. Absent where data is nullptr.
struct Field {
  void* data = nullptr;
  DType dtype = DType::f32;
  std::int64_t strides[max_rank] = {};

  Field() = default;
  /// Axes of size 1 get stride 0, so that they serve for any index.
  explicit Field(const View& view) : data(view ? view.data : nullptr), dtype(view.dtype) {
    for (int axis = 0; axis < view.rank; ++axis)
      strides[axis] = view.shape[axis] == 1 ? 0 : view.strides[axis];
  }
  /// Row-major floats; an axis of size 1 gets stride 0 likewise.
  static Field of(float* data, std::initializer_list<std::int64_t> shape) {
    return data ? Field(View(data, shape)) : Field();
  }

  FOCI_DEVICE explicit operator bool() const { return data != nullptr; }
  template <class... I>
  FOCI_DEVICE std::int64_t offset(I... index) const {
    const std::int64_t all[] = {std::int64_t(index)...};
    std::int64_t sum = 0;
    FOCI_UNROLL
    for (int axis = 0; axis < int(sizeof...(index)); ++axis) sum += all[axis] * strides[axis];
    return sum;
  }
  FOCI_DEVICE float load_at(std::int64_t at) const {
    if (dtype == DType::f32) return static_cast<const float*>(data)[at];
    if (dtype == DType::f64) return float(static_cast<const double*>(data)[at]);
    return wide_of(static_cast<const std::uint16_t*>(data)[at], dtype);
  }
  FOCI_DEVICE void store_at(std::int64_t at, float x) const {
    if (dtype == DType::f32) {
      static_cast<float*>(data)[at] = x;
    } else if (dtype == DType::f64) {
      static_cast<double*>(data)[at] = double(x);
    } else {
      static_cast<std::uint16_t*>(data)[at] = narrow_of(x, dtype);
    }
  }
  template <class... I>
  FOCI_DEVICE float load(I... index) const {
    return load_at(offset(index...));
  }
  template <class... I>
  FOCI_DEVICE void store(float x, I... index) const {
    store_at(offset(index...), x);
  }
};

/// Where a sequence lies.
struct Place {
  int b;           // batch index
  int q0, N;       // its queries
  int k0, M;       // its keys
  int first_seen;  // position of query 0: M - N
};

struct Shape {
  int sequences = 0, H = 0, G = 0, N = 0, M = 0, D = 0, E = 0;  // packed: N and M are totals
  int longest_n = 0, longest_m = 0;
  int causal = 0;
  const int* q_offsets = nullptr;  // (sequences + 1) in device memory, packed only
  const int* k_offsets = nullptr;

  FOCI_DEVICE int key_head(int h) const { return h / (H / G); }
  FOCI_DEVICE Place place(int s) const {
    if (!q_offsets) return {s, 0, N, 0, M, M - N};
    const int n = q_offsets[s + 1] - q_offsets[s], m = k_offsets[s + 1] - k_offsets[s];
    return {0, q_offsets[s], n, k_offsets[s], m, m - n};
  }
  /// How many of the keys query i of a sequence may look at, masked ones counted.
  FOCI_DEVICE int reach(const Place& at, int i) const {
    if (!causal) return at.M;
    const int t = at.first_seen + i + 1;
    return t < 0 ? 0 : t < at.M ? t : at.M;
  }
};

/// What a query and a key have to do with each other before any weighting.
/// - product:    s = c q . k + b
/// - weighted:   s = -1/2 c sum_d m_d (q_d - k_d)^2 + b, m of the query's row, 1 where absent
/// - difference: s = -1/2 c |q - k|^2 + b, over lines that a full metric whitened
/// c is `scale`, times scales[s * G + g] where there are some.
enum class Score : int { product, weighted, difference };

/// A problem with its metric folded in: all that the passes over queries and keys look at.
/// Tokens of q, m, rows are indexed (b, h, q0 + i), of k, v (b, g, k0 + j).
struct Folded {
  Score score = Score::product;
  float scale = 1;
  const float* scales = nullptr;
  Field q, k, v;  // (B,H,N,D) (B,G,M,D) (B,G,M,E)
  // weighted: (B,H,N,D). product on tensor cores, and few keys always: (1|sequences, H|G, 1|N, D),
  // tokens q0 + i, f32 or among few keys f64; q times m is what k meets.
  Field m;
  int key_head_m = 0;  // there: a line a key head, else one a query head
  Field key_bias;      // (B,H,M), or (B,G,M) where key_head_bias
  int key_head_bias = 0;
  Field key_mask;  // (B,M) bool, true = keep
  Field row_bias;  // (B,H,N) product: part of every score of a row; of softmax only lse shows it
  // (sequences,G): whether tensor cores serve a key head, else tiles do; absent: whoever is called.
  const int* by_mma = nullptr;
  // Prefix full metric: k is (chunks of this wave, B,G,M,D); queries of chunk c of sequence s are
  // [spans[s * (most_chunks + 1) + c], next) and chunk c's keys are k at index c - first_chunk.
  // product: k is (B,G,M,D) and key_bias (most_chunks,B,G,M); `chunks` is the most queries of one.
  const int* spans = nullptr;
  int first_chunk = 0, chunks = 0, most_chunks = 0;
};

}  // namespace foci::cuda
