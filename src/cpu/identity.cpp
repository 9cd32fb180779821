// SPDX-License-Identifier: Apache-2.0
// One block of identity attention: x = s, divided by the number of keys, sum |x|, the root of
// sum x^2, or nothing. And of decay with content: x = s e^(slope (last - at)), divided by the sum
// of these powers. Compiled once per instruction set.
#include "cpu/isa.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/fading_tile.hpp"
#include "cpu/forward_tile.hpp"
#include "cpu/rescale_tile.hpp"

struct Identity {};
FOCI_INLINE V value(Identity, V score, const Place&) { return score; }

struct Faded {};
FOCI_INLINE V value(Faded, V score, const Place& at) {
  return mul(score, power(*at.fading, at.row, at.key, at.constants));
}

/// by = sum over the keys a row sees of their powers: those of the row before, fainter, and the new
/// ones.
static void sum_powers(const ForwardBlock& block) {
  const Fading& fading = block.fading;
  const float* constants = exp_constants();
  double sum = 0;
  long done = 0;
  for (long r = 0; r < block.rows; ++r) {
    const long seen = keys_seen(block, r);
    if (done > 0)
      sum *= ::exp(double(fading.slope) * (double(fading.last[r]) - double(fading.last[r - 1])));
    for (; done + lanes <= seen; done += lanes) sum += total(power(fading, r, done, constants));
    for (; done < seen; ++done) sum += expf(fading.slope * (fading.last[r] - fading.at[done]));
    block.by[r] = float(sum);
  }
}

void identity_forward(const ForwardBlock& block);
void identity_forward(const ForwardBlock& block) {
  if (!block.fading.at) return rescaled_forward<Identity>(block);
  sum_powers(block);
  rescaled_forward<Faded>(block);
}

}  // namespace foci::cpu::FOCI_ISA
