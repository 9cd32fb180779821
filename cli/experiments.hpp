// SPDX-License-Identifier: Apache-2.0
// foci theory --experiment NAME.
#pragma once

#include "cli/verbs.hpp"

namespace foci::cli {

/// Prints what was found, as a table, Markdown or JSON, and draws it where --svg says.
int run_experiment(const Theory& verb);

/// Throws Misuse for a flag that only experiments have.
void refuse_experiment_flags(const Words& words);

}  // namespace foci::cli
