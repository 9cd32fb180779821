// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16 of short sequences on tensor cores: heads of 64, up to 256 queries and
// keys. A block has all keys and values of a key head and every query that meets them, and
// estimates layer-change and flat itself.
#pragma once

#include "cuda/passes.cuh"
#include "cuda/token_mean.cuh"

namespace foci::cuda {

/// Whether the pass takes shapes like this, and is worth it: enough blocks.
bool softmax_short_pays(const Shape& shape);

/// Whether softmax_short_forward takes it: what softmax_mma_forward does with D = E = 64, 65 to 256
/// keys and at most 256 queries, no packed sequences, no statistics, one m a key head at most and
/// then no lse that would show its rounding. `mean`: where it estimates m, which then is not there
/// beforehand; else nullptr.
bool softmax_short_serves(const Shape& shape, const Folded& folded, const Rows& to,
                          const TokenMean* mean);

/// o, lse, and m where it is estimated.
void softmax_short_forward(const Shape& shape, const Folded& folded, const Rows& to,
                           const TokenMean* mean, Stream stream);

/// Whether a Hopper's tensor maps and warpgroups can do what softmax_short_forward takes: 129 to
/// 208 keys, 65 to 208 queries.
bool softmax_short_wgmma_serves(const Shape& shape, const Folded& folded, const TokenMean* mean);
void softmax_short_wgmma_forward(const Shape& shape, const Folded& folded, const Rows& to,
                                 const TokenMean* mean, Stream stream);

/// Whether softmax_short_backward takes it: in addition d_o lies like q. o is not looked at.
bool softmax_short_serves(const Shape& shape, const Folded& folded, const Saved& saved,
                          const TokenMean* mean);

/// dq, dk, dv and dkey_bias, those that are asked for, always in the same order; and m where it is
/// estimated.
void softmax_short_backward(const Shape& shape, const Folded& folded, const Saved& saved,
                            const Sinks& to, const TokenMean* mean, Stream stream);

}  // namespace foci::cuda
