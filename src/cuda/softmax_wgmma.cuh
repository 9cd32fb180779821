// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16 on Hopper (sm_90a), forward: heads of 64 and 128 numbers.
#pragma once

#include "cuda/softmax_mma.cuh"

namespace foci::cuda {

/// How many numbers of `room` blocks tell one another things in: a counter and a mark of every key
/// head.
inline std::int64_t softmax_wgmma_room(const Shape& shape) {
  return 1 + std::int64_t(shape.sequences) * shape.G;
}

/// Whether softmax_wgmma_forward takes what softmax_mma_serves, or the same with q and k in f16 and
/// a key bias: D = E = 64 or 128, sequences of one length, queries in one 16-bit number each,
/// statistics of dot without a key bias or mask; on a GPU that runs code for sm_90a, if there is
/// some.
bool softmax_wgmma_serves(const Shape& shape, const Folded& folded, const Rows& to,
                          const int* room);

/// o, lse and the statistics that are asked for. Queries that m folds are rounded to 16 bits.
void softmax_wgmma_forward(const Shape& shape, const Folded& folded, const Rows& to, int* room,
                           Stream stream);

/// (sequences,G), as Folded::by_mma: after a pass with m the key heads with scores so large that
/// this rounding shows; they are to be computed again.
inline const int* softmax_wgmma_left(const int* room) { return room + 1; }

}  // namespace foci::cuda
