// SPDX-License-Identifier: Apache-2.0
// Where a run's checkpoints are, which are whole, and what a kill left of them. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace foci::train {

/// The file of a checkpoint that is written last: without it the folder is half of one.
inline constexpr std::string_view last_written = "training.safetensors";

/// The folder of a step's.
std::string checkpoint_of(const std::string& run, std::int64_t step);
/// The step that a checkpoint's folder is named after.
std::int64_t step_of_checkpoint(const std::string& folder);

/// What makes it a checkpoint goes first, so that half of one never looks whole.
void discard_checkpoint(const std::string& folder);
/// All but the last `keep` whole ones go.
void keep_last(const std::string& run, int keep);

/// Halves of checkpoints, and files that were being written, go. For whoever holds the run's lock:
/// nobody else writes there.
void clear_halves(const std::string& run);

}  // namespace foci::train
