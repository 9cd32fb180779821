// SPDX-License-Identifier: Apache-2.0
// When Auto-PGD looks at its step: numbers are known of it.
#pragma once

#include <foci/attack.hpp>

namespace foci::attack {

/// First after 0.22 of the iterations, then ever sooner, down to every 0.06; under l1 every 0.04.
class Checks {
 public:
  Checks(int iterations, Norm norm);
  /// Steps since the last check where it is time for one, else 0.
  int after_a_step();

 private:
  int n_;
  bool sparse_;
  int period_, since_ = 0;
};

}  // namespace foci::attack
