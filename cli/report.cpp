// SPDX-License-Identifier: Apache-2.0
// foci report: runs that are there, side by side. Over one task and one set of data, or not at all.
#include "cli/compare_plan.hpp"
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
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

/// Runs that are whole; the others are named.
std::vector<Taken> whole_runs(const std::vector<std::string>& folders, Json& flags) {
  std::vector<Taken> runs;
  for (std::string folder : folders) {
    while (folder.size() > 1 && folder.back() == '/') folder.pop_back();
    try {
      Taken run{run_facts(folder), found_in(folder)};
      if (run.found.records.empty())
        throw FileError(fmt::format("{}: has no Records; foci eval writes them", shown(folder)));
      runs.push_back(std::move(run));
    } catch (const Error& fault) {
      warn(fmt::format("left out: {}", fault.what()));
      flags.push_back({{"name", "left-out"},
                       {"means", fault.what()},
                       {"do", "finish the run, judge it, and report again"}});
    }
  }
  if (runs.empty()) throw FileError("report: none of the folders is a whole run with Records");
  return runs;
}

void check_same(const std::vector<Taken>& runs) {
  const Taken& first = runs.front();
  for (const Taken& run : runs) {
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
}

void add_run(Comparison& to, Taken run, const std::string& name) {
  const auto mechanism =
      std::find_if(to.mechanisms.begin(), to.mechanisms.end(),
                   [&](const ComparedMechanism& known) { return known.name == name; });
  if (mechanism == to.mechanisms.end()) {
    const std::string metric = name.substr(0, name.find(':'));
    Words words = run.facts.words;
    std::erase_if(words, [](const auto& word) {
      return word.first != "metric" && word.first != "weighting" && !is_of_mechanism(word.first);
    });
    to.mechanisms.push_back(
        {name, about({name, words}), metric == "flat" || metric == "random", words});
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
  const std::vector<std::string> names = mechanism_names(facts);
  const RunFacts first = runs.front().facts;
  const std::string sum = runs.front().found.records.back().data_sha256;
  Comparison all;
  for (std::size_t i = 0; i < runs.size(); ++i) add_run(all, std::move(runs[i]), names[i]);
  std::sort(all.seeds.begin(), all.seeds.end());
  const auto dot = std::find_if(all.mechanisms.begin(), all.mechanisms.end(),
                                [](const ComparedMechanism& m) { return m.name == "dot"; });
  if (dot != all.mechanisms.end()) std::rotate(all.mechanisms.begin(), dot, dot + 1);
  std::vector<std::string> contenders;
  for (const ComparedMechanism& mechanism : all.mechanisms) contenders.push_back(mechanism.name);
  const bool few = int(all.seeds.size()) < compare::least_seeds;
  std::string command = "foci report";
  for (const std::string& folder : verb.runs) command += " " + folder;
  all.facts = {{"title", fmt::format("{} on {}", listed(contenders), first.words.at("data"))},
               {"task", first.task},
               {"state", "done"},
               {"demonstration", few},
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
               {"model", {{"name", first.words.at("model")}, {"words", Json(first.words)}}},
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
    fmt::print("\n{} runs; page: {}/report.html\n", all.runs.size(), folder);
  }
  return 0;
}

}  // namespace foci::cli
