// SPDX-License-Identifier: Apache-2.0
// One query's row: the keys it sees, their scores and weights, and the gradients of both.
// Masked keys are gone before a row is made, so what it sees is the first n of the keys that are
// left.
#pragma once

#include "ref/number.hpp"

namespace foci::ref {

template <class T>
struct Row {
  std::int64_t n = 0;                // keys seen
  const std::int64_t* at = nullptr;  // (n) positions of the keys
  T* s = nullptr;                    // (n) scores
  T* a = nullptr;                    // (n) weights
  T* da = nullptr;                   // (n)
  T* ds = nullptr;                   // (n)
  T lse = 0;

  // linear attention looks at the vectors themselves
  std::int64_t D = 0;
  const T* q = nullptr;  // (D) q', the metric and the scale folded in
  const T* k = nullptr;  // (n,D)
  T* dq = nullptr;       // (D)
  T* dk = nullptr;       // (n,D), added to
};

}  // namespace foci::ref
