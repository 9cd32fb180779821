// SPDX-License-Identifier: Apache-2.0
// The health of a metric, a sample at a time.
#pragma once

#include <foci/measure.hpp>

#include <array>
#include <vector>

namespace foci::measure {

/// What is a mean over samples.
inline constexpr std::array<double Health::*, 6> health_means = {
    &Health::mean,      &Health::variation, &Health::anisotropy,
    &Health::condition, &Health::entropy,   &Health::at_floor};

struct Healths {
  double least = 0, most = 0;
  std::array<std::vector<double>, health_means.size()> means;  ///< a sample
  at::Tensor typical;                                          ///< (G,D) or (G,D,D), summed up
};
/// Throws InvalidArgument.
Healths healths(const at::Tensor& metric, Extent extent);

}  // namespace foci::measure
