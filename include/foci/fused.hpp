// SPDX-License-Identifier: Apache-2.0
// What a transformer block does on a GPU beside products and attention, one pass each: the residual
// stream and its layer norm, GELU, and sums of columns, which are gradients of biases. Views are
// row-major and in device memory; f32 in between; the same bits every time. Of Call the stream and
// the workspace count.
#pragma once

#include <foci/export.h>
#include <foci/call.hpp>
#include <foci/tensor.hpp>

#include <cstddef>
#include <cstdint>

namespace foci::fused {

/// R rows of C numbers, C a multiple of 8 and at most 4096.
struct Residual {
  View x;            ///< (R,C) f32
  View branch = {};  ///< (R,C) bf16, f16 or f32; absent: nothing is added
  View scale = {};   ///< (S) f32, S a divisor of R: factors of R/S rows of branch each
  View weight = {};  ///< (C) f32
  View bias = {};    ///< (C) f32
  float epsilon = 1e-6f;
};
struct Normed {
  View x = {};     ///< (R,C) f32: x + scale branch; absent where nothing is added
  View y = {};     ///< (R,C) bf16, f16 or f32: its layer norm times weight, plus bias
  View mean = {};  ///< (R) f32 of a row
  View rstd = {};  ///< (R) f32 one over a row's standard deviation
};
FOCI_API void add_norm(const Normed& to, const Residual& from, const Call& call);

struct NormGradients {
  View dy = {};       ///< (R,C) in, y's type
  View from_x = {};   ///< (R,C) f32 in: of Normed::x by other ways; absent: 0
  View dx = {};       ///< (R,C) f32
  View dbranch = {};  ///< (R,C) branch's type, or absent
  View dweight = {};  ///< (C) f32
  View dbias = {};    ///< (C) f32
};
FOCI_API void add_norm_backward(const NormGradients& to, const Residual& from, const Normed& saved,
                                const Call& call);

/// to (C) f32: the sums over the rows of from (R,C), f32, bf16 or f16; C a multiple of 8.
FOCI_API void column_sums(const View& to, const View& from, const Call& call);

/// to, from (R,C) bf16 or f16: x Phi(x). C a multiple of 8.
FOCI_API void gelu(const View& to, const View& from, const Call& call);

struct GeluGradients {
  View dy = {};      ///< (R,C) in
  View dx = {};      ///< (R,C)
  View dx_sum = {};  ///< (C) f32: over the rows of dx, before it was rounded
};
FOCI_API void gelu_backward(const GeluGradients& to, const View& x, const Call& call);

/// Bytes that the backward passes and column_sums want for C columns.
FOCI_API std::size_t workspace(std::int64_t columns);

}  // namespace foci::fused
