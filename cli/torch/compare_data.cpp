// SPDX-License-Identifier: Apache-2.0
// Where the data of a comparison comes from.
#include "cli/torch/compare_data.hpp"

#include "cli/compare_alike.hpp"
#include "cli/data.hpp"
#include "cli/data_sets.hpp"
#include "cli/misuse.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/attack_plan.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>
#include <foci/generate.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <set>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::int64_t made_images = 12000, made_expressions = 4800;

/// Made once: a folder that is whole has its last name.
std::string made_folder(const std::string& folder,
                        const std::function<void(const std::string&)>& write) {
  if (fs::is_directory(folder)) return folder;
  const std::string part = folder + ".part";
  fs::remove_all(part);
  fs::create_directories(part);
  write(part);
  fs::rename(part, folder);
  return folder;
}

bool was_asked_for(const Compare& verb) {
  return verb.words.count("data") > 0 || verb.words.count("plan") > 0;
}

/// A known set that foci fetches itself.
bool is_fetched(const std::string& name) {
  const KnownSet* set = find_set(name);
  if (set == nullptr || set->origin == Origin::elsewhere) return false;
  Data verb;
  verb.common.quiet = true;
  verb.action = Data::Action::get;
  verb.name = name;
  try {
    return get_data(verb) == 0;
  } catch (const fs::filesystem_error& fault) {  // such as a folder that nobody may write into
    throw FileError(fmt::format("{}: {}", shown(fault.path1().string()), fault.code().message()));
  }
}

std::string made_instead(const Compare& verb, const std::string& out, const std::string& why,
                         CompareData& data) {
  if (was_asked_for(verb)) {
    throw FileError(fmt::format("fashion-mnist cannot be had here: {}", why));
  }
  warn(fmt::format("fashion-mnist cannot be had here ({}); the images are synthetic", why));
  data.flags.push_back({{"name", "made-data"},
                        {"means", fmt::format("fashion-mnist could not be had ({}): the images are "
                                              "shapes that a seed makes",
                                              why)},
                        {"do", "apt-get install dataset-fashion-mnist, or name a set: --data"}});
  return made_folder(out + "/made-images", [](const std::string& folder) {
    data::write_made_images(folder, made_images, 1);
  });
}

/// "; did you mean photos?": a known set, or a folder that stands where this one would.
std::string near_data(const fs::path& path) {
  const fs::path whole = path.has_filename() ? path : path.parent_path();
  const fs::path parent = whole.parent_path();
  std::vector<std::string> names = parent.empty() ? set_names() : std::vector<std::string>();
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(parent.empty() ? "." : parent, none)) {
    if (entry.is_directory(none)) names.push_back(shown(entry.path().filename().string()));
  }
  std::sort(names.begin(), names.end());
  return suggestion(whole.filename().string(), names);
}

std::string path_of(const ComparePlan& plan, const Compare& verb, const std::string& out,
                    CompareData& data) {
  const std::string& name = plan.words.at("data");
  if (fs::exists(name)) return name;
  if (name == "listops" && !fs::is_directory("data/listops")) {
    return made_folder(out + "/made-listops", [](const std::string& folder) {
      data::write_listops(folder, made_expressions, 1);
    });
  }
  if (find_set(name) == nullptr && !fs::is_directory("data/" + name)) {
    throw Misuse(
        fmt::format("--data '{}' is no folder and no known set{}", shown(name), near_data(name)),
        "a set of foci data list, or a folder with a folder for each class");
  }
  if (fs::is_directory("data/" + name)) return "data/" + name;
  try {
    if (is_fetched(name)) return "data/" + name;
  } catch (const Error& fault) {
    if (name == "fashion-mnist") return made_instead(verb, out, fault.what(), data);
    throw;
  }
  return data_path(name);  // throws: where it comes from
}

bool has_valid(const std::string& path) try {
  data::open_images(path, data::Split::valid);
  return true;
} catch (const FileError&) {
  return false;
}

/// As a run's --split names it. A fault that is not the want of a test split is thrown.
std::string judged_split(const std::string& path) try {
  data::open_images(path, data::Split::test);
  return "test";
} catch (const FileError&) {
  for (const char* name : {"test", "testing", "images/test", "images/testing"}) {
    if (fs::exists(fs::path(path) / name)) throw;
  }
  if (!has_valid(path)) throw;
  return "valid";
}

void add_split_flag(const ComparePlan& plan, CompareData& data, const data::ImageSet& set) {
  if (data::splits_itself(data.path)) {
    data.flags.push_back(
        {{"name", "own-split"},
         {"means",
          fmt::format("{} has no train/ and test/: a fifth of every class, {} images chosen "
                      "by the files' names, is what models are evaluated on",
                      shown(data.path), set.size())},
         {"do", "put the images into train/CLASS and test/CLASS to choose yourself"}});
  }
  if (plan.split != "valid") return;
  data.flags.push_back(
      {{"name", "valid-split"},
       {"means", fmt::format("{} has no test split: the {} images of its valid split are what "
                             "models are judged by",
                             shown(data.path), set.size())},
       {"do", "a folder test/ with images that nothing was chosen by is judged in its place"}});
}

