// SPDX-License-Identifier: Apache-2.0
// The plan of a comparison, resolved.
#include "cli/compare_plan.hpp"

#include "cli/misuse.hpp"
#include "cli/pages.hpp"
#include "cli/parsed.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"

#include <foci/corrupt.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

namespace foci::cli {
namespace {

const std::map<std::string, std::string>& train_tasks() {
  static const std::map<std::string, std::string> tasks = {{"image", "images"},
                                                           {"segment", "segments"},
                                                           {"text", "text"},
                                                           {"series", "sequences"},
                                                           {"listops", "sequences"}};
  return tasks;
}

/// Flags that say how this call runs, not what is compared.
bool is_beside(std::string_view flag) {
  static const std::set<std::string_view> beside = {
      "plan", "out", "jobs", "json", "quiet", "help", "threads", "device", "model", "patience"};
  return beside.count(flag) > 0;
}

/// What every run of a task is told unless the plan says otherwise.
Words train_defaults(const std::string& task) {
  Words words = {{"clip", "1"}, {"sample", "0"}, {"keep", "1"}};
  if (task == "image")
    words.merge(Words{{"model", "vit_micro"},
                      {"batch", "16"},
                      {"learning-rate", "0.002"},
                      {"judge-count", "500"}});
  if (task == "segment") {
    words.merge(
        Words{{"image", "96"}, {"shorter", "180"}, {"schedule", "poly"}, {"judge-count", "0"}});
  }
  if (task == "text") words.merge(Words{{"learning-rate", "0.002"}, {"positions", "rotary"}});
  if (task == "series") words.merge(Words{{"model", "series_small"}, {"batch", "16"}});
  if (task == "listops") words.merge(Words{{"model", "lra_small"}, {"learning-rate", "0.0005"}});
  const std::string& own = train_tasks().at(task);
  std::erase_if(words, [&](const auto& word) { return !belongs(word.first, own); });
  return words;
}

std::string corruption_defaults(const std::string& task) {
  if (task == "image") return "gaussian_noise,motion_blur,fog,contrast,pixelate";
  if (task == "text") return "swap,bytes";
  return task == "series" ? "noise,spikes,missing" : "none";
}

std::string plan_text(const std::string& path, const std::string& flag, const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (!value.is_array()) return value.dump();
  std::string text;
  for (const Json& part : value) {
    if (part.is_structured())
      throw FileError(fmt::format("{}: '{}' is a list of words", shown(path), flag));
    text += (text.empty() ? "" : ",") + (part.is_string() ? part.get<std::string>() : part.dump());
  }
  return text;
}

/// A plan's flags, and those of foci train inside it.
struct Read {
  Words words;
  Json train = Json::object();
};

Read read_plan(const std::string& name) {
  const std::string path = preset_path(name);
  std::ifstream file(path);
  const Json json = parsed_with_comments(file);
  if (!json.is_object()) throw FileError(fmt::format("{}: is not a JSON object", shown(path)));
  Read read;
  std::vector<std::string> names = {"train"};
  for (const Flag& flag : find_verb("compare")->flags) {
    if (!is_beside(flag.name)) names.emplace_back(flag.name);
  }
  for (const auto& [key, value] : json.items()) {
    if (std::find(names.begin(), names.end(), key) == names.end()) {
      throw FileError(fmt::format("{}: '{}' is no flag of a plan{}", shown(path), shown(key),
                                  suggestion(key, names)));
    }
    if (key == "train" && value.is_object()) {
      read.train = value;
      continue;
    }
    const std::string text = plan_text(path, key, value);
    for (const Flag& flag : find_verb("compare")->flags) {
      if (flag.name != key) continue;
      try {
        check_value(flag, text);
      } catch (const Misuse& fault) {
        throw FileError(fmt::format("{}: {}", shown(path), fault.what()));
      }
    }
    read.words[key] = text;
  }
  return read;
}

/// "vit_micro dim=32 batch=64"
Words words_of_model(const std::string& text, const std::string& task) {
  Json flags = Json::object();
  for (const std::string& part : split(text, ' ')) {
    if (part.empty()) continue;
    const std::size_t equals = part.find('=');
    if (equals == std::string::npos) {
      flags["model"] = part;
    } else {
      flags[part.substr(0, equals)] = part.substr(equals + 1);
    }
  }
  try {
    return words_in(task, flags, "--model");
  } catch (const FileError& fault) {
    std::string spaced = text;
    std::replace(spaced.begin(), spaced.end(), ',', ' ');
    throw Misuse(fault.what(),
                 spaced == text
                     ? "a model, and flags of foci train as name=value"
                     : fmt::format("spaces stand between flags: --model '{}'", shown(spaced)));
  }
}

void check_train(const Words& words) {
  for (const char* flag : {"data", "seed", "steps", "epochs", "metric", "weighting", "split"}) {
    if (words.count(flag) == 0) continue;
    throw Misuse(fmt::format("{} is not for the model's words", flag),
                 "the plan has flags for data, seeds, steps and mechanisms; judged is the test "
                 "split, or valid without one");
  }
}

void add_defaults(Words& words, const std::string& task) {
  for (const auto& flag : find_verb("compare")->flags) {
    const std::string name(flag.name);
    if (is_beside(name) || flag.standard.empty() || words.count(name) > 0) continue;
    if (name == "data") {
      if (task != "image" && task != "listops") {
        throw Misuse(fmt::format("compare --task {} needs --data", task),
                     task == "segment" ? "foci data make streets draws some"
                                       : "foci data list says where sets come from");
      }
      words[name] = task == "image" ? "fashion-mnist" : "listops";
    } else if (name == "corruptions") {
      words[name] = corruption_defaults(task);
    } else {
      words[name] = flag.standard;
    }
  }
  if (task != "image") words["attack"] = "none";
}

void check_frost(const Words& words) {
  const auto pictures = words.find("frost");
  if (pictures != words.end()) {
    if (words.at("task") != "image")
      throw Misuse(
          fmt::format("compare --task {} has no --frost; it is for image", words.at("task")));
    corrupt::read_frost(pictures->second);
  }
  if (pictures != words.end() || words.at("task") != "image" || !has_frost(words.at("corruptions")))
    return;
  throw Misuse("frost needs pictures of it: --frost FOLDER",
               "ImageNet-C's are in its repository; without them --corruptions "
               "noise,blur,snow,fog,brightness,digital");
}

void check_corruptions(const Words& words) {
  const std::string &text = words.at("corruptions"), &task = words.at("task");
  if (text == "none") return;
  std::vector<std::string> known = split(corruption_defaults(task), ',');
  if (task == "image") {
    known = {"noise", "blur", "weather", "digital", "all", "extra"};
    for (int i = 0; i < corrupt::corruption_count; ++i)
      known.emplace_back(corrupt::name_of(corrupt::Corruption(i)));
  }
  for (const std::string& name : split(text, ',')) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Misuse(fmt::format("--corruptions does not know '{}' for --task {}{}", shown(name), task,
                             suggestion(name, known)),
                 "none, or of " + listed(known));
  }
  check_frost(words);
}

void check_attacks(const Words& words) {
  static const std::vector<std::string> known = {"noise",   "fgsm",     "pgd",    "mpgd",
                                                 "apgd-ce", "apgd-dlr", "apgd-t", "fab",
                                                 "fab-t",   "square",   "spsa",   "cw"};
  if (words.at("attack") == "none") return;
  for (const std::string& name : split(words.at("attack"), ',')) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    throw Misuse(fmt::format("--attack does not know '{}'{}", shown(name), suggestion(name, known)),
                 "none, or of " + listed(known));
  }
}

