// SPDX-License-Identifier: Apache-2.0
// foci report: runs that are there, side by side. Over one task and one set of data, or not at all.
#include "cli/compare_alike.hpp"
#include "cli/compare_doubts.hpp"
#include "cli/compare_plan.hpp"
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/shell_words.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

struct Taken {
  RunFacts facts;
  RunFound found;
};

/// The folder of a comparison stands for its runs.
std::vector<std::string> folders_of_runs(const std::vector<std::string>& folders) {
  std::vector<std::string> runs;
  for (std::string folder : folders) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    std::vector<std::string> inside;
    std::error_code none;
    if (!fs::exists(folder + "/config.json")) {
      for (const auto& entry : fs::directory_iterator(folder + "/runs", none))
        inside.push_back(entry.path().string());
    }
    std::sort(inside.begin(), inside.end());
    if (inside.empty()) inside.push_back(folder);
    runs.insert(runs.end(), inside.begin(), inside.end());
  }
  return runs;
}

/// Records over other data than the run's own, such as corrupted copies of it, have the same names
/// and are no part of what it learned: they are left aside. Gives how many there were.
std::size_t leave_others_aside(std::vector<Record>& records) {
  const auto trained = std::find_if(records.begin(), records.end(), [](const Record& record) {
    return record.command.starts_with("foci train ");
  });
  if (records.empty()) return 0;
  const std::string own = (trained == records.end() ? records.front() : *trained).data_sha256;
  return std::erase_if(records, [&](const Record& record) { return record.data_sha256 != own; });
}

void tell(Json& flags, const char* name, const std::string& means, const char* remedy) {
  warn(means);
  flags.push_back({{"name", name}, {"means", means}, {"do", remedy}});
}

/// Attacks towards a class say nothing of robust accuracy, whatever their Records are called. Gives
/// how many those were.
std::size_t leave_targeted_aside(std::vector<Record>& records) {
  return std::erase_if(records, [](const Record& record) {
    const std::vector<std::string> words = shell_words(record.command);
    return std::any_of(words.begin(), words.end(), [](const std::string& word) {
      return word == "--goal" || word.starts_with("--goal=");
    });
  });
}

/// Runs that are whole; the others are named.
std::vector<Taken> whole_runs(const std::vector<std::string>& folders, Json& flags) {
  std::vector<Taken> runs;
  for (const std::string& folder : folders_of_runs(folders)) {
    try {
      Taken run{run_facts(folder), found_in(folder)};
      if (const std::size_t aimed = leave_targeted_aside(run.found.records); aimed > 0) {
        tell(flags, "targeted",
             fmt::format("{}: {} Record{} of attacks towards a class (--goal) left aside",
                         shown(folder), aimed, aimed == 1 ? "" : "s"),
             "read them in its records.jsonl");
      }
      if (run.found.records.empty())
        throw FileError(fmt::format("{}: has no Records; foci eval writes them", shown(folder)));
      if (const std::size_t others = leave_others_aside(run.found.records); others > 0) {
        tell(flags, "other-data",
             fmt::format("{}: {} Record{} over other data left aside", shown(folder), others,
                         others == 1 ? "" : "s"),
             "read them in its records.jsonl");
      }
      runs.push_back(std::move(run));
    } catch (const Error& fault) {
      tell(flags, "left-out", fmt::format("left out: {}", fault.what()),
           "finish the run, evaluate it (foci eval), and report again");
    }
  }
  if (runs.empty()) throw FileError("report: none of the folders is a whole run with Records");
  return runs;
}

void check_same(const std::vector<Taken>& runs) {
  std::vector<RunFacts> facts;
  const Taken& first = runs.front();
  for (const Taken& run : runs) {
    facts.push_back(run.facts);
    if (run.facts.task != first.facts.task) {
      throw FileError(fmt::format("{} learned {}, {} {}: they cannot stand side by side",
                                  shown(run.facts.folder), run.facts.task,
                                  shown(first.facts.folder), first.facts.task));
    }
    const std::string &sum = run.found.records.back().data_sha256,
                      &other = first.found.records.back().data_sha256;
    if (sum == other) continue;
    throw FileError(fmt::format("{} is over other data ({}, {:.12}) than {} ({}, {:.12})",
                                shown(run.facts.folder), run.facts.words.at("data"), sum,
                                shown(first.facts.folder), first.facts.words.at("data"), other));
  }
  check_one_split(facts);
}

/// What was measured in several ways is no comparison.
void leave_unlike_out(std::vector<Taken>& runs, Json& flags) {
  std::vector<MeasuredRun> measured;
  measured.reserve(runs.size());
  for (Taken& run : runs) measured.push_back({&run.facts, &run.found});
  const Json doubt = keep_alike(measured);
  if (doubt.is_null()) return;
  const std::string means = doubt.at("means");
  if (std::all_of(runs.begin(), runs.end(),
                  [](const Taken& run) { return run.found.records.empty(); }))
    throw FileError("report: nothing is measured alike in all runs; " + means);
  warn(means);
  flags.push_back(doubt);
}

std::string metric_in(const std::string& name) { return name.substr(0, name.find_first_of(": ")); }

/// "batch 128, clip 0"
std::string told(const Words& flags) {
  std::vector<std::string> parts;
  for (const auto& [flag, value] : flags) parts.push_back(fmt::format("{} {}", flag, value));
  return listed(parts);
}

