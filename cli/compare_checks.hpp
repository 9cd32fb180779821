// SPDX-License-Identifier: Apache-2.0
// What of a plan is refused before anything is done, and which flags a task has.
#pragma once

#include "cli/compare_plan.hpp"

#include <string>
#include <string_view>

namespace foci::cli {

/// Whether compare --task has it.
bool has_flag(const std::string& task, std::string_view flag);
/// Whether it says what is trained, and nothing where runs are there.
bool is_of_training(std::string_view flag);
/// Those of a plan that names none.
std::string corruption_defaults(const std::string& task);

/// These throw Misuse; `typed` are the flags of this call alone.
void check_checkpoint(const Words& typed);
void check_task_flags(const Words& typed, const std::string& task);
void check_train(const Words& words);
void check_corruptions(const Words& words, const Words& typed);
void check_attacks(const Words& words);

}  // namespace foci::cli
