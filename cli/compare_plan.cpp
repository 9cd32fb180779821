// SPDX-License-Identifier: Apache-2.0
// The plan of a comparison, resolved.
#include "cli/compare_checks.hpp"
#include "cli/misuse.hpp"
#include "cli/pages.hpp"
#include "cli/parsed.hpp"
#include "cli/run_facts.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"

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
  if (!has_flag(task, "attack")) words["attack"] = "none";
}

void add_contenders(ComparePlan& plan) {
  std::set<std::string> seen;
  for (const std::string& name : split(plan.words.at("mechanisms"), ',')) {
    if (!seen.insert(name).second)
      throw Misuse(fmt::format("--mechanisms names {} twice", shown(name)));
    plan.contenders.push_back(contender_of(name));
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
  check_task_flags(verb.words, task);
  check_corruptions(plan.words, verb.words);
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

namespace {

/// What is trained already has mechanisms and seeds of its own, and no task has all flags.
bool counts(const ComparePlan& plan, std::string_view flag) {
  return has_flag(plan.words.at("task"), flag) &&
         (plan.checkpoints.empty() || !is_of_training(flag));
}

}  // namespace

Json json_of(const ComparePlan& plan) {
  Json json = Json::object();
  for (const Flag& flag : find_verb("compare")->flags) {  // in the page's order
    const auto found = plan.words.find(std::string(flag.name));
    if (found == plan.words.end() || !counts(plan, flag.name)) continue;
    const std::string& text = found->second;
    if (flag.name == "mechanisms" || flag.name == "checkpoint") {
      json[found->first] = split(text, ',');
    } else if (flag.values == "COUNT") {
      json[found->first] = to_count(text);
    } else {
      json[found->first] = text;
    }
  }
  if (plan.checkpoints.empty()) json["train"] = json_of(plan.train);
  return json;
}

}  // namespace foci::cli
