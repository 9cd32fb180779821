// SPDX-License-Identifier: Apache-2.0
// w_j = rate^(t-j) / sum over visible keys; a = w, or with content a_j = w_j s_j (retention).
// Without content nothing depends on q and k: ds = 0. With it ds_j = w_j da_j.
#pragma once

#include "ref/row.hpp"

#include <foci/weighting.hpp>

#include <cmath>

namespace foci::ref {

/// The largest power is taken out, so that a far past does not underflow to 0/0.
template <class T>
void decay_weights(T rate, T* w, const Row<T>& row) {
  T sum = 0;
  for (std::int64_t j = 0; j < row.n; ++j) {
    sum += w[j] = std::pow(rate, T(row.at[row.n - 1] - row.at[j]));
  }
  for (std::int64_t j = 0; j < row.n; ++j) w[j] /= sum;
}

template <class T>
void forward(const Decay& how, Row<T>& row) {
  decay_weights(T(how.rate), row.a, row);
  if (!how.content) return;
  for (std::int64_t j = 0; j < row.n; ++j) row.a[j] *= row.s[j];
}

template <class T>
void backward(const Decay& how, Row<T>& row) {
  decay_weights(T(how.rate), row.ds, row);
  for (std::int64_t j = 0; j < row.n; ++j) row.ds[j] = how.content ? row.ds[j] * row.da[j] : T(0);
}

}  // namespace foci::ref
