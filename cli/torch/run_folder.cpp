// SPDX-License-Identifier: Apache-2.0
// config.json and env.json of a run.
#include "cli/torch/run_folder.hpp"

#include "cli/machine.hpp"
#include "cli/suggest.hpp"

#include <foci/attention.hpp>
#include <foci/error.hpp>

#include <fmt/format.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

std::string config_path(const std::string& run) { return run + "/config.json"; }

/// Under another name first, so that a kill leaves the old file or the new.
void write_json(const std::string& path, const Json& json) {
  const std::string other = path + ".part";
  std::ofstream file(other, std::ios::trunc);
  file << json.dump(2, ' ', false, Json::error_handler_t::replace) << "\n" << std::flush;
  std::error_code fault(errno, std::generic_category());
  if (file) fs::rename(other, path, fault);
  if (!file || fault)
    throw FileError(fmt::format("{}: cannot be written: {}", shown(path), fault.message()));
}

Json json_of(const RunData& data) {
  return {{"train", data.train},
          {"valid", data.valid},
          {"channels", data.facts.channels},
          {"classes", data.facts.classes},
          {"side", data.facts.side},
          {"mean", data.facts.mean},
          {"deviation", data.facts.deviation}};
}

RunData data_in(const Json& json) {
  RunData data;
  data.train = json.at("train").get<std::int64_t>();
  data.valid = json.at("valid").get<std::int64_t>();
  data.facts.channels = json.at("channels").get<std::int64_t>();
  data.facts.classes = json.at("classes").get<std::int64_t>();
  data.facts.side = json.at("side").get<std::int64_t>();
  data.facts.mean = json.at("mean").get<std::vector<float>>();
  data.facts.deviation = json.at("deviation").get<std::vector<float>>();
  if (data.facts.channels < 1 || data.facts.mean.size() != std::size_t(data.facts.channels) ||
      data.facts.deviation.size() != data.facts.mean.size()) {
    throw FileError("'data' needs a mean and a deviation for every channel");
  }
  return data;
}

}  // namespace

bool has_config(const std::string& run) { return fs::is_regular_file(config_path(run)); }

RunConfig read_config(const std::string& run) {
  const std::string path = config_path(run);
  std::ifstream file(path);
  if (!file) throw FileError(fmt::format("{}: is not there; is it a run?", shown(path)));
  const Json json = Json::parse(file, nullptr, false);
  if (!json.is_object() || !json.contains("flags") || !json["flags"].is_object())
    throw FileError(fmt::format("{}: is not the configuration of a run", shown(path)));
  RunConfig config{.words = with_defaults(words_in(json["flags"], path)), .data = {}};
  try {
    config.data = data_in(json.at("data"));
  } catch (const std::exception& fault) {
    throw FileError(fmt::format("{}: {}", shown(path), shown(fault.what())));
  }
  return config;
}

void write_config(const std::string& run, const RunConfig& config) {
  std::error_code fault;
  fs::create_directories(run, fault);
  if (fault) throw FileError(fmt::format("{}: {}", shown(run), fault.message()));
  write_json(run + "/env.json", {{"version", std::string(version())},
                                 {"commit", commit_text()},
                                 {"machine", machine_text()}});
  write_json(config_path(run), {{"verb", "train"},
                                {"task", "images"},
                                {"flags", json_of(config.words)},
                                {"data", json_of(config.data)}});
}

void check_same_data(const std::string& run, const RunData& before, const RunData& now) {
  const Json was = json_of(before), is = json_of(now);
  for (const auto& [name, value] : was.items()) {
    if (is.at(name) == value) continue;
    throw FileError(fmt::format("{}: the run began with data whose {} is {}; it is {} now",
                                shown(config_path(run)), name, value.dump(), is.at(name).dump()));
  }
}

}  // namespace foci::cli
