// SPDX-License-Identifier: Apache-2.0
// foci compare end to end on made images: what it writes, what it does not do twice, what a kill
// costs, what it refuses. foci report over what it left.
#include "compare/compared.hpp"

#include "cli/shell_words.hpp"

#include <foci/record.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <thread>

namespace {

using namespace train_test;
using nlohmann::json;

TEST(Compare, WritesWhatItMeasured) {
  const json results = results_of(whole());
  EXPECT_EQ(results.at("schema"), 1);
  EXPECT_EQ(results.at("state"), "done");
  EXPECT_EQ(results.at("task"), "images");
  EXPECT_EQ(results.at("seeds"), json({0, 1}));
  EXPECT_EQ(results.at("demonstration"), true);
  EXPECT_EQ(results.at("data").at("classes"), 4);
  EXPECT_EQ(results.at("data").at("train"), 240);
  EXPECT_GT(results.at("model").at("parameters").get<int>(), 1000);
  EXPECT_EQ(results.at("mechanisms")[0].at("baseline"), true);
  EXPECT_EQ(results.at("runs").size(), 4u);
  for (const json& run : results.at("runs")) {
    EXPECT_EQ(run.at("state"), "done");
    EXPECT_TRUE(fs::exists(whole() + "/" + run.at("folder").get<std::string>() + "/config.json"));
  }
  const json top1 = measure(results, "top1");
  EXPECT_EQ(top1.at("n"), 48);
  EXPECT_EQ(top1.at("group"), "accuracy");
  EXPECT_EQ(top1.at("values").at("dot").size(), 2u);
  EXPECT_EQ(top1.at("against").at("layer-change").at("verdict"), "unknown");
  EXPECT_EQ(top1.at("against").at("layer-change").at("words"), "2 seeds cannot tell; 3 can");
  EXPECT_FALSE(top1.at("against").contains("dot"));
  EXPECT_EQ(measure(results, "robust linf 1/255").at("n"), 6);
  EXPECT_EQ(measure(results, "clean").at("n"), 6);
  EXPECT_EQ(measure(results, "clean").at("mean").at("dot"),
            results.at("curves").at("robustness")[0].at("mean").at("dot")[0]);
  EXPECT_EQ(measure(results, "accuracy_fog_3").at("n"), 12);
  const double mean = measure(results, "corruption_mean").at("mean").at("dot");
  const double fog = measure(results, "accuracy_fog_3").at("mean").at("dot"),
               contrast = measure(results, "accuracy_contrast_3").at("mean").at("dot");
  EXPECT_NEAR(mean, (fog + contrast) / 2, 1e-12);
  EXPECT_GT(measure(results, "train_per_second").at("mean").at("dot").get<double>(), 1);
  EXPECT_GT(measure(results, "peak_mebibytes").at("mean").at("dot").get<double>(), 1);
  EXPECT_EQ(results.at("curves").at("training").at("dot")[0].at("step"), json({1, 2, 3, 4}));
  const json& robust = results.at("curves").at("robustness");
  ASSERT_EQ(robust.size(), 2u);  // after the first attack, and after all
  EXPECT_EQ(robust[0].at("eps"), json({0, 1, 2}));
  EXPECT_EQ(robust[0].at("unit"), "/255");
  ASSERT_EQ(results.at("layers")[0].at("name"), "concentration");
  EXPECT_EQ(results.at("layers")[0].at("values").at("dot")[0].size(), 2u);  // of two layers
  ASSERT_EQ(results.at("maps").size(), 3u);
  EXPECT_EQ(results.at("maps")[0].at("tokens"), 5);
  const json& weights = results.at("maps")[0].at("weights");
  EXPECT_EQ(weights.at("layer-change").at("data").get<std::string>().size(), 136u);  // 2*2*5*5
  EXPECT_EQ(weights.size(), 2u);
  ASSERT_EQ(results.at("ellipses").size(), 4u);
  for (int layer = 0; layer < 2; ++layer) {
    const json &dot = results.at("ellipses")[layer], &other = results.at("ellipses")[layer + 2];
    EXPECT_EQ(dot.at("axes"), other.at("axes")) << "panels of one layer show one pair";
    EXPECT_EQ(other.at("keys").size(), 5u);
    EXPECT_FALSE(dot.contains("space"));
  }
  EXPECT_NE(read(whole() + "/report.html").find("<!doctype html"), std::string::npos);
  EXPECT_EQ(results.at("curves").at("corruptions").size(), 2u);
}

TEST(Compare, DrawsEachFigure) {
  const json results = results_of(whole());
  for (const json& figure : results.at("figures"))
    EXPECT_TRUE(fs::exists(whole() + "/" + figure.at("file").get<std::string>())) << figure;
  std::set<std::string> files;
  for (const json& figure : results.at("figures")) files.insert(figure.at("file"));
  for (const char* name : {"robustness", "robustness-2", "heat-maps", "ellipses-0", "ellipses-1"})
    EXPECT_TRUE(files.contains(std::string("figures/") + name + ".svg")) << name;
}

TEST(Compare, WritesTablesAndRecords) {
  const std::string csv = read(whole() + "/results.csv");
  EXPECT_TRUE(csv.starts_with("measure,mechanism,seed,value,unit,n,group,flags\ntop1,dot,0,"))
      << csv;
  const auto records = foci::read_records(whole() + "/records.jsonl");
  EXPECT_GT(records.size(), 30u);
  const auto eval = std::count_if(records.begin(), records.end(), [](const auto& record) {
    return record.name == "top1" && record.command.starts_with("foci eval ") && record.n == 48;
  });
  EXPECT_EQ(eval, 4);
}

TEST(Compare, ASecondCallDoesNothingAgain) {
  const auto before = times_of(whole());
  const std::string results = read(whole() + "/results.json");
  const Ran ran = call(small(whole()));
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.out.find("4 runs, all there already, "), std::string::npos) << ran.out;
  EXPECT_EQ(times_of(whole()), before);
  EXPECT_TRUE(read(whole() + "/results.json") == results);
}

