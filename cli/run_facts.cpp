// SPDX-License-Identifier: Apache-2.0
// Reading the folder of a run.
#include "cli/run_facts.hpp"

#include "cli/suggest.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

namespace foci::cli {

namespace fs = std::filesystem;

Json read_json(const std::string& path) {
  std::ifstream file(path);
  Json json = file ? Json::parse(file, nullptr, false) : Json();
  return json.is_discarded() ? Json() : json;
}

RunFacts run_facts(const std::string& folder) {
  const Json json = read_json(folder + "/config.json");
  if (!json.is_object() || !json.value("flags", Json()).is_object() ||
      !json.value("task", Json()).is_string())
    throw FileError(fmt::format("{}: has no whole config.json; is it a run?", shown(folder)));
  RunFacts facts{folder, json["task"].get<std::string>(), {}, json.value("data", Json::object())};
  for (const auto& [flag, value] : json["flags"].items())
    facts.words[flag] = value.is_string() ? value.get<std::string>() : value.dump();
  return facts;
}

std::vector<std::string> mechanism_names(const std::vector<RunFacts>& runs) {
  static const std::set<std::string> beside = {
      "seed", "metric", "data", "workers", "keep", "save-every", "evaluate-every", "judge-count"};
  const auto word = [](const RunFacts& run, const std::string& flag) {
    const auto found = run.words.find(flag);
    return found == run.words.end() ? std::string() : found->second;
  };
  std::set<std::string> differ;
  for (const RunFacts& run : runs) {
    for (const RunFacts& other : runs) {
      for (const auto& [flag, value] : run.words) {
        if (beside.count(flag) == 0 && word(other, flag) != value) differ.insert(flag);
      }
    }
  }
  std::vector<std::string> names;
  for (const RunFacts& run : runs) {
    std::string name = run.words.count("metric") > 0 ? run.words.at("metric") : "dot";
    for (const std::string& flag : differ) {
      if (run.words.count(flag) > 0) name += fmt::format(":{}={}", flag, run.words.at(flag));
    }
    names.push_back(std::move(name));
  }
  return names;
}

Json curve_of(const std::string& folder) {
  constexpr std::size_t most = 240;
  std::ifstream file(folder + "/metrics.jsonl");
  std::vector<double> steps, losses;
  for (std::string line; std::getline(file, line);) {
    const Json json = Json::parse(line, nullptr, false);
    if (!json.is_object() || !json.value("loss", Json()).is_number()) continue;
    steps.push_back(json.value("step", 0.0));
    losses.push_back(json["loss"].get<double>());
  }
  // Each point is the mean of those that it stands for: single batches hide the curve.
  const std::size_t width = std::max<std::size_t>(1, (steps.size() + most - 1) / most);
  Json curve{{"step", Json::array()}, {"loss", Json::array()}};
  for (std::size_t i = 0; i < steps.size(); i += width) {
    const std::size_t end = std::min(steps.size(), i + width);
    double sum = 0;
    for (std::size_t k = i; k < end; ++k) sum += losses[k];
    curve["step"].push_back(std::int64_t(steps[end - 1]));
    curve["loss"].push_back(sum / double(end - i));
  }
  return curve;
}

void add_found(RunFound& to, const Json& stage) {
  if (!stage.is_object()) return;
  for (const Json& record : stage.value("records", Json::array()))
    to.records.push_back(record_of(record.dump()));
  const Json right = stage.value("right", Json::object());
  for (const auto& [name, digits] : right.items()) to.right[name] = digits.get<std::string>();
  for (const Json& map : stage.value("maps", Json::array())) to.maps.push_back(map);
  for (const Json& one : stage.value("ellipses", Json::array())) to.ellipses.push_back(one);
  to.peak_bytes = std::max(to.peak_bytes, stage.value("peak_bytes", std::int64_t(0)));
}

RunFound found_in(const std::string& folder) {
  RunFound found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder + "/stages", none)) {
    const Json stage = read_json(entry.path().string());
    if (stage.is_object() && stage.contains("records")) add_found(found, stage);
  }
  found.records = read_records(folder + "/records.jsonl");
  return found;
}

std::int64_t parameters_in(const std::string& weights) {
  const Safetensors file(weights);
  std::int64_t count = 0;
  for (const auto& name : file.names()) count += file.find(name).count();
  return count;
}

}  // namespace foci::cli
