// SPDX-License-Identifier: Apache-2.0
// The verbs of runs: one is made, judged, attacked, measured; several are compared.
#include "cli/misuse.hpp"
#include "cli/pages.hpp"
#include "cli/parse.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <initializer_list>

namespace foci::cli {
namespace {

/// A verb about a trained model.
template <class OfModel>
OfModel about(const Called& called, const char* needs, std::initializer_list<const char*> sizes) {
  if (called.word.empty()) {
    throw Misuse(fmt::format("{} needs {}", called.verb, needs),
                 fmt::format("for instance foci {} runs/a", called.verb));
  }
  for (const char* flag : sizes) size_of_flag(called.words, flag, 1);
  return {common_of(called.words), called.word, called.words};
}

}  // namespace

Train train_of(const Called& called) {
  const auto tasks = choices(find_verb("train")->word);
  if (std::find(tasks.begin(), tasks.end(), called.word) == tasks.end()) {
    throw Misuse(called.word.empty() ? "train needs to know what: foci train images"
                                     : fmt::format("train cannot learn '{}'{}", shown(called.word),
                                                   suggestion(called.word, tasks)),
                 "one of " + listed(tasks));
  }
  if (called.words.count("run") == 0) {
    throw Misuse("train needs --run FOLDER, which the run is written into",
                 "for instance foci train images --data data/fashion-mnist --run runs/a");
  }
  for (const auto& [flag, text] : called.words) {
    if (!belongs(flag, called.word)) {
      throw Misuse(fmt::format("train {} has no --{}; it is for {}", called.word, flag,
                               listed(tasks_with(flag))));
    }
    check_range(flag, text);
  }
  if (called.word != "text" && text_or(called.words, "weighting", "") == "decay") {
    throw Misuse(
        fmt::format("--weighting decay looks back, and train {} sees all at once; it is "
                    "for text",
                    called.word));
  }
  for (const char* flag : {"batch", "accumulate", "workers", "keep"})
    size_of_flag(called.words, flag, 1);
  return {.common = common_of(called.words), .task = called.word, .words = called.words};
}

Eval eval_of(const Called& called) {
  for (const char* flag : {"severity", "scale", "frost", "baseline", "rate", "synonyms"}) {
    if (called.words.count(flag) > 0 && called.words.count("corrupt") == 0)
      throw Misuse(fmt::format("--{} goes with --corrupt", flag));
  }
  return about<Eval>(called, "the folder of a run", {"batch", "workers"});
}

Attack attack_of(const Called& called) {
  return about<Attack>(called, "the folder of a run", {"batch"});
}

Measure measure_of(const Called& called) {
  return about<Measure>(called, "a run, a model or tensors", {"batch", "top"});
}

Compare compare_of(const Words& words) {
  if (words.count("jobs") > 0) size_of_flag(words, "jobs", 1);
  if (words.count("patience") > 0) size_of_flag(words, "patience", 40);
  if (words.count("seeds") > 0 && to_count(words.at("seeds")) < 1)
    throw Misuse("--seeds 0 compares nothing; it needs 1 or more, and 3 for a verdict");
  return {.common = common_of(words), .words = words};
}

Report report_of(const Called& called) {
  if (called.word.empty()) {
    throw Misuse("report needs folders of runs",
                 "for instance foci report runs/dot runs/elliptical --out report");
  }
  Report verb{.common = common_of(called.words), .runs = {called.word}, .words = called.words};
  verb.runs.insert(verb.runs.end(), called.rest.begin(), called.rest.end());
  return verb;
}

Reproduce reproduce_of(const Called& called) {
  if (called.word.empty()) {
    throw Misuse("reproduce needs a file of Records",
                 "for instance foci reproduce runs/a/records.jsonl --name top1");
  }
  return {.common = common_of(called.words), .records = called.word, .words = called.words};
}

}  // namespace foci::cli