/// A sentence, and below a name that does not say them the flags that tell it from others.
std::string about_of(const MechanismName& of, const Words& words) {
  const std::string metric = metric_in(of.name);
  const bool said = of.flags.empty() || of.name.find(':') != std::string::npos;
  return said ? about({of.name, words})
              : fmt::format("{}; {}", about({metric, {{"metric", metric}}}), told(of.flags));
}

void add_run(Comparison& to, Taken run, const MechanismName& named) {
  const std::string& name = named.name;
  const auto mechanism =
      std::find_if(to.mechanisms.begin(), to.mechanisms.end(),
                   [&](const ComparedMechanism& known) { return known.name == name; });
  if (mechanism == to.mechanisms.end()) {
    const std::string metric = metric_in(name);
    Words words = run.facts.words;
    std::erase_if(words, [](const auto& word) {
      return word.first != "metric" && word.first != "weighting" && !is_of_mechanism(word.first);
    });
    to.mechanisms.push_back(
        {name, about_of(named, words), metric == "flat" || metric == "random", words});
  }
  const auto seed = std::uint64_t(to_count(run.facts.words.at("seed")));
  for (const ComparedRun& known : to.runs) {
    if (known.state.mechanism != name || known.state.seed != seed) continue;
    throw Misuse(fmt::format("{} and {} have the same flags and the same seed",
                             shown(known.state.folder), shown(run.facts.folder)),
                 "leave one of them out");
  }
  if (std::find(to.seeds.begin(), to.seeds.end(), seed) == to.seeds.end()) to.seeds.push_back(seed);
  const auto steps = to_count(run.facts.words.at("steps"));
  to.runs.push_back({{.mechanism = name,
                      .folder = run.facts.folder,
                      .seed = seed,
                      .state = "done",
                      .stage = {},
                      .error = {},
                      .step = steps,
                      .steps = steps},
                     std::move(run.found),
                     curve_of(run.facts.folder)});
}

Comparison assembled(std::vector<Taken> runs, const Json& flags, const Report& verb) {
  std::vector<RunFacts> facts;
  facts.reserve(runs.size());
  for (const Taken& run : runs) facts.push_back(run.facts);
  std::vector<MechanismName> names = mechanism_names(facts);
  shorten(names);
  const RunFacts first = runs.front().facts;
  Words shared = first.words;  // by all runs
  for (const char* own : {"seed", "metric", "run"}) shared.erase(own);
  for (const MechanismName& one : names) {
    for (const auto& [flag, value] : one.flags) shared.erase(flag);
  }
  const auto measured = std::find_if(runs.begin(), runs.end(),
                                     [](const Taken& run) { return !run.found.records.empty(); });
  const std::string sum = measured->found.records.back().data_sha256;
  Comparison all;
  for (std::size_t i = 0; i < runs.size(); ++i) add_run(all, std::move(runs[i]), names[i]);
  std::sort(all.seeds.begin(), all.seeds.end());
  const auto dot =
      std::find_if(all.mechanisms.begin(), all.mechanisms.end(),
                   [](const ComparedMechanism& m) { return metric_in(m.name) == "dot"; });
  if (dot != all.mechanisms.end()) std::rotate(all.mechanisms.begin(), dot, dot + 1);
  std::vector<std::string> contenders;
  for (const ComparedMechanism& mechanism : all.mechanisms) contenders.push_back(mechanism.name);
  const std::string why =
      demonstration_reason(all.seeds.size(), compare::bootstrap_seeds, 0, false);
  std::string command = "foci report";
  for (const std::string& folder : verb.runs) command += " " + shell_quoted(folder);
  all.facts = {{"title", fmt::format("{} on {}", listed(contenders), first.words.at("data"))},
               {"task", first.task},
               {"state", "done"},
               {"demonstration", !why.empty()},
               {"demonstration_because", why},
               {"seconds", Json()},
               {"peak_bytes", Json()},
               {"budget_seconds", Json()},
               {"command", command},
               {"commit", commit_text()},
               {"machine", machine_text()},
               {"environment", Json::object()},
               {"data",
                {{"name", first.words.at("data")},
                 {"path", first.words.at("data")},
                 {"sha256", sum},
                 {"made", false},
                 {"train", first.data.value("train", Json())},
                 {"judged", first.data.value("valid", Json())},
                 {"classes", first.data.value("classes", Json())}}},
               {"model",
                {{"name", shared.count("model") > 0 ? shared.at("model") : "several"},
                 {"words", Json(shared)}}},
               {"plan", Json::object()},
               {"reproduce", command},
               {"flags", flags}};
  return all;
}

}  // namespace

int run(const Report& verb) {
  Json flags = Json::array();
  std::vector<Taken> runs = whole_runs(verb.runs, flags);
  check_same(runs);
  leave_unlike_out(runs, flags);
  const Comparison all = assembled(std::move(runs), flags, verb);
  Json results = results_json(all);
  const auto out = verb.words.find("out");
  const std::string folder = out == verb.words.end() ? "report" : out->second;
  std::error_code fault;
  fs::create_directories(folder, fault);
  if (fault) throw FileError(fmt::format("{}: {}", shown(folder), fault.message()));
  write_results(folder, all, results);
  if (verb.common.json) {
    print_json(results);
  } else if (!verb.common.quiet) {
    print_results(results);
    for (const ComparedMechanism& mechanism : all.mechanisms) {
      if (mechanism.about.find("; ") != std::string::npos)  // short for its flags
        fmt::print("{}: {}\n", mechanism.name, mechanism.about);
    }
    fmt::print("\n{} run{}; page: {}/report.html\n", all.runs.size(),
               all.runs.size() == 1 ? "" : "s", folder);
  }
  return 0;
}

}  // namespace foci::cli
