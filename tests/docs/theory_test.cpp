// SPDX-License-Identifier: Apache-2.0
// docs/theory.md holds what its commands say today: tables letter by letter, pictures byte by byte.
#include "house/run.hpp"
#include "house/tree.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include <unistd.h>

namespace {

namespace fs = std::filesystem;

const fs::path docs = FOCI_SOURCE_DIR "/docs";
constexpr std::size_t most_bytes = 30'000;
const std::string begin = "<!-- foci theory ", end = "<!-- /foci theory -->\n";

/// A command of the page and what stands below it.
struct Block {
  std::string command, text;
};

std::vector<Block> blocks_of(const std::string& page) {
  std::vector<Block> blocks;
  for (std::size_t at = page.find(begin); at != std::string::npos; at = page.find(begin, at)) {
    const std::size_t closing = page.find(" -->\n", at), text = closing + 5;
    const std::size_t after = page.find(end, text);
    EXPECT_NE(after, std::string::npos) << page.substr(at, closing - at);
    if (after == std::string::npos) break;
    blocks.push_back({page.substr(at + 5, closing - at - 5), page.substr(text, after - text)});
    at = after;
  }
  return blocks;
}

TEST(TheoryPage, IsWhatItsCommandsSay) {
  const fs::path root = fs::temp_directory_path() / ("foci-theory-" + std::to_string(getpid()));
  fs::create_directories(root / "docs/pictures");
  const auto blocks = blocks_of(house::read(docs / "theory.md"));
  EXPECT_EQ(blocks.size(), 8u);
  for (const Block& block : blocks) {
    const auto ran = house::run("cd '" + root.string() + "' && (" FOCI_BINARY_DIR "/" +
                                block.command + " 2> errors)");
    EXPECT_EQ(ran.exit_code, 0) << block.command << "\n" << house::read(root / "errors");
    EXPECT_EQ(ran.output, block.text) << block.command << ": `make docs` writes it again";
  }
  int drawn = 0;
  for (const auto& entry : fs::directory_iterator(root / "docs/pictures")) {
    const std::string name = entry.path().filename(), picture = house::read(entry.path());
    EXPECT_TRUE(picture == house::read(docs / "pictures" / name))
        << name << " has changed; `make docs` draws it again";
    EXPECT_LT(picture.size(), most_bytes) << name;
    for (const char* part : {"<title", "<desc", "prefers-color-scheme:dark"})
      EXPECT_NE(picture.find(part), std::string::npos) << name;
    EXPECT_EQ(picture.find("nan"), std::string::npos) << name;
    ++drawn;
  }
  EXPECT_EQ(drawn, 8);
  fs::remove_all(root);
}

TEST(TheoryPage, ShowsItsPicturesAndNoOthersAreKept) {
  const std::string page = house::read(docs / "theory.md");
  for (const auto& entry : fs::directory_iterator(docs / "pictures")) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("theory-")) continue;
    EXPECT_NE(page.find("](pictures/" + name + ")"), std::string::npos) << name;
    EXPECT_NE(page.find("docs/pictures/" + name), std::string::npos) << name;
  }
}

}  // namespace
