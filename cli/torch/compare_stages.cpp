// SPDX-License-Identifier: Apache-2.0
// The steps of a run of a comparison.
#include "cli/torch/compare_stages.hpp"

#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/compare_maps.hpp"
#include "cli/torch/records.hpp"
#include "cli/torch/run_folder.hpp"
#include "cli/torch/tasks.hpp"
#include "cli/write.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using Arguments = std::vector<std::string>;

/// Part of every name: another one makes all results out of date.
constexpr int results_version = 1;

std::string short_sum(const Json& of) { return data::sha256_of_text(of.dump()).substr(0, 8); }

void add_flags(Arguments& to, const Words& words) {
  for (const Flag& flag : find_verb("train")->flags) {
    const auto found = words.find(std::string(flag.name));
    if (found == words.end() || found->second.empty()) continue;
    if (flag.values.empty() && found->second != "true") continue;
    to.push_back("--" + found->first);
    if (!flag.values.empty()) to.push_back(found->second);
  }
}

Arguments place_flags(const CompareSite& site) {
  Arguments words = {"--quiet", "--threads", std::to_string(site.threads)};
  if (site.cuda) words.insert(words.end(), {"--device", "cuda"});
  return words;
}

class Stages {
 public:
  Stages(const ComparePlan& plan, const CompareSite& site, CompareRun& run)
      : plan_(plan), site_(site), run_(run) {}

  void train(const Words& words) {
    Arguments arguments = train_arguments(plan_.task, words, run_.folder, site_);
    arguments.emplace_back("--resume");
    add("train", "training", std::move(arguments), {});
  }
  void eval() {
    const std::string& count = plan_.words.at("judge-samples");
    Arguments arguments = {"eval", run_.folder};
    if (plan_.task == "images") {
      if (count != "0") arguments.insert(arguments.end(), {"--count", count});
      arguments.insert(arguments.end(), {"--right", right("eval")});
    }
    add("eval", "judging", std::move(arguments), plan_.task == "images" ? right("eval") : "");
  }
  void attack() {
    if (plan_.words.at("attack") == "none") return;
    Arguments arguments = {"attack", run_.folder};
    for (const char* flag : {"attack", "norm", "eps", "iterations", "queries", "check", "seed"})
      arguments.insert(arguments.end(), {std::string("--") + flag, plan_.words.at(flag)});
    arguments.insert(arguments.end(), {"--count", plan_.words.at("attack-samples")});
    const std::string out =
        fmt::format("{}/attack-{}", run_.folder, short_sum(Json(key_of(arguments))));
    arguments.insert(arguments.end(), {"--out", out});
    add("attack", "attacking", std::move(arguments), {});
  }
  void corrupt() {
    const std::string& names = plan_.words.at("corruptions");
    if (names == "none") return;
    Arguments arguments = {"eval", run_.folder, "--corrupt",
                           names,  "--seed",    plan_.words.at("seed")};
    const bool images = plan_.task == "images";
    if (images || plan_.words.at("task") == "series")
      arguments.insert(arguments.end(), {"--severity", plan_.words.at("severity")});
    if (images) {
      if (has_frost(names)) arguments.insert(arguments.end(), {"--frost", plan_.words.at("frost")});
      arguments.insert(arguments.end(),
                       {"--count", plan_.words.at("corrupt-samples"), "--right", right("corrupt")});
    }
    add("corrupt", "corrupting", std::move(arguments), images ? right("corrupt") : "");
  }

  void measure() {
    const std::string& samples = plan_.words.at("measure-samples");
    if (samples == "0") return;
    Arguments arguments = {"measure", run_.folder, "--samples", samples};
    const std::string out =
        fmt::format("{}/measure-{}", run_.folder, short_sum(Json(key_of(arguments))));
    arguments.insert(arguments.end(), {"--out", out});
    add("measure", "measuring", std::move(arguments), {});
  }
  void maps() {
    const std::string& images = plan_.words.at("maps");
    const bool has_images = plan_.task == "images" || plan_.task == "segments";
    if (images == "0" || !has_images || run_.state.seed != plan_.seeds[0]) return;
    const std::string file = fmt::format("{}/stages/maps-{}.json", run_.folder, images);
    run_.stages.push_back({"maps", "drawing", {"maps", images}, file, {}});
  }

