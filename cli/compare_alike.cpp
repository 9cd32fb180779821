// SPDX-License-Identifier: Apache-2.0
// Records of several runs that were measured the same way.
#include "cli/compare_alike.hpp"

#include "cli/shell_words.hpp"
#include "cli/suggest.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <set>

namespace foci::cli {
namespace {

/// Flags of eval, attack and measure that decide no value, or that a Record's name or n says.
bool decides_nothing(const std::string& flag) {
  static const std::set<std::string> beside = {
      "seed",  "out",   "right", "maps",  "pictures", "threads", "device",   "json",
      "quiet", "count", "batch", "check", "sheet",    "corrupt", "severity", "workers"};
  return beside.count(flag) > 0;
}

/// Words of the command behind "foci" and "launch ... --".
std::vector<std::string> own_words(const std::string& command) {
  std::vector<std::string> words = shell_words(command);
  if (!words.empty() && words[0] == "foci") words.erase(words.begin());
  const auto end = std::find(words.begin(), words.end(), "--");
  if (!words.empty() && words[0] == "launch" && end != words.end())
    words.erase(words.begin(), end + 1);
  return words;
}

Words flags_in(const std::vector<std::string>& words) {
  Words flags;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!words[i].starts_with("--")) continue;
    const bool has_value = i + 1 < words.size() && !words[i + 1].starts_with("--");
    flags[words[i].substr(2)] = has_value ? words[i + 1] : "true";
  }
  return flags;
}

bool is_standard(const VerbPage* page, const std::string& name, const std::string& value) {
  if (page == nullptr) return false;
  return std::any_of(page->flags.begin(), page->flags.end(),
                     [&](const Flag& flag) { return flag.name == name && flag.standard == value; });
}

/// Ways a run has measured a name, the newest first.
std::vector<std::string> ways_in(const MeasuredRun& run, const std::string& name) {
  std::vector<std::string> ways;
  for (const Record& record : run.found->records) {
    if (record.name != name) continue;
    const std::string way = way_of(record, run.facts->words);
    std::erase(ways, way);
    ways.insert(ways.begin(), way);
  }
  return ways;
}

struct Measuring {
  const MeasuredRun* run;
  std::vector<std::string> ways;
};

bool has(const Measuring& one, const std::string& way) {
  return std::find(one.ways.begin(), one.ways.end(), way) != one.ways.end();
}

/// The newest of the first run that all have; empty: none.
std::string common_way(const std::vector<Measuring>& all) {
  for (const std::string& way : all.front().ways) {
    if (std::all_of(all.begin(), all.end(), [&](const auto& one) { return has(one, way); }))
      return way;
  }
  return "";
}

/// Those of the name and the way come last, and digits that are another's go.
void prefer(const MeasuredRun& run, const std::string& name, const std::string& way) {
  auto& records = run.found->records;
  std::stable_partition(records.begin(), records.end(), [&](const Record& record) {
    return record.name != name || way_of(record, run.facts->words) != way;
  });
  const auto right = run.found->right.find(name);
  if (right != run.found->right.end() && std::int64_t(right->second.size()) != records.back().n)
    run.found->right.erase(right);
}

/// "over 48 samples by foci eval in runs/a, over 10 samples by foci eval in runs/b"
std::string difference_in(const std::vector<Measuring>& all) {
  const Measuring& first = all.front();
  const auto other = std::find_if(
      all.begin(), all.end(), [&](const Measuring& one) { return !has(one, first.ways.front()); });
  const auto text = [](const Measuring& one) {
    return fmt::format("{} in {}", one.ways.front(), shown(one.run->facts->folder));
  };
  return text(first) + ", " + text(other == all.end() ? all.back() : *other);
}

std::string first_of(const std::vector<std::string>& names) {
  constexpr std::size_t most = 4;
  if (names.size() <= most) return listed(names);
  const std::vector<std::string> some(names.begin(), names.begin() + most);
  return fmt::format("{} and {} more", listed(some), names.size() - most);
}

}  // namespace

std::string way_of(const Record& record, const Words& run) {
  const std::vector<std::string> words = own_words(record.command);
  std::string verb = words.empty() ? "nothing that is known" : words[0];
  Words flags;
  if (verb == "train") {
    verb = "eval";
  } else {
    flags = flags_in(words);
  }
  const VerbPage* page = find_verb(verb);
  std::string text =
      fmt::format("over {} sample{} by foci {}", record.n, record.n == 1 ? "" : "s", shown(verb));
  for (const auto& [flag, value] : flags) {
    const auto own = run.find(flag);
    if (decides_nothing(flag) || is_standard(page, flag, value)) continue;
    if (own != run.end() && own->second == value) continue;
    if (record.name == "clean") continue;  // before any attack
    text += fmt::format(" --{}{}", flag, value == "true" ? "" : " " + shown(value));
  }
  return text;
}

Json keep_alike(std::span<const MeasuredRun> runs) {
  std::vector<std::string> names;
  for (const MeasuredRun& run : runs) {
    for (const Record& record : run.found->records) {
      if (std::find(names.begin(), names.end(), record.name) == names.end())
        names.push_back(record.name);
    }
  }
  std::map<std::string, std::vector<std::string>> left;  // how they differ -> names
  for (const std::string& name : names) {
    std::vector<Measuring> all;
    for (const MeasuredRun& run : runs) {
      Measuring one{&run, ways_in(run, name)};
      if (!one.ways.empty()) all.push_back(std::move(one));
    }
    const std::string way = common_way(all);
    if (way.empty()) left[difference_in(all)].push_back(name);
    for (const Measuring& one : all) {
      if (way.empty()) {
        std::erase_if(one.run->found->records,
                      [&](const Record& record) { return record.name == name; });
      } else {
        prefer(*one.run, name, way);
      }
    }
  }
  if (left.empty()) return {};
  std::vector<std::string> parts;
  parts.reserve(left.size());
  for (const auto& [difference, which] : left)
    parts.push_back(fmt::format("{} ({})", first_of(which), difference));
  return {{"name", "measured-otherwise"},
          {"means", fmt::format("left out, not measured alike: {}", listed(parts, "; "))},
          {"do", "measure these runs with one command each, and report again"}};
}

void check_one_split(std::span<const RunFacts> runs) {
  const auto split_of_run = [](const RunFacts& run) {
    const auto found = run.words.find("split");
    return found == run.words.end() ? std::string("test") : found->second;
  };
  for (const RunFacts& run : runs) {
    const std::string split = split_of_run(run), first = split_of_run(runs.front());
    if (split == first) continue;
    throw FileError(
        fmt::format("{} is judged by the {} split, {} by {}: they cannot stand side by "
                    "side",
                    shown(run.folder), shown(split), shown(runs.front().folder), shown(first)));
  }
}

}  // namespace foci::cli
