// SPDX-License-Identifier: Apache-2.0
// Parts of the tables of flags that several files of pages share.
#pragma once

#include "cli/flags.hpp"

#include <initializer_list>

namespace foci::cli {

using Flags = std::vector<Flag>;

inline constexpr std::string_view tensor_group = "The tensors";
inline constexpr std::string_view running_group = "Running";
inline constexpr std::string_view output_group = "Output";

Flags metric_flags();
Flags weighting_flags();
Flags common_flags();
Flags together(std::initializer_list<Flags> parts);

/// Of verbs that foci-torch runs.
VerbPage models_page();
VerbPage generate_page();
VerbPage train_page();
VerbPage eval_page();

}  // namespace foci::cli
