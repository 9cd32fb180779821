// SPDX-License-Identifier: Apache-2.0
// The four things `foci data` does, each in a file of its own.
#pragma once

#include "cli/data_sets.hpp"
#include "cli/verbs.hpp"

#include <optional>
#include <string_view>

namespace foci::cli {

int list_data(const Data& verb);
int get_data(const Data& verb);
/// Fetches this one, whatever the verb's name.
int get_set(const KnownSet& set, const Data& verb);
/// Whether `foci data make` knows the name.
bool is_made(std::string_view name);
int show_data(const Data& verb);
int make_data(const Data& verb);
/// Nothing when the path holds no lines of a known sort.
std::optional<int> show_lines(const Data& verb);

}  // namespace foci::cli
