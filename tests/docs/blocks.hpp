// SPDX-License-Identifier: Apache-2.0
// The fenced code blocks of Markdown files: what they call themselves, where they stand, what they
// say.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace docs {

struct Block {
  std::string file;  // "dot.md"
  int line = 0;      // of its first line of code
  std::string kind;  // "cpp run"
  std::vector<std::string> lines;
};

inline std::vector<Block> blocks_of(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot read " + path.string());
  std::vector<Block> blocks;
  bool inside = false;
  std::string line;
  for (int number = 1; std::getline(file, line); ++number) {
    if (line.starts_with("```")) {
      inside = !inside;
      if (inside) blocks.push_back({path.filename().string(), number + 1, line.substr(3), {}});
    } else if (inside) {
      blocks.back().lines.push_back(line);
    }
  }
  return blocks;
}

/// README.md and docs/*.md, in the order of their names.
inline std::vector<std::filesystem::path> pages(const std::filesystem::path& root) {
  std::vector<std::filesystem::path> found = {root / "README.md"};
  for (const auto& entry : std::filesystem::directory_iterator(root / "docs")) {
    if (entry.path().extension() == ".md") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

inline std::vector<Block> blocks(const std::filesystem::path& root, const std::string& kind) {
  std::vector<Block> all;
  for (const auto& page : pages(root)) {
    for (const Block& block : blocks_of(page)) {
      if (block.kind == kind) all.push_back(block);
    }
  }
  return all;
}

}  // namespace docs
