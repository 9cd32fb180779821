// SPDX-License-Identifier: Apache-2.0
// Softmax with the keys split over blocks, of 16-bit keys and values on tensor cores: the queries
// of all heads that share a key head are the 16 rows of a product. What it leaves is joined as that
// of the float pass is.
#pragma once

#include "cuda/split_join.cuh"

namespace foci::cuda {

inline constexpr int split_mma_rows = 16;  // of a tile

/// Whether it takes them: scores that are products, k and v of one 16-bit type in lines that can be
/// read 16 bytes at a time, and a GPU whose blocks have the shared memory.
bool split_keys_mma_serves(const split::Args& args);
void split_keys_mma(const split::Args& args, Stream stream);

}  // namespace foci::cuda
