// SPDX-License-Identifier: Apache-2.0
// Lines of bf16 for the kernels over bf16: as they lie in a tensor where they lie evenly, else
// gathered. And for which problems those kernels are.
#pragma once

#include "cpu/narrow.hpp"
#include "cpu/tokens.hpp"

namespace foci::cpu {

/// `kernels` where they can do the problem, else nullptr: softmax over tensors of bf16 whose keys
/// meet queries as they are.
inline const NarrowKernels* narrow_for(const Problem& p, const NarrowKernels* kernels) {
  const bool bf16 = p.from.q.dtype == DType::bf16;
  const bool product = !p.full && metric::form_of(p.how.metric) == Form::product;
  return bf16 && product && std::holds_alternative<Softmax>(p.how.weighting) ? kernels : nullptr;
}

inline NarrowLines narrow_lines(const Bf16* from, std::int64_t step, std::int64_t count,
                                std::int64_t width) {
  return {reinterpret_cast<const std::uint16_t*>(from), step, count, width};
}

/// Kept keys [first, first + count) of a (B,G,M,width) tensor; `room` (count,width).
inline NarrowLines narrow_keys(const Tokens& tokens, const View& from, std::int64_t g,
                               std::int64_t first, std::int64_t count, std::int64_t width,
                               Bf16* room) {
  const metric::Sequence& at = tokens.at;
  if (from.strides[3] == 1 && tokens.n == at.M) {
    return narrow_lines(metric::address<Bf16>(from, {at.b, g, at.k0 + first, 0}), from.strides[2],
                        count, width);
  }
  for (std::int64_t j = 0; j < count; ++j)
    metric::load(room + j * width, from, {at.b, g, at.k0 + tokens.key_at[first + j]}, width);
  return narrow_lines(room, width, count, width);
}

/// Rows [first, first + rows) of a (B,H,N,width) tensor; `room` (rows,width).
inline NarrowLines narrow_queries(const Tokens& tokens, const View& from, std::int64_t h,
                                  std::int64_t first, std::int64_t rows, std::int64_t width,
                                  Bf16* room) {
  const metric::Sequence& at = tokens.at;
  if (from.strides[3] == 1) {
    return narrow_lines(metric::address<Bf16>(from, {at.b, h, at.q0 + first, 0}), from.strides[2],
                        rows, width);
  }
  for (std::int64_t i = 0; i < rows; ++i)
    metric::load(room + i * width, from, {at.b, h, at.q0 + first + i}, width);
  return narrow_lines(room, width, rows, width);
}

/// (count, width) floats to lines from `first` on, where kernels over bf16 can; else false.
inline bool store_narrow(const NarrowKernels* kernels, const View& to, const metric::Index& first,
                         const float* from, std::int64_t count, std::int64_t width) {
  if (!kernels || to.dtype != DType::bf16 || to.strides[3] != 1) return false;
  kernels->store_lines(reinterpret_cast<std::uint16_t*>(metric::address<Bf16>(to, first)),
                       to.strides[2], from, count, width);
  return true;
}

}  // namespace foci::cpu
