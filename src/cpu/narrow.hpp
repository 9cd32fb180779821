// SPDX-License-Identifier: Apache-2.0
// Softmax blocks over bf16: what the objects for AVX512-BF16 and AMX offer beside the float kernels
// of kernels.hpp. Products multiply bf16 and sum in float; scores, exponentials and sums are float;
// weights are rounded to bf16 only where they meet values.
#pragma once

#include "cpu/kernels.hpp"

namespace foci::cpu {

/// Lines of bf16 as they lie in a tensor: line i at from + i * step, its elements neighbours.
struct NarrowLines {
  const std::uint16_t* from;
  std::int64_t step;
  std::int64_t count, width;
};

/// A query block that may take its queries as they lie: narrow_q (rows, D), a row every
/// narrow_step, instead of q; both are multiplied by scale. split: q has more bits than bf16.
struct NarrowForward : ForwardBlock {
  const std::uint16_t* narrow_q = nullptr;
  std::int64_t narrow_step = 0;
};

/// A block of queries on the way back: q (rows, D) as they lie, or `wide` (rows, D) floats where
/// they have more bits; d_o (rows, E).
struct NarrowQueries {
  NarrowLines q;  // count and width hold for wide too
  const float* wide;
  NarrowLines d_o;
  bool sums = true;  // whether softmax_backward will sum them up; softmax_deltas does not
};

/// One query block against one key block, backwards, with q' = scale q. dq, dk and dv are column
/// panels as in BackwardBlock, of block_rows and gradient_keys rows.
struct NarrowBackward {
  const float* queries;  // packed by pack_gradient_queries, of `parts` parts
  const float* keys;     // packed by pack_gradient_keys
  int parts;
  const float* bias;         // (n, padded to a panel)
  const float* low;          // (rows) r - lse
  const float* minus_delta;  // (rows) minus sum_j a_ij da_ij; softmax_deltas does not look at it
  const std::int64_t* sees;  // (rows)
  bool causal;
  float scale;
  std::int64_t rows, key, n;  // key: the first of the block's
  std::int64_t D, E;
  float* scratch;  // gradient_scratch() floats
  float* dq;       // += sum_j ds_ij k_j
  float* dk;       // += sum_i ds_ij q'_i
  float* dv;       // += sum_i a_ij do_i
  float* dbias;    // (n) += sum_i ds_ij, or nullptr
  float* delta;    // (rows) += sum_j a_ij da_ij, by softmax_deltas alone
};

struct NarrowKernels {
  const char* name;
  std::int64_t panel;  // keys of a panel
  std::int64_t (*forward_scratch)(std::int64_t D, std::int64_t E);
  /// floats that n packed keys of width D, n packed values of width E need
  std::int64_t (*keys_room)(std::int64_t n, std::int64_t D);
  std::int64_t (*values_room)(std::int64_t n, std::int64_t E);
  /// keys [first, first + lines.count), first a multiple of panel, of n -> panels of pairs
  /// [n/panel][D/2][panel][2], zero padded to whole panels and D to 32
  void (*pack_keys)(float* to, const NarrowLines& lines, std::int64_t first);
  /// values [first, first + lines.count), first a multiple of panel, of n -> column panels of pairs
  /// [E/panel][n/2][panel][2], zero padded to whole panels
  void (*pack_values)(float* to, const NarrowLines& lines, std::int64_t first, std::int64_t n);
  /// (count, width) floats -> lines of bf16, a line every `step`, rounded as metric::store() does
  void (*store_lines)(std::uint16_t* to, std::int64_t step, const float* from, std::int64_t count,
                      std::int64_t width);
  /// s_ij = scale q_i . k_j + b_j + r_i
  void (*softmax_forward)(const NarrowForward& block);

  /// floats of a packed block of queries, of keys, and of what softmax_backward needs besides
  std::int64_t (*gradient_queries_room)(std::int64_t D, std::int64_t E);
  std::int64_t (*gradient_keys_room)(std::int64_t D, std::int64_t E);
  std::int64_t (*gradient_scratch)();
  /// At most block_rows queries; gives back the parts they are made of.
  int (*pack_gradient_queries)(float* to, const NarrowQueries& from);
  /// At most gradient_keys keys and their values.
  void (*pack_gradient_keys)(float* to, const NarrowLines& k, const NarrowLines& v);
  void (*softmax_deltas)(const NarrowBackward& block);
  void (*softmax_backward)(const NarrowBackward& block);
};

namespace avx512bf16 {
extern const NarrowKernels kernels;
}
namespace amx {
extern const NarrowKernels kernels;
}

}  // namespace foci::cpu
