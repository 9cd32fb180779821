// SPDX-License-Identifier: Apache-2.0
// What the reference backend can do, asked of the code itself.
#pragma once

#include "ref/decay.hpp"
#include "ref/identity.hpp"
#include "ref/linear.hpp"
#include "ref/relu2.hpp"
#include "ref/softmax.hpp"

namespace foci::ref {

/// W has a forward and a backward row.
template <class W>
concept Weighs = requires(const W& weighting, Row<double>& row) {
  forward(weighting, row);
  backward(weighting, row);
};

}  // namespace foci::ref
