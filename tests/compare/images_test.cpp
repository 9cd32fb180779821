// SPDX-License-Identifier: Apache-2.0
// What a comparison makes of somebody's own folder of images: how large models see them, the split
// they are judged by, and what is wrong with the folder.
#include "compare/compared.hpp"

#include "cli/torch/compare_data.hpp"
#include "cli/torch/compare_images.hpp"
#include "cli/torch/compare_maps.hpp"

#include <foci/data.hpp>

#include <gtest/gtest.h>

namespace {

using namespace train_test;
using foci::cli::ComparePlan;

/// Grey pictures of two classes; the sides take turns.
std::string pictures(const std::string& name, const std::vector<std::string>& splits,
                     const std::vector<std::pair<int, int>>& sizes, int count = 12) {
  const std::string path = folder().file(name);
  for (const std::string& part : splits) {
    for (const char* kind : {"light", "dark"}) {
      const std::string inner = path + "/" + part + "/" + kind;
      fs::create_directories(inner);
      for (int i = 0; i < count; ++i) {
        const auto [height, width] = sizes[std::size_t(i) % sizes.size()];
        foci::data::Image image(height, width, 3);
        std::fill(image.pixels.begin(), image.pixels.end(), kind[0] == 'l' ? 200 : 40);
        foci::data::write_png(inner + "/" + std::to_string(i) + ".png", image);
      }
    }
  }
  return path;
}

std::string sizes_after(const std::string& data, const Words& words = {}) {
  ComparePlan plan = plan_from(Words{"--data", data} + words);
  settle_plan(plan, data);
  const auto word = [&](const char* flag) {
    return plan.train.count(flag) > 0 ? plan.train.at(flag) : std::string("-");
  };
  return word("image") + " " + word("patch");
}

TEST(CompareImages, LargeOnesBecomeSmall) {
  const std::string large = pictures("large", {"train", "test"}, {{200, 260}}),
                    mixed = pictures("mixed", {"train", "test"}, {{30, 90}, {50, 60}, {44, 44}}),
                    some = pictures("some", {"train", "test"}, {{50, 70}});
  EXPECT_EQ(sizes_after(large), "64 8");
  EXPECT_EQ(sizes_after(mixed), "42 6");  // the median is 44
  EXPECT_EQ(sizes_after(some), "49 7");
  EXPECT_EQ(sizes_after(images()), "- -");
  // Who says one of the two says both, and other models have sizes of their own.
  EXPECT_EQ(sizes_after(large, {"--model", "image=96"}), "96 -");
  EXPECT_EQ(sizes_after(large, {"--model", "patch=20"}), "- 20");
  EXPECT_EQ(sizes_after(large, {"--model", "deit_tiny_patch16_224"}), "- -");
}

TEST(CompareImages, WhatTheyBecomeIsTold) {
  const std::string large = pictures("told", {"train", "test"}, {{200, 260}, {120, 300}}),
                    out = folder().file("told-out");
  const auto told = [&](const Words& words) {
    return call(Words{"compare", "--data", large, "--out", out, "--budget", "1s"} + words).err;
  };
  EXPECT_TRUE(
      told({}).starts_with("compare: images become 64 x 64 (their shorter sides have 120 to "
                           "200 pixels), patch 8: 64 tokens\nfoci: --budget 1s is too "))
      << told({});
  EXPECT_TRUE(told({"--model", "image=48"}).starts_with("compare: images become 48 x 48 (")) << out;
  EXPECT_FALSE(fs::exists(out));
  ComparePlan plan = plan_from({"--data", large});
  settle_plan(plan, large);
  const auto flag = smaller_images(plan, image_inputs(plan, large), foci::cli::image_sides(large));
  EXPECT_EQ(flag.at("name"), "smaller-images");
  EXPECT_EQ(flag.at("means"),
            "the images have 200 pixels a side, models see 64 x 64 of them in patches of 8, which "
            "takes less time");
  EXPECT_EQ(json_of(plan).at("train").at("image"), 64);
  plan.train["image"] = "96";
  EXPECT_TRUE(
      smaller_images(plan, image_inputs(plan, large), foci::cli::image_sides(large)).is_null());
}

TEST(CompareImages, AValidSplitStandsInForTheTestSplit) {
  const std::string data = pictures("valid", {"train", "val"}, {{28, 28}}),
                    out = folder().file("valid-out");
  const Ran ran = call({"compare",
                        "--data",
                        data,
                        "--out",
                        out,
                        "--model",
                        "dim=16 depth=1 heads=2 patch=14 "
                        "batch=8",
                        "--mechanisms",
                        "dot,flat",
                        "--seeds",
                        "1",
                        "--steps",
                        "2",
                        "--attack",
                        "fgsm",
                        "--attack-samples",
                        "4",
                        "--check",
                        "0",
                        "--corruptions",
                        "fog",
                        "--threads",
                        "2"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_TRUE(ran.err.starts_with("compare: " + data +
                                  " has no test split; models are judged by "
                                  "its valid split\n"))
      << ran.err;
  const auto results = nlohmann::json::parse(read(out + "/results.json"));
  EXPECT_EQ(results.at("data").at("judged"), 24);
  EXPECT_EQ(results.at("flags")[0].at("name"), "valid-split");
  const std::string run = out + "/" + results.at("runs")[0].at("folder").get<std::string>();
  EXPECT_EQ(nlohmann::json::parse(read(run + "/config.json")).at("flags").at("split"), "valid");
  // What is wrong with a test split that is there is not passed over.
  fs::create_directories(data + "/test");
  const Ran spoiled = call({"compare", "--data", data, "--out", out + "-2"});
  EXPECT_EQ(spoiled.status, 1);
  EXPECT_NE(spoiled.err.find("/test: is neither folders of classes nor has a list"),
            std::string::npos)
      << spoiled.err;
}

/// Patches are of the middle that the model saw, not of the whole width.
TEST(CompareImages, MapsShowWhatTheModelSaw) {
  const std::string data = pictures("wide", {"train", "test"}, {{28, 84}}),
                    run = folder().file("wide-run");
  for (const char* kind : {"light", "dark"}) {
    foci::data::Image image(28, 84, 3);  // black to both sides
    for (int i = 0; i < 28 * 84; ++i)
      std::fill_n(image.pixels.begin() + i * 3, 3, i % 84 < 22 || i % 84 >= 62 ? 0 : 255);
    for (int i = 0; i < 12; ++i)
      foci::data::write_png(data + "/test/" + kind + "/" + std::to_string(i) + ".png", image);
  }
  const Ran ran = call({"train",   "images", "--data",  data, "--run",     run, "--image", "28",
                        "--patch", "14",     "--dim",   "16", "--depth",   "1", "--heads", "2",
                        "--steps", "1",      "--batch", "8",  "--threads", "2"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto map = foci::cli::compare_maps(run, 1).at("maps").at(0);
  EXPECT_EQ(map.at("side"), 28);
  EXPECT_EQ(map.at("height"), 28);
  EXPECT_EQ(map.at("pixels"), std::string(28 * 28 * 4, '/')) << "white alone";
}

TEST(CompareImages, FaultsOfTheDataAreNoMechanisms) {
  const std::string out = folder().file("fault-out");
  const std::string few = pictures("few", {"train", "test"}, {{28, 28}}, 2);
  const Ran none = call({"compare", "--data", few, "--out", out, "--threads", "2"});
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("\nfoci: dot cannot be trained: 4 images make no step of 16; a smaller "
                          "batch does: --model batch=4\n"),
            std::string::npos)
      << none.err;
  EXPECT_FALSE(fs::exists(out)) << "nothing is in it";
  const Ran mistyped = call({"compare", "--data", few + "s", "--out", out});
  EXPECT_EQ(mistyped.status, 2);
  EXPECT_NE(mistyped.err.find("is no folder and no known set; did you mean few?\n"),
            std::string::npos)
      << mistyped.err;
  const std::string many = pictures("many", {"train", "test"}, {{28, 28}}, 90);
  write(many + "/train/dark/1.png", "no picture");  // not among those that sizes are taken of
  const Ran spoiled = call({"compare", "--data", many, "--out", out, "--threads", "2"});
  EXPECT_EQ(spoiled.status, 1);
  EXPECT_NE(spoiled.err.find("\nfoci: " + many + "/train/dark/1.png: "), std::string::npos)
      << spoiled.err;
}

}  // namespace
