// SPDX-License-Identifier: Apache-2.0
// The Records of a run: what training and judging it gave.
#pragma once

#include "cli/run_words.hpp"

#include <foci/record.hpp>
#include <foci/run.hpp>

#include <string>
#include <vector>

namespace foci::cli {

/// What was measured, and the command that measures it again.
struct Measurement {
  const Words& words;   ///< of the run, resolved
  std::string machine;  ///< that it ran on
  std::string command;  ///< "foci eval runs/a --split test"
};

/// One for each score, over as many samples as the score "count" says.
std::vector<Record> records_of(const Measurement& what, const train::Scores& scores);

/// "foci VERB --flag value ...".
std::string command_text(const std::string& verb, const Words& words);
/// The resolved words of a run without those that are at their default.
Words changed_words(const std::string& task, const Words& words);

/// Flags those whose data is not what the run was trained on, by its Records, and warns of it.
/// `own` are the run's words, `judged` those it is judged by: another --data is meant to differ.
void doubt_other_data(const std::string& run, const Words& own, const Words& judged,
                      std::vector<Record>& records);

/// Adds them to the run's records.jsonl; warns where that cannot be written.
void keep_records(const std::string& run, const std::vector<Record>& records);
/// Those that are not there: a run that is resumed after its end gives the same ones again.
void keep_new_records(const std::string& run, std::vector<Record> records);
Json json_of(const std::vector<Record>& records);

}  // namespace foci::cli
