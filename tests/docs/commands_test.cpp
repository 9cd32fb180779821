// SPDX-License-Identifier: Apache-2.0
// Every command in a block marked `sh run` works as it stands, from the root of the repository;
// every block is of a kind that somebody looks at.
#include "docs/blocks.hpp"
#include "house/run.hpp"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include <unistd.h>

namespace {

namespace fs = std::filesystem;

/// A folder that looks like the root: tests/ and build/ lead to the real ones.
class Root {
 public:
  Root() : path_(fs::temp_directory_path() / ("foci-docs-" + std::to_string(getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    fs::create_directory_symlink(FOCI_SOURCE_DIR "/tests", path_ / "tests");
    fs::create_directory_symlink(FOCI_BINARY_DIR, path_ / "build");
  }
  ~Root() { fs::remove_all(path_); }

  house::Ran run(const std::string& command) const {
    return house::run("cd '" + path_.string() + "' && " + command);
  }

 private:
  fs::path path_;
};

TEST(Pages, CommandsWork) {
  const Root root;
  int commands = 0;
  for (const docs::Block& block : docs::blocks(FOCI_SOURCE_DIR, "sh run")) {
    for (std::size_t i = 0; i < block.lines.size(); ++i) {
      const std::string& line = block.lines[i];
      if (!line.starts_with("build/foci ")) continue;
      const house::Ran ran = root.run(line);
      EXPECT_EQ(ran.exit_code, 0) << block.file << ":" << block.line + int(i) << ": " << line
                                  << "\n"
                                  << ran.output;
      ++commands;
    }
  }
  EXPECT_GT(commands, 12);
}

/// "dot x softmax ... 0.521": both ends of the line stand in one line of the real output.
TEST(Pages, TheComparisonInTheReadmeIsReal) {
  const house::Ran ran = Root().run("build/foci bench --all");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  std::vector<std::string> printed;
  std::istringstream output(ran.output);
  for (std::string line; std::getline(output, line);) printed.push_back(line);
  const auto blocks = docs::blocks(FOCI_SOURCE_DIR, "text");
  ASSERT_EQ(blocks.size(), 1u);
  for (const std::string& line : blocks[0].lines) {
    const std::size_t gap = line.find(" ... ");
    ASSERT_NE(gap, std::string::npos) << line;
    const std::string begin = line.substr(0, line.find("  ") + 2), end = line.substr(gap + 5);
    EXPECT_TRUE(std::any_of(
        printed.begin(), printed.end(),
        [&](const std::string& real) { return real.starts_with(begin) && real.ends_with(end); }))
        << line << "\n"
        << ran.output;
  }
}

TEST(Pages, RunBlocksHoldCommandsOnly) {
  for (const docs::Block& block : docs::blocks(FOCI_SOURCE_DIR, "sh run")) {
    for (const std::string& line : block.lines) {
      EXPECT_TRUE(line.starts_with("build/foci "))
          << block.file << ":" << block.line << ": " << line;
    }
  }
}

TEST(Pages, BlocksAreOfKnownKinds) {
  const std::set<std::string> known = {
      "",           "sh",   "sh run",     "cpp",         "cpp run",
      "cpp quoted", "c",    "c run",      "cmake",       "json",
      "python",     "text", "python run", "python timm", "python transformers"};
  for (const fs::path& page : docs::pages(FOCI_SOURCE_DIR)) {
    for (const docs::Block& block : docs::blocks_of(page)) {
      EXPECT_TRUE(known.contains(block.kind))
          << block.file << ":" << block.line << ": ```" << block.kind;
    }
  }
}

}  // namespace