TEST(Compare, AChangedPlanRedoesWhatChanged) {
  const std::string out = folder().file("changed");
  fs::copy(whole(), out, fs::copy_options::recursive);
  const auto before = times_of(out);
  const auto kept = [&](const std::string& part) {
    const auto after = times_of(out);
    return std::all_of(before.begin(), before.end(), [&](const std::string& file) {
      return file.find(part) == file.npos || after.contains(file);
    });
  };
  // More images under corruption: training, judging and attacking stay.
  const Ran more = call(small(out) + Words{"--corrupt-samples", "16"});
  ASSERT_EQ(more.status, 0) << more.err;
  EXPECT_EQ(measure(results_of(out), "accuracy_fog_3").at("n"), 16);
  EXPECT_TRUE(kept("/stages/") && kept("/checkpoints/") && kept("/right-eval.json"));
  EXPECT_FALSE(kept("/right-corrupt.json"));
  // One more mechanism: a run for each seed of it, and no other.
  const Ran third =
      call(small(out) + Words{"--corrupt-samples", "16", "--mechanisms", "dot,layer-change,flat"});
  ASSERT_EQ(third.status, 0) << third.err;
  EXPECT_EQ(results_of(out).at("runs").size(), 6u);
  EXPECT_TRUE(kept("/stages/") && kept("/checkpoints/"));
  // Speeds are of turns in which all were timed.
  const json speeds = json::parse(read(out + "/timing.json")).at("speeds"),
             alone = json::parse(read(whole() + "/timing.json")).at("speeds");
  EXPECT_EQ(speeds.at("flat").at("round"), speeds.at("dot").at("round"));
  EXPECT_EQ(speeds.at("flat").at("round"), speeds.at("layer-change").at("round"));
  EXPECT_NE(speeds.at("dot").at("round"), alone.at("dot").at("round"));
  // Other words of the model: all anew, beside what was there.
  const Ran other = call(small(out) + Words{"--mechanisms", "dot", "--seeds", "1", "--steps", "2"});
  ASSERT_EQ(other.status, 0) << other.err;
  EXPECT_EQ(results_of(out).at("runs").size(), 1u);
  EXPECT_EQ(results_of(out).at("verdict").at("headline"),
            "dot alone: there is nothing to compare it with.");
  EXPECT_TRUE(
      other.err.starts_with("compare: dot alone: there will be nothing to compare it with; "
                            "--mechanisms names several, with commas\n"))
      << other.err;
  EXPECT_TRUE(kept("/stages/") && kept("/checkpoints/"));
}

TEST(Compare, AKillForgetsNoTime) {
  const std::string out = folder().file("timed-compare"), spent = out + "/spent.json";
  const pid_t child = start(small(out), "timed-compare");
  while (!fs::exists(spent) && !has_ended(child))
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  ::kill(child, SIGKILL);
  ASSERT_EQ(finish(child, "timed-compare").status, -SIGKILL) << "it ended before it was killed";
  const double before = json::parse(read(spent)).at("seconds").get<double>();
  EXPECT_GT(before, 0);
  ASSERT_EQ(call(small(out)).status, 0);
  EXPECT_GT(results_of(out).at("seconds").get<double>(), before);
}

/// Files at any depth; some come and go while they are counted.
std::size_t files_in(const std::string& out) {
  std::size_t count = 0;
  std::error_code gone;
  fs::recursive_directory_iterator file(out, gone);
  for (; !gone && file != fs::recursive_directory_iterator(); file.increment(gone)) ++count;
  return count;
}

