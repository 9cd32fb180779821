// SPDX-License-Identifier: Apache-2.0
// Queries that a metric folded, rounded to 16 bits: when that shows, and what it leaves over.
#pragma once

#include "cuda/softmax_tiles.cuh"

namespace foci::cuda {

/// Scores beyond this, in powers of two, show that a query was rounded to one 16-bit number, and
/// are made again with what the rounding left over. f16 rounds less, and less is allowed.
inline constexpr float loud = 20;

/// What the rounding of m q to 16 bits leaves over, seldom needed: made again from q and m.
struct QueryRest {
  const Field &q, &m;
  const Place& at;
  int s, h, head_m, D;

  FOCI_DEVICE QueryRest(const Folded& folded, const Shape& shape, const Place& place, int sequence,
                        int head)
      : q(folded.q),
        m(folded.m),
        at(place),
        s(sequence),
        h(head),
        head_m(folded.key_head_m ? shape.key_head(head) : head),
        D(shape.D) {}

  /// Of columns d and d + 1, times `by`, in 16 bits each; rows past the end have the last one's.
  template <DType type>
  FOCI_DEVICE unsigned pair(int row, int d, float by) const {
    const int token = at.q0 + min(row, at.N - 1), column = min(d, D - 2);
    const unsigned two = *reinterpret_cast<const unsigned*>(
        static_cast<const std::uint16_t*>(q.data) + q.offset(at.b, h, token, column));
    const float2 by_m = *reinterpret_cast<const float2*>(static_cast<const float*>(m.data) +
                                                         m.offset(s, head_m, token, column));
    const float x = wide_of(std::uint16_t(two), type) * by_m.x;
    const float y = wide_of(std::uint16_t(two >> 16), type) * by_m.y;
    const unsigned rounded = pack<type>(x, y);
    const float x_rest = x - wide_of(std::uint16_t(rounded), type);
    const float y_rest = y - wide_of(std::uint16_t(rounded >> 16), type);
    return d < D ? pack<type>(by * x_rest, by * y_rest) : 0u;
  }
  /// 16 queries by 16 columns as the left side of a product: `row` and d are the lane's first.
  template <DType type>
  FOCI_DEVICE void left(unsigned (&a)[4], int row, int d, float by) const {
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) a[i] = pair<type>(row + 8 * (i % 2), d + 8 * (i / 2), by);
  }
  /// The same as two right sides, whose columns are summed over.
  template <DType type>
  FOCI_DEVICE void right(unsigned (&b)[4], int row, int d) const {
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) b[i] = pair<type>(row + 8 * (i / 2), d + 8 * (i % 2), 1);
  }
};

}  // namespace foci::cuda
