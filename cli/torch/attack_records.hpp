// SPDX-License-Identifier: Apache-2.0
// What an attack came to: Records with their flags, and the curve as JSON.
#pragma once

#include "cli/torch/attack_folder.hpp"
#include "cli/torch/records.hpp"

#include <vector>

namespace foci::cli {

/// The share of an outcome's images for which `flags` (N) is true.
double share_of(const at::Tensor& flags);
/// For each arm, how many images it fooled and no other arm did.
std::vector<std::int64_t> fooled_alone(const Judged& judged);

/// The ball whose worst case is nearest to half of what was right before: where nothing is fooled,
/// or everything, an experiment shows nothing.
const Judged& telling(const std::vector<Judged>& judged);

/// Shares with their error, and the flags that belong to each.
std::vector<Record> attack_records(const Measurement& what, const AttackPlan& plan,
                                   const Attacked& subject, const std::vector<Judged>& judged);
/// All flags of the Records, each once.
std::vector<RecordFlag> all_flags(const std::vector<Record>& records);
Json curve_json(const Attacked& subject, const std::vector<Judged>& judged);

}  // namespace foci::cli
