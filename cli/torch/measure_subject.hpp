// SPDX-License-Identifier: Apache-2.0
// What foci measure looks at: a run of any task, a checkpoint of one, others' language models over
// a text, or the tensors of one call.
#pragma once

#include "cli/torch/run_folder.hpp"

#include <foci/measure.hpp>
#include <foci/passes.hpp>

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace foci::cli {

struct Measured {
  std::string name;              ///< "runs/a", "runs/a step 300"
  std::string run;               ///< its folder; empty where it is none
  std::string unit = "samples";  ///< that are counted
  std::string weights;           ///< file
  Words words = {};              ///< of a run, resolved
  train::Passes passes;
  /// The tokens of a sample, of a text that is no run's.
  std::function<std::vector<std::string>(std::int64_t sample)> tokens = {};
};

/// The first, then those beside it or its checkpoints. Throws Misuse, FileError.
std::vector<Measured> open_measured(const Measure& verb);

}  // namespace foci::cli
