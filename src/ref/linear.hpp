// SPDX-License-Identifier: Apache-2.0
// x_j = phi(q') . phi(k_j), a = x / sum x.   dx_j = (da_j - sum a da) / sum x, then through phi.
// exp is taken of q'_d + k_jd minus the row's largest such sum, which cancels in a: it cannot
// overflow.
#pragma once

#include "ref/row.hpp"

#include <foci/weighting.hpp>

#include <cmath>

namespace foci::ref {

template <class T>
struct Phi {
  T value = 0, slope = 0;
};

template <class T>
Phi<T> phi(Feature feature, T x) {
  if (feature == Feature::relu) return x < T(0) ? Phi<T>{0, 0} : Phi<T>{x, x > T(0) ? T(1) : T(0)};
  if (x > T(0)) return {x + T(1), 1};  // elu1
  return {std::exp(x), std::exp(x)};
}

template <class T>
T largest_exponent(const Row<T>& row) {
  T largest = row.q[0] + row.k[0];
  for (std::int64_t j = 0; j < row.n; ++j) {
    for (std::int64_t d = 0; d < row.D; ++d)
      largest = std::max(largest, row.q[d] + row.k[j * row.D + d]);
  }
  return largest;
}

/// Calls each(j, d, phi(q_d) phi(k_jd), its slope in q_d, its slope in k_jd).
template <class T, class Each>
void products(Feature feature, const Row<T>& row, Each&& each) {
  if (row.n == 0) return;
  const T shift = feature == Feature::exp ? largest_exponent(row) : T(0);
  for (std::int64_t j = 0; j < row.n; ++j) {
    for (std::int64_t d = 0; d < row.D; ++d) {
      const T q = row.q[d], k = row.k[j * row.D + d];
      if (feature == Feature::exp) {
        const T both = std::exp(q + k - shift);
        each(j, d, both, both, both);
      } else {
        const Phi<T> of_q = phi(feature, q), of_k = phi(feature, k);
        each(j, d, of_q.value * of_k.value, of_q.slope * of_k.value, of_q.value * of_k.slope);
      }
    }
  }
}

/// x into row.a; returns its sum.
template <class T>
T similarities(Feature feature, Row<T>& row) {
  for (std::int64_t j = 0; j < row.n; ++j) row.a[j] = 0;
  products(feature, row, [&](std::int64_t j, std::int64_t, T x, T, T) { row.a[j] += x; });
  T sum = 0;
  for (std::int64_t j = 0; j < row.n; ++j) sum += row.a[j];
  return sum;
}

template <class T>
void forward(const Linear& how, Row<T>& row) {
  const T sum = similarities(how.feature, row);
  for (std::int64_t j = 0; j < row.n; ++j) row.a[j] = sum == T(0) ? T(0) : row.a[j] / sum;
}

/// Writes row.dq (of q') and adds to row.dk; row.ds holds dx.
template <class T>
void backward(const Linear& how, Row<T>& row) {
  const T sum = similarities(how.feature, row);
  for (std::int64_t j = 0; j < row.n; ++j) row.a[j] = sum == T(0) ? T(0) : row.a[j] / sum;
  const T mean = dot(row.a, row.da, row.n);
  for (std::int64_t j = 0; j < row.n; ++j)
    row.ds[j] = sum == T(0) ? T(0) : (row.da[j] - mean) / sum;
  for (std::int64_t d = 0; d < row.D; ++d) row.dq[d] = 0;
  products(how.feature, row, [&](std::int64_t j, std::int64_t d, T, T in_q, T in_k) {
    row.dq[d] += row.ds[j] * in_q;
    row.dk[j * row.D + d] += row.ds[j] * in_k;
  });
}

}  // namespace foci::ref
