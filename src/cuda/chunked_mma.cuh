// SPDX-License-Identifier: Apache-2.0
// decay with content and causal identity over bf16 on tensor cores: a block goes along a head,
// chunk by chunk, and keeps what it has seen as a state in registers.
#pragma once

#include "cuda/chunked.cuh"

namespace foci::cuda::chunks {

/// Whether chunked_mma_forward takes it: decay with content, or identity by length or by nothing,
/// causal; q, k, v and o of bf16 as they are, in rows aligned to 16 bytes, D = E = 64 or 128, as
/// many queries as keys, no mask, no bias, o alone; heads enough to keep a GPU busy, and a GPU
/// whose blocks have the shared memory.
bool chunked_mma_serves_rows(const Call& call);
/// Whether chunked_mma_backward takes it: in addition a key head a query head, and d_o, dq, dk and
/// dv like q.
bool chunked_mma_serves_gradients(const Call& call);

/// o.
void chunked_mma_forward(const Call& call, Stream stream);
/// dq, dk and dv, those that are asked for; always in the same order.
void chunked_mma_backward(const Call& call, Stream stream);

}  // namespace foci::cuda::chunks
