// SPDX-License-Identifier: Apache-2.0
// Single demands on a tensor, each with the message that tells what it got.
#pragma once

#include "metric/rows.hpp"

#include <foci/error.hpp>
#include <foci/tensor.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <string_view>

namespace foci::checks {

using Dims = metric::Index;

/// A view with elements that points somewhere, none of its sizes below 0.
inline void want_memory(std::string_view name, const View& view) {
  for (const std::int64_t size : view.sizes()) {
    if (size < 0)
      throw InvalidArgument(
          fmt::format("{} has shape {}: sizes are not negative", name, to_string(view.sizes())));
  }
  double count = view ? 1 : 0;  // roughly, for the true product may not fit an integer
  for (const std::int64_t size : view.sizes()) count *= double(size);
  if (count > 0x1p56) {
    throw InvalidArgument(fmt::format("{} has shape {}: more elements than memory can hold", name,
                                      to_string(view.sizes())));
  }
  if (count > 0 && !view.data)
    throw InvalidArgument(fmt::format("{} has no memory behind it", name));
}

inline void want_shape(std::string_view name, const View& view, const Dims& shape,
                       std::string_view meaning) {
  if (!std::ranges::equal(view.sizes(), shape.sizes())) {
    throw InvalidArgument(fmt::format("{} has shape {}; it must be {} = {}", name,
                                      to_string(view.sizes()), meaning, to_string(shape.sizes())));
  }
  want_memory(name, view);
}

inline void want_floating(std::string_view name, const View& view) {
  if (!is_floating(view.dtype)) {
    throw InvalidArgument(fmt::format("{} has type {}; it must be f64, f32, bf16 or f16", name,
                                      foci::name_of(view.dtype)));
  }
}

inline void want_type_of_q(std::string_view name, const View& view, const View& q) {
  if (view.dtype != q.dtype) {
    throw InvalidArgument(fmt::format("{} has type {}; it must be {} like q", name,
                                      foci::name_of(view.dtype), foci::name_of(q.dtype)));
  }
}

/// Statistics, metrics and biases are kept in f32 or f64.
inline void want_wide(std::string_view name, const View& view) {
  if (view.dtype != DType::f32 && view.dtype != DType::f64) {
    throw InvalidArgument(
        fmt::format("{} has type {}; it must be f32 or f64", name, foci::name_of(view.dtype)));
  }
}

inline void want_writable(std::string_view name, const View& view) {
  for (int axis = 0; axis < view.rank; ++axis) {
    if (view.strides[axis] == 0 && view.shape[axis] > 1) {
      throw InvalidArgument(fmt::format(
          "{} is written to, but its axis {} has stride 0: its elements overlap", name, axis));
    }
  }
}

}  // namespace foci::checks
