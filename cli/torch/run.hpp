// SPDX-License-Identifier: Apache-2.0
// The verbs that need torch, each in a file of its own. Each returns the exit status.
#pragma once

#include "cli/verbs.hpp"

#include <exception>

namespace foci::cli {

int run_torch(const Models& verb);
int run_torch(const Generate& verb);
int run_torch(const Train& verb);
int run_torch(const Eval& verb);
int run_torch(const Attack& verb);
int run_torch(const Measure& verb);
int run_torch(const Compare& verb);

/// What torch throws for it is told in one line, as ours is.
bool is_want_of_memory(const std::exception& fault);

}  // namespace foci::cli