/// What images become, where models are made for them.
void add_inputs(const ComparePlan& plan, const ImageSides& sides, CompareData& data) {
  if (!plan.checkpoints.empty()) return;
  const ImageInputs inputs = image_inputs(plan, data.path);
  data.inputs = inputs_text(inputs, sides);
  const Json flag = smaller_images(plan, inputs, sides);
  if (!flag.is_null()) data.flags.push_back(flag);
}

}  // namespace

ComparePlan whole_plan(const Compare& verb) {
  ComparePlan plan = plan_of(verb);
  if (plan.words.at("attack") == "none") return plan;
  Words words{{"count", plan.words.at("attack-samples")}};
  for (const char* flag : {"attack", "norm", "eps", "iterations", "queries", "check"})
    words[flag] = plan.words.at(flag);
  attack_plan(words, verb.common);
  return plan;
}

ImageSides settle_plan(ComparePlan& plan, const std::string& path) {
  if (plan.task != "images" && plan.task != "segments") return {};
  if (!plan.checkpoints.empty()) {
    const RunFacts first = run_facts(plan.checkpoints.front());
    if (first.words.count("split") > 0) plan.split = first.words.at("split");
    return {};
  }
  plan.split = judged_split(path);
  if (plan.task != "images") return {};
  const ImageSides sides = image_sides(path);
  settle_images(plan, sides);
  return sides;
}

CompareData compare_data(ComparePlan& plan, const Compare& verb, const std::string& out) {
  CompareData data;
  data.path = path_of(plan, verb, out, data);
  const std::string name = plan.words.at("data");
  const bool images = data.path == out + "/made-images";
  if (images) {
    plan.words["data"] = data.path;  // or plan.json would name what was not to be had
    data.made_by =
        fmt::format("foci data make images --out made-images --count {} --seed 1", made_images);
  }
  data.sha256 = data::fingerprint_of(data.path).sha256;
  data.facts = {{"name", images ? "made images" : name},
                {"path", data.path},
                {"sha256", data.sha256},
                {"made", data.path.starts_with(out + "/made-")},
                {"train", Json()},
                {"judged", Json()},
                {"attacked", plan.words.at("attack") == "none"
                                 ? Json()
                                 : Json(to_count(plan.words.at("attack-samples")))},
                {"classes", Json()},
                {"class_names", Json::array()}};
  if (plan.task != "images" && plan.task != "segments") return data;
  const ImageSides sides = settle_plan(plan, data.path);
  const data::ImageSet set = data::open_images(data.path, split_of(plan.split));
  add_split_flag(plan, data, set);
  if (plan.task == "segments") return data;
  const std::int64_t asked = to_count(plan.words.at("judge-samples"));
  data.facts["judged"] = asked > 0 ? std::min(asked, set.size()) : set.size();
  data.facts["classes"] = set.classes().size();
  data.facts["class_names"] = set.classes();
  if (set.classes().size() < 2)
    throw FileError(fmt::format("{}: has one class; a comparison needs two", shown(data.path)));
  add_inputs(plan, sides, data);
  return data;
}

std::vector<RunFacts> take_checkpoints(ComparePlan& plan, const CompareSite& site) {
  std::vector<RunFacts> taken;
  if (plan.checkpoints.empty()) return taken;
  plan.contenders.clear();
  plan.seeds.clear();
  for (std::string& source : plan.checkpoints) {
    while (source.size() > 1 && source.back() == '/') source.pop_back();
    const RunFacts facts = run_facts(source);
    if (facts.task != plan.task) {
      throw FileError(fmt::format("{} is a run of {}; --task {} compares {}", shown(source),
                                  facts.task, plan.words.at("task"), plan.task));
    }
    const auto sum = data::fingerprint_of(data_path(facts.words.at("data"))).sha256;
    if (sum != site.data_sha256) {
      throw FileError(
          fmt::format("{} was trained on other data than {}", shown(source), shown(site.data)));
    }
    taken.push_back(facts);
    const auto seed = std::uint64_t(to_count(facts.words.at("seed")));
    if (std::find(plan.seeds.begin(), plan.seeds.end(), seed) == plan.seeds.end())
      plan.seeds.push_back(seed);
  }
  check_one_split(taken);
  const std::vector<MechanismName> names = mechanism_names(taken);
  std::set<std::pair<std::string, std::string>> seen;
  for (std::size_t i = 0; i < names.size(); ++i) {
    Words words = taken[i].words;
    if (!seen.insert({names[i].name, words.at("seed")}).second) {
      throw Misuse(
          fmt::format("{} has the flags and the seed of another run", shown(taken[i].folder)),
          "leave one of them out");
    }
    std::erase_if(words, [](const auto& word) {
      return word.first != "metric" && word.first != "weighting" && !is_of_mechanism(word.first);
    });
    plan.contenders.push_back({names[i].name, words});
  }
  return taken;
}

}  // namespace foci::cli
