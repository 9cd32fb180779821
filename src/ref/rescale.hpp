// SPDX-License-Identifier: Apache-2.0
// What relu2 and identity divide a row x by: visible keys, sum |x|, root of sum x^2, or nothing.
// A zero divisor gives a zero row and a zero gradient.
#pragma once

#include "ref/row.hpp"

#include <foci/weighting.hpp>

#include <cmath>

namespace foci::ref {

/// Root of sum x^2, of x / largest first: squares of squares leave the range of f32 early.
template <class T>
T length(const T* x, std::int64_t n) {
  T largest = 0, sum = 0;
  for (std::int64_t j = 0; j < n; ++j)
    largest = std::abs(x[j]) > largest ? std::abs(x[j]) : largest;
  if (largest == T(0)) return dot(x, x, n);  // 0, or NaN
  for (std::int64_t j = 0; j < n; ++j) sum += (x[j] / largest) * (x[j] / largest);
  return largest * std::sqrt(sum);
}

template <class T>
T divisor(Rescale how, const T* x, std::int64_t n) {
  T sum = 0;
  switch (how) {
    case Rescale::length:
      return T(n);
    case Rescale::none:
      return T(1);
    case Rescale::l1:
      for (std::int64_t j = 0; j < n; ++j) sum += std::abs(x[j]);
      return sum;
    case Rescale::l2:
      return length(x, n);
  }
  return T(1);
}

/// a = x / by, and 0 where by is 0. Returns by.
template <class T>
T rescale(Rescale how, T* a, const T* x, std::int64_t n) {
  const T by = divisor(how, x, n);
  for (std::int64_t j = 0; j < n; ++j) a[j] = by == T(0) ? T(0) : x[j] / by;
  return by;
}

/// dx of x from da of a = x / by.
template <class T>
void rescale_backward(Rescale how, T by, T* dx, const Row<T>& row) {
  const T along = dot(row.a, row.da, row.n);
  for (std::int64_t j = 0; j < row.n; ++j) {
    T through = 0;  // d by / d x_j, times the row's part along a
    if (how == Rescale::l1) through = row.a[j] > T(0) ? along : row.a[j] < T(0) ? -along : T(0);
    if (how == Rescale::l2) through = row.a[j] * along;
    dx[j] = by == T(0) ? T(0) : (row.da[j] - through) / by;
  }
}

}  // namespace foci::ref