 private:
  std::string right(const std::string& stage) const {
    return fmt::format("{}/right-{}.json", run_.folder, stage);
  }
  /// What decides a result: not where it is computed, nor where its files are.
  Arguments key_of(const Arguments& arguments) const {
    Arguments key;
    for (std::string word : arguments) {
      if (word.starts_with(run_.folder)) word = "RUN" + word.substr(run_.folder.size());
      key.push_back(word);
    }
    return key;
  }
  void add(const std::string& name, const std::string& title, Arguments arguments,
           const std::string& right) {
    const std::string file =
        fmt::format("{}/stages/{}-{}.json", run_.folder, name, short_sum(Json(key_of(arguments))));
    if (name != "train") {
      const Arguments place = place_flags(site_);
      arguments.insert(arguments.end(), place.begin(), place.end());
    }
    run_.stages.push_back({name, title, std::move(arguments), file, right});
  }

  const ComparePlan& plan_;
  const CompareSite& site_;
  CompareRun& run_;
};

CompareRun named_run(const CompareSite& site, const std::string& mechanism, std::uint64_t seed,
                     const Json& key) {
  std::string name = mechanism;
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '-') c = '_';
  }
  CompareRun run;
  run.state.mechanism = mechanism;
  run.state.seed = seed;
  run.state.folder = fmt::format("runs/{}-{}-{}", name, seed, short_sum(key));
  run.folder = site.out + "/" + run.state.folder;
  return run;
}

/// A run that is there, as a mechanism and a seed.
CompareRun taken_run(const ComparePlan& plan, const CompareSite& site, const std::string& source,
                     const std::string& mechanism) {
  const RunFacts facts = run_facts(source);
  const std::string weights = weights_of(source, false);
  const auto seed = std::uint64_t(to_count(facts.words.at("seed")));
  CompareRun run = named_run(site, mechanism, seed,
                             {{"version", results_version},
                              {"weights", data::fingerprint_of(weights).sha256},
                              {"data", site.data_sha256}});
  run.source = source;
  run.state.step = run.state.steps = to_count(facts.words.at("steps"));
  Stages stages(plan, site, run);
  stages.eval();
  stages.attack();
  stages.corrupt();
  stages.measure();
  stages.maps();
  return run;
}

/// What was found with a run or said of it, and not the run: another comparison writes its own.
bool is_about(const std::string& name) {
  static const std::set<std::string> files = {"records.jsonl", "stages",  "claim",    "lock",
                                              "status.json",   "log.txt", "error.txt"};
  return files.contains(name) || name.starts_with("attack") || name.starts_with("measure") ||
         name.starts_with("right-");
}

/// Linked to, but for what is found anew: the run itself stays as it is.
void mirror(const CompareRun& run) {
  fs::create_directories(run.folder);
  for (const auto& entry : fs::directory_iterator(run.source)) {
    const std::string name = entry.path().filename().string();
    const fs::path to = fs::path(run.folder) / name;
    if (is_about(name) || fs::is_symlink(to)) continue;
    fs::create_symlink(fs::absolute(entry.path()), to);
  }
}

/// None where training was told to stop before its first.
std::vector<Record> records_in(const CompareRun& run) {
  const std::string path = run.folder + "/records.jsonl";
  return fs::exists(path) ? read_records(path) : std::vector<Record>();
}

/// Which images withstood each ball, of attack's samples.json.
Json withstood(const std::string& path) {
  Json right = Json::object();
  for (const Json& sample : read_json(path)) {
    const bool clean = sample.at("right").get<bool>();
    const auto add = [&](const std::string& name, bool holds) {
      right[name] = right.value(name, "") + (holds ? "1" : "0");
    };
    add("clean", clean);
    for (const auto& [reach, by] : sample.at("fooled_by").items())
      add("robust " + reach, clean && by.empty());
  }
  return right;
}

std::string word_after(const Arguments& arguments, const std::string& flag) {
  const auto found = std::find(arguments.begin(), arguments.end(), flag);
  return found == arguments.end() ? "" : *(found + 1);
}

std::int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return std::int64_t(usage.ru_maxrss) * 1024;
}

/// What a step gave, beyond the Records that stood there before.
Json gathered(const CompareRun& run, const CompareStage& stage, std::size_t before) {
  const auto records = records_in(run);
  const std::vector<Record> added(records.begin() + std::ptrdiff_t(before), records.end());
  Json right = stage.right.empty() ? Json::object() : read_json(stage.right);
  if (stage.name == "attack")
    right = withstood(word_after(stage.arguments, "--out") + "/samples.json");
  return {{"stage", stage.name},
          {"command", "foci " + listed(stage.arguments, " ")},
          {"records", json_of(added)},
          {"right", right},
          {"peak_bytes", peak_bytes()}};
}

