// SPDX-License-Identifier: Apache-2.0
// The check of one flag's value, and the features of other libraries that are refused by name.
#include "cli/flags.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

namespace foci::cli {
namespace {

constexpr std::int64_t largest_size = std::int64_t{1} << 40;

bool parses(std::string_view text, double& number) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), number);
  return fault == std::errc{} && end == text.data() + text.size() && std::isfinite(number);
}

bool parses(std::string_view text, std::int64_t& count) {
  const auto [end, fault] = std::from_chars(text.data(), text.data() + text.size(), count);
  return fault == std::errc{} && end == text.data() + text.size() && count >= 0;
}

/// "naive,sgemm": each word one of those the flag knows.
void check_list(const Flag& flag, const std::string& text, const std::vector<std::string>& words) {
  for (const std::string& part : split(text, ',')) {
    if (std::find(words.begin(), words.end(), part) != words.end()) continue;
    throw Misuse(
        fmt::format("--{} does not know '{}'{}", flag.name, shown(part), suggestion(part, words)),
        "one of " + listed(words) + ", or several with commas");
  }
}

void check_shape(const Flag& flag, const std::string& text) {
  constexpr std::string_view sizes[] = {"B", "H", "N", "D"};
  const auto parts = split(text, ',');
  if (parts.size() != 4) {
    throw Misuse(fmt::format("--{} {} has {} sizes; it needs four, B,H,N,D", flag.name, shown(text),
                             parts.size()),
                 "for instance --shape 2,4,128,64: batch 2, 4 heads, 128 queries, head size 64");
  }
  for (std::size_t i = 0; i < 4; ++i) {
    std::int64_t size = 0;
    if (!parses(parts[i], size) || size < 1 || size > largest_size) {
      throw Misuse(fmt::format("--{} {}: {} is '{}'; it needs a whole number, 1 or more", flag.name,
                               shown(text), sizes[i], shown(parts[i])));
    }
  }
}

/// "1:", "2:5", ":3"
void check_layers(const Flag& flag, const std::string& text) {
  const auto parts = split(text, ':');
  std::int64_t layer = 0;
  const auto fits = [&](const std::string& part) { return part.empty() || parses(part, layer); };
  if (parts.size() == 2 && fits(parts[0]) && fits(parts[1])) return;
  throw Misuse(fmt::format("--{} '{}' is not first:last", flag.name, shown(text)),
               "1: is all but the lowest layer, 2:5 the third to the fifth");
}

}  // namespace

std::vector<std::string> choices(std::string_view values) {
  auto words = split(values, '|');
  const auto metavariable = [](const std::string& word) {
    return word.empty() || (word[0] >= 'A' && word[0] <= 'Z');
  };
  words.erase(std::remove_if(words.begin(), words.end(), metavariable), words.end());
  return words;
}

void check_value(const Flag& flag, const std::string& text) {
  const auto words = choices(flag.values);
  if (std::find(words.begin(), words.end(), text) != words.end()) return;
  if (flag.values == "SHAPE") return check_shape(flag, text);
  if (flag.values.ends_with("|LIST")) return check_list(flag, text, words);
  if (flag.values == "LAYERS") return check_layers(flag, text);
  if (flag.values == "FLAGS" || flag.values == "TEXT") return;
  if (flag.values == "FILE" || flag.values == "KEY") {
    if (!text.empty()) return;
    throw Misuse(fmt::format("--{} is empty; it needs a {}name", flag.name,
                             flag.values == "FILE" ? "file " : ""));
  }
  if (flag.values == "COUNT") {
    std::int64_t count = 0;
    if (parses(text, count)) return;
    throw Misuse(fmt::format("--{} '{}' is not a whole number, 0 or more", flag.name, shown(text)));
  }
  if (flag.values.starts_with("NUMBER")) {
    double number = 0;
    if (parses(text, number)) return;
    throw Misuse(fmt::format("--{} '{}' is not a finite number{}", flag.name, shown(text),
                             words.empty() ? "" : " and not " + listed(words)));
  }
  if (flag.values.empty()) {
    if (text == "true" || text == "false") return;
    throw Misuse(
        fmt::format("--{} is a switch and takes no value; got '{}'", flag.name, shown(text)));
  }
  throw Misuse(
      fmt::format("--{} does not know '{}'{}", flag.name, shown(text), suggestion(text, words)),
      "one of " + listed(words));
}

std::string_view missing_feature(std::string_view name) {
  struct Missing {
    std::string_view name, sentence;
  };
  constexpr std::string_view window =
      "foci has no sliding window; mask keys for all queries with the tensor key_mask";
  constexpr std::string_view sinks =
      "foci has no attention sinks; a key of your own and key_bias come nearest";
  static constexpr Missing missing[] = {
      {"window", window},
      {"window-size", window},
      {"sliding-window", window},
      {"alibi", "foci has no ALiBi; a bias per key goes into the tensor key_bias"},
      {"alibi-slopes", "foci has no ALiBi; a bias per key goes into the tensor key_bias"},
      {"softcap", "foci has no soft cap on scores; --scale makes them smaller"},
      {"soft-cap", "foci has no soft cap on scores; --scale makes them smaller"},
      {"sinks", sinks},
      {"sink", sinks},
      {"dropout", "foci has no dropout inside attention; drop values of o after it"},
      {"dropout-p", "foci has no dropout inside attention; drop values of o after it"},
  };
  for (const Missing& feature : missing) {
    if (feature.name == name) return feature.sentence;
  }
  return {};
}

double to_number(std::string_view text) {
  double number = std::numeric_limits<double>::quiet_NaN();
  parses(text, number);
  return number;
}

std::int64_t to_count(std::string_view text) {
  std::int64_t count = -1;
  parses(text, count);
  return count;
}

const VerbPage* find_verb(std::string_view name) {
  for (const VerbPage& page : verb_pages()) {
    if (page.name == name) return &page;
  }
  return nullptr;
}

std::vector<std::string> verb_names() {
  std::vector<std::string> names;
  for (const VerbPage& page : verb_pages()) {
    if (page.name != "manual") names.emplace_back(page.name);
  }
  return names;
}

}  // namespace foci::cli
