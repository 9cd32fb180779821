// SPDX-License-Identifier: Apache-2.0
// What a reader should hold against a comparison as a whole: that it is a demonstration and why,
// how long its runs trained, whether they had more to learn.
#pragma once

#include "cli/compare_results.hpp"

#include <cstddef>
#include <string>

namespace foci::cli {

/// Which condition of a decision is not met, and the flag that meets it where the comparison
/// trains; empty: all are. A budget of 0 is none.
std::string demonstration_reason(std::size_t seeds, std::size_t enough, double budget,
                                 bool trains = true);

/// "60 steps each (2.3 epochs)"; epochs where training goes over a set of samples.
std::string steps_text(const Json& facts);

/// steps, and epochs of `train` samples in batches; null where either is not known.
Json epochs_json(std::int64_t steps, double batch, const Json& train);

/// The flag loss-falls, where the losses of most finished runs still went down at their end and not
/// because samples were seen again and again; null elsewhere.
Json still_falling(const Comparison& comparison);

/// The flag many-epochs, where runs went over a few samples so often that they know them by heart;
/// null elsewhere.
Json known_by_heart(const Comparison& comparison);

}  // namespace foci::cli
