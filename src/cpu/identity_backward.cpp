// SPDX-License-Identifier: Apache-2.0
// One query block against one key block of identity attention, backwards: x = s. And of decay with
// content: x = s e^(slope (last - at)), divided by what does not depend on s. Compiled once per
// instruction set.
#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/fading_tile.hpp"
#include "cpu/gradient_tile.hpp"
#include "cpu/rescale_gradient_tile.hpp"

struct IdentityGradient {
  static constexpr bool steep = false;
};

FOCI_INLINE Weight weight(IdentityGradient, V score, const GradientPlace& at) {
  const V inverse = all(at.block->inverse + at.row);
  return {mul(score, inverse), inverse};
}

static inline Exact exact(IdentityGradient, double score) { return {score, 1}; }

struct FadedGradient {
  static constexpr bool steep = true;
};

FOCI_INLINE Weight weight(FadedGradient, V score, const GradientPlace& at) {
  const V slope = mul(power(at.block->fading, at.row, at.column, at.constants),
                      all(at.block->inverse + at.row));
  return {mul(score, slope), slope};
}

void identity_backward(const BackwardBlock& block);
void identity_backward(const BackwardBlock& block) {
  if (block.fading.at) return rescaled_backward<FadedGradient, Through::nothing>(block);
  switch (block.divisor) {
    case Divisor::l1:
      return rescaled_backward<IdentityGradient, Through::sign>(block);
    case Divisor::l2:
      return rescaled_backward<IdentityGradient, Through::share>(block);
    default:
      return rescaled_backward<IdentityGradient, Through::nothing>(block);
  }
}

}  // namespace foci::cpu::FOCI_ISA
