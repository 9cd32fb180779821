// SPDX-License-Identifier: Apache-2.0
// The repository as the house tests see it: its text files, read whole, and what is wrong with
// them. Checks take files as values, so that each can also be tried on a made-up tree with a
// planted fault.
#pragma once

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <ostream>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

namespace house {

struct File {
  std::string path;  ///< from the root, with '/'
  std::string text;
};

struct Finding {
  std::string path;
  int line = 0;
  std::string what;

  bool operator==(const Finding&) const = default;
};

/// `path:line: what`, which editors can follow.
inline std::ostream& operator<<(std::ostream& to, const Finding& f) {
  return to << f.path << ":" << f.line << ": " << f.what << "\n";
}

using Findings = std::vector<Finding>;

/// All of them, a line each; empty when there are none.
inline std::string to_string(const Findings& findings) {
  std::ostringstream all;
  for (const auto& f : findings) all << f;
  return all.str();
}

inline std::string read(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::vector<std::string> lines_of(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const auto end = std::min(text.find('\n'), text.size());
    lines.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return lines;
}

inline std::string extension(std::string_view path) {
  return std::filesystem::path(path).extension().string();
}

inline bool is_header(std::string_view path) {
  const auto e = extension(path);
  return e == ".h" || e == ".hpp" || e == ".cuh" || e == ".inl";
}

inline bool is_code(std::string_view path) {
  const auto e = extension(path);
  return is_header(path) || e == ".c" || e == ".cpp" || e == ".cu";
}

/// Every file below `folders` and those directly in the root; data and build folders left out.
inline std::vector<File> read_tree(const std::filesystem::path& root,
                                   const std::vector<std::string>& folders) {
  namespace fs = std::filesystem;
  std::vector<File> files;
  const auto take = [&](const fs::path& path) {
    files.push_back({path.lexically_relative(root).generic_string(), read(path)});
  };
  for (const auto& entry : fs::directory_iterator(root)) {
    if (entry.is_regular_file()) take(entry.path());
  }
  for (const auto& folder : folders) {
    if (!fs::exists(root / folder)) continue;
    for (auto it = fs::recursive_directory_iterator(root / folder); it != fs::end(it); ++it) {
      const auto name = it->path().filename().string();
      if (name == "golden" || name == "corpus" || name == "__pycache__") {
        it.disable_recursion_pending();
      } else if (it->is_regular_file()) {
        take(it->path());
      }
    }
  }
  std::sort(files.begin(), files.end(),
            [](const File& a, const File& b) { return a.path < b.path; });
  return files;
}

}  // namespace house