void add_contenders(ComparePlan& plan) {
  std::set<std::string> seen;
  for (const std::string& name : split(plan.words.at("mechanisms"), ',')) {
    if (!seen.insert(name).second)
      throw Misuse(fmt::format("--mechanisms names {} twice", shown(name)));
    plan.contenders.push_back(contender_of(name));
  }
}

/// What trained runs have of their own cannot be asked for.
void check_checkpoint(const Words& typed) {
  if (typed.count("checkpoint") == 0) return;
  for (const char* flag : {"mechanisms", "seeds", "budget", "steps", "model"}) {
    if (typed.count(flag) == 0) continue;
    throw Misuse(fmt::format("--{} does not go with --checkpoint", flag),
                 "nothing is trained; mechanisms, seeds and steps are those of the runs");
  }
}

/// Trained runs are compared on what they were trained on, unless the flags say otherwise.
void take_from_runs(Words& words) {
  const RunFacts first = run_facts(split(words.at("checkpoint"), ',').front());
  if (first.words.count("data") > 0) words.emplace("data", first.words.at("data"));
  const Json size = first.data.value("vocabulary", Json());
  const bool tokens = size.is_number() && size > 0;
  for (const auto& [task, own] : train_tasks()) {
    if (own != first.task || task == (tokens ? "series" : "listops")) continue;
    words.emplace("task", task);
  }
}

}  // namespace

