// SPDX-License-Identifier: Apache-2.0
// Where a run's checkpoints are, and what a kill left of them.
#pragma once

#include <cstdint>
#include <string>

namespace foci::train {

/// The folder of a step's.
std::string checkpoint_of(const std::string& run, std::int64_t step);

/// Halves of checkpoints, and files that were being written, go. For whoever holds the run's lock:
/// nobody else writes there.
void clear_halves(const std::string& run);

}  // namespace foci::train
