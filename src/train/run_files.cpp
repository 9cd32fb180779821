// SPDX-License-Identifier: Apache-2.0
// The files that a run adds to. What came after a checkpoint is cut away, because it is done again;
// the events are made anew from the lines that stay.
#include "train/run_files.hpp"

#include "train/events.hpp"

#include <foci/error.hpp>

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>
#include <nlohmann/json.hpp>

#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <type_traits>
#include <vector>

namespace foci::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

[[noreturn]] void refuse(const std::string& path) {
  throw FileError(
      fmt::format("{}: cannot be written: {}", path, std::generic_category().message(errno)));
}

Json json_of(const Line& line) {
  Json json{{"step", line.step},     {"loss", line.loss}, {"rate", line.rate},
            {"length", line.length}, {"time", now()},     {"per_second", line.per_second},
            {"memory", line.memory}};
  for (const auto& [name, value] : line.scores) json[name] = value;
  if (!line.sample.empty()) json["sample"] = line.sample;
  return json;
}

/// A number of a line; `otherwise` where it has none of that kind: somebody may have been at it.
template <class Number>
Number number_in(const Json& line, const char* name, Number otherwise) {
  const auto found = line.find(name);
  if (found == line.end()) return otherwise;
  const bool fits = std::is_integral_v<Number> ? found->is_number_integer() : found->is_number();
  return fits ? found->get<Number>() : otherwise;
}

std::string event_in(const Json& line) {
  Scores values;
  for (const auto& [name, value] : line.items()) {
    if (name != "step" && name != "time" && value.is_number()) values[name] = value.get<double>();
  }
  const auto sample = line.find("sample");
  return event_of(number_in(line, "time", 0.0), number_in(line, "step", std::int64_t(0)), values,
                  sample != line.end() && sample->is_string() ? sample->get<std::string>() : "");
}

/// Whole lines up to the step.
std::vector<std::string> lines_until(const fs::path& path, std::int64_t step) {
  std::ifstream in(path);
  std::vector<std::string> kept;
  for (std::string line; std::getline(in, line);) {
    const auto json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && number_in(json, "step", step + 1) <= step) kept.push_back(line);
  }
  return kept;
}

/// Under another name first: a kill leaves the old file or the new.
void replace(const fs::path& path, const std::string& bytes) {
  const fs::path other = path.string() + ".part";
  std::error_code fault;
  fs::remove(other, fault);
  Growing(other.string()).add(bytes);
  fs::rename(other, path, fault);
  if (fault) throw FileError(fmt::format("{}: {}", path.string(), fault.message()));
}

constexpr std::string_view aside = "line.json";

/// What was put aside with the checkpoint of a step; nothing where the step's line has scores.
std::optional<Json> waiting(const std::string& run, std::int64_t step,
                            const std::vector<std::string>& lines) {
  std::ifstream in(fs::path(last_checkpoint(run)) / aside);
  const Json json = Json::parse(in, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || number_in(json, "step", std::int64_t(-1)) != step) return {};
  if (lines.empty()) return json;
  const Json last = Json::parse(lines.back());
  const bool has_scores =
      number_in(last, "step", std::int64_t(0)) == step && last.size() > json.size();
  return has_scores ? std::nullopt : std::optional(json);
}

Line line_of(const Json& json) {
  return {.step = number_in(json, "step", std::int64_t(0)),
          .loss = number_in(json, "loss", 0.0),
          .rate = number_in(json, "rate", 0.0),
          .length = number_in(json, "length", 0.0),
          .per_second = number_in(json, "per_second", 0.0),
          .memory = number_in(json, "memory", std::int64_t(0))};
}

}  // namespace

Growing::Growing(const std::string& path) { open(path); }

void Growing::open(const std::string& path) {
  path_ = path;
  file_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (file_ < 0) refuse(path_);
}

Growing::~Growing() {
  if (file_ >= 0) ::close(file_);
}

void Growing::add(std::string_view bytes) {
  while (file_ >= 0 && !bytes.empty()) {
    const ssize_t written = ::write(file_, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) refuse(path_);
    bytes.remove_prefix(std::size_t(written));
  }
}

void Growing::sync() {
  if (file_ >= 0 && ::fsync(file_) != 0 && errno != EINVAL) refuse(path_);
}

std::optional<Line> RunFiles::open(const std::string& folder, std::int64_t step) {
  const fs::path metrics = fs::path(folder) / "metrics.jsonl";
  const fs::path events = fs::path(folder) / "events.out.tfevents.foci";
  std::string text, records = first_event(now());
  std::vector<std::string> lines = lines_until(metrics, step);
  const std::optional<Json> unjudged = waiting(folder, step, lines);
  if (unjudged) lines = lines_until(metrics, step - 1);
  for (const std::string& line : lines) {
    text += line + "\n";
    records += event_in(Json::parse(line));
  }
  replace(metrics, text);
  replace(events, records);
  metrics_.open(metrics.string());
  events_.open(events.string());
  return unjudged ? std::optional(line_of(*unjudged)) : std::nullopt;
}

void RunFiles::put_aside(const Line& line, const std::string& checkpoint) {
  std::error_code fault;
  fs::create_directories(checkpoint, fault);
  if (fault) throw FileError(fmt::format("{}: {}", checkpoint, fault.message()));
  const fs::path path = fs::path(checkpoint) / aside;
  replace(path, json_of(line).dump() + "\n");
  Growing(path.string()).sync();
}

void RunFiles::add(const Line& line) {
  // A text of bytes may be cut within a letter.
  const std::string text = json_of(line).dump(-1, ' ', false, Json::error_handler_t::replace);
  metrics_.add(text + "\n");
  events_.add(event_in(Json::parse(text)));
}

void RunFiles::sync() {
  metrics_.sync();
  events_.sync();
}

}  // namespace foci::train
