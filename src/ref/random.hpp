// SPDX-License-Identifier: Apache-2.0
// m_d uniform in [floor, 1], drawn once per (layer, key head, coordinate) from the seed, then
// normalised.
#pragma once

#include "metric/draw.hpp"
#include "metric/normalise.hpp"

namespace foci::ref {

template <class T>
void draw_line(T* m, const Random& how, std::int64_t g, std::int64_t D) {
  for (std::int64_t d = 0; d < D; ++d) m[d] = T(metric::draw(how.floor, how.seed, how.layer, g, d));
  metric::normalise(how.normalize, 1, m, D);
}

}  // namespace foci::ref
