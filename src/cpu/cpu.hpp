// SPDX-License-Identifier: Apache-2.0
// The CPU backend: attention in register tiles or chunks, forward and backward. Tensors of float,
// Bf16 or F16; everything in between is float, estimates are factored in double. The N x M matrix
// never exists.
#pragma once

#include "metric/problem.hpp"

#include <foci/executor.hpp>

#include <cstddef>
#include <span>

namespace foci::cpu {

/// Bytes for forward() and backward() on that many threads.
std::size_t workspace(const metric::Problem& problem, int threads);

void forward(const Outputs& to, const metric::Problem& problem, std::span<std::byte> memory,
             Executor* threads);
/// Uses saved.o and saved.lse where they have all the bits; else it computes them again.
void backward(const Gradients& to, const Outputs& saved, const metric::Problem& problem,
              std::span<std::byte> memory, Executor* threads);

}  // namespace foci::cpu