/// What work_on leaves; another file in its place is written anew.
bool is_whole(const Json& stage) {
  if (!stage.is_object() || !stage.value("seconds", Json()).is_number()) return false;
  try {
    RunFound found;
    add_found(found, stage);
    return true;
  } catch (const InvalidArgument&) {
    return false;
  }
}

}  // namespace

Words train_words(const ComparePlan& plan, const CompareSite& site, const Contender& contender,
                  std::uint64_t seed) {
  Words words = plan.train;
  for (const auto& [flag, value] : contender.words) words[flag] = value;
  words["data"] = site.data;
  words["seed"] = std::to_string(seed);
  words["steps"] = std::to_string(site.steps);
  if (plan.split != "test") words["split"] = plan.split;
  if (words.count("warmup") == 0) words["warmup"] = std::to_string(site.steps / 10);
  if (words.count("save-every") == 0)
    words["save-every"] = std::to_string(std::max<std::int64_t>(1, site.steps / 4));
  if (words.count("evaluate-every") == 0) words["evaluate-every"] = words["steps"];
  return words;
}

std::vector<std::string> train_arguments(const std::string& task, const Words& words,
                                         const std::string& run, const CompareSite& site) {
  Arguments arguments = {"train", task, "--run", run};
  add_flags(arguments, words);
  const Arguments place = place_flags(site);
  arguments.insert(arguments.end(), place.begin(), place.end());
  return arguments;
}

std::vector<CompareRun> compare_runs(const ComparePlan& plan, const CompareSite& site) {
  std::vector<CompareRun> runs;
  if (!plan.checkpoints.empty()) {
    for (std::size_t i = 0; i < plan.checkpoints.size(); ++i)
      runs.push_back(taken_run(plan, site, plan.checkpoints[i], plan.contenders[i].name));
    return runs;
  }
  for (const std::uint64_t seed : plan.seeds) {
    for (const Contender& contender : plan.contenders) {
      const Words words = train_words(plan, site, contender, seed);
      Words key = with_defaults(plan.task, words);
      key.erase("data");  // its sum decides, wherever it lies
      CompareRun run = named_run(site, contender.name, seed,
                                 {{"version", results_version},
                                  {"task", plan.task},
                                  {"words", json_of(key)},
                                  {"data", site.data_sha256}});
      run.state.steps = site.steps;
      Stages stages(plan, site, run);
      stages.train(words);
      if (plan.task == "images") stages.eval();
      stages.attack();
      stages.corrupt();
      stages.measure();
      stages.maps();
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

std::size_t run_count(const ComparePlan& plan) {
  return plan.checkpoints.empty() ? plan.contenders.size() * plan.seeds.size()
                                  : plan.checkpoints.size();
}

bool is_done(const CompareRun& run) {
  return std::all_of(run.stages.begin(), run.stages.end(),
                     [](const CompareStage& stage) { return is_whole(read_json(stage.file)); });
}

bool work_on(const CompareRun& run) {
  using Clock = std::chrono::steady_clock;
  fs::create_directories(run.folder + "/stages");
  if (!run.source.empty()) mirror(run);
  for (const CompareStage& stage : run.stages) {
    if (is_whole(read_json(stage.file))) continue;
    write_whole(run.folder + "/status.json", Json({{"stage", stage.title}}).dump() + "\n");
    const auto begin = Clock::now();
    if (stage.name == "maps") {
      Json maps = compare_maps(run.folder, to_count(stage.arguments[1]));
      maps["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
      write_whole(stage.file, maps.dump() + "\n");
      continue;
    }
    // Training that was done, and not noted down, adds no Records again.
    const std::size_t before = stage.name == "train" ? 0 : records_in(run).size();
    const Verb verb = parse(stage.arguments);
    std::visit([](const auto& what) { cli::run(what); }, verb);
    Json found = gathered(run, stage, before);
    if (found["records"].empty()) return false;  // training was told to stop, and saved
    found["seconds"] = std::chrono::duration<double>(Clock::now() - begin).count();
    write_whole(stage.file, found.dump(1) + "\n");
  }
  return true;
}

RunFound found_of(const CompareRun& run) {
  RunFound found;
  for (const CompareStage& stage : run.stages) {
    Json json = read_json(stage.file);
    // Images judge themselves by few in training; eval has the number that counts.
    const bool superseded =
        stage.name == "train" && run.stages.size() > 1 && run.stages[1].name == "eval";
    if (superseded && json.is_object()) json["records"] = Json::array();
    if (is_whole(json)) add_found(found, json);
  }
  return found;
}

}  // namespace foci::cli
