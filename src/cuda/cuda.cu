// SPDX-License-Identifier: Apache-2.0
// One call on the device.
#include "cuda/cuda.hpp"
#include "cuda/passes.cuh"

namespace foci::cuda {

std::string refusal(const Problem&) { return "backend cuda has no kernels yet"; }
std::size_t workspace(const Problem&) { return 0; }
void forward(const Outputs&, const Problem&, const Run&) {}
void backward(const Gradients&, const Outputs&, const Problem&, const Run&) {}

}  // namespace foci::cuda
