// SPDX-License-Identifier: Apache-2.0
// What the documents say about the code is in the code: blocks marked `cpp quoted` stand there line
// by line, and every function they call by its name exists.
#include "docs/blocks.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <regex>
#include <set>
#include <sstream>

namespace {

namespace fs = std::filesystem;

const fs::path root = FOCI_SOURCE_DIR;

std::string trimmed(const std::string& line) {
  const auto begin = line.find_first_not_of(' ');
  return begin == std::string::npos ? "" : line.substr(begin);
}

std::string text_of(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A file's lines without their indentation, each between two newlines.
std::string flat(const std::string& text) {
  std::string lines = "\n";
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines += trimmed(line) + "\n";
  return lines;
}

std::vector<std::string> sources() {
  std::vector<std::string> texts;
  for (const char* folder : {"src", "include", "cli"}) {
    for (const auto& entry : fs::recursive_directory_iterator(root / folder)) {
      const auto ending = entry.path().extension();
      for (const char* known : {".cpp", ".hpp", ".h", ".cu", ".cuh"}) {
        if (ending == known) texts.push_back(text_of(entry.path()));
      }
    }
  }
  return texts;
}

/// Names written as `name()` or `Class::name()`, the last part of each.
std::vector<std::string> functions_in(const std::string& text) {
  static const std::regex name("`(?:[A-Za-z_]\\w*::)*([A-Za-z_]\\w*)\\(\\)`");
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), name), end; it != end; ++it)
    found.push_back((*it)[1]);
  return found;
}

std::set<std::string> words_of(const std::vector<std::string>& texts) {
  static const std::regex called("([A-Za-z_]\\w*)(?:<[^<>;()]*>)?\\(");
  std::set<std::string> words;
  for (const std::string& text : texts) {
    for (std::sregex_iterator it(text.begin(), text.end(), called), end; it != end; ++it)
      words.insert((*it)[1]);
  }
  return words;
}

TEST(Quotes, StandInTheSource) {
  std::vector<std::string> files;
  for (const std::string& text : sources()) files.push_back(flat(text));
  const auto quotes = docs::blocks(root, "cpp quoted");
  EXPECT_GT(quotes.size(), 3u);
  for (const docs::Block& quote : quotes) {
    std::string wanted = "\n";
    for (const std::string& line : quote.lines) wanted += trimmed(line) + "\n";
    EXPECT_TRUE(std::any_of(
        files.begin(), files.end(),
        [&](const std::string& file) { return file.find(wanted) != std::string::npos; }))
        << quote.file << ":" << quote.line << " is nowhere in the source:" << wanted;
  }
}

TEST(Quotes, FunctionsExist) {
  std::set<std::string> words = words_of(sources());
  words.merge(std::set<std::string>{"eval", "half", "bfloat16", "to_dense"});  // torch's
  std::size_t named = 0;
  for (const fs::path& page : docs::pages(root)) {
    for (const std::string& name : functions_in(text_of(page))) {
      EXPECT_TRUE(words.contains(name)) << page.filename() << ": " << name << "()";
      ++named;
    }
  }
  EXPECT_GT(named, 30u);
}

TEST(Quotes, NamesAreFound) {
  EXPECT_EQ(functions_in("`weigh()`, `Geometry::keys()`, not f() nor `x` nor `f(a)`"),
            (std::vector<std::string>{"weigh", "keys"}));
  EXPECT_EQ(words_of({"multiply<2, 1>(c); int gone; exp (x)"}),
            (std::set<std::string>{"multiply"}));
  EXPECT_EQ(flat("  a\n\n    b\n"), "\na\n\nb\n");
}

}  // namespace
