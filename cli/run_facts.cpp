// SPDX-License-Identifier: Apache-2.0
// Reading the folder of a run.
#include "cli/run_facts.hpp"

#include "cli/parsed.hpp"
#include "cli/suggest.hpp"

#include <foci/error.hpp>
#include <foci/safetensors.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <type_traits>

namespace foci::cli {

namespace fs = std::filesystem;

namespace {

/// A number that a file holds under a name; `otherwise` where it holds none of that kind there.
template <class Number>
Number stored_number(const Json& json, const char* name, Number otherwise) {
  const auto found = json.find(name);
  if (found == json.end()) return otherwise;
  const bool fits = std::is_integral_v<Number> ? found->is_number_integer() : found->is_number();
  return fits ? found->get<Number>() : otherwise;
}

void add_objects(Json& to, const Json& stage, const char* name) {
  for (const Json& one : stage.value(name, Json::array())) {
    if (!one.is_object())
      throw InvalidArgument(fmt::format("'{}' holds something else than objects", name));
    to.push_back(one);
  }
}

}  // namespace

Json read_json(const std::string& path) {
  std::ifstream file(path);
  Json json = file ? parsed(file) : Json();
  return json.is_discarded() ? Json() : json;
}

RunFacts run_facts(const std::string& folder) {
  const Json json = read_json(folder + "/config.json");
  if (!json.is_object() || !json.value("flags", Json()).is_object() ||
      !json.value("task", Json()).is_string())
    throw FileError(fmt::format("{}: has no whole config.json; is it a run?", shown(folder)));
  RunFacts facts{folder, json["task"].get<std::string>(), {}, json.value("data", Json())};
  if (!facts.data.is_object()) facts.data = Json::object();
  for (const auto& [flag, value] : json["flags"].items())
    facts.words[flag] = value.is_string() ? value.get<std::string>() : value.dump();
  return facts;
}

std::vector<MechanismName> mechanism_names(const std::vector<RunFacts>& runs) {
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
  std::vector<MechanismName> names;
  for (const RunFacts& run : runs) {
    MechanismName one{run.words.count("metric") > 0 ? run.words.at("metric") : "dot", {}};
    for (const std::string& flag : differ) {
      if (run.words.count(flag) == 0) continue;
      one.name += fmt::format(":{}={}", flag, run.words.at(flag));
      one.flags[flag] = run.words.at(flag);
    }
    names.push_back(std::move(one));
  }
  return names;
}

void shorten(std::vector<MechanismName>& names) {
  constexpr std::size_t longest = 32;
  if (std::all_of(names.begin(), names.end(),
                  [](const MechanismName& one) { return one.name.size() <= longest; }))
    return;
  std::map<std::string, std::vector<std::string>> kinds;  // metric -> long names
  for (const MechanismName& one : names) {
    auto& known = kinds[one.name.substr(0, one.name.find(':'))];
    if (std::find(known.begin(), known.end(), one.name) == known.end()) known.push_back(one.name);
  }
  for (MechanismName& one : names) {
    const std::string metric = one.name.substr(0, one.name.find(':'));
    const auto& known = kinds.at(metric);
    const auto at = std::find(known.begin(), known.end(), one.name) - known.begin();
    one.name = known.size() < 2 ? metric : fmt::format("{} {}", metric, at + 1);
  }
}

Json curve_of(const std::string& folder) {
  constexpr std::size_t most = 240;
  std::ifstream file(folder + "/metrics.jsonl");
  std::vector<std::int64_t> steps;
  std::vector<double> losses;
  for (std::string line; std::getline(file, line);) {
    const Json json = parsed(line);
    if (!json.is_object() || !json.value("loss", Json()).is_number()) continue;
    steps.push_back(stored_number(json, "step", std::int64_t(0)));
    losses.push_back(json["loss"].get<double>());
  }
  // Each point is the mean of those that it stands for: single batches hide the curve.
  const std::size_t width = std::max<std::size_t>(1, (steps.size() + most - 1) / most);
  Json curve{{"step", Json::array()}, {"loss", Json::array()}};
  for (std::size_t i = 0; i < steps.size(); i += width) {
    const std::size_t end = std::min(steps.size(), i + width);
    double sum = 0;
    for (std::size_t k = i; k < end; ++k) sum += losses[k];
    curve["step"].push_back(steps[end - 1]);
    curve["loss"].push_back(sum / double(end - i));
  }
  return curve;
}

std::vector<MetricsLine> metrics_of(const std::string& run) {
  constexpr std::streamoff most = 16384;
  std::ifstream file(run + "/metrics.jsonl", std::ios::ate);
  const std::streamoff size = file ? std::streamoff(file.tellg()) : 0;
  file.seekg(std::max<std::streamoff>(0, size - most));
  std::vector<MetricsLine> lines;
  for (std::string line; std::getline(file, line);) {
    const Json json = parsed(line);
    if (!json.is_object()) continue;  // cut at either end
    lines.push_back({stored_number(json, "step", std::int64_t(0)),
                     stored_number(json, "memory", std::int64_t(0)),
                     stored_number(json, "per_second", 0.0), stored_number(json, "time", 0.0)});
  }
  return lines;
}

void add_found(RunFound& to, const Json& stage) {
  if (!stage.is_object()) return;
  for (const Json& record : stage.value("records", Json::array()))
    to.records.push_back(record_of(record.dump()));
  const Json right = stage.value("right", Json::object());
  for (const auto& [name, digits] : right.items()) {
    if (!digits.is_string()) throw InvalidArgument("'right' holds something else than digits");
    to.right[name] = digits.get<std::string>();
  }
  add_objects(to.maps, stage, "maps");
  add_objects(to.ellipses, stage, "ellipses");
  add_objects(to.flags, stage, "flags");
  to.peak_bytes = std::max(to.peak_bytes, stored_number(stage, "peak_bytes", std::int64_t(0)));
}

RunFound found_in(const std::string& folder) {
  RunFound found;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder + "/stages", none)) {
    const Json stage = read_json(entry.path().string());
    if (!stage.is_object() || !stage.contains("records")) continue;
    try {
      add_found(found, stage);
    } catch (const InvalidArgument& fault) {
      throw FileError(fmt::format("{}: {}", shown(entry.path().string()), fault.what()));
    }
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
