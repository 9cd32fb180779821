// SPDX-License-Identifier: Apache-2.0
// A forward call that goes on from what earlier ones left of the metric's estimate: what a decoder
// does with every step. See cuda.hpp for the call itself.
#pragma once

#include "cuda/cuda.hpp"
#include "cuda/token_mean.cuh"

namespace foci::cuda {

/// The queries are the last keys; from.v_prev has their tokens alone where `carried` is there.
void carried_forward(const Outputs& to, const metric::Problem& problem, const Run& run,
                     const Carried& carried);
std::size_t carried_workspace(const metric::Problem& problem, const Carried& carried);

}  // namespace foci::cuda
