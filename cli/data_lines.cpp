// SPDX-License-Identifier: Apache-2.0
// foci data show for what is made of lines: running text, labelled text, time series; a file, or a
// folder that has one for each split.
#include "cli/data.hpp"
#include "cli/suggest.hpp"
#include "cli/terminal.hpp"

#include <foci/executor.hpp>
#include <foci/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <optional>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using data::Split;

constexpr std::size_t shown_columns = 76;

std::string start_of(const std::string& text) {
  return shown(text.size() > shown_columns ? text.substr(0, shown_columns) : text);
}

bool ends_with_any(const std::string& name, const std::vector<std::string>& endings) {
  return std::any_of(endings.begin(), endings.end(), [&](const std::string& ending) {
    return name.ends_with(ending) || name.ends_with(ending + ".gz");
  });
}

/// The files to show, by split; a file by itself is called by its name.
std::vector<std::pair<std::string, std::string>> files_of(const Data& verb) {
  const std::vector<std::string> known = {".ts", ".tsv", ".txt", ".tokens"};
  if (fs::is_regular_file(verb.name)) {
    if (!ends_with_any(verb.name, known)) return {};
    return {{fs::path(verb.name).filename().string(), verb.name}};
  }
  if (!fs::is_directory(verb.name)) return {};
  std::vector<std::pair<std::string, std::string>> files;
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(verb.name)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  for (const Split split : {Split::train, Split::valid, Split::test}) {
    if (verb.split && *verb.split != split) continue;
    const std::string part(data::name_of(split));
    const std::string series = split == Split::train ? "_TRAIN.ts" : "_TEST.ts";
    for (const std::string& name : names) {
      const bool of_split = name == part + ".tsv" || name == part + ".txt" ||
                            name == "wiki." + part + ".tokens" || name == "ptb." + part + ".txt" ||
                            (split != Split::valid && name.ends_with(series));
      if (of_split) files.emplace_back(part, (fs::path(verb.name) / name).string());
    }
  }
  return files;
}

Json counts_json(const std::vector<std::string>& classes, const std::vector<std::int64_t>& counts) {
  Json json = Json::object();
  for (std::size_t c = 0; c < classes.size(); ++c) json[classes[c]] = counts[c];
  return json;
}

template <class Set>
Json class_counts(const Set& set) {
  std::vector<std::int64_t> counts(set.classes.size());
  for (const auto& sample : set.samples) ++counts[std::size_t(sample.label)];
  return counts_json(set.classes, counts);
}

Json series_json(const std::string& path) {
  const data::SeriesSet set = data::read_ts(path);
  std::int64_t shortest = set.longest;
  for (const data::Series& series : set.samples) shortest = std::min(shortest, series.length);
  return {{"kind", "series"},          {"count", set.samples.size()},
          {"channels", set.channels},  {"shortest", shortest},
          {"longest", set.longest},    {"classes", class_counts(set)},
          {"samples", Json::array({})}};
}

Json tsv_json(const std::string& path, std::int64_t samples) {
  const data::TextSet set = data::read_tsv(path);
  Json some = Json::array();
  for (std::int64_t i = 0; i < std::min(samples, std::int64_t(set.samples.size())); ++i) {
    const auto& sample = set.samples[std::size_t(i)];
    some.push_back(
        fmt::format("{}: {}", set.classes[std::size_t(sample.label)], start_of(sample.text)));
  }
  return {{"kind", "labelled text"},
          {"count", set.samples.size()},
          {"classes", class_counts(set)},
          {"samples", some}};
}

Json text_json(const std::string& path, std::int64_t samples) {
  const std::string text = data::read_text(path);
  const data::WordVocabulary words = data::WordVocabulary::of_text(text);
  Json some = Json::array();
  for (const std::string& line : split(text, '\n')) {
    if (std::int64_t(some.size()) >= samples) break;
    if (line.find_first_not_of(' ') != std::string::npos) some.push_back(start_of(line));
  }
  return {{"kind", "text"},
          {"bytes", text.size()},
          {"count", words.encode(text).size()},
          {"words", words.size()},
          {"samples", some}};
}

Json json_of(const std::string& path, std::int64_t samples) {
  if (ends_with_any(path, {".ts"})) return series_json(path);
  if (ends_with_any(path, {".tsv"})) return tsv_json(path, samples);
  return text_json(path, samples);
}

void print_part(const std::string& name, const Json& part, const Data& verb) {
  if (part.at("kind") == "text") {
    fmt::print("{:<6}{} words with <eos>, {} different, {} bytes\n", name,
               part.at("count").get<std::int64_t>(), part.at("words").get<std::int64_t>(),
               part.at("bytes").get<std::int64_t>());
  } else if (part.at("kind") == "series") {
    fmt::print("{:<6}{} series, {} channels, {} to {} long, {} classes\n", name,
               part.at("count").get<std::int64_t>(), part.at("channels").get<std::int64_t>(),
               part.at("shortest").get<std::int64_t>(), part.at("longest").get<std::int64_t>(),
               part.at("classes").size());
  } else {
    fmt::print("{:<6}{} texts, {} classes\n", name, part.at("count").get<std::int64_t>(),
               part.at("classes").size());
  }
  if (verb.common.quiet) return;
  for (const auto& line : part.at("samples")) fmt::print("  {}\n", line.get<std::string>());
}

}  // namespace

std::optional<int> show_lines(const Data& verb) {
  constexpr std::int64_t standard_samples = 3;
  const auto files = files_of(verb);
  if (files.empty()) return {};
  Json splits = Json::object();
  for (const auto& [name, path] : files) {
    splits[name] = json_of(path, verb.count.value_or(standard_samples));
  }
  if (verb.common.json) {
    print_json({{"path", verb.name},
                {"kind", splits.begin()->at("kind")},
                {"splits", splits},
                {"checked", true},
                {"threads", Executor(verb.common.threads).threads()}});
    return 0;
  }
  for (const auto& [name, path] : files) print_part(name, splits.at(name), verb);
  return 0;
}

}  // namespace foci::cli
