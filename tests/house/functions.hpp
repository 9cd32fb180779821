// SPDX-License-Identifier: Apache-2.0
// Finds the functions of a C or C++ file and how many lines each takes, by counting braces.
// Not a parser: comments, literals and directives are blanked first; a block outside any other is a
// function when a parameter list stands before it. Lambdas count as part of what holds them.
#pragma once

#include "house/tree.hpp"

#include <cctype>
#include <regex>

namespace house {

struct Function {
  int first = 0, last = 0;
  int lines() const { return last - first + 1; }
};

/// Blanks text[begin, end) but keeps its line ends.
inline void blank(std::string& text, std::size_t begin, std::size_t end) {
  for (auto i = begin; i < std::min(end, text.size()); ++i) {
    if (text[i] != '\n') text[i] = ' ';
  }
}

/// The end of the literal that opens with the quote at `begin`.
inline std::size_t literal_end(const std::string& text, std::size_t begin) {
  if (begin > 0 && text[begin] == '"' && text[begin - 1] == 'R') {
    const auto open = text.find('(', begin);
    const auto close = ")" + text.substr(begin + 1, open - begin - 1) + "\"";
    const auto found = text.find(close, open);
    return found == std::string::npos ? text.size() : found + close.size();
  }
  auto i = begin + 1;
  while (i < text.size() && text[i] != text[begin] && text[i] != '\n') i += text[i] == '\\' ? 2 : 1;
  return i + 1;
}

/// The end of the directive that begins at `begin`, its continued lines included.
inline std::size_t directive_end(const std::string& text, std::size_t begin) {
  auto end = text.find('\n', begin);
  while (end != std::string::npos && end > begin && text[end - 1] == '\\') {
    end = text.find('\n', end + 1);
  }
  return std::min(end, text.size());
}

/// The text with comments, string and character literals and preprocessor lines blanked.
inline std::string bare(std::string text) {
  bool line_start = true;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i], next = i + 1 < text.size() ? text[i + 1] : ' ';
    const bool in_number =
        c == '\'' && i > 0 && std::isalnum(static_cast<unsigned char>(text[i - 1]));
    std::size_t end = i;
    if (c == '/' && next == '/') end = std::min(text.find('\n', i), text.size());
    if (c == '/' && next == '*') end = std::min(text.find("*/", i + 2), text.size() - 2) + 2;
    if (c == '#' && line_start) end = directive_end(text, i);
    if ((c == '"' || c == '\'') && !in_number) end = literal_end(text, i);
    if (c == '\n') {
      line_start = true;
    } else if (!std::isspace(static_cast<unsigned char>(c))) {
      line_start = false;
    }
    if (end == i) continue;
    blank(text, i, end);
    i = end - 1;
  }
  return text;
}

/// Does `head`, what stands between the last statement and a brace, open a function?
inline bool opens_function(const std::string& head) {
  static const std::regex attribute(R"((alignas|__attribute__)\s*\([^{]*?\)+\s)");
  static const std::regex type(R"(^\s*(template\s*<[^{]*>\s*)?(typedef\s+)?)"
                               R"((namespace|class|struct|union|enum|extern)\b[^()]*$)");
  const auto plain = std::regex_replace(head, attribute, " ");
  return plain.find('(') != std::string::npos && !std::regex_search(plain, type);
}

/// Is the block that closes at `close` a member's initialiser, `: a_{1}, b_{2} {`?
inline bool is_initialiser(const std::string& text, std::size_t close) {
  const auto next = text.find_first_not_of(" \n\t", close + 1);
  return next != std::string::npos && (text[next] == ',' || text[next] == '{');
}

inline std::vector<Function> functions_of(const std::string& source) {
  const auto text = bare(source);
  std::vector<Function> found;
  std::string head;
  int line = 1, head_line = 0, parens = 0;
  int depth = 0;  // of braces inside a function, or inside an argument
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '\n') ++line;
    if (depth > 0) {
      depth += (c == '{') - (c == '}');
      if (depth == 0 && parens == 0 && !is_initialiser(text, i)) {
        found.push_back({head_line, line});
        head.clear();
      }
      continue;
    }
    parens += (c == '(') - (c == ')');
    if (c == '{' && (parens > 0 || opens_function(head))) {
      depth = 1;
    } else if (parens == 0 && (c == ';' || c == '{' || c == '}')) {
      head.clear();
    } else {
      if (head.find_first_not_of(" \n\t") == std::string::npos) head_line = line;
      head += c;
    }
  }
  return found;
}

}  // namespace house
