// SPDX-License-Identifier: Apache-2.0
// Hostile files of runs and comparisons: Records, configurations, curves, what stages leave, plans,
// presets, flags in metadata, results, numbers, and the configuration beside GPT-2's weights. The
// first byte picks the reader, for some the second one the task. The files lie in memory; no model
// is made of what they say.
#include "cli/compare_plan.hpp"
#include "cli/metadata.hpp"
#include "cli/misuse.hpp"
#include "cli/number_file.hpp"
#include "cli/run_facts.hpp"
#include "cli/torch/run_folder.hpp"
#include "fuzz/held_file.hpp"
#include "fuzz/refusals.hpp"
#include "models/gpt2_config.hpp"
#include "train/run_files.hpp"

#include <foci/report.hpp>

#include <filesystem>

using namespace foci::cli;

namespace {

namespace fs = std::filesystem;

/// A folder in memory that goes when the fuzzer ends.
class Room {
 public:
  Room() {
    const bool memory = fs::exists("/dev/shm");
    path_ = (memory ? "/dev/shm" : "/tmp") + ("/foci-fuzz-" + std::to_string(::getpid()));
    fs::create_directories(path_);
  }
  ~Room() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

const std::string& room() {
  static const Room made;
  return made.path();
}

void read_record(std::string_view text) {
  const foci::Record record = foci::record_of(text);
  require(foci::record_of(foci::to_json(record)) == record, "a Record comes back");
}

std::string task_by(char byte) {
  static const char* const tasks[] = {"images", "text", "sequences", "segments"};
  return tasks[static_cast<unsigned char>(byte) % 4];
}

/// The library's structs for them: what a page lets through can be used.
void use(const std::string& task, const Words& words) {
  if (task == "images") image_training(words, {});
  if (task == "text") text_training(words, {});
  if (task == "sequences") sequence_training(words, {});
  if (task == "segments") segment_training(words, {});
}

void read_configuration(std::string_view text) {
  static HeldFile file(room() + "/config.json");
  file.with(text);
  mechanism_names({run_facts(room()), run_facts(room())});
  const RunConfig config = read_config(room());
  check_same_data(room(), config.data, config.data);
  use(config.task, config.words);
  facts_in(room(), config.data);
}

void read_preset(std::string_view text) {
  static HeldFile file;
  if (text.empty()) return;
  const std::string task = task_by(text[0]);
  use(task, resolved_words(task, {{"preset", file.with(text.substr(1))}, {"data", "d"}}));
}

void read_curve(std::string_view text) {
  static HeldFile file(room() + "/metrics.jsonl");
  file.with(text);
  const Json curve = curve_of(room());
  require(curve["step"].size() == curve["loss"].size(), "every point has a step");
  static_cast<void>(curve.dump());
  metrics_of(room());
}

/// What stays up to a step stays when it is read again.
void resume_curve(std::string_view text) {
  static const std::string folder = room() + "/resumed";
  fs::create_directories(folder);
  const std::string path = folder + "/metrics.jsonl";
  HeldFile(path).with(text);
  const auto kept = [&path] {
    foci::train::RunFiles().open(folder, 1000);
    return fs::file_size(path);
  };
  const auto size = kept();
  require(size <= text.size() + 1, "nothing is added");
  require(kept() == size, "what stays once stays");
}

/// Two runs of two mechanisms that found the same.
void read_stage(std::string_view text) {
  const Json stage = Json::parse(text, nullptr, false);
  ComparedRun run;
  add_found(run.found, stage);
  Comparison all{.facts = Json::object(),
                 .mechanisms = {{"dot", "", false, {}}, {"flat", "", true, {}}},
                 .seeds = {0},
                 .runs = {}};
  for (const ComparedMechanism& mechanism : all.mechanisms) {
    run.state.mechanism = mechanism.name;
    all.runs.push_back(run);
  }
  const Json results = results_json(all);
  static_cast<void>(results_csv(results));
  static_cast<void>(results.dump());
}

void read_plan(std::string_view text) {
  static HeldFile file;
  const ComparePlan plan = plan_of({{}, {{"plan", file.with(text)}}});
  require(!plan.contenders.empty() && !plan.seeds.empty(), "a plan compares something");
  static_cast<void>(json_of(plan).dump());
}

void read_metadata(std::string_view text) {
  const Json header{{"__metadata__", {{"options", text}}}};
  const std::string words = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string bytes(8, '\0');
  for (int i = 0; i < 8; ++i) bytes[std::size_t(i)] = char(words.size() >> 8 * i & 255);
  bytes += words;
  const foci::Safetensors file(std::as_bytes(std::span(bytes)), "fuzz");
  completed({.words = {}, .how = {}, .dtype = {}, .from_metadata = true}, file, "fuzz");
}

void read_gpt2(std::string_view text) {
  const foci::models::Gpt2Config config = foci::models::parse_gpt2_config(text, "fuzz");
  require(config.heads >= 0 && config.heads <= 1 << 20, "heads can be divided by");
  require(config.norm_eps > 0 && config.norm_eps < 1, "an epsilon is small");
  require(config.activation.starts_with("gelu"), "an activation is known");
}

void read(std::size_t reader, std::string_view text) {
  static HeldFile held;
  switch (reader) {
    case 0:
      return read_record(text);
    case 1:
      foci::read_records(held.with(text));
      return;
    case 2:
      return read_configuration(text);
    case 3:
      return read_curve(text);
    case 4:
      return resume_curve(text);
    case 5:
      return read_stage(text);
    case 6:
      return read_plan(text);
    case 7:
      return read_preset(text);
    case 8:
      return read_metadata(text);
    case 9:
      foci::report::page(text, foci::report::Place::file);
      return;
    case 10:
      numbers_of(held.with(text));
      return;
    default:
      read_gpt2(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static Readers readers({"Record", "file of Records", "config.json", "metrics.jsonl",
                          "metrics.jsonl, resumed", "results of a stage", "plan of a comparison",
                          "preset", "flags in metadata", "results.json", "numbers",
                          "GPT-2's config.json"});
  const std::size_t reader = readers.picked_by(data[0]);
  try {
    read(reader, {reinterpret_cast<const char*>(data) + 1, size - 1});
  } catch (const foci::Error& error) {
    require_line(error.what());
  } catch (const Misuse& error) {
    require_line(error.what());
  }
  return 0;
}
