// SPDX-License-Identifier: Apache-2.0
// The four things `foci data` does, each in a file of its own.
#pragma once

#include "cli/verbs.hpp"

#include <optional>

namespace foci::cli {

int list_data(const Data& verb);
int get_data(const Data& verb);
int show_data(const Data& verb);
int make_data(const Data& verb);
/// Nothing when the path holds no lines of a known sort.
std::optional<int> show_lines(const Data& verb);

}  // namespace foci::cli
