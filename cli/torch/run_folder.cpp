// SPDX-License-Identifier: Apache-2.0
// config.json and env.json of a run.
#include "cli/torch/run_folder.hpp"

#include "cli/machine.hpp"
#include "cli/parsed.hpp"
#include "cli/run_facts.hpp"
#include "cli/suggest.hpp"
#include "cli/write.hpp"

#include <foci/attention.hpp>
#include <foci/error.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

std::string config_path(const std::string& run) { return run + "/config.json"; }

void write_json(const std::string& path, const Json& json) {
  write_whole(path, json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n");
}

}  // namespace

bool has_config(const std::string& run) { return fs::is_regular_file(config_path(run)); }

RunConfig read_config(const std::string& run) {
  const std::string path = config_path(run);
  std::ifstream file(path);
  if (!file) throw FileError(fmt::format("{}: is not there; is it a run?", shown(path)));
  const Json json = parsed(file);
  if (!json.is_object() || !json.contains("flags") || !json["flags"].is_object())
    throw FileError(fmt::format("{}: is not the configuration of a run", shown(path)));
  const auto tasks = choices(find_verb("train")->word);
  RunConfig config;
  if (json.contains("task") && json["task"].is_string())
    config.task = json["task"].get<std::string>();
  if (std::find(tasks.begin(), tasks.end(), config.task) == tasks.end())
    throw FileError(
        fmt::format("{}: task '{}' is none of {}", shown(path), shown(config.task), listed(tasks)));
  config.words = with_defaults(config.task, words_in(config.task, json["flags"], path));
  config.data = json.value("data", Json::object());
  return config;
}

void write_config(const std::string& run, const RunConfig& config, const RunPlace& place) {
  std::error_code fault;
  fs::create_directories(run, fault);
  if (fault) throw FileError(fmt::format("{}: {}", shown(run), fault.message()));
  Json where = {
      {"version", std::string(version())}, {"commit", commit_text()}, {"machine", place.machine}};
  if (!place.job.empty()) where["job"] = place.job;
  write_json(run + "/env.json", where);
  write_json(config_path(run), {{"verb", "train"},
                                {"task", config.task},
                                {"flags", json_of(config.words)},
                                {"data", config.data}});
}

std::string job_of(const std::string& run) {
  const Json where = read_json(run + "/env.json");
  return where.is_object() && where.contains("job") && where["job"].is_string()
             ? where["job"].get<std::string>()
             : "";
}

std::int64_t count_in(const std::string& run, const Json& data, const char* name) {
  if (data.contains(name) && data[name].is_number_integer()) return data[name].get<std::int64_t>();
  throw FileError(fmt::format("{}: 'data' has no {}", shown(config_path(run)), name));
}

Json json_of(const train::ImageFacts& facts) {
  return {{"channels", facts.channels},
          {"classes", facts.classes},
          {"side", facts.side},
          {"mean", facts.mean},
          {"deviation", facts.deviation}};
}

train::ImageFacts facts_in(const std::string& run, const Json& data) {
  train::ImageFacts facts{.channels = count_in(run, data, "channels"),
                          .classes = count_in(run, data, "classes"),
                          .side = count_in(run, data, "side")};
  try {
    facts.mean = data.at("mean").get<std::vector<float>>();
    facts.deviation = data.at("deviation").get<std::vector<float>>();
  } catch (const Json::exception& fault) {
    throw FileError(fmt::format("{}: {}", shown(config_path(run)), shown(fault.what())));
  }
  if (facts.channels < 1 || facts.mean.size() != std::size_t(facts.channels) ||
      facts.deviation.size() != facts.mean.size()) {
    throw FileError(fmt::format("{}: 'data' needs a mean and a deviation for every channel",
                                shown(config_path(run))));
  }
  return facts;
}

data::ImageSet images_of(const Json& data, const Words& words) {
  const data::ImageSet set =
      data::open_images(data_folder(words.at("data")), split_of(words.at("split")));
  const auto names = data.find("class_names");
  if (names == data.end() || !names->is_array() || set.has_masks()) return set;
  return data::with_classes(set, names->get<std::vector<std::string>>());
}

void check_same_data(const std::string& run, const Json& before, const Json& now) {
  for (const auto& [name, value] : before.items()) {
    if (now.contains(name) && now.at(name) == value) continue;
    throw FileError(fmt::format("{}: the run began with data whose {} is {}; it is {} now",
                                shown(config_path(run)), name, value.dump(),
                                now.contains(name) ? now.at(name).dump() : "none"));
  }
}

}  // namespace foci::cli
