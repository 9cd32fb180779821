// SPDX-License-Identifier: Apache-2.0
// a = s rescaled.   ds = the rescaling's gradient
#pragma once

#include "ref/rescale.hpp"

namespace foci::ref {

template <class T>
void forward(const Identity& how, Row<T>& row) {
  rescale(how.rescale, row.a, row.s, row.n);
}

template <class T>
void backward(const Identity& how, Row<T>& row) {
  rescale_backward(how.rescale, divisor(how.rescale, row.s, row.n), row.ds, row);
}

}  // namespace foci::ref
