// SPDX-License-Identifier: Apache-2.0
// What the passes of relu2 and identity on tensor cores share: the bias of a key and whether it is
// kept, and how many of the kept ones a row sees.
#pragma once

#include "cuda/mma_products.cuh"
#include "cuda/softmax_tiles.cuh"
#include "cuda/weights_mma.cuh"

namespace foci::cuda {

/// What a score is made of beside its products: s = scale x + bias; both 0 where the key is masked
/// or not there.
struct KeyFacts {
  float scale = 0, bias = 0;
  bool kept = false;

  FOCI_DEVICE KeyFacts(const Folded& folded, const Place& at, int h, int g, int j, float c) {
    if (j < 0 || j >= at.M) return;
    const Field& mask = folded.key_mask;
    if (mask && !static_cast<const std::uint8_t*>(mask.data)[mask.offset(at.b, at.k0 + j)]) return;
    kept = true;
    scale = c;
    if (folded.key_bias) bias = folded.key_bias.load(at.b, folded.key_head_bias ? g : h, at.k0 + j);
  }
};

/// The facts of a tile of keys in shared memory. Bit j % 32 of kept[j / 32] tells whether key j is.
template <int keys>
struct alignas(16) KeyTile {  // pairs of floats are read at once
  float scale[keys], bias[keys];
  unsigned kept[keys / 32];

  /// By the first `keys` threads, whole warps.
  FOCI_DEVICE void write(const KeyFacts& from, int j) {
    if (j >= keys) return;
    scale[j] = from.scale;
    bias[j] = from.bias;
    const unsigned bits = __ballot_sync(~0u, from.kept);
    if (lane() == 0) kept[j / 32] = bits;
  }
  /// How many of the tile's first `reach` keys are kept.
  FOCI_DEVICE int count(int reach) const {
    int n = 0;
    FOCI_UNROLL
    for (int i = 0; i < keys / 32; ++i) {
      const int bits = reach - 32 * i;
      const unsigned seen = bits >= 32 ? ~0u : bits <= 0 ? 0u : (1u << bits) - 1;
      n += __popc(kept[i] & seen);
    }
    return n;
  }
};

/// max(x, 0); NaN stays NaN.
FOCI_DEVICE float positive_of(float x) {
#ifdef FOCI_EMULATED
  return x < 0 ? 0 : x;
#else
  float y;
  asm("max.NaN.f32 %0, %1, 0f00000000;" : "=f"(y) : "f"(x));
  return y;
#endif
}

/// x of a score: y, or relu(y)^2
template <Kind kind>
FOCI_DEVICE float value_of(float y) {
  return kind == Kind::relu2 ? y * positive_of(y) : y;
}

/// 2^power
FOCI_DEVICE float two_to(int power) { return __int_as_float((power + 127) << 23); }

/// How x and the sums of x depend on the unit that scores are multiplied by.
struct Degrees {
  int x, sum;

  FOCI_DEVICE Degrees(Kind kind, bool squares) {
    x = kind == Kind::relu2 ? 2 : 1;
    sum = squares ? 2 * x : x;
  }
};

/// Where the sums of a row should lie.
struct Range {
  float high, low;

  /// For sums of squares to stay within the range of float.
  FOCI_DEVICE static Range of_float() { return {0x1p60f, 0x1p-60f}; }
  FOCI_DEVICE bool holds(float sum) const { return sum <= high && (sum >= low || sum == 0); }
  /// Brings a row's sum back by another unit, the same in the four lanes of the row; what x is to
  /// be multiplied by.
  FOCI_DEVICE float change(float& unit, float& sum, const Degrees& degrees) const {
    const float size = quad_max(sum);
    if (holds(size) || !(size < INFINITY)) return 1;
    const int exponent = (__float_as_int(size) >> 23) - 127;
    const int power = -max(-120, min(120, exponent)) / degrees.sum;
    unit *= two_to(power);
    sum *= two_to(power * degrees.sum);
    return two_to(power * degrees.x);
  }
};

}  // namespace foci::cuda
