// SPDX-License-Identifier: Apache-2.0
// decay with content over bf16 on tensor cores, forward: a block goes along a head, chunk by chunk,
// and keeps what it has seen as a state in registers.
#pragma once

#include "cuda/chunked.cuh"

namespace foci::cuda::chunks {

/// Whether chunked_mma_forward takes it: decay with content, q, k, v and o of bf16 as they are, in
/// rows aligned to 16 bytes, D = E = 64 or 128, as many queries as keys, no mask, no bias, o alone;
/// heads enough to keep a GPU busy, and a GPU whose blocks have the shared memory.
bool chunked_mma_serves(const Call& call);

/// o.
void chunked_mma_forward(const Call& call, Stream stream);

}  // namespace foci::cuda::chunks
