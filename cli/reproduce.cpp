// SPDX-License-Identifier: Apache-2.0
// foci reproduce: a Record's command once more, in a folder that goes away, and both values.
#include "cli/machine.hpp"
#include "cli/misuse.hpp"
#include "cli/shell_words.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"
#include "cli/verbs.hpp"

#include <foci/error.hpp>
#include <foci/record.hpp>

#include <fcntl.h>
#include <fmt/core.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// A folder that is gone afterwards.
class Passing {
 public:
  Passing() : path_((fs::temp_directory_path() / "foci-reproduce-XXXXXX").string()) {
    if (mkdtemp(path_.data()) == nullptr) throw FileError(path_ + ": cannot be made");
  }
  ~Passing() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  Passing(const Passing&) = delete;
  Passing& operator=(const Passing&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

/// Beside results.json lie the Records that it is made of.
std::string records_path(const std::string& path) {
  const fs::path file(path);
  return file.filename() == "results.json" ? (file.parent_path() / "records.jsonl").string() : path;
}

Record chosen(const Reproduce& verb) {
  const std::vector<Record> records = read_records(records_path(verb.records));
  if (records.empty()) throw FileError(fmt::format("{}: has no Records", shown(verb.records)));
  if (verb.words.count("line") > 0) {
    const std::int64_t line = to_count(verb.words.at("line"));
    if (line < 1 || line > std::int64_t(records.size())) {
      throw Misuse(
          fmt::format("--line {}: {} has {} Records", line, shown(verb.records), records.size()));
    }
    return records[std::size_t(line) - 1];
  }
  std::vector<std::string> names;
  for (const Record& record : records) {
    if (std::find(names.begin(), names.end(), record.name) == names.end())
      names.push_back(record.name);
  }
  constexpr std::size_t most = 12;
  const std::size_t more = names.size() > most ? names.size() - most : 0;
  const std::vector<std::string> first(names.begin(), names.end() - std::ptrdiff_t(more));
  const std::string hint =
      "names: " + listed(first) + (more > 0 ? fmt::format(" and {} more", more) : "");
  const auto name = verb.words.find("name");
  if (name == verb.words.end() && records.size() > 1)
    throw Misuse(fmt::format("{} has {} Records; --name or --line says which", shown(verb.records),
                             records.size()),
                 hint);
  const std::string wanted = name == verb.words.end() ? records[0].name : name->second;
  const auto newest = std::find_if(records.rbegin(), records.rend(),
                                   [&](const Record& record) { return record.name == wanted; });
  const auto count = std::count_if(records.begin(), records.end(),
                                   [&](const Record& record) { return record.name == wanted; });
  if (count > 1 && !verb.common.quiet) {
    warn(fmt::format("the last of {} Records named {}, line {}; --line picks another", count,
                     shown(wanted), records.rend() - newest));
  }
  if (newest != records.rend()) return *newest;
  throw Misuse(fmt::format("{} has no Record '{}'{}", shown(verb.records), shown(wanted),
                           suggestion(wanted, names)),
               hint);
}

/// The run itself stays as it is: flags are copied, all else is linked to.
void mirror(const std::string& run, const std::string& to) {
  if (!fs::is_directory(run)) {
    throw FileError(fmt::format("{}: is not there, and the Record's command needs it", shown(run)));
  }
  fs::create_directories(to);
  for (const auto& entry : fs::directory_iterator(run)) {
    const std::string name = entry.path().filename().string();
    if (name == "records.jsonl" || name == "stages" || name.starts_with("attack")) continue;
    fs::create_symlink(fs::absolute(entry.path()), fs::path(to) / name);
  }
}

/// Speed and memory of training are of a comparison's turns, which no command measures alone.
void check_timing(const Reproduce& verb, const Record& record) {
  if (record.name != "train_per_second" && record.name != "peak_mebibytes") return;
  const std::string plan =
      (fs::path(records_path(verb.records)).parent_path() / "plan.json").string();
  const bool says = record.command.find("compare ") != record.command.npos;
  throw FileError(fmt::format(
      "'{}' is a timing of a comparison, in turn with its other mechanisms; this times all of them "
      "again: {}",
      shown(record.name),
      says ? record.command
           : fmt::format("foci compare --plan {} --out again", shell_quoted(plan))));
}

/// The place of the verb behind "foci", or behind "foci launch -n 2 --".
std::size_t place_of_verb(const std::vector<std::string>& words) {
  if (words.size() < 2 || words[1] != "launch") return 1;
  return std::size_t(std::find(words.begin(), words.end(), "--") - words.begin()) + 1;
}

/// The command with every folder it would write to exchanged.
std::vector<std::string> moved(const Record& record, const std::string& run,
                               const Passing& scratch) {
  std::vector<std::string> words = shell_words(record.command);
  static const std::vector<std::string> can = {"train", "eval", "attack", "measure"};
  const std::size_t verb = place_of_verb(words);
  if (words.size() < verb + 2 || words[0] != "foci" ||
      std::find(can.begin(), can.end(), words[verb]) == can.end()) {
    throw FileError(fmt::format("'{}': its command '{}' is none of foci {}", shown(record.name),
                                shown(record.command), listed(can)));
  }
  if (words[verb] != "train") {
    mirror(words[verb + 1], run);
    words[verb + 1] = run;
  }
  for (std::size_t i = verb + 1; i + 1 < words.size(); ++i) {
    if (words[i] == "--run") words[i + 1] = run;
    if (words[i] == "--out" || words[i] == "--right" || words[i] == "--maps")
      words[i + 1] = scratch.file("out" + std::to_string(i));
  }
  words.erase(words.begin());
  return words;
}

/// Runs this program with the words; its output goes into a file.
void run_again(const std::vector<std::string>& words, const std::string& log) {
  const std::string program = program_folder() + "/foci";
  std::vector<char*> list{const_cast<char*>("foci")};
  for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
  list.push_back(const_cast<char*>("--quiet"));
  list.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, log.c_str(), O_WRONLY | O_CREAT, 0666);
  posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
  pid_t child = -1;
  const int fault = posix_spawn(&child, program.c_str(), &actions, nullptr, list.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (fault != 0) throw Error(fmt::format("{}: cannot be started", program));
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return;
  std::ifstream file(log);
  std::string line, last;
  while (std::getline(file, line)) {
    if (line.starts_with("foci: ")) last = line.substr(6);
    if (!last.empty()) break;
  }
  throw Error(fmt::format("the Record's command failed: {}", last.empty() ? "no word why" : last));
}

std::optional<Record> found_again(const std::string& path, const std::string& name) {
  if (!fs::exists(path)) return {};
  for (const Record& record : read_records(path)) {
    if (record.name == name) return record;
  }
  return {};
}

double tolerance_of(const Reproduce& verb, const Record& record) {
  const auto given = verb.words.find("tolerance");
  if (given != verb.words.end()) return to_number(given->second);
  const double least = 1e-6 * std::abs(record.value);
  return std::max(least, record.spread.value_or(0));
}

}  // namespace

int run(const Reproduce& verb) {
  const Record record = chosen(verb);
  check_timing(verb, record);
  const Passing scratch;
  const std::string run = scratch.file("run");
  const auto words = moved(record, run, scratch);
  if (!verb.common.quiet && !verb.common.json) fmt::print(stderr, "{}\n", record.command);
  run_again(words, scratch.file("log"));
  const auto again = found_again(run + "/records.jsonl", record.name);
  if (!again) {
    throw FileError(fmt::format("the command gave no Record '{}': {}", shown(record.name),
                                shown(record.command)));
  }
  const double difference = again->value - record.value, tolerance = tolerance_of(verb, record);
  const bool same = std::abs(difference) <= tolerance;
  if (verb.common.json) {
    print_json({{"name", record.name},
                {"command", record.command},
                {"value", record.value},
                {"again", again->value},
                {"difference", difference},
                {"tolerance", tolerance},
                {"same", same},
                {"same_data", again->data_sha256 == record.data_sha256},
                {"commit", again->commit},
                {"machine", again->machine}});
    return same ? 0 : 1;
  }
  fmt::print("{}: {} then, {} now, {} apart, {} allowed: {}\n", record.name, record.value,
             again->value, number_text(std::abs(difference)), number_text(tolerance),
             same ? "the same" : "not the same");
  if (again->data_sha256 != record.data_sha256)
    fmt::print("the data is not what it was: {:.12} then, {:.12} now\n", record.data_sha256,
               again->data_sha256);
  if (again->commit != record.commit && !verb.common.quiet)
    fmt::print("measured by {} then, {} now\n", record.commit, again->commit);
  return same ? 0 : 1;
}

}  // namespace foci::cli
