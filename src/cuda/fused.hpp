// SPDX-License-Identifier: Apache-2.0
// The fused passes of a transformer block as the host sees them: kernels over tensors that
// attend/fused.cpp has looked at.
#pragma once

#include "cuda/cuda.hpp"

#include <foci/fused.hpp>

namespace foci::cuda {

void add_norm(const fused::Normed& to, const fused::Residual& from, StreamHandle stream);
void add_norm_backward(const fused::NormGradients& to, const fused::Residual& from,
                       const fused::Normed& saved, const Run& run);
void column_sums(const View& to, const View& from, const Run& run);
void gelu(const View& to, const View& from, StreamHandle stream);
void gelu_backward(const fused::GeluGradients& to, const View& x, const Run& run);

/// Bytes for sums of the columns of matrices of so many, and for add_norm_backward.
std::size_t fused_workspace(std::int64_t columns);

}  // namespace foci::cuda
