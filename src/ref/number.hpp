// SPDX-License-Identifier: Apache-2.0
// The number types: S is how tensors lie in memory, T what is computed with. In sixteen bits the
// weights are rounded to S before they meet the values, so that ref in a dtype is also the naive
// formula in that dtype.
#pragma once

#include <foci/tensor.hpp>

#include <cstdint>
#include <type_traits>

namespace foci::ref {

template <class S>
using Arithmetic = std::conditional_t<std::is_same_v<S, double>, double, float>;

template <class S>
Arithmetic<S> rounded(Arithmetic<S> x) {
  if constexpr (std::is_same_v<S, Arithmetic<S>>) {
    return x;
  } else {
    return static_cast<float>(S(x));
  }
}

template <class T>
T dot(const T* x, const T* y, std::int64_t count) {
  T sum = 0;
  for (std::int64_t d = 0; d < count; ++d) sum += x[d] * y[d];
  return sum;
}

/// y += factor * x
template <class T>
void add(T* y, T factor, const T* x, std::int64_t count) {
  for (std::int64_t d = 0; d < count; ++d) y[d] += factor * x[d];
}

}  // namespace foci::ref
