// SPDX-License-Identifier: Apache-2.0
// foci eval --corrupt: a run judged by data that is harmed.
#pragma once

#include "cli/torch/tasks.hpp"

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

}  // namespace foci::cli
