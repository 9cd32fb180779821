// SPDX-License-Identifier: Apache-2.0
// foci report over runs that were looked at in other ways since they were trained, and over the
// folder of a comparison; foci reproduce where several Records have the name.
#include "compare/compared.hpp"

namespace {

using namespace train_test;
using nlohmann::json;

/// A folder as a comparison's: two runs below runs/. Made once.
const std::string& two_runs() {
  static const std::string path = [] {
    const std::string out = folder().file("two");
    fs::create_directories(out + "/runs");
    for (const char* metric : {"dot", "random"}) {
      const Ran ran = call(tiny(out + "/runs/" + metric) + Words{"--metric", metric});
      EXPECT_EQ(ran.status, 0) << ran.err;
    }
    return out;
  }();
  return path;
}

/// The first Record of that name, a little other.
void add_record(const std::string& run, const std::string& name, const json& change) {
  std::istringstream lines(read(run + "/records.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    json record = json::parse(line);
    if (record.at("name") != name) continue;
    record.update(change);
    write(run + "/records.jsonl", read(run + "/records.jsonl") + record.dump() + "\n");
    return;
  }
  FAIL() << run << " has no Record " << name;
}

TEST(Report, OfAComparisonsFolderIsOfItsRuns) {
  const std::string out = folder().file("of-two");
  const Ran ran = call({"report", two_runs() + "/", "--out", out});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(results_of(out).at("mechanisms").size(), 2u);
}

TEST(Report, RecordsOverOtherDataAreLeftAside) {
  const std::string run = folder().file("harmed"), out = folder().file("of-harmed");
  fs::copy(two_runs() + "/runs/dot", run, fs::copy_options::recursive);
  const std::string other(64, 'f');
  add_record(run, "top1",
             {{"value", 0.0123}, {"data_sha256", other}, {"command", "foci eval harmed"}});
  const Ran ran = call({"report", run, two_runs() + "/runs/random", "--out", out});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.err.find(run + ": 1 Record over other data left aside"), std::string::npos)
      << ran.err;
  const json results = results_of(out);
  EXPECT_EQ(results.at("flags")[0].at("name"), "other-data");
  EXPECT_NE(measure(results, "top1").at("values").at("dot")[0], 0.0123);
}

/// Runs with these Records, each judged in its own way; what `foci report` says of them.
Ran reported(const std::vector<std::pair<std::string, json>>& changes, const std::string& name) {
  Words words = {"report", "--out", folder().file("of-" + name)};
  int i = 0;
  for (const auto& [metric, change] : changes) {
    const std::string run = folder().file(name + std::to_string(i++));
    fs::copy(two_runs() + "/runs/" + metric, run, fs::copy_options::recursive);
    if (!change.is_null()) add_record(run, "top1", change);
    words.push_back(run);
  }
  return call(words);
}

TEST(Report, NumbersOverOtherSamplesAreNotHeldAgainstEachOther) {
  const json few = {{"name", "top5"}, {"value", 0.5}, {"n", 10}, {"command", "foci eval x"}};
  json many = few;
  many["n"] = 48;
  const Ran ran = reported({{"dot", few}, {"random", many}}, "counted");
  ASSERT_EQ(ran.status, 0) << ran.err;
  const std::string a = folder().file("counted0"), b = folder().file("counted1");
  const json results = results_of(folder().file("of-counted"));
  for (const json& flag : results.at("flags"))
    EXPECT_NE(flag.at("name"), "measured-otherwise") << "training judged both: " << flag;

  json attacked = {{"name", "robust linf 1/255"},
                   {"value", 0.5},
                   {"n", 64},
                   {"command", "foci attack x --attack pgd --iterations 5 --out y --seed 3"}};
  json otherwise = attacked;
  otherwise["n"] = 6;
  otherwise["command"] = "foci attack z --attack apgd-ce,square --out w";
  const Ran apart = reported({{"dot", attacked}, {"random", otherwise}}, "apart");
  ASSERT_EQ(apart.status, 0) << apart.err;
  const std::string why =
      "left out, not measured alike: robust linf 1/255 (over 64 samples by foci attack --attack "
      "pgd --iterations 5 in " +
      folder().file("apart0") + ", over 6 samples by foci attack --attack apgd-ce,square in " +
      folder().file("apart1") + ")\n";
  EXPECT_NE(apart.err.find(why), std::string::npos) << apart.err;
  const json left = results_of(folder().file("of-apart"));
  EXPECT_EQ(left.at("flags")[0].at("name"), "measured-otherwise");
  for (const json& one : left.at("measures")) EXPECT_NE(one.at("name"), "robust linf 1/255");

  otherwise["n"] = 64;  // now only folder, seed and what says nothing of the value are others
  otherwise["command"] = "foci attack z --iterations 5 --attack pgd --seed 9 --check 0 --count 64";
  const Ran alike = reported({{"dot", attacked}, {"random", otherwise}}, "alike");
  ASSERT_EQ(alike.status, 0) << alike.err;
  EXPECT_EQ(alike.err.find("not measured alike"), std::string::npos) << alike.err;
  measure(results_of(folder().file("of-alike")), "robust linf 1/255");
}

/// A run whose Records of attacks are these alone; what `foci report` makes of it.
json of_attacks(const std::vector<json>& changes, const std::string& name) {
  const std::string run = folder().file(name), out = folder().file("of-" + name);
  fs::copy(two_runs() + "/runs/dot", run, fs::copy_options::recursive);
  for (const json& change : changes) add_record(run, "top1", change);
  const Ran ran = call({"report", run, two_runs() + "/runs/random", "--out", out});
  EXPECT_EQ(ran.status, 0) << ran.err;
  return results_of(out);
}

json attacked(const std::string& name, int n, double value, const std::string& more = "") {
  return {{"name", name}, {"value", value}, {"n", n}, {"command", "foci attack x" + more}};
}

TEST(Report, AttacksTowardsAClassAreNoRobustAccuracy) {
  const std::string name = "robust linf 1/255";
  const json results =
      of_attacks({attacked("clean", 6, 0.5), attacked(name, 6, 0.25),
                  attacked("clean", 6, 0.875, " --goal 3"), attacked(name, 6, 0.75, " --goal 3")},
                 "targeted");
  EXPECT_EQ(measure(results, name).at("values").at("dot")[0], 0.25);
  EXPECT_EQ(measure(results, "clean").at("values").at("dot")[0], 0.5);
  EXPECT_EQ(results.at("flags")[0].at("name"), "targeted");
  EXPECT_NE(results.at("flags")[0].at("means").get<std::string>().find("2 Records of attacks"),
            std::string::npos);
}

TEST(Report, WhatStandsBeforeAnAttackIsOfItsImages) {
  const std::vector<json> same = {attacked("clean", 6, 0.5), attacked("robust linf 1/255", 6, 0.25),
                                  attacked("robust linf 2/255", 6, 0.125)};
  std::vector<json> others = same;
  others[2]["n"] = 8;
  const auto has_clean = [](const json& results) {
    bool found = false;
    for (const json& one : results.at("measures")) found = found || one.at("name") == "clean";
    return found;
  };
  const auto eps = [](const json& results) {
    return results.at("curves").at("robustness")[0].at("eps");
  };
  const json alike = of_attacks(same, "same-images"), apart = of_attacks(others, "other-images");
  EXPECT_TRUE(has_clean(alike));
  EXPECT_EQ(eps(alike), json({0, 1, 2}));
  EXPECT_FALSE(has_clean(apart));
  EXPECT_EQ(eps(apart), json({1, 2}));
}

TEST(Report, TheNewestThatAllRunsHaveIsCompared) {
  const json own = json::parse("{}");
  const json few = {{"value", 0.0123}, {"n", 10}, {"command", "foci eval x --count 10"}};
  const Ran ran = reported({{"dot", few}, {"random", own}}, "newest");
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json top1 = measure(results_of(folder().file("of-newest")), "top1");
  EXPECT_EQ(top1.at("n"), 48);
  EXPECT_NE(top1.at("values").at("dot")[0], 0.0123) << "over 10 images, where random has 48";
}

TEST(Report, RunsOfTwoSplitsAreRefused) {
  const std::string run = folder().file("valid-run");
  fs::copy(two_runs() + "/runs/random", run, fs::copy_options::recursive);
  json config = json::parse(read(run + "/config.json"));
  config["flags"]["split"] = "valid";
  write(run + "/config.json", config.dump());
  const std::string dot = two_runs() + "/runs/dot";
  const std::string says = "foci: " + run + " is judged by the valid split, " + dot +
                           " by test: they cannot stand side by side\n";
  const Ran report = call({"report", dot, run, "--out", folder().file("of-splits")});
  EXPECT_EQ(report.status, 1);
  EXPECT_EQ(report.err, says);
  const Ran compared =
      call({"compare", "--checkpoint", dot + "," + run, "--out", folder().file("taken-splits")});
  EXPECT_EQ(compared.status, 1);
  EXPECT_EQ(compared.err, says);
}

TEST(Reproduce, SaysWhichOfSeveralItTook) {
  const std::string run = folder().file("twice-judged");
  fs::copy(two_runs() + "/runs/dot", run, fs::copy_options::recursive);
  add_record(run, "top1", {{"value", 7}});
  const Ran ran = run_foci({"reproduce", run + "/records.jsonl", "--name", "top1"});
  EXPECT_EQ(ran.status, 1) << "7 is no share of images";
  EXPECT_NE(ran.err.find("the last of 2 Records named top1, line "), std::string::npos) << ran.err;
}

}  // namespace
