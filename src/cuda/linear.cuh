// SPDX-License-Identifier: Apache-2.0
// The features of linear attention, phi(x) = elu(x) + 1, max(x, 0) or e^x, and their slopes, taken
// as queries and keys are loaded. e^x of a key is measured from its coordinate's peak among the
// keys before, of a query from the row's largest sum with a peak: nothing overflows, and what
// underflows would not have counted.
#pragma once

#include "cuda/words.cuh"

namespace foci::cuda::chunks {

/// none where scores are plain products.
enum class Map : int { none, elu1, relu, exp };

/// A key this far above the peaks is met one by one.
inline constexpr float outgrown = 40;
/// A peak before the first key.
inline constexpr float far_below = -1e30f;

FOCI_DEVICE float phi(Map map, float x) {
  if (map == Map::elu1) return x > 0 ? x + 1 : expf(x);
  if (map == Map::relu) return x < 0 ? 0 : x;
  return x;
}
/// phi'(x); not exp, whose slope is its value.
FOCI_DEVICE float slope(Map map, float x) {
  if (map == Map::elu1) return x > 0 ? 1 : expf(x);
  if (map == Map::relu) return x > 0 ? 1 : 0;
  return 1;
}

/// e^(x + y - shift); the sum of large numbers is rounded, their difference may be small.
FOCI_DEVICE float exp_sum(float x, float y, float shift) {
  const float high = x + y, part = high - x;
  if (high == -INFINITY) return 0;  // below, -inf - -inf would be NaN
  const float low = (x - (high - part)) + (y - part);
  return expf((high - shift) + low);
}

}  // namespace foci::cuda::chunks
