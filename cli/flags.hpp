// SPDX-License-Identifier: Apache-2.0
// Every verb and every flag of the command line, declared once: parsing, --help, the man page and
// the shell completions are all made from these tables. Nothing is parsed here but single values.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace foci::cli {

/// Flag names without dashes and their text; a bare flag has the text "true".
using Words = std::map<std::string, std::string>;

/// `values` is "dot|flat", "all|naive|LIST" (several with commas), "NUMBER", "NUMBER|auto",
/// "COUNT", "SHAPE", "FILE", "KEY" (any text), "TEXT" (an empty one too), "LAYERS" (first:last),
/// "FLAGS" (of the same verb, as name=value), or empty for a switch.
struct Flag {
  std::string_view name;
  std::string_view values;
  std::string_view standard;  ///< what holds without the flag
  std::string_view group;
  std::string_view meaning;
};

struct Example {
  std::string_view does, command;
};

struct VerbPage {
  std::string_view name;
  std::string_view purpose;  ///< one sentence
  std::vector<Example> examples;
  std::vector<Flag> flags;
  std::string_view word;  ///< a word of its own after the verb, "bash|zsh|fish"; empty = none
  std::string_view word_means;
  std::vector<std::string_view> notes;  ///< paragraphs after the flags
  std::string_view second = {};         ///< another word after the first, "NAME"; empty = none
};

/// In the order they are shown; `manual` is the last and is not listed in --help.
const std::vector<VerbPage>& verb_pages();
const VerbPage* find_verb(std::string_view name);

/// The verbs without the hidden one.
std::vector<std::string> verb_names();

/// Throws Misuse when `text` is not one of the flag's values.
void check_value(const Flag& flag, const std::string& text);

/// "foci has no ALiBi; ..." for a feature of other libraries, by its flag name; empty otherwise.
std::string_view missing_feature(std::string_view name);

/// `text` has been through check_value.
double to_number(std::string_view text);
std::int64_t to_count(std::string_view text);

/// The words of `values` that stand for themselves: "NUMBER|auto" has auto.
std::vector<std::string> choices(std::string_view values);

}  // namespace foci::cli
