// SPDX-License-Identifier: Apache-2.0
// The words in which --help, the man page and the completions speak of the same flags.
#pragma once

#include "cli/flags.hpp"

#include <string>
#include <string_view>
#include <vector>

namespace foci::cli {

inline constexpr std::string_view program_purpose =
    "foci computes attention whose geometry you choose and whose focus you can measure.";

std::string flag_synopsis(const Flag& flag);  ///< "--ridge NUMBER"
std::string flag_text(const Flag& flag);      ///< meaning, the metrics it belongs to, default
std::vector<std::string_view> groups_of(const VerbPage& page);
std::string usage_of(const VerbPage& page);

}  // namespace foci::cli
