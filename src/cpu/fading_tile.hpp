// SPDX-License-Identifier: Apache-2.0
// Powers of the distance in position, e^(slope (last_i - at_j)), a vector of keys at a time.
// Included inside the namespace of one instruction set, after tile.hpp.

/// Below e^-87 it stays there: beside the 1 of the row's last key that is nothing. Keys after the
/// last one give any number at all.
FOCI_INLINE V power(const Fading& fading, long row, long key, const float* constants) {
  const V distance = sub(all(fading.last + row), load(fading.at + key));
  return exp(mul(all(fading.slope), distance), constants);
}
