// SPDX-License-Identifier: Apache-2.0
// What one row of weights says about itself: concentration S = sum|a| / sqrt(n sum a^2), effective
// keys n S^2, entropy, the largest |a| and where. S does not depend on the row's scale: it is taken
// of a / largest.
#pragma once

#include "ref/row.hpp"

#include <cmath>

namespace foci::ref {

template <class T>
struct Statistics {
  T concentration = 0, effective_keys = 0, entropy = 0, largest = 0;
  std::int64_t largest_at = -1;
};

template <class T>
Statistics<T> statistics(const Row<T>& row) {
  Statistics<T> of;
  for (std::int64_t j = 0; j < row.n; ++j) {
    const T size = std::abs(row.a[j]);
    if (of.largest_at < 0 || size > of.largest || (std::isnan(size) && !std::isnan(of.largest))) {
      of.largest = size;
      of.largest_at = row.at[j];
    }
    if (row.a[j] != T(0)) of.entropy -= row.a[j] * std::log(row.a[j]);
  }
  if (of.largest == T(0)) return of;
  T sum = 0, squares = 0;
  for (std::int64_t j = 0; j < row.n; ++j) {
    const T size = std::abs(row.a[j]) / of.largest;
    sum += size;
    squares += size * size;
  }
  of.concentration = sum / std::sqrt(T(row.n) * squares);
  of.effective_keys = T(row.n) * of.concentration * of.concentration;
  return of;
}

}  // namespace foci::ref
