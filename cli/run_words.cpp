// SPDX-License-Identifier: Apache-2.0
// The flags of a training run, resolved, and where its data is.
#include "cli/run_words.hpp"

#include "cli/data_sets.hpp"
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/pages.hpp"
#include "cli/parsed.hpp"
#include "cli/suggest.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// Not part of what a run is.
const std::set<std::string_view> beside = {"run",  "preset",  "resume", "json",    "quiet",
                                           "help", "threads", "device", "patience"};
const Flag* stored_flag(std::string_view name) {
  if (beside.count(name) > 0) return nullptr;
  for (const Flag& flag : find_verb("train")->flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

}  // namespace

std::string preset_path(const std::string& name) {
  if (fs::is_regular_file(name)) return name;
  const std::string file = "presets/" + name + (name.ends_with(".json") ? "" : ".json");
  const std::string program = program_folder();
  for (const std::string& path : {file, fmt::format("{}/../{}", program, file),
                                  fmt::format("{}/../share/foci/{}", program, file)}) {
    if (fs::is_regular_file(path)) return path;
  }
  throw FileError(fmt::format("{}: is no file, and there is no {}", shown(name), file));
}

namespace {

Words read_preset(const std::string& task, const std::string& name) {
  const std::string path = preset_path(name);
  std::ifstream file(path);
  const Json json = parsed_with_comments(file);
  if (!json.is_object()) throw FileError(fmt::format("{}: is not a JSON object", shown(path)));
  return words_in(task, json, path);
}

}  // namespace

bool is_of_mechanism(std::string_view flag) {
  return flag == "init" || flag == "running-momentum" || flag == "metric-grad" || flag == "scale" ||
         flag == "causal" || !owners(flag).empty();
}

Words words_in(const std::string& task, const Json& flags, const std::string& path) {
  std::vector<std::string> names;
  for (const Flag& flag : find_verb("train")->flags) names.emplace_back(flag.name);
  Words words;
  for (const auto& [name, value] : flags.items()) {
    const Flag* flag = stored_flag(name);
    if (flag == nullptr) {
      throw FileError(fmt::format("{}: '{}' is no flag of a run{}", shown(path), shown(name),
                                  suggestion(name, names)));
    }
    if (!belongs(name, task)) {
      throw FileError(fmt::format("{}: '{}' is no flag of train {}; it is for {}", shown(path),
                                  shown(name), task, listed(tasks_with(name))));
    }
    const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    try {
      check_value(*flag, word);
      check_range(name, word);
    } catch (const Misuse& fault) {
      throw FileError(fmt::format("{}: {}", shown(path), fault.what()));
    }
    words[name] = word;
  }
  return words;
}

Words with_defaults(const std::string& task, Words words) {
  for (const Flag& flag : find_verb("train")->flags) {
    const std::string name(flag.name);
    if (stored_flag(name) == nullptr || is_of_mechanism(name) || !belongs(name, task)) continue;
    if (flag.standard == "required" && words.count(name) == 0)
      throw Misuse(fmt::format("train needs --{}", name), "see foci help train");
    words.emplace(name, standard_of(flag, task));
  }
  return words;
}

Words resolved_words(const std::string& task, const Words& given) {
  Words words = given.count("preset") > 0 ? read_preset(task, given.at("preset")) : Words();
  for (const auto& [flag, text] : given) {
    if (stored_flag(flag) != nullptr) words[flag] = text;
  }
  return with_defaults(task, words);
}

Json json_of(const Words& words) {
  Json flags = Json::object();
  for (const Flag& flag : find_verb("train")->flags) {  // in the page's order
    const auto found = words.find(std::string(flag.name));
    if (found == words.end() || found->second.empty() || stored_flag(flag.name) == nullptr)
      continue;
    const bool is_number = flag.values == "NUMBER" || flag.values == "COUNT";
    Json value = is_number ? Json::parse(found->second, nullptr, false) : Json(found->second);
    if (value.is_discarded()) value = to_number(found->second);  // ".4", which JSON does not know
    flags[found->first] = std::move(value);
  }
  return flags;
}

Words resumed_words(const Words& stored, const Words& given) {
  Words words = stored;
  for (const auto& [flag, text] : given) {
    if (stored_flag(flag) == nullptr) continue;
    const auto found = words.find(flag);
    const std::string before = found == words.end() ? "" : found->second;
    const bool same = before == text || (!before.empty() && to_number(before) == to_number(text));
    if (!same && flag != "workers" && flag != "keep" && flag != "save-every") {
      throw Misuse(fmt::format("--{} {}: the run has {}", flag, shown(text),
                               before.empty() ? "none" : before),
                   "a run goes on with its own flags; another one needs another --run");
    }
    words[flag] = text;
  }
  return words;
}

std::string data_folder(const std::string& name) {
  if (fs::is_directory(name)) return name;
  std::string inside = "data/" + name;
  if (find_set(name) != nullptr && fs::is_directory(inside)) return inside;
  throw FileError(find_set(name) != nullptr
                      ? fmt::format("{}: is not here; foci data get {} brings it", inside, name)
                      : fmt::format("{}: is no folder", shown(name)));
}

std::string data_path(const std::string& name) {
  return fs::is_regular_file(name) ? name : data_folder(name);
}

data::Split split_of(const std::string& name) {
  for (const auto known : {data::Split::train, data::Split::valid}) {
    if (name == data::name_of(known)) return known;
  }
  return data::Split::test;
}

}  // namespace foci::cli
