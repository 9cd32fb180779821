// SPDX-License-Identifier: Apache-2.0
// Where the data of a comparison comes from.
#include "cli/torch/compare_data.hpp"

#include "cli/data.hpp"
#include "cli/data_sets.hpp"
#include "cli/misuse.hpp"
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>
#include <foci/generate.hpp>

#include <fmt/core.h>

#include <filesystem>

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
  return get_data(verb) == 0;
}

std::string made_instead(const Compare& verb, const std::string& out, const std::string& why,
                         CompareData& data) {
  if (was_asked_for(verb)) {
    throw FileError(fmt::format("fashion-mnist cannot be had here: {}", why));
  }
  warn(fmt::format("fashion-mnist cannot be had here ({}); the images are made", why));
  data.flags.push_back({{"name", "made-data"},
                        {"means", fmt::format("fashion-mnist could not be had ({}): the images are "
                                              "shapes that a seed makes",
                                              why)},
                        {"do", "apt-get install dataset-fashion-mnist, or name a set: --data"}});
  return made_folder(out + "/made-images", [](const std::string& folder) {
    data::write_made_images(folder, made_images, 1);
  });
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
    throw Misuse(fmt::format("--data '{}' is no folder and no known set{}", shown(name),
                             suggestion(name, set_names())),
                 "foci data list shows the sets");
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

}  // namespace

CompareData compare_data(const ComparePlan& plan, const Compare& verb, const std::string& out) {
  CompareData data;
  data.path = path_of(plan, verb, out, data);
  data.sha256 = data::fingerprint_of(data.path).sha256;
  data.facts = {{"name", plan.words.at("data")},
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
  if (plan.task != "images") return data;
  const data::ImageSet set = data::open_images(data.path, data::Split::test);
  const std::int64_t asked = to_count(plan.words.at("judge-samples"));
  data.facts["judged"] = asked > 0 ? std::min(asked, set.size()) : set.size();
  data.facts["classes"] = set.classes().size();
  data.facts["class_names"] = set.classes();
  return data;
}

}  // namespace foci::cli
