// SPDX-License-Identifier: Apache-2.0
// foci eval --corrupt: a run judged by data that is harmed.
#pragma once

#include "cli/torch/tasks.hpp"

#include <map>
#include <string>

namespace foci::cli {

struct HarmedRun {
  const Eval& verb;
  const Asked& asked;  ///< the run, with the words that eval changes
  const RunConfig& config;
  std::string weights;
};
/// The scores of the run under each corruption, as Records in the run's folder. Returns the exit
/// status.
int judge_harmed(const HarmedRun& run);

/// The images that eval judges a run by: --split, --count.
data::ImageSet judged_set(const HarmedRun& run);
/// Which images were named right, by score, into the file of --right; nothing without it.
void keep_right(const Eval& verb, const std::map<std::string, std::string>& right);

}  // namespace foci::cli
