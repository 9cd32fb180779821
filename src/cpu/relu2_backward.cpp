// SPDX-License-Identifier: Apache-2.0
// One query block against one key block of relu2 attention, backwards: x = relu(s)^2 and
// ds = 2 relu(s) dx. Compiled once per instruction set.
#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/gradient_tile.hpp"
#include "cpu/rescale_gradient_tile.hpp"

struct Relu2Gradient {
  static constexpr bool steep = true;
};

FOCI_INLINE Weight weight(Relu2Gradient, V score, const GradientPlace& at) {
  const V positive = max(all(0.0f), score);  // NaN stays NaN
  const V inverse = all(at.block->inverse + at.row), half = mul(positive, inverse);
  return {mul(mul(positive, positive), inverse), add(half, half)};
}

static inline Exact exact(Relu2Gradient, double score) {
  const double positive = score < 0 ? 0 : score;
  return {positive * positive, 2 * positive};
}

void relu2_backward(const BackwardBlock& block);
void relu2_backward(const BackwardBlock& block) {
  switch (block.divisor) {
    case Divisor::l1:  // the sign is 1, and where x is 0 so is the slope
      return rescaled_backward<Relu2Gradient, Through::one>(block);
    case Divisor::l2:
      return rescaled_backward<Relu2Gradient, Through::share>(block);
    default:
      return rescaled_backward<Relu2Gradient, Through::nothing>(block);
  }
}

}  // namespace foci::cpu::FOCI_ISA