bool has_frost(const std::string& corruptions) {
  if (corruptions == "none") return false;
  const auto frosts = [](const std::string& name) {
    const auto all = corrupt::corruptions_named(name);
    return std::find(all.begin(), all.end(), corrupt::Corruption::frost) != all.end();
  };
  const auto names = split(corruptions, ',');
  return std::any_of(names.begin(), names.end(), frosts);
}

ComparePlan plan_of(const Compare& verb) {
  check_checkpoint(verb.words);
  ComparePlan plan;
  plan.typed = verb.words;
  const auto given = verb.words.find("plan");
  Read read = given == verb.words.end() ? Read() : read_plan(given->second);
  plan.words = read.words;
  for (const auto& [flag, text] : verb.words) {
    if (!is_beside(flag)) plan.words[flag] = text;
  }
  if (plan.words.count("checkpoint") > 0) take_from_runs(plan.words);
  plan.words.emplace("task", "image");
  const std::string task = plan.words.at("task");
  plan.task = train_tasks().at(task);
  if (verb.words.count("steps") > 0 && verb.words.count("budget") == 0) plan.words.erase("budget");
  if (verb.words.count("budget") > 0 && verb.words.count("steps") == 0) plan.words.erase("steps");
  add_defaults(plan.words, task);
  plan.train = train_defaults(task);
  for (const auto& [flag, text] : words_in(plan.task, read.train, "the plan's train"))
    plan.train[flag] = text;
  if (verb.words.count("model") > 0) {
    for (const auto& [flag, text] : words_of_model(verb.words.at("model"), plan.task))
      plan.train[flag] = text;
  }
  check_train(plan.train);
  check_corruptions(plan.words);
  check_attacks(plan.words);
  add_contenders(plan);
  const std::int64_t seeds = to_count(plan.words.at("seeds"));
  if (seeds < 1) throw Misuse("0 seeds compare nothing; it needs 1 or more, and 3 for a verdict");
  const auto first = std::uint64_t(to_count(plan.words.at("seed")));
  for (std::int64_t i = 0; i < seeds; ++i) plan.seeds.push_back(first + std::uint64_t(i));
  plan.steps = to_count(plan.words.at("steps"));
  plan.budget = plan.steps > 0 ? 0 : seconds_of(plan.words.at("budget"));
  if (plan.words.count("checkpoint") > 0)
    plan.checkpoints = split(plan.words.at("checkpoint"), ',');
  if (!plan.checkpoints.empty()) plan.budget = 0;  // it is for training
  return plan;
}

Json json_of(const ComparePlan& plan) {
  Json json = Json::object();
  for (const Flag& flag : find_verb("compare")->flags) {  // in the page's order
    const auto found = plan.words.find(std::string(flag.name));
    if (found == plan.words.end()) continue;
    const std::string& text = found->second;
    if (flag.name == "mechanisms" || flag.name == "checkpoint") {
      json[found->first] = split(text, ',');
    } else if (flag.values == "COUNT") {
      json[found->first] = to_count(text);
    } else {
      json[found->first] = text;
    }
  }
  json["train"] = json_of(plan.train);
  return json;
}

}  // namespace foci::cli
