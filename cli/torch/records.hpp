// SPDX-License-Identifier: Apache-2.0
// The Records of a run: what training and judging it gave.
#pragma once

#include "cli/run_words.hpp"

#include <foci/record.hpp>
#include <foci/run.hpp>

#include <string>
#include <vector>

namespace foci::cli {

/// What was measured: the words that made the run, resolved, and the ones that measure it again.
struct Measurement {
  const Words& words;
  std::string data;     ///< the file or folder that it was judged on
  std::string command;  ///< "foci eval runs/a --split test"
};

/// One for each score; how many samples they are over is the score "count".
std::vector<Record> records_of(const Measurement& what, const train::Scores& scores);

/// A command line as it would be typed.
std::string command_text(const std::string& verb, const Words& words);

Json json_of(const std::vector<Record>& records);

}  // namespace foci::cli
