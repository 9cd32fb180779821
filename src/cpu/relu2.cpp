// SPDX-License-Identifier: Apache-2.0
// One block of relu2 attention: x = relu(s)^2, divided by the number of keys, sum |x|, the root of
// sum x^2, or nothing. Compiled once per instruction set.
#include "cpu/isa.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/forward_tile.hpp"
#include "cpu/rescale_tile.hpp"

struct Relu2 {};

FOCI_INLINE V value(Relu2, V score, const Place&) {
  const V positive = max(all(0.0f), score);  // NaN stays NaN
  return mul(positive, positive);
}

void relu2_forward(const ForwardBlock& block);
void relu2_forward(const ForwardBlock& block) { rescaled_forward<Relu2>(block); }

}  // namespace foci::cpu::FOCI_ISA
