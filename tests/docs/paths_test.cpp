// SPDX-License-Identifier: Apache-2.0
// Files and folders that the documents name exist.
#include "docs/blocks.hpp"

#include <gtest/gtest.h>

#include <iterator>
#include <regex>

namespace {

namespace fs = std::filesystem;

/// What stands between backticks and begins with a folder of this repository.
std::vector<std::string> paths_in(const std::string& text) {
  static const std::regex path(
      "`((?:src|include|cli|python|bench|tests|docs|examples|tools|cmake)/[A-Za-z0-9_./-]*)`");
  std::vector<std::string> found;
  for (std::sregex_iterator it(text.begin(), text.end(), path), end; it != end; ++it) {
    found.push_back((*it)[1]);
  }
  return found;
}

TEST(Pages, FilesTheyNameExist) {
  std::size_t named = 0;
  for (const fs::path& page : docs::pages(FOCI_SOURCE_DIR)) {
    std::ifstream file(page);
    const std::string text(std::istreambuf_iterator<char>(file), {});
    for (const std::string& path : paths_in(text)) {
      EXPECT_TRUE(fs::exists(fs::path(FOCI_SOURCE_DIR) / path)) << page.filename() << ": " << path;
      ++named;
    }
  }
  EXPECT_GT(named, 20u);
}

TEST(Pages, NamesAreFound) {
  EXPECT_EQ(paths_in("see `src/ref/dot.hpp`, `cli/` and `a/b`, not src/x nor `src/*.hpp`"),
            (std::vector<std::string>{"src/ref/dot.hpp", "cli/"}));
}

}  // namespace
