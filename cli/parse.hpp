// SPDX-License-Identifier: Apache-2.0
// From words that have been checked one by one to the struct of a verb. parse() picks among them.
#pragma once

#include "cli/tree.hpp"
#include "cli/verbs.hpp"

#include <string>

namespace foci::cli {

Common common_of(const Words& words);
/// 1 or more; throws Misuse.
std::int64_t size_of_flag(const Words& words, const std::string& flag, std::int64_t standard);

/// The flag's text, or what holds without it.
std::string text_or(const Words& words, const std::string& flag, const std::string& standard);

Train train_of(const Called& called);
Eval eval_of(const Called& called);
Attack attack_of(const Called& called);
Measure measure_of(const Called& called);
Compare compare_of(const Words& words);
Report report_of(const Called& called);
Reproduce reproduce_of(const Called& called);

}  // namespace foci::cli
