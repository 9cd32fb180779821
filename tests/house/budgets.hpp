// SPDX-License-Identifier: Apache-2.0
// The house rules that a program can check: sizes of files, functions and lines, the first lines of
// a file, names, words that mean "not finished", code left behind in comments.
#pragma once

#include "house/functions.hpp"
#include "house/tree.hpp"

#include <regex>
#include <set>

namespace house {

inline constexpr int most_columns = 100, most_function_lines = 60, most_banner_lines = 6;

inline int most_lines(std::string_view path) {
  return is_header(path) ? 300 : extension(path) == ".cu" ? 700 : 400;
}

/// Scripts and build files: held to columns and the licence line, not to the sizes of code.
inline bool is_script(std::string_view path) {
  const auto name = std::filesystem::path(path).filename().string();
  const std::set<std::string> endings = {".sh", ".cmake", ".py"};
  return endings.contains(extension(path)) || name == "CMakeLists.txt" || name == "Makefile" ||
         path == ".ci/run";
}

/// Characters, not bytes.
inline int columns_of(std::string_view line) {
  return int(std::count_if(line.begin(), line.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

inline void check_sizes(Findings& found, const File& file) {
  const auto lines = lines_of(file.text);
  for (std::size_t i = 0; i < lines.size(); ++i) {
    if (const int columns = columns_of(lines[i]); columns > most_columns) {
      found.push_back({file.path, int(i) + 1, std::to_string(columns) + " columns"});
    }
  }
  if (!is_code(file.path)) return;
  if (int(lines.size()) > most_lines(file.path)) {
    found.push_back({file.path, 0,
                     std::to_string(lines.size()) + " lines, " +
                         std::to_string(most_lines(file.path)) + " at most"});
  }
  for (const auto& f : functions_of(file.text)) {
    if (f.lines() > most_function_lines) {
      found.push_back(
          {file.path, f.first, "a function of " + std::to_string(f.lines()) + " lines"});
    }
  }
}

/// The licence line comes first (after #!), then a banner of comment lines.
inline void check_opening(Findings& found, const File& file) {
  const auto lines = lines_of(file.text);
  std::size_t at = !lines.empty() && lines[0].starts_with("#!") ? 1 : 0;
  const std::string tag = "SPDX-License-Identifier: Apache-2.0";
  static const std::regex licence(R"(^(// |# |/\* )SPDX-License-Identifier: Apache-2\.0( \*/)?$)");
  if (at >= lines.size() || !std::regex_match(lines[at], licence)) {
    found.push_back({file.path, int(at) + 1, "no line `" + tag + "`"});
    return;
  }
  if (!is_code(file.path)) return;
  const auto begin = ++at;
  bool block = false;
  while (at < lines.size()) {
    const auto& line = lines[at];
    if (!block && !line.starts_with("//") && !line.starts_with("/*")) break;
    block = (block || line.starts_with("/*")) && line.find("*/") == std::string::npos;
    ++at;
  }
  const int banner = int(at - begin);
  if (banner < 1 || banner > most_banner_lines) {
    found.push_back(
        {file.path, int(begin) + 1, "a banner of " + std::to_string(banner) + " lines"});
  }
}

inline void check_name(Findings& found, const File& file) {
  static const std::set<std::string> empty_words = {"utils", "util", "common", "helpers", "helper",
                                                    "misc",  "fast", "new",    "v2"};
  static const std::regex separator("[/_.-]");
  for (std::sregex_token_iterator it(file.path.begin(), file.path.end(), separator, -1), end;
       it != end; ++it) {
    if (empty_words.contains(*it)) {
      found.push_back({file.path, 0, "the name says nothing: " + it->str()});
    }
  }
}

inline void check_words(Findings& found, const File& file) {
  static const std::regex unfinished(
      "\\b(TO"
      "DO|FIX"
      "ME|XX"
      "X|HA"
      "CK)\\b");
  int number = 0;
  for (const auto& line : lines_of(file.text)) {
    ++number;
    std::smatch match;
    if (std::regex_search(line, match, unfinished)) {
      found.push_back({file.path, number, "unfinished: " + match.str()});
    }
  }
}

/// A line comment that reads as a statement. Doc comments (///) may show code.
inline void check_dead_code(Findings& found, const File& file) {
  static const std::regex comment(R"(^\s*//(?!/)\s*(.*?)\s*$)");
  static const std::regex statement(
      R"(^(#\s*(include|define|if|ifdef|endif)\b.*|return\b.*;|\}|(if|for|while) \(.*[{;])"
      R"(|[\w:<>,*&. \[\]>-]+([+*/|&-]?=|\(.*\))[^=]*;|[\w:<>&* ]+\(.*\)( const)? \{)$)");
  int number = 0;
  for (const auto& line : lines_of(file.text)) {
    ++number;
    std::smatch match;
    if (std::regex_match(line, match, comment) && std::regex_match(match.str(1), statement)) {
      found.push_back({file.path, number, "code in a comment"});
    }
  }
}

inline Findings check_budgets(const std::vector<File>& files) {
  Findings found;
  for (const auto& file : files) {
    const bool markdown = extension(file.path) == ".md";
    if (!is_code(file.path) && !is_script(file.path) && !markdown) continue;
    check_name(found, file);
    check_words(found, file);
    if (markdown) continue;
    check_sizes(found, file);
    check_opening(found, file);
    if (is_code(file.path)) check_dead_code(found, file);
  }
  return found;
}

}  // namespace house
