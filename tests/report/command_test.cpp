// SPDX-License-Identifier: Apache-2.0
// foci measure --pictures: what it draws of runs of images and of text, and what it refuses.
#include "report/well_formed.hpp"
#include "train/child.hpp"

#include <gtest/gtest.h>

#include <set>

namespace {

using namespace train_test;

const std::string& run_of(const std::string& metric) {
  static std::map<std::string, std::string> runs;
  if (runs.count(metric) == 0) {
    const std::string path = folder().file("pictured-" + metric);
    Words words = tiny(path);
    *std::find(words.begin(), words.end(), "layer-change") = metric;
    const Ran ran = call(words);
    EXPECT_EQ(ran.status, 0) << ran.err;
    runs[metric] = path;
  }
  return runs.at(metric);
}

Words measure(const std::string& run, const std::string& out, const Words& more = {}) {
  const Words base = {"measure",         run,     "--samples",        "3",
                      "--closely",       "2",     "--threads",        "1",
                      "--json",          "--out", folder().file(out), "--pictures",
                      folder().file(out)};
  return base + more;
}

/// The names of the files, all there and none broken.
std::set<std::string> drawn(const Ran& ran, const std::string& out) {
  std::set<std::string> names;
  EXPECT_EQ(ran.status, 0) << ran.err;
  if (ran.status != 0) return names;
  const std::string base = folder().file(out) + "/";
  const nlohmann::json paths = ran.json().at("pictures");
  for (const auto& path : paths) {
    const std::string file = path;
    EXPECT_TRUE(file.starts_with(base)) << file;
    names.insert(file.substr(base.size()));
    const std::string bytes = read(file);
    EXPECT_FALSE(bytes.empty()) << file;
    EXPECT_EQ(file.ends_with(".svg") ? foci::xml_fault(bytes) : "", "") << file;
    EXPECT_EQ(file.ends_with(".png"), bytes.starts_with("\x89PNG")) << file;
  }
  return names;
}

double sum(const nlohmann::json& numbers) {
  double total = 0;
  for (const double x : numbers) total += x;
  return total;
}

TEST(MeasurePictures, OfAnImage) {
  const Ran ran =
      call(measure(run_of("layer-change"), "of-image",
                   {"--sample", "3", "--in-layer", "1", "--head", "1", "--query", "2"}));
  EXPECT_EQ(drawn(ran, "of-image"),
            (std::set<std::string>{"layers.svg", "collapse.svg", "heat.svg", "heat.png",
                                   "heads.svg", "heads.png", "ellipse.svg", "pictures.json"}));
  const auto json = nlohmann::json::parse(read(folder().file("of-image/pictures.json")));
  EXPECT_EQ(json.at("metric"), "layer-change");
  EXPECT_EQ(json.at("image").at("pixels").size(), 28u * 28);
  EXPECT_EQ(json.at("heat").at("rows"), 2);
  EXPECT_EQ(json.at("heat").at("query"), (std::vector<int>{0, 1})) << "token 2 is the second patch";
  const auto& heats = json.at("heat").at("heats");
  ASSERT_EQ(heats.size(), 3u);
  EXPECT_EQ(heats[0].at("name"), "under dot");
  EXPECT_EQ(heats[1].at("name"), "layer-change");
  EXPECT_NE(heats[0].at("weights"), heats[1].at("weights"));
  for (const auto& heat : heats) {
    EXPECT_EQ(heat.at("weights").size(), 4u);
    EXPECT_GT(sum(heat.at("weights")), 0);
    EXPECT_LT(sum(heat.at("weights")), 1) << "the class token has some";
  }
  const auto& planes = json.at("planes");
  ASSERT_EQ(planes.size(), 2u);
  EXPECT_EQ(planes[0].at("x_name"), planes[1].at("x_name")) << "dot in the metric's plane";
  EXPECT_EQ(planes[1].at("weights").size(), 5u);
  EXPECT_NEAR(sum(planes[1].at("weights")), 1, 1e-5);
}

TEST(MeasurePictures, EveryFlagChangesThem) {
  const auto told = [&](const Words& more) {
    const Ran ran = call(measure(run_of("layer-change"), "changed", more));
    EXPECT_EQ(ran.status, 0) << ran.err;
    return nlohmann::json::parse(read(folder().file("changed/pictures.json"))).at("heat");
  };
  const auto usual = told({});
  EXPECT_FALSE(usual.contains("query")) << "the class token is no patch";
  EXPECT_EQ(told({}), usual);
  for (const Words& more :
       {Words{"--sample", "1"}, {"--in-layer", "0"}, {"--head", "0"}, {"--query", "1"}})
    EXPECT_NE(told(more), usual) << more[0];
}

/// Of made streets: one block below, and a mask transformer over the same patches.
const std::string& segmenter() {
  static const std::string run = [] {
    const std::string streets = folder().file("streets"), path = folder().file("pictured-streets");
    EXPECT_EQ(call({"data", "make", "streets", "--out", streets, "--count", "10"}).status, 0);
    const Ran ran = call({"train",     "segments", "--data",  streets,    "--run",
                          path,        "--image",  "24",      "--patch",  "6",
                          "--dim",     "16",       "--depth", "1",        "--heads",
                          "2",         "--batch",  "2",       "--steps",  "2",
                          "--threads", "1",        "--quiet", "--metric", "key-covariance"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    return path;
  }();
  return run;
}

TEST(MeasurePictures, OfASegmenter) {
  const auto names = drawn(call(measure(segmenter(), "of-streets")), "of-streets");
  EXPECT_EQ(names, (std::set<std::string>{"layers.svg", "collapse.svg", "heat.svg", "heat.png",
                                          "heads.svg", "heads.png", "classes.svg", "classes.png",
                                          "ellipse.svg", "pictures.json"}));
  const auto json = nlohmann::json::parse(read(folder().file("of-streets/pictures.json")));
  EXPECT_EQ(json.at("image").at("pixels").size(), 24u * 24 * 3) << "what the pass saw";
  EXPECT_EQ(json.at("layer"), 0) << "the encoder's top one";
  EXPECT_EQ(json.at("metric"), "key-covariance");
  EXPECT_EQ(json.at("heat").at("query"), (std::vector<int>{2, 2}));
  const auto& heats = json.at("heat").at("heats");
  ASSERT_EQ(heats.size(), 3u);
  EXPECT_EQ(heats[2].at("name"), "rollout");
  for (const auto& heat : heats) EXPECT_EQ(heat.at("weights").size(), 16u);
  EXPECT_NE(heats[0].at("weights"), heats[1].at("weights")) << "dot beside the metric";
  EXPECT_GT(sum(heats[2].at("weights")), 0.5);
  EXPECT_LT(sum(heats[2].at("weights")), 1) << "class tokens of both halves have some";
  const auto& classes = json.at("classes");
  ASSERT_GE(classes.size(), 1u);
  EXPECT_EQ(classes[0].at("name"), "dot") << "the mask transformer's own";
  for (const auto& heat : classes[0].at("heats")) EXPECT_EQ(heat.at("weights").size(), 16u);
}

/// The token of a class stands behind the patches of the mask transformer.
TEST(MeasurePictures, OfAClassOfASegmenter) {
  const Ran ran =
      call(measure(segmenter(), "of-class",
                   {"--in-layer", "2", "--query", "17", "--head", "1", "--beside", segmenter()}));
  const auto names = drawn(ran, "of-class");
  EXPECT_TRUE(names.contains("classes.svg") && names.contains("1/classes.png"));
  EXPECT_NE(read(folder().file("of-class/0/heat.svg")).find("query 17 (class building)"),
            std::string::npos);
  const auto json = nlohmann::json::parse(read(folder().file("of-class/0/pictures.json")));
  EXPECT_FALSE(json.at("heat").contains("query")) << "no patch";
  const auto& heats = json.at("heat").at("heats");
  ASSERT_EQ(heats.size(), 2u);
  EXPECT_EQ(heats[1].at("name"), "rollout") << "through the mask transformer into the encoder";
  EXPECT_GT(sum(heats[1].at("weights")), 0.1);
  EXPECT_LT(sum(heats[1].at("weights")), 0.9) << "the token itself begins above the encoder";
  bool found = false;
  for (const auto& heat : json.at("classes").at(0).at("heats")) {
    if (heat.at("name") != "building") continue;
    found = true;
    EXPECT_EQ(heat.at("weights"), heats[0].at("weights"));
  }
  EXPECT_TRUE(found) << "every street has buildings";
}

TEST(MeasurePictures, OfSeveralRuns) {
  const Ran ran = call(measure(run_of("key-covariance"), "several",
                               {"--beside", run_of("layer-change"), "--query", "1"}));
  const auto names = drawn(ran, "several");
  for (const char* name : {"heat.svg", "heat.png", "ellipse.svg", "collapse.svg",
                           "concentration.svg", "0/heat.svg", "1/heat.svg"})
    EXPECT_TRUE(names.contains(name)) << name;
  const std::string lines = read(folder().file("several/collapse.svg"));
  for (const char* kind : {">key-covariance</text>", ">layer-change</text>"})
    EXPECT_NE(lines.find(kind), std::string::npos) << kind;
  const std::string strip = read(folder().file("several/heat.svg"));
  EXPECT_NE(strip.find("pictured-key-covariance"), std::string::npos);
  EXPECT_NE(strip.find("pictured-layer-change"), std::string::npos);
}

TEST(MeasurePictures, OfAText) {
  write(folder().file("pictured.txt"), [] {
    std::string text;
    for (int i = 0; i < 400; ++i) text += i % 3 == 0 ? "one two\n" : "three <&> four\n";
    return text;
  }());
  const std::string run = folder().file("pictured-text");
  const Ran trained =
      call({"train",         "text",      "--data",    folder().file("pictured.txt"),
            "--run",         run,         "--model",   "language_micro",
            "--dim",         "16",        "--depth",   "2",
            "--heads",       "2",         "--context", "12",
            "--batch",       "4",         "--steps",   "2",
            "--quiet",       "--threads", "1",         "--metric",
            "key-covariance"});
  ASSERT_EQ(trained.status, 0) << trained.err;
  const auto names = drawn(call(measure(run, "of-text", {"--query", "6"})), "of-text");
  EXPECT_EQ(names, (std::set<std::string>{"layers.svg", "collapse.svg", "ellipse.svg", "tokens.svg",
                                          "text.svg", "pictures.json"}));
  const std::string map = read(folder().file("of-text/tokens.svg"));
  EXPECT_NE(map.find(">three</text>"), std::string::npos) << map;
  EXPECT_NE(map.find("&lt;&amp;&gt;"), std::string::npos);
}

TEST(MeasurePictures, MistakesAreOneLine) {
  const std::string& run = run_of("layer-change");
  const struct {
    Words more;
    int status;
    const char* says;
  } mistakes[] = {
      {{"--sample", "48"}, 2, "--sample 48 is none of the 48 images"},
      {{"--in-layer", "2"}, 2, "--in-layer 2 is none of 2; they count from 0"},
      {{"--head", "2"}, 2, "--head 2 is none of 2"},
      {{"--query", "5"}, 2, "--query 5 is none of 5"},
      {{"--query", "x"}, 2, "--query"},
  };
  for (const auto& mistake : mistakes) {
    const Ran ran = call(measure(run, "mistakes", mistake.more));
    EXPECT_EQ(ran.status, mistake.status) << ran.err;
    EXPECT_NE(ran.err.find(mistake.says), std::string::npos) << ran.err;
  }
  const Ran alone = call({"measure", run, "--samples", "1", "--query", "1"});
  EXPECT_EQ(alone.status, 2);
  EXPECT_NE(alone.err.find("--query is for --pictures FOLDER"), std::string::npos) << alone.err;
  write(folder().file("in-the-way"), "x");
  Words blocked = measure(run, "mistakes");
  blocked.back() = folder().file("in-the-way");
  EXPECT_EQ(call(blocked).status, 1);
}

}  // namespace
