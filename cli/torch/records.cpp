// SPDX-License-Identifier: Apache-2.0
// The Records of a run.
#include "cli/torch/records.hpp"

#include "cli/machine.hpp"
#include "cli/shell_words.hpp"
#include "cli/suggest.hpp"

#include <foci/data.hpp>
#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>

namespace foci::cli {
namespace {

/// The unit of a score; with ema_ before its name it is the average's.
std::string unit_of(std::string_view name) {
  if (name.substr(0, 4) == "ema_") name.remove_prefix(4);
  constexpr std::array shares = {"top1", "top5",           "accuracy",
                                 "miou", "pixel_accuracy", "mean_accuracy"};
  if (std::find(shares.begin(), shares.end(), name) != shares.end()) return "share";
  if (name.starts_with("error_") || name.starts_with("accuracy_")) return "share";
  if (name.find("mce") != name.npos) return "percent";
  if (name == "valid_loss") return "nats";
  if (name == "bits_per_byte") return "bits";
  return "";
}

/// Of the share of `n` independent yeses and noes.
double share_error(double share, double n) { return std::sqrt(share * (1 - share) / n); }

/// What the model is and attends with, in a few words.
std::string model_text(const Words& words) {
  return fmt::format("{}, {}, {}", words.at("model"), words.at("metric"), words.at("weighting"));
}

std::vector<RecordFlag> flags_of(const std::string& commit, const data::Fingerprint& data) {
  std::vector<RecordFlag> flags;
  if (commit.find("dirty") != commit.npos || commit == "unknown")
    flags.push_back({"commit", "what was built is not what the commit says",
                     "build from a clean checkout and measure again"});
  if (!data.read)
    flags.push_back({"data", "the sum of the data is over names and sizes, not bytes",
                     "compare the files themselves"});
  return flags;
}

}  // namespace

std::string command_text(const std::string& verb, const Words& words) {
  std::string text = "foci " + verb;
  for (const auto& [flag, value] : words) {
    if (flag == "json" || flag == "quiet") continue;
    text += " --" + flag;
    if (value != "true") text += " " + shell_quoted(value);
  }
  return text;
}

Words changed_words(const std::string& task, const Words& words) {
  const Words plain = with_defaults(task, {{"data", ""}, {"run", ""}});
  Words changed;
  for (const auto& [flag, value] : words) {
    const auto found = plain.find(flag);
    const bool same = found != plain.end() &&
                      (found->second == value || to_number(found->second) == to_number(value));
    if (!same) changed[flag] = value;
  }
  return changed;
}

void keep_records(const std::string& run, const std::vector<Record>& records) try {
  append_records(run + "/records.jsonl", records);
} catch (const FileError& fault) {
  warn(fault.what());
}

namespace {

/// "foci train".
std::string_view verb_in(std::string_view command) {
  return command.substr(0, command.find(' ', command.find(' ') + 1));
}

/// The same number, measured again.
bool is_again(const Record& one, const Record& other) {
  return one.name == other.name && verb_in(one.command) == verb_in(other.command) &&
         one.config_sha256 == other.config_sha256 && one.data_sha256 == other.data_sha256;
}

}  // namespace

void keep_new_records(const std::string& run, std::vector<Record> records) try {
  const std::string path = run + "/records.jsonl";
  std::error_code none;
  if (std::filesystem::is_regular_file(path, none)) {
    for (const Record& there : read_records(path)) {
      std::erase_if(records, [&](const Record& record) { return is_again(record, there); });
    }
  }
  if (!records.empty()) keep_records(run, records);
} catch (const FileError& fault) {
  warn(fault.what());
}

void doubt_other_data(const std::string& run, const Words& own, const Words& judged,
                      std::vector<Record>& records) {
  const std::string path = run + "/records.jsonl";
  std::error_code none;
  if (records.empty() || own.at("data") != judged.at("data") ||
      !std::filesystem::is_regular_file(path, none))
    return;
  std::string before;
  for (const Record& record : read_records(path)) {
    const bool trained = record.command.starts_with("foci train ") ||
                         record.command.find(" -- train ") != record.command.npos;
    if (trained) before = record.data_sha256;
  }
  if (before.empty() || before == records[0].data_sha256) return;
  const std::string means = fmt::format("{} has changed since the run was trained", own.at("data"));
  warn(fmt::format("{}: {}", shown(run), shown(means)));
  for (Record& record : records) {
    record.flags.push_back(
        {"other-data", means, "bring the data back, or train again; --data names another set"});
  }
}

std::vector<Record> records_of(const Measurement& what, const train::Scores& scores) {
  const data::Fingerprint data = data::fingerprint_of(data_path(what.words.at("data")));
  Words config = what.words;
  config.erase("seed");  // runs that differ in it alone are of one configuration
  const auto count = scores.find("count");
  std::vector<Record> records;
  for (const auto& [name, value] : scores) {
    if (!std::isfinite(value) || name == "count") continue;
    Record record{.name = name,
                  .value = value,
                  .unit = unit_of(name),
                  .n = count == scores.end() ? 0 : std::int64_t(count->second),
                  .seed = std::uint64_t(to_count(what.words.at("seed"))),
                  .model = model_text(what.words),
                  .data_sha256 = data.sha256,
                  .config_sha256 = data::sha256_of_text(json_of(config).dump()),
                  .commit = commit_text(),
                  .machine = what.machine,
                  .command = what.command};
    const bool counted = name.find("top") != name.npos || name.find("error_") != name.npos;
    if (record.unit == "share" && record.n > 0 && counted)
      record.spread = share_error(value, double(record.n));
    record.flags = flags_of(record.commit, data);
    records.push_back(std::move(record));
  }
  return records;
}

Json json_of(const std::vector<Record>& records) {
  Json list = Json::array();
  for (const Record& record : records) list.push_back(Json::parse(to_json(record)));
  return list;
}

}  // namespace foci::cli
