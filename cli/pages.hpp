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

VerbPage corrupt_page();
VerbPage theory_page();
VerbPage launch_page();

/// Of verbs that foci-torch runs.
VerbPage models_page();
VerbPage generate_page();
VerbPage train_page();
VerbPage eval_page();
VerbPage attack_page();
VerbPage measure_page();
VerbPage compare_page();

/// Of runs that are there.
VerbPage report_page();
VerbPage reproduce_page();

/// The tasks of train that have a flag, and whether this one does.
std::vector<std::string> tasks_with(std::string_view flag);
bool belongs(std::string_view flag, std::string_view task);
/// What holds without the flag: the task's own word, or the page's.
std::string_view standard_of(const Flag& flag, std::string_view task);
/// Throws Misuse for a number of a run's flag, which check_value knows as one, that makes no sense.
void check_range(std::string_view flag, const std::string& text);

}  // namespace foci::cli
