// SPDX-License-Identifier: Apache-2.0
// What `foci-torch` does with a verb that `foci` handed on.
#include "cli/torch/run.hpp"

#include <variant>

namespace foci::cli {

int run(const WithTorch& verb) {
  return std::visit([](const auto& what) { return run_torch(what); }, verb.verb);
}

}  // namespace foci::cli
