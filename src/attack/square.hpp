// SPDX-License-Identifier: Apache-2.0
// The parts of Square that numbers are known of: its schedule and its patterns.
#pragma once

#include <foci/attack.hpp>

namespace foci::attack {

/// The share of the image that a square covers at a query.
double covered(const Square& how, int query);
/// (rows,columns): falls off from the middle; its length in l2, or its sum in l1, is 1.
at::Tensor falling_off(std::int64_t rows, std::int64_t columns, Norm norm);

}  // namespace foci::attack
