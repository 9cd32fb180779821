// SPDX-License-Identifier: Apache-2.0
// x_j = relu(s_j)^2, a = x rescaled.   ds_j = 2 relu(s_j) dx_j
#pragma once

#include "ref/rescale.hpp"

namespace foci::ref {

template <class T>
void square_of_positive(T* x, const Row<T>& row) {
  for (std::int64_t j = 0; j < row.n; ++j) {
    const T positive = row.s[j] < T(0) ? T(0) : row.s[j];  // NaN stays NaN
    x[j] = positive * positive;
  }
}

template <class T>
void forward(const Relu2& how, Row<T>& row) {
  square_of_positive(row.a, row);
  rescale(how.rescale, row.a, row.a, row.n);
}

template <class T>
void backward(const Relu2& how, Row<T>& row) {
  square_of_positive(row.ds, row);
  const T by = divisor(how.rescale, row.ds, row.n);
  rescale_backward(how.rescale, by, row.ds, row);
  for (std::int64_t j = 0; j < row.n; ++j) row.ds[j] *= row.s[j] < T(0) ? T(0) : 2 * row.s[j];
}

}  // namespace foci::ref
