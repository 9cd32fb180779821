// SPDX-License-Identifier: Apache-2.0
// The random metric: the same numbers for the same (seed, layer, head, coordinate) on every
// machine.
#pragma once

#include "metric/host_device.hpp"

#include <cstdint>

namespace foci::metric {

/// A bijection of 64-bit words that leaves no visible pattern (the finaliser of a splittable
/// generator).
FOCI_HD constexpr std::uint64_t scramble(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

/// Uniform in [floor, 1).
FOCI_HD constexpr double draw(double floor, std::uint64_t seed, std::int64_t layer,
                              std::int64_t head, std::int64_t d) {
  std::uint64_t word = scramble(seed);
  word = scramble(word ^ std::uint64_t(layer));
  word = scramble(word ^ std::uint64_t(head));
  word = scramble(word ^ std::uint64_t(d));
  return floor + (1.0 - floor) * (double(word >> 11) * 0x1.0p-53);
}

}  // namespace foci::metric
