// SPDX-License-Identifier: Apache-2.0
// The reference backend: the definition of every mechanism, in plain passes. Made for reading and
// for checking others against; N x M is never stored, nothing is clever. Tensors of type S: double,
// float, Bf16, F16.
#pragma once

#include "metric/problem.hpp"

#include <foci/executor.hpp>

#include <cstddef>
#include <span>

namespace foci::ref {

/// Bytes one thread needs.
template <class S>
std::size_t workspace(const metric::Problem& problem);

/// `memory` holds workspace() bytes for each thread of `threads` (nullptr = one).
template <class S>
void forward(const Outputs& to, const metric::Problem& problem, std::span<std::byte> memory,
             Executor* threads);
template <class S>
void backward(const Gradients& to, const metric::Problem& problem, std::span<std::byte> memory,
              Executor* threads);

}  // namespace foci::ref
