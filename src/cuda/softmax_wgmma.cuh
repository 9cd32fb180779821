// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16 on Hopper (sm_90a), forward: heads of 64 and 128 numbers.
#pragma once

#include "cuda/softmax_mma.cuh"
#include "cuda/token_mean.cuh"

namespace foci::cuda {

/// Tokens in a box that the layer-change estimate is made of, and the most sums of boxes of a head.
inline constexpr int changes_box = 64, most_changes = 32;

/// `room`: a counter and a mark of every key head; then, of the estimate, units that are taken and
/// those of every head that are summed up, their counts of tokens, and from a multiple of 4 on
/// their sums. The first are zeroed.
constexpr std::int64_t room_marks(std::int64_t heads) { return 2 + 2 * heads; }
constexpr std::int64_t room_sums(std::int64_t heads) {
  return (room_marks(heads) + most_changes * heads + 3) / 4 * 4;
}
/// How many numbers of `room` blocks tell one another things in.
inline std::int64_t softmax_wgmma_room(const Shape& shape, bool measures) {
  const std::int64_t heads = std::int64_t(shape.sequences) * shape.G;
  return measures ? room_sums(heads) + heads * most_changes * shape.D : room_marks(heads);
}

/// Whether softmax_wgmma_forward takes what softmax_mma_serves, or the same with q and k in f16 and
/// a key bias: D = E = 64 or 128, sequences of one length, no statistics, queries in one 16-bit
/// number each; on a GPU that runs code for sm_90a, if there is some.
bool softmax_wgmma_serves(const Shape& shape, const Folded& folded, const Rows& to,
                          const int* room);

/// Passes that no GPU has run yet serve only where the environment variable FOCI_UNTRIED is set:
/// the estimate inside the forward pass, and full metrics of one number.
bool serves_untried();

/// Whether it then takes layer-change's mean over the sequence itself, and leaves m for others.
bool softmax_wgmma_measures(const Shape& shape, const Folded& folded, const TokenMean& mean);

/// o, and lse where it is asked for. Queries that m folds are rounded to 16 bits. `changes`: m is
/// this mean, and not there yet.
void softmax_wgmma_forward(const Shape& shape, const Folded& folded, const Rows& to, int* room,
                           Stream stream, const TokenMean* changes = nullptr);

/// (sequences,G), as Folded::by_mma: after a pass with m the key heads with scores so large that
/// this rounding shows; they are to be computed again.
inline const int* softmax_wgmma_left(const int* room) { return room + 1; }

}  // namespace foci::cuda
