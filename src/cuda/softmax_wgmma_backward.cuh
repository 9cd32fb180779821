// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16, backward, on Hopper's warpgroups.
#pragma once

#include "cuda/softmax_mma_backward.cuh"

namespace foci::cuda {

/// Whether softmax_wgmma_backward takes it: a GPU of compute capability 9.0 with kernels for it,
/// D = E = 64 or 128, more than 128 keys, sequences that are not packed, dq in any order. Key heads
/// of which GradientArgs::loud says so are left out. With GradientArgs::largest q and k are f16.
bool softmax_wgmma_serves(const GradientArgs& args);

/// dk, dv, dkey_bias and the sums of dq, those that are asked for, from delta.
void softmax_wgmma_backward(const GradientArgs& args, Stream stream);

}  // namespace foci::cuda
