// SPDX-License-Identifier: Apache-2.0
// Positions, and the chunks of the full metric's prefix scope: chunk c knows the first c*period
// unmasked keys.
#pragma once

#include "metric/host_device.hpp"

#include <cstdint>

namespace foci::metric {

/// Where query i of N stands among M keys (bottom-right alignment); may be negative when N > M.
FOCI_HD constexpr std::int64_t position(std::int64_t i, std::int64_t N, std::int64_t M) {
  return i + (M - N);
}

FOCI_HD constexpr std::int64_t chunk_count(std::int64_t M, std::int64_t period) {
  return M / period + (M % period != 0);
}

/// `before`: unmasked keys strictly before the query's position.
FOCI_HD constexpr std::int64_t chunk_of(std::int64_t before, std::int64_t period) {
  return before / period;
}

}  // namespace foci::metric
