// SPDX-License-Identifier: Apache-2.0
// What can be learned: each task opens its data, trains, and judges a checkpoint.
#pragma once

#include "cli/torch/run_folder.hpp"

#include <foci/passes.hpp>

#include <functional>
#include <string>
#include <string_view>

namespace foci::cli {

/// A run whose data is open.
struct Job {
  Json data;  ///< what config.json keeps of it
  std::function<train::Outcome(const train::Told&)> train;
};

/// Where a run is, and what it was told.
struct Asked {
  std::string run;
  Words words;
  Common common;
  bool resumes = false;
  dist::Group* group = nullptr;      ///< of several processes
  std::function<bool()> stops = {};  ///< RunOptions'
};

struct TaskKind {
  std::string_view name;
  std::string_view samples;  ///< that are counted a second: "images"
  Job (*open)(const Asked& asked);
  /// The weights over a whole split; `data` as config.json has it.
  train::Scores (*judge)(const Asked& asked, const Json& data, const std::string& weights);
  std::string (*text)(const train::Scores& scores);  ///< in one line
  /// The same weights going over samples of the split, for whoever looks inside.
  train::Passes (*passes)(const Asked& asked, const Json& data, const std::string& weights);
};
/// By its name, which has been checked.
const TaskKind& task_of(std::string_view name);

/// The weights of a run's last checkpoint, or of their average. Throws FileError.
std::string weights_of(const std::string& run, bool ema);
/// What a run over sequences knows of its data, from config.json's. Throws FileError.
train::SequenceFacts sequence_facts_of(const Asked& asked, const Json& data);
/// A run's tokenizer, which has as many tokens as the run began with. Throws FileError.
train::Tokenizer tokenizer_of(const std::string& run, const RunConfig& config);

}  // namespace foci::cli
