// SPDX-License-Identifier: Apache-2.0
// The folder of a run: what it was told (config.json) and where it ran (env.json).
#pragma once

#include "cli/run_words.hpp"

#include <foci/data.hpp>

#include <string>

namespace foci::cli {

struct RunConfig {
  std::string task;  ///< images, text, sequences, segments
  Words words;       ///< resolved
  Json data;         ///< what the task said of it
};

bool has_config(const std::string& run);
/// Throws FileError that names the file and the place.
RunConfig read_config(const std::string& run);
/// Where it runs, and torchrun's name for the job, if it has one.
struct RunPlace {
  std::string machine, job;
};
/// config.json and env.json, each whole or not at all.
void write_config(const std::string& run, const RunConfig& config, const RunPlace& place);
/// The job that env.json names, "" where it names none.
std::string job_of(const std::string& run);

/// A number of config.json's data. Throws FileError.
std::int64_t count_in(const std::string& run, const Json& data, const char* name);
/// What a model must know of its images, to and from config.json. Throws FileError.
Json json_of(const train::ImageFacts& facts);
train::ImageFacts facts_in(const std::string& run, const Json& data);

/// The images that --data and --split name, classes by the names that config.json's data has.
data::ImageSet images_of(const Json& data, const Words& words);

/// Throws FileError when the data is not what the run began with.
void check_same_data(const std::string& run, const Json& before, const Json& now);

}  // namespace foci::cli
