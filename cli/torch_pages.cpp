// SPDX-License-Identifier: Apache-2.0
// The pages of the verbs that need torch.
#include "cli/pages.hpp"

namespace foci::cli {

VerbPage models_page() {
  return {"models",
          "Lists the models that have names, with their size and cost; one of them in full.",
          {{"all of them", "foci models"},
           {"one, for a program", "foci models deit_small_patch16_224 --json"}},
          common_flags(),
          "[NAME]",
          "a model; without it, the list",
          {"multiply-adds are those of one sample forward, attention's included. Any metric goes "
           "into any model."}};
}

}  // namespace foci::cli
