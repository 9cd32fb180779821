// SPDX-License-Identifier: Apache-2.0
// a_j = exp(s_j) / sum exp(s).   ds_j = a_j (da_j - sum_i a_i da_i)
#pragma once

#include "ref/row.hpp"

#include <foci/weighting.hpp>

#include <cmath>
#include <limits>

namespace foci::ref {

template <class T>
void forward(const Softmax&, Row<T>& row) {
  constexpr T nothing = -std::numeric_limits<T>::infinity();
  T top = nothing;
  for (std::int64_t j = 0; j < row.n; ++j) {
    if (row.s[j] > top) top = row.s[j];
  }
  const T shift = top == nothing ? T(0) : top;  // -inf - -inf would be NaN
  T sum = 0;
  for (std::int64_t j = 0; j < row.n; ++j) sum += row.a[j] = std::exp(row.s[j] - shift);
  for (std::int64_t j = 0; j < row.n; ++j) row.a[j] = sum == T(0) ? T(0) : row.a[j] / sum;
  row.lse = sum == T(0) ? nothing : shift + std::log(sum);
}

template <class T>
void backward(const Softmax&, Row<T>& row) {
  const T mean = dot(row.a, row.da, row.n);
  for (std::int64_t j = 0; j < row.n; ++j) row.ds[j] = row.a[j] * (row.da[j] - mean);
}

}  // namespace foci::ref
