// SPDX-License-Identifier: Apache-2.0
// scale auto: for each (sequence, key head) the c of a full metric at which the mean concentration
// over its queries equals dot attention's. The key bias is left out; c gets no gradient.
#pragma once

#include "cpu/forward.hpp"

namespace foci::cpu {

/// Sets the scales of `geometry`, whose metric is estimated. `arena` is free behind it.
void match_dot(Geometry& geometry, const Problem& problem, const Kernels& isa, Arena arena,
               Executor* threads);
/// Bytes `arena` has used then.
std::size_t match_dot_room(Geometry& geometry, const Problem& problem, const Kernels& isa,
                           Arena arena, int threads);

}  // namespace foci::cpu
