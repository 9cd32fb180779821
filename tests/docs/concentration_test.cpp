// SPDX-License-Identifier: Apache-2.0
// docs/concentration.md and its pictures are what the tools make of bench/results.
#include "house/run.hpp"
#include "house/tree.hpp"
#include "report/well_formed.hpp"

#include <foci/data.hpp>

#include <gtest/gtest.h>

#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string root = FOCI_SOURCE_DIR;
const std::string found = root + "/bench/results/epyc-2core/concentration.json";

class Concentration : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(folder_); }
  void TearDown() override { fs::remove_all(folder_); }

  house::Ran draw(const std::string& file) const {
    return house::run(FOCI_BINARY_DIR "/tools/draw_concentration '" + file + "' '" +
                      folder_.string() + "'");
  }
  static house::Ran page(const std::string& file = "") {
    return house::run("cd '" + root + "' && python3 tools/concentration.py '" +
                      (file.empty() ? found : file) + "'");
  }
  std::string file(const std::string& name, const json& content) const {
    std::ofstream(folder_ / name) << content;
    return (folder_ / name).string();
  }

  fs::path folder_ = fs::temp_directory_path() / ("foci-concentration-" + std::to_string(getpid()));
};

TEST_F(Concentration, ThePageIsFresh) {
  if (house::run("python3 --version").exit_code != 0) GTEST_SKIP() << "no python3 here";
  const auto ran = page();
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_TRUE(house::read(root + "/docs/concentration.md") == ran.output)
      << "docs/concentration.md is not what bench/results says; `make docs` makes it again";
}

TEST_F(Concentration, ItsPicturesAreFresh) {
  const auto ran = draw(found);
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  const std::string kept = root + "/docs/concentration/";
  const std::string text = house::read(root + "/docs/concentration.md");
  int seen = 0;
  for (const auto& entry : fs::directory_iterator(folder_)) {
    const std::string name = entry.path().filename();
    EXPECT_NE(text.find("concentration/" + name), std::string::npos) << name;
    ++seen;
    if (name.ends_with(".png")) {  // another zlib packs the same pixels otherwise
      EXPECT_TRUE(foci::data::read_image(kept + name) == foci::data::read_image(entry.path()))
          << name;
      continue;
    }
    const std::string drawn = house::read(entry.path());
    EXPECT_EQ(foci::xml_fault(drawn), "") << name;
    EXPECT_TRUE(house::read(kept + name) == drawn) << name << " has changed; `make docs`";
  }
  EXPECT_EQ(seen, 7);
}

json run_of(const std::string& metric, int seed, double concentration) {
  const json tokens = {{"cosine", 0.5}, {"effective_rank", 9.0}};
  const json layer = {{"rows", {{"concentration", concentration}, {"effective_keys", 12.0}}},
                      {"tokens", tokens}};
  return {{"metric", metric},
          {"seed", seed},
          {"top1", 0.75},
          {"layers", {layer}},
          {"embedded", tokens}};
}

json small() {
  return {{"commit", "abc"},
          {"date", "2001-01-01"},
          {"data", "Some-MNIST"},
          {"words", {{"model", "vit_micro"}}},
          {"samples", 100},
          {"closely", 8},
          {"draws", 1000},
          {"keys", 10},
          {"theory",
           {{{"flags", "--gamma 1"},
             {"concentration", 0.6},
             {"simulated", 0.61},
             {"standard_error", 0.005}}}},
          {"full", {{{"dim", 4}, {"temperature", 1}, {"effective_keys", 5.5}}}},
          {"runs",
           {run_of("dot", 0, 0.5), run_of("dot", 1, 0.52), run_of("flat", 0, 0.7),
            run_of("flat", 1, 0.74), run_of("random", 0, 0.51)}},
          {"pictures", json::array()}};
}

TEST_F(Concentration, WordsFollowFromNumbers) {
  if (house::run("python3 --version").exit_code != 0) GTEST_SKIP() << "no python3 here";
  const auto ran = page(file("small.json", small()));
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  for (const std::string part :
       {"| `--gamma 1` | 0.6000 | 0.6100 | 2.0 |", "| 4 | 5.5000 |",
        "| dot | 2 (too few) | 75.00 ± 0.00 | 0.510 ± 0.014 |",
        "- **flat**: attention wider (+0.210 ± 0.022); tokens after the top layer no difference",
        "- **random**: attention one seed says nothing"})
    EXPECT_NE(ran.output.find(part), std::string::npos) << part << "\n" << ran.output;
  EXPECT_EQ(ran.output.find("What a query looks at"), std::string::npos);
}

TEST_F(Concentration, WithoutRunsThePageSaysSo) {
  if (house::run("python3 --version").exit_code != 0) GTEST_SKIP() << "no python3 here";
  json none = small();
  none["runs"] = json::array();
  const std::string path = file("none.json", none);
  EXPECT_NE(page(path).output.find("\nNothing has been measured yet.\n"), std::string::npos);
  EXPECT_EQ(draw(path).exit_code, 0);
  EXPECT_FALSE(fs::exists(folder_ / "collapse.svg"));
  EXPECT_TRUE(fs::exists(folder_ / "curves.svg"));
}

TEST_F(Concentration, CannotBeDrawnOfNothing) {
  EXPECT_EQ(house::run(FOCI_BINARY_DIR "/tools/draw_concentration").exit_code, 2);
  const auto ran = draw((folder_ / "missing.json").string());
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_NE(ran.output.find("cannot read"), std::string::npos) << ran.output;
}

}  // namespace