TEST(Compare, KilledAtAnyMomentItEndsTheSame) {
  const std::string out = folder().file("killed-compare");
  // At the first new files of each life, so many each time; one that is done was too fast.
  for (int killed = 0; killed < 4;) {
    const pid_t child = start(small(out), "killed-compare");
    const std::size_t wanted = files_in(out) + 1 + 7 * std::size_t(killed);
    while (files_in(out) < wanted && !has_ended(child)) ::usleep(1000);
    ::kill(child, SIGKILL);
    const Ran ran = finish(child, "killed-compare");
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // its forks end with it
    if (ran.status == -SIGKILL) {
      ++killed;
      continue;
    }
    ASSERT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(values_of(out), values_of(whole()));
    fs::remove_all(out);
  }
  const Ran ran = call(small(out));
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(values_of(out), values_of(whole()));
}

TEST(Compare, AFailedRunIsNamedAndTheOthersGoOn) {
  const std::string out = folder().file("failing");
  ASSERT_EQ(call(small(out) + Words{"--mechanisms", "dot"}).status, 0);
  // A file where the folder of one run's checkpoints would be.
  const Ran plan = call(small(out) + Words{"--steps", "3", "--mechanisms", "dot", "--seeds", "1"});
  ASSERT_EQ(plan.status, 0) << plan.err;
  const std::string run = out + "/" + results_of(out).at("runs")[0].at("folder").get<std::string>();
  fs::remove_all(run);
  fs::create_directories(run);
  write(run + "/checkpoints", "in the way");
  const Ran ran = call(small(out) + Words{"--steps", "3", "--mechanisms", "dot"});
  EXPECT_EQ(ran.status, 1);
  EXPECT_NE(ran.err.find(" failed: "), std::string::npos) << ran.err;
  EXPECT_NE(ran.out.find("2 runs, 1 failed, 3 steps each"), std::string::npos) << ran.out;
  const json runs = results_of(out).at("runs");
  EXPECT_EQ(runs[0].at("state"), "failed");
  EXPECT_NE(runs[0].at("error"), "");
  EXPECT_EQ(runs[1].at("state"), "done");
  EXPECT_TRUE(measure(results_of(out), "top1").at("values").at("dot")[0].is_null());
}

TEST(Compare, TwoInOneFolderAreRefused) {
  const std::string out = folder().file("locked");
  const pid_t child = start(small(out) + Words{"--steps", "4000"}, "first");
  for (int i = 0; i < 9000 && !fs::exists(out + "/results.json"); ++i) ::usleep(10000);
  const Ran ran = call(small(out));
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(ran.err, "foci: " + out + ": another foci compare is at work in it\n");
  ::kill(child, SIGTERM);
  const Ran first = finish(child, "first");
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_NE(first.out.find(": stopped; the same command goes on (0 of 4 runs are done)\n"),
            std::string::npos)
      << first.out;
  EXPECT_EQ(results_of(out).at("state"), "stopped");
  for (const json& run : results_of(out).at("runs")) EXPECT_EQ(run.at("state"), "waiting") << run;
}

TEST(Compare, ToldToStopWhileItJudgesNothingHasFailed) {
  const std::string out = folder().file("stopped-attack");
  const pid_t child = start(small(out) + Words{"--iterations", "200000"}, "stopped-attack");
  const auto attacks = [&] {
    if (!fs::exists(out + "/results.json")) return false;
    const json runs = json::parse(read(out + "/results.json"), nullptr, false);
    if (!runs.is_object()) return false;
    return std::any_of(runs.at("runs").begin(), runs.at("runs").end(),
                       [](const json& run) { return run.at("stage") == "attacking"; });
  };
  for (int i = 0; i < 3000 && !attacks(); ++i) ::usleep(10000);
  ASSERT_TRUE(attacks());
  ::kill(child, SIGINT);
  const Ran ran = finish(child, "stopped-attack");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.err.find("failed"), std::string::npos) << ran.err;
  EXPECT_NE(ran.out.find(": stopped; the same command goes on (0 of 4 runs are done)\n"),
            std::string::npos)
      << ran.out;
  for (const json& run : of_results(out, "runs")) EXPECT_EQ(run.at("state"), "waiting") << run;
}

