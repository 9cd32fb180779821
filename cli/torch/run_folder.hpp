// SPDX-License-Identifier: Apache-2.0
// The folder of a run: what it was told (config.json) and where it ran (env.json).
#pragma once

#include "cli/run_words.hpp"

#include <string>

namespace foci::cli {

/// What a model must know of its data, and how much there is.
struct RunData {
  train::ImageFacts facts;
  std::int64_t train = 0, valid = 0;
};

struct RunConfig {
  Words words;  ///< resolved
  RunData data;
};

bool has_config(const std::string& run);
/// Throws FileError that names the file and the place.
RunConfig read_config(const std::string& run);
/// config.json and env.json, each whole or not at all.
void write_config(const std::string& run, const RunConfig& config);

/// Throws FileError when the data is not what the run began with.
void check_same_data(const std::string& run, const RunData& before, const RunData& now);

}  // namespace foci::cli
