// SPDX-License-Identifier: Apache-2.0
// Single quotes alone: nothing inside them is special but their end.
#include "cli/shell_words.hpp"

namespace foci::cli {

std::string shell_quoted(const std::string& word) {
  const bool plain =
      !word.empty() && word.find_first_of(" \t\n\"'$\\*?&;|<>()[]{}#~`!") == word.npos;
  if (plain) return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

std::vector<std::string> shell_words(const std::string& command) {
  std::vector<std::string> words;
  std::string word;
  bool inside = false, begun = false;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == '\\' && !inside && i + 1 < command.size()) {
      word += command[++i];
      begun = true;
    } else if (c == '\'') {
      inside = !inside;
      begun = true;
    } else if (c == ' ' && !inside) {
      if (begun) words.push_back(word);
      word.clear();
      begun = false;
    } else {
      word += c;
      begun = true;
    }
  }
  if (begun) words.push_back(word);
  return words;
}

}  // namespace foci::cli
