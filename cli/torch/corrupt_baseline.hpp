// SPDX-License-Identifier: Apache-2.0
// The errors of another run as the unit of the mean corruption error: its own Records, where they
// were found over the same images, harmed the same way.
#pragma once

#include "cli/corruption_words.hpp"
#include "cli/torch/corrupt.hpp"

#include <map>
#include <optional>

namespace foci::cli {

/// The errors over all severities; absent where one of the 15 is missing.
std::optional<std::map<corrupt::Corruption, double>> means_in(const train::Scores& scores);

/// What two runs must share for one's errors to be the other's unit.
struct HarmedAlike {
  std::int64_t count = 0;  ///< images
  corrupt::Scale scale = corrupt::Scale::px224;
};
/// The last Records of the run that --baseline names over the same data; none without the flag.
/// Throws Misuse, and FileError that says what differs.
train::Scores baseline_scores(const HarmedRun& run, const Harm& harm, const HarmedAlike& own);

}  // namespace foci::cli
