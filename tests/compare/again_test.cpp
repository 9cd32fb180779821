// SPDX-License-Identifier: Apache-2.0
// A comparison once more: by the commands it names, over files that somebody spoiled, on data that
// it makes itself; and single Records of it by foci reproduce.
#include "compare/compared.hpp"

#include "cli/shell_words.hpp"

#include <gtest/gtest.h>

namespace {

using namespace train_test;
using nlohmann::json;

TEST(CompareAgain, ItsCommandsDoItAgain) {
  const json results = results_of(whole());
  EXPECT_EQ(results.at("reproduce"), "foci compare --plan " + whole() + "/plan.json --out again");
  const std::string out = folder().file("it's again");
  Words words = foci::cli::shell_words(results.at("reproduce_flags"));
  ASSERT_EQ(words.front(), "foci");
  words.erase(words.begin());
  const Ran ran = call(words + Words{"--out", out, "--jobs", "2", "--threads", "2"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(values_of(out), values_of(whole()));
  const std::string again = results_of(out).at("reproduce");
  EXPECT_EQ(foci::cli::shell_words(again)[3], out + "/plan.json") << again;
}

/// Files that somebody else wrote, or another version.
TEST(CompareAgain, WhatItsFilesHoldWronglyIsMeasuredAnew) {
  const std::string out = folder().file("spoiled-compare");
  fs::copy(whole(), out, fs::copy_options::recursive);
  const std::string run = out + "/" + results_of(out).at("runs")[0].at("folder").get<std::string>();
  std::string eval;
  for (const auto& entry : fs::directory_iterator(run + "/stages")) {
    if (entry.path().filename().string().starts_with("eval")) eval = entry.path().string();
  }
  json timing = json::parse(read(out + "/timing.json"));
  timing["speeds"]["dot"]["per_second"] = "fast";
  write(out + "/timing.json", timing.dump());
  write(out + "/spent.json", R"({"seconds": "long"})");
  write(eval, R"({"seconds": 1, "records": [{"name": 3}]})");
  const Ran ran = call(small(out));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.err.find(out + "/timing.json: holds no timing; it is measured anew\n"),
            std::string::npos)
      << ran.err;
  EXPECT_NE(ran.err.find(out + "/spent.json: holds no time; it is counted anew\n"),
            std::string::npos)
      << ran.err;
  EXPECT_EQ(values_of(out), values_of(whole()));
}

TEST(CompareAgain, ImagesOfManyTokensHaveNoMapsAndThePageSaysWhy) {
  const std::string out = folder().file("many-tokens");
  const Ran ran = call(small(out) + Words{"--model", "dim=16 depth=1 heads=2 patch=1 batch=2",
                                          "--mechanisms", "dot", "--seeds", "1", "--steps", "1",
                                          "--attack", "none", "--corruptions", "none",
                                          "--measure-samples", "0", "--judge-samples", "2"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json results = results_of(out);
  EXPECT_TRUE(results.at("maps").empty());
  bool said = false;
  for (const json& flag : results.at("flags")) {
    said = said || (flag.at("name") == "no-maps" &&
                    flag.at("means") ==
                        "images have 785 tokens: heat-maps and ellipses are drawn "
                        "of 256 and fewer");
  }
  EXPECT_TRUE(said) << results.at("flags");
}

/// A folder in which "data" is a file, so that nothing can be fetched into it.
std::string poor_place(const std::string& name) {
  const std::string place = folder().file(name);
  fs::create_directories(place);
  write(place + "/data", "no folder");
  return place;
}

Ran call_in(const std::string& place, const Words& words) {
  const fs::path before = fs::current_path();
  fs::current_path(place);
  const Ran ran = call(words);
  fs::current_path(before);
  return ran;
}

/// One mechanism, one step, nothing but its score.
Words least(const std::string& model) {
  return {"compare", "--model", model,  "--mechanisms",      "dot",  "--seeds",
          "1",       "--steps", "1",    "--corruptions",     "none", "--threads",
          "2",       "--jobs",  "1",    "--attack",          "none", "--maps",
          "0",       "--out",   "poor", "--measure-samples", "0"};
}

TEST(CompareAgain, WhereNoImagesCanBeHadTheyAreMadeAndItSaysSo) {
  const std::string place = poor_place("poor");
  const Words words = least("dim=16 depth=1 heads=2 patch=14 batch=20 judge-count=8") +
                      Words{"--judge-samples", "9"};
  const Ran ran = call_in(place, words);
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.err.find("foci: warning: fashion-mnist cannot be had here ("), std::string::npos)
      << ran.err;
  EXPECT_NE(ran.err.find("); the images are synthetic\n"), std::string::npos) << ran.err;
  const json results = results_of(place + "/poor");
  EXPECT_EQ(results.at("flags")[0].at("name"), "made-data");
  EXPECT_EQ(results.at("data").at("name"), "made images");
  EXPECT_EQ(results.at("data").at("made"), true);
  EXPECT_EQ(results.at("title"), "dot on poor/made-images");
  EXPECT_EQ(results.at("plan").at("data"), "poor/made-images");
  EXPECT_TRUE(
      results.at("reproduce_flags")
          .get<std::string>()
          .starts_with(
              "foci data make images --out made-images --count 12000 --seed 1 && foci compare "));
  const Ran again =
      call_in(place, {"compare", "--plan", "poor/plan.json", "--out", "again", "--threads", "2"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(values_of(place + "/again"), values_of(place + "/poor"));
  // Asked for by name it is no other's.
  const Ran asked = call_in(place, words + Words{"--data", "fashion-mnist", "--out", "asked"});
  EXPECT_EQ(asked.status, 1);
  EXPECT_TRUE(asked.err.starts_with("foci: fashion-mnist cannot be had here: ")) << asked.err;
}

TEST(CompareAgain, ExpressionsAreMadeWhereThereAreNone) {
  const std::string place = poor_place("poor-lists");
  const Ran ran =
      call_in(place, least("dim=16 depth=1 heads=2 batch=2") + Words{"--task", "listops"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json results = results_of(place + "/poor");
  EXPECT_EQ(results.at("data").at("path"), "poor/made-listops");
  EXPECT_EQ(results.at("data").at("made"), true);
  EXPECT_EQ(results.at("plan").at("data"), "listops") << "made alike by every call";
  measure(results, "accuracy");
}

TEST(Reproduce, MeasuresAgainAndCompares) {
  const std::string run =
      whole() + "/" + results_of(whole()).at("runs")[0].at("folder").get<std::string>();
  const auto before = times_of(whole());
  const Ran same = run_foci({"reproduce", whole() + "/records.jsonl", "--line", "1", "--json"});
  ASSERT_EQ(same.status, 0) << same.err;
  EXPECT_EQ(same.json().at("same"), true);
  EXPECT_EQ(same.json().at("value"), same.json().at("again"));
  EXPECT_EQ(times_of(whole()), before);  // nothing of it is touched
  std::string lie = read(run + "/records.jsonl");
  auto record = json::parse(lie.substr(0, lie.find('\n')));
  record["value"] = record.at("value").get<double>() + 0.25;
  record["spread"] = nullptr;
  const std::string path = folder().file("lie.jsonl");
  write(path, record.dump() + "\n");
  const Ran differs = run_foci({"reproduce", path});
  EXPECT_EQ(differs.status, 1);
  EXPECT_NE(differs.out.find(" allowed: not the same\n"), std::string::npos) << differs.out;
  EXPECT_EQ(run_foci({"reproduce", path, "--tolerance", "0.3", "--quiet"}).status, 0);
  EXPECT_EQ(run_foci({"reproduce", whole() + "/results.json"}).status, 2);
  const Ran timing =
      run_foci({"reproduce", whole() + "/results.json", "--name", "train_per_second"});
  EXPECT_EQ(timing.status, 1);
  EXPECT_EQ(timing.err.substr(timing.err.find("foci: 'train")),
            "foci: 'train_per_second' is a timing of a comparison, in turn with its other "
            "mechanisms; this times all of them again: foci compare --plan " +
                whole() + "/plan.json --out again\n");
  EXPECT_NE(run_foci({"reproduce", whole() + "/results.json", "--name", "topp1"})
                .err.find("has no Record 'topp1'; did you mean top1?"),
            std::string::npos);
}

TEST(Reproduce, TrainsInAsManyProcessesAsTheRecordSays) {
  const std::string run = folder().file("launched");
  Words words = tiny(run);
  words = Words{"launch", "-n", "2", "--"} + words;
  const Ran ran = run_foci(words);
  ASSERT_EQ(ran.status, 0) << ran.err;
  const std::string records = run + "/records.jsonl";
  ASSERT_NE(read(records).find("foci launch -n 2 -- train images "), std::string::npos);
  const Ran again = run_foci({"reproduce", records, "--name", "top1", "--json"});
  ASSERT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(again.json().at("same"), true);
}

}  // namespace
