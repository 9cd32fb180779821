// SPDX-License-Identifier: Apache-2.0
// The flags of a training run, resolved.
#include "cli/run_words.hpp"

#include "cli/data_sets.hpp"
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <foci/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// Not part of what a run is.
const std::set<std::string_view> beside = {"run",   "preset", "resume",  "json",
                                           "quiet", "help",   "threads", "device"};
/// Flags whose text in the page is prose or belongs to another flag: without a value unless given.
bool is_of_mechanism(std::string_view flag) {
  return flag == "init" || flag == "running-momentum" || flag == "metric-grad" || flag == "scale" ||
         flag == "causal" || !owners(flag).empty();
}

const Flag* stored_flag(std::string_view name) {
  if (beside.count(name) > 0) return nullptr;
  for (const Flag& flag : find_verb("train")->flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

/// The file itself, or presets/NAME.json here, beside the sources or installed.
std::string preset_path(const std::string& name) {
  if (fs::is_regular_file(name)) return name;
  const std::string file = "presets/" + name + ".json";
  const std::string program = program_folder();
  for (const std::string& path : {file, fmt::format("{}/../{}", program, file),
                                  fmt::format("{}/../share/foci/{}", program, file)}) {
    if (fs::is_regular_file(path)) return path;
  }
  throw FileError(fmt::format("{}: is no file, and there is no {}", shown(name), file));
}

Words read_preset(const std::string& name) {
  const std::string path = preset_path(name);
  std::ifstream file(path);
  const Json json = Json::parse(file, nullptr, false, /*ignore_comments=*/true);
  if (!json.is_object()) throw FileError(fmt::format("{}: is not a JSON object", shown(path)));
  return words_in(json, path);
}

double number(const Words& words, const char* flag) { return to_number(words.at(flag)); }
std::int64_t count(const Words& words, const char* flag) { return to_count(words.at(flag)); }

/// What the layers attend with, in the library's names.
Settings mechanism_in(const Words& words) {
  Settings settings{{"metric", words.at("metric")}, {"weighting", words.at("weighting")}};
  for (const auto& [flag, text] : words) {
    if (!is_of_mechanism(flag)) continue;
    std::string name = flag == "running-momentum" ? "momentum" : flag;
    std::replace(name.begin(), name.end(), '-', '_');
    settings[name] = text;
  }
  if (words.at("metric") == "random") settings["seed"] = words.at("seed");
  return settings;
}

train::ImageModel model_of(const Words& words) {
  const auto layers = split(words.at("metric-layers"), ':');
  return {.name = words.at("model"),
          .image = count(words, "image"),
          .patch = count(words, "patch"),
          .dim = count(words, "dim"),
          .depth = count(words, "depth"),
          .heads = count(words, "heads"),
          .mlp_ratio = number(words, "mlp-ratio"),
          .drop_path = number(words, "drop-path"),
          .mechanism = mechanism_in(words),
          .first_layer = layers[0].empty() ? 0 : to_count(layers[0]),
          .last_layer = layers[1].empty() ? -1 : to_count(layers[1])};
}

train::Augmentation augmentation_of(const Words& words) {
  const std::string& how = words.at("augment");
  return {.how = how == "none"    ? train::Augment::none
                 : how == "shift" ? train::Augment::shift
                                  : train::Augment::deit,
          .shift = int(count(words, "shift")),
          .flip = number(words, "flip"),
          .area = number(words, "area"),
          .magnitude = number(words, "magnitude"),
          .erasing = number(words, "erasing"),
          .jitter = number(words, "jitter"),
          .mixup = number(words, "mixup"),
          .cutmix = number(words, "cutmix"),
          .smoothing = number(words, "label-smoothing")};
}

train::Schedule schedule_of(const Words& words) {
  const std::string& course = words.at("schedule");
  return {.rate = number(words, "learning-rate"),
          .last = number(words, "last-rate"),
          .warmup = count(words, "warmup"),
          .start = number(words, "first-rate"),
          .steps = count(words, "steps"),
          .course = course == "cosine" ? train::Course::cosine
                    : course == "poly" ? train::Course::poly
                                       : train::Course::constant,
          .power = number(words, "power")};
}

train::OptimizerOptions optimizer_of(const Words& words) {
  const bool sgd = words.at("optimizer") == "sgd";
  return {.algorithm = sgd ? train::Algorithm::sgd : train::Algorithm::adamw,
          .weight_decay = number(words, "weight-decay"),
          .beta1 = number(words, "beta1"),
          .beta2 = number(words, "beta2"),
          .epsilon = number(words, "epsilon"),
          .momentum = number(words, "momentum")};
}

}  // namespace

Words words_in(const Json& flags, const std::string& path) {
  std::vector<std::string> names;
  for (const Flag& flag : find_verb("train")->flags) names.emplace_back(flag.name);
  Words words;
  for (const auto& [name, value] : flags.items()) {
    const Flag* flag = stored_flag(name);
    if (flag == nullptr) {
      throw FileError(fmt::format("{}: '{}' is no flag of a run{}", shown(path), shown(name),
                                  suggestion(name, names)));
    }
    const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    try {
      check_value(*flag, word);
    } catch (const Misuse& fault) {
      throw FileError(fmt::format("{}: {}", shown(path), fault.what()));
    }
    words[name] = word;
  }
  return words;
}

Words with_defaults(Words words) {
  for (const Flag& flag : find_verb("train")->flags) {
    const std::string name(flag.name);
    if (stored_flag(name) == nullptr || is_of_mechanism(name)) continue;
    if (flag.standard == "required" && words.count(name) == 0)
      throw Misuse(fmt::format("train needs --{}", name), "see foci help train");
    words.emplace(name, flag.standard);
  }
  return words;
}

Words resolved_words(const Words& given) {
  Words words = given.count("preset") > 0 ? read_preset(given.at("preset")) : Words();
  for (const auto& [flag, text] : given) {
    if (stored_flag(flag) != nullptr) words[flag] = text;
  }
  return with_defaults(words);
}

Json json_of(const Words& words) {
  Json flags = Json::object();
  for (const Flag& flag : find_verb("train")->flags) {  // in the page's order
    const auto found = words.find(std::string(flag.name));
    if (found == words.end() || found->second.empty() || stored_flag(flag.name) == nullptr)
      continue;
    const bool is_number = flag.values == "NUMBER" || flag.values == "COUNT";
    flags[found->first] = is_number ? Json::parse(found->second) : Json(found->second);
  }
  return flags;
}

Words resumed_words(const Words& stored, const Words& given) {
  Words words = with_defaults(stored);
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

train::ImageTraining training_of(const Words& words, const Common& common) {
  train::ImageTraining training;
  training.model = model_of(words);
  training.augmentation = augmentation_of(words);
  training.input = {.batch = count(words, "batch"),
                    .crop_share = number(words, "crop-share"),
                    .workers = int(count(words, "workers")),
                    .threads = common.threads,
                    .device = common.cuda ? "cuda" : "cpu"};
  training.epochs = count(words, "epochs");
  training.weights = words.at("weights");
  training.run.seed = std::uint64_t(count(words, "seed"));
  training.run.accumulate = count(words, "accumulate");
  training.run.evaluate_every = count(words, "evaluate-every");
  training.run.save_every = count(words, "save-every");
  training.run.keep = int(count(words, "keep"));
  training.run.optimizer = optimizer_of(words);
  training.run.schedule = schedule_of(words);
  training.run.clip = number(words, "clip");
  training.run.ema = number(words, "ema");
  return training;
}

std::string data_folder(const std::string& name) {
  if (fs::is_directory(name)) return name;
  std::string inside = "data/" + name;
  if (find_set(name) != nullptr && fs::is_directory(inside)) return inside;
  throw FileError(find_set(name) != nullptr
                      ? fmt::format("{}: is not here; foci data get {} brings it", inside, name)
                      : fmt::format("{}: is no folder", shown(name)));
}

data::Split split_of(const std::string& name) {
  for (const auto known : {data::Split::train, data::Split::valid}) {
    if (name == data::name_of(known)) return known;
  }
  return data::Split::test;
}

}  // namespace foci::cli
