// SPDX-License-Identifier: Apache-2.0
// docs/pictures are what the library computes today: drawn again and compared byte for byte.
#include "house/run.hpp"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

namespace {

namespace fs = std::filesystem;

const fs::path kept = FOCI_SOURCE_DIR "/docs/pictures";
const fs::path drawn = FOCI_BINARY_DIR "/tests/pictures";
constexpr std::size_t most_bytes = 30'000;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// Those of docs/theory.md are drawn by the commands that stand in it.
std::set<std::string> names(const fs::path& folder) {
  std::set<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    // Folders hold those of measured runs, theory- are those of the experiments.
    if (entry.is_regular_file() && !name.starts_with("theory-")) found.insert(name);
  }
  return found;
}

class Pictures : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    fs::remove_all(drawn);
    fs::create_directories(drawn);
    const auto ran = house::run(FOCI_BINARY_DIR "/tools/draw_pictures '" + drawn.string() + "'");
    ASSERT_EQ(ran.exit_code, 0) << ran.output;
  }
};

TEST_F(Pictures, AreFresh) {
  EXPECT_EQ(names(kept), names(drawn));
  for (const std::string& name : names(drawn)) {
    EXPECT_TRUE(read(kept / name) == read(drawn / name))
        << name << " has changed; `make docs` draws it again";
  }
}

TEST_F(Pictures, AreSmallAndDescribed) {
  for (const std::string& name : names(drawn)) {
    const std::string picture = read(drawn / name);
    EXPECT_LT(picture.size(), most_bytes) << name;
    EXPECT_NE(picture.find("<title"), std::string::npos) << name;
    EXPECT_NE(picture.find("<desc"), std::string::npos) << name;
    EXPECT_EQ(picture.find("nan"), std::string::npos) << name;
  }
}

TEST_F(Pictures, EveryMechanismHasAPageWithItsPicture) {
  for (const std::string& name : names(kept)) {
    const std::string stem = fs::path(name).stem();
    const std::string page = read(stem == "ellipse" ? kept.parent_path().parent_path() / "README.md"
                                                    : kept.parent_path() / (stem + ".md"));
    EXPECT_NE(page.find("pictures/" + name), std::string::npos) << name;
  }
}

TEST_F(Pictures, CannotBeDrawnNowhere) {
  EXPECT_EQ(house::run(FOCI_BINARY_DIR "/tools/draw_pictures").exit_code, 2);
  const auto ran =
      house::run(FOCI_BINARY_DIR "/tools/draw_pictures '" + (drawn / "missing").string() + "'");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.output.find("cannot write"), std::string::npos) << ran.output;
}

}  // namespace