TEST(Compare, TrainedRunsAreTakenAsTheyAre) {
  std::vector<std::string> runs;
  for (const char* metric : {"dot", "layer-change"}) {
    runs.push_back(folder().file(std::string("trained-") + metric));
    ASSERT_EQ(call(tiny(runs.back()) + Words{"--metric", metric}).status, 0);
  }
  const std::string records = read(runs[0] + "/records.jsonl"), out = folder().file("taken");
  const Ran ran =
      call({"compare", "--checkpoint", runs[0] + "," + runs[1] + "/", "--attack", "none",
            "--corruptions", "fog", "--corrupt-samples", "10", "--out", out, "--threads", "2"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(results_of(out).at("data").at("path"), images()) << "what they were trained on";
  EXPECT_EQ(ran.out.find("steps each"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("A demonstration: 1 seed, where 10 are the least.\n"), std::string::npos)
      << ran.out;
  EXPECT_EQ(results_of(out).at("mechanisms").size(), 2u);
  EXPECT_TRUE(measure(results_of(out), "top1").at("values").at("dot")[0].is_number());
  EXPECT_EQ(read(runs[0] + "/records.jsonl"), records);
  EXPECT_FALSE(fs::exists(runs[0] + "/stages"));
}

TEST(Compare, RunsOfAComparisonAreTakenAsWell) {
  const auto before = times_of(whole());
  std::string runs;
  for (const json& run : of_results(whole(), "runs"))
    runs += (runs.empty() ? "" : ",") + whole() + "/" + run.at("folder").get<std::string>();
  const std::string out = folder().file("taken-again");
  const Ran ran = call({"compare", "--checkpoint", runs, "--data", images(), "--attack", "none",
                        "--corruptions", "none", "--out", out, "--threads", "2"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(measure(results_of(out), "top1").at("values"),
            measure(results_of(whole()), "top1").at("values"));
  for (const char* command : {"reproduce", "reproduce_flags"}) {
    Words again = foci::cli::shell_words(results_of(out).at(command));
    again.erase(again.begin());
    const std::string other = folder().file(std::string("taken-") + command);
    const Ran redone = call(again + Words{"--out", other, "--threads", "2"});
    ASSERT_EQ(redone.status, 0) << redone.err;
    EXPECT_EQ(values_of(other), values_of(out));
  }
  EXPECT_EQ(times_of(whole()), before);
}

TEST(Compare, APlanIsReadAndWritten) {
  const std::string plan = folder().file("plan.json"), out = folder().file("planned");
  write(plan, R"({"data": ")" + images() + R"(", "mechanisms": ["dot", "dot:form=distance"],
    "seeds": 1, "steps": 2, "attack": "none", "corruptions": "none",
    "train": {"dim": 16, "depth": 2, "heads": 2, "patch": 14, "batch": 20}})");
  ASSERT_EQ(call({"compare", "--plan", plan, "--out", out, "--threads", "2"}).status, 0);
  EXPECT_EQ(results_of(out).at("mechanisms")[1].at("name"), "dot:form=distance");
  EXPECT_EQ(results_of(out).at("mechanisms")[1].at("words").at("form"), "distance");
  const std::string again = folder().file("planned-again");
  const Ran ran = call({"compare", "--plan", out + "/plan.json", "--out", again, "--threads", "2"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(values_of(again), values_of(out));
}

TEST(Report, AssemblesRunsAndLeavesOutHalfOnes) {
  const std::string out = folder().file("reported"), half = folder().file("half");
  fs::create_directories(half);
  write(half + "/config.json", "{\"task\": \"ima");
  Words words = {"report", "--out", out, half};
  for (const auto& entry : fs::directory_iterator(whole() + "/runs"))
    words.push_back(entry.path().string());
  const Ran ran = call(words);
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.err.find("left out: " + half + ": has no whole config.json"), std::string::npos);
  const json results = results_of(out), before = results_of(whole());
  EXPECT_EQ(results.at("flags")[0].at("name"), "left-out");
  for (const char* name : {"top1", "robust linf 2/255", "accuracy_fog_3"})
    EXPECT_EQ(measure(results, name).at("values"), measure(before, name).at("values")) << name;
  EXPECT_EQ(results.at("seeds"), json({0, 1}));
}

TEST(Report, RunsOverOtherDataAreRefused) {
  const std::string other = folder().file("other-images"), run = folder().file("other-run");
  call({"data", "make", "images", "--out", other, "--count", "40", "--seed", "9"});
  ASSERT_EQ(call(tiny(run) + Words{"--data", other, "--steps", "1"}).status, 0);
  const std::string first =
      whole() + "/" + results_of(whole()).at("runs")[0].at("folder").get<std::string>();
  const Ran ran = call({"report", first, run, "--out", folder().file("mixed")});
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(ran.err.starts_with("foci: " + run + " is over other data (" + other)) << ran.err;
  const Ran twice = call({"report", first, first, "--out", folder().file("mixed")});
  EXPECT_EQ(twice.status, 2);
  EXPECT_NE(twice.err.find(" have the same flags and the same seed\n"), std::string::npos);
}

}  // namespace
