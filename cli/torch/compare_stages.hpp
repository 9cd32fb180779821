// SPDX-License-Identifier: Apache-2.0
// What a comparison does with one mechanism and one seed: a run of foci train, judged by foci eval
// and foci attack. Each step is a command line; what it gave is a file, and is not done again.
#pragma once

#include "cli/compare_plan.hpp"
#include "cli/compare_results.hpp"

#include <string>
#include <vector>

namespace foci::cli {

/// Where a comparison works, and what it works on.
struct CompareSite {
  std::string out;          ///< its folder
  std::string data;         ///< path
  std::string data_sha256;  ///< of it
  std::int64_t steps = 0;   ///< of each run
  int threads = 1;          ///< of each run
  bool cuda = false;
};

struct CompareStage {
  std::string name, title;             ///< "attack", "attacking"
  std::vector<std::string> arguments;  ///< of foci
  std::string file;                    ///< that it leaves
  std::string right;                   ///< a file of eval --right; empty: none
};

struct CompareRun {
  RunState state;
  std::string folder;  ///< path
  std::string source;  ///< a run that is there, whose weights are taken; empty: it is trained
  std::vector<CompareStage> stages;
};

/// A run for every mechanism and seed, or for every checkpoint, named after all that decides it.
std::vector<CompareRun> compare_runs(const ComparePlan& plan, const CompareSite& site);
/// How many these are.
std::size_t run_count(const ComparePlan& plan);
/// The words of foci train for one of them.
Words train_words(const ComparePlan& plan, const CompareSite& site, const Contender& contender,
                  std::uint64_t seed);
/// The same as a command line.
std::vector<std::string> train_arguments(const std::string& task, const Words& words,
                                         const std::string& run, const CompareSite& site);

bool is_done(const CompareRun& run);
/// Does what is missing, in this process. Throws what commands throw; false: told to stop.
bool work_on(const CompareRun& run);
/// What its steps left.
RunFound found_of(const CompareRun& run);

}  // namespace foci::cli
