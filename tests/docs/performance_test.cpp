// SPDX-License-Identifier: Apache-2.0
// docs/performance.md is what tools/performance.py makes of bench/results; bench/suite.py writes
// down what a command says, and says of each line whether its bar was reached.
#include "house/run.hpp"
#include "house/tree.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string root = FOCI_SOURCE_DIR;

class Performance : public testing::Test {
 protected:
  void SetUp() override {
    if (house::run("python3 --version").exit_code != 0) GTEST_SKIP() << "no python3 here";
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }

  std::string file(const std::string& name, const std::string& text) const {
    const fs::path path = folder_ / name;
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    fs::permissions(path, fs::perms::owner_all);
    return path.string();
  }

  house::Ran page() const {
    return house::run("cd '" + root + "' && python3 tools/performance.py '" + folder_.string() +
                      "'");
  }

  fs::path folder_ = fs::temp_directory_path() / ("foci-performance-" + std::to_string(getpid()));
};

json line(const std::string& name, double value, const json& bar, const json& reached) {
  return {{"group", "speed"}, {"name", name},       {"run", "foci bench"},
          {"unit", "times"},  {"bar", bar},         {"wants", "at least"},
          {"value", value},   {"reached", reached}, {"failed", nullptr}};
}

json result() {
  return {{"machine", "here"},
          {"processor", "a processor"},
          {"isas", {"avx2", "portable"}},
          {"isa", "avx2"},
          {"peers", {{"sgemm", "OpenBLAS 9"}}},
          {"commit", "abc"},
          {"date", "2001-01-01"},
          {"busy", 0.1},
          {"lines",
           {line("good", 1.25, 1.2, true), line("bad", 0.5, 1.2, false),
            line("plain", 12.345, nullptr, nullptr)}},
          {"runs", {{"foci bench", {{"seconds", 0.00321}, {"gflops", 87.6}}}}}};
}

TEST_F(Performance, ThePageIsFresh) {
  const auto ran = house::run("cd '" + root + "' && python3 tools/performance.py");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_TRUE(house::read(root + "/docs/performance.md") == ran.output)
      << "docs/performance.md is not what bench/results says; `make docs` makes it again";
}

TEST_F(Performance, TheRooflineIsFreshAndOnThePage) {
  const auto ran = house::run("cd '" + root + "' && python3 tools/roofline.py");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_TRUE(house::read(root + "/docs/roofline.svg") == ran.output)
      << "docs/roofline.svg is not what bench/results says; `make docs` makes it again";
  EXPECT_NE(house::read(root + "/docs/performance.md").find("](roofline.svg)"), std::string::npos);
}

TEST_F(Performance, ThePageOfResultsIsFresh) {
  const auto ran = house::run("cd '" + root + "' && python3 tools/results.py");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_TRUE(house::read(root + "/docs/results.md") == ran.output)
      << "docs/results.md is not what bench/results says; `make docs` makes it again";
}

TEST_F(Performance, ResultsAreMeansOverSeedsBesideDot) {
  std::string records;
  for (const auto& [metric, seed, value] :
       {std::tuple{"dot", 0, 0.80}, {"dot", 1, 0.82}, {"flat", 0, 0.79}, {"flat", 1, 0.77}}) {
    records += json{{"name", "top1"},
                    {"value", value},
                    {"unit", "share"},
                    {"seed", seed},
                    {"model", std::string("micro, ") + metric + ", softmax"},
                    {"n", 500},
                    {"machine", "two cores"},
                    {"commit", "abc"},
                    {"command", "foci train images"},
                    {"flags", json::array()}}
                   .dump() +
               "\n";
  }
  file("here/train-small.jsonl", records);
  const auto ran =
      house::run("cd '" + root + "' && python3 tools/results.py '" + folder_.string() + "'");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  for (const std::string row :
       {"## small on here", "micro; two cores; commit `abc`; judged on 500 samples.",
        "| dot | 2 (too few) | 81.00 ± 1.41 |  |",
        "| flat | 2 (too few) | 78.00 ± 1.41 | -3.00 ± 1.41 |"}) {
    EXPECT_NE(ran.output.find(row), std::string::npos) << row << "\n" << ran.output;
  }
}

/// A Record of `foci attack` or `foci eval` over one run.
json judged(const std::string& verb, const std::string& metric, int seed, const std::string& name,
            double value) {
  const json doubt{{"name", "few-samples"}, {"means", "few images"}, {"do", "attack more"}};
  return {{"name", name},
          {"value", value},
          {"unit", "share"},
          {"seed", 0},
          {"model", "micro, " + metric + ", softmax"},
          {"n", 500},
          {"machine", "two cores"},
          {"commit", "abc"},
          {"command",
           "foci " + verb + " runs/" + metric + "-" + std::to_string(seed) + " --suite adaptive"},
          {"flags", verb == "attack" ? json::array({doubt}) : json::array()}};
}

TEST_F(Performance, WhatWithstoodAttacksIsComparedWithDotAndItsControls) {
  std::string attacks, harm;
  for (const auto& [metric, seed, value] :
       {std::tuple{"flat", 0, 0.50}, {"flat", 1, 0.52}, {"dot", 0, 0.30}, {"dot", 1, 0.32}}) {
    attacks += judged("attack", metric, seed, "clean", 0.9).dump() + "\n" +
               judged("attack", metric, seed, "robust linf 8/255", value / 2).dump() + "\n" +
               judged("attack", metric, seed, "robust linf 2/255", value).dump() + "\n" +
               judged("attack", metric, seed, "robust linf 2/255 own", value).dump() + "\n" +
               judged("attack", metric, seed, "robust linf 2/255 own 1. fgsm", 0.7).dump() + "\n";
    harm += judged("eval", metric, seed, "error_fog", value).dump() + "\n" +
            judged("eval", metric, seed, "error_fog_3", 0.1).dump() + "\n" +
            judged("eval", metric, seed, "mce_baseline", 99 + seed).dump() + "\n";
  }
  file("here/attack-small.jsonl", attacks);
  file("here/eval-small.jsonl", harm);
  const auto ran =
      house::run("cd '" + root + "' && python3 tools/results.py '" + folder_.string() + "'");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  for (const std::string row :
       {"## Under attack: small on here", "micro; two cores; commit `abc`; 500 images.",
        "| | runs | clean | linf 2/255 | linf 8/255 |",
        "| dot | 2 (too few) | 90.00 ± 0.00 | 31.00 ± 1.41 | 15.50 ± 0.71 |",
        "flat withstands more than dot at linf 2/255 (+20.0 ± 1.4)",
        "| flat | linf 2/255 | 51.00 ± 1.41 |",
        "- `few-samples` (dot, flat): few images; attack more.", "## Harmed images: small on here",
        "| | dot, 2 | flat, 2 |", "| mCE against dot's errors, % | 99.50 ± 0.71 | 99.50 ± 0.71 |",
        "| fog | 31.00 ± 1.41 | 51.00 ± 1.41 |"}) {
    EXPECT_NE(ran.output.find(row), std::string::npos) << row << "\n" << ran.output;
  }
}

/// One metric that differs from a control leaves nothing unsaid about another.
TEST_F(Performance, EveryProposedMetricIsComparedWithDotInWords) {
  std::string attacks;
  for (const auto& [metric, seed, value] : {std::tuple{"dot", 0, 0.30},
                                            {"dot", 1, 0.32},
                                            {"flat", 0, 0.30},
                                            {"flat", 1, 0.32},
                                            {"layer-change", 0, 0.31},
                                            {"layer-change", 1, 0.31},
                                            {"key-covariance", 0, 0.20},
                                            {"key-covariance", 1, 0.22}}) {
    attacks += judged("attack", metric, seed, "clean", 0.9).dump() + "\n" +
               judged("attack", metric, seed, "robust linf 2/255", value).dump() + "\n" +
               judged("attack", metric, seed, "robust linf 8/255", 0.01 * seed).dump() + "\n";
  }
  file("here/attack-small.jsonl", attacks);
  const auto ran =
      house::run("cd '" + root + "' && python3 tools/results.py '" + folder_.string() + "'");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  for (const std::string sentence :
       {"Between layer-change and dot no difference is shown.",
        "key-covariance withstands less than dot at linf 2/255 (-10.0 ± 1.4), and no difference is "
        "shown at linf 8/255.",
        "Controls: key-covariance withstands less than flat at linf 2/255 (-10.0 ± 1.4)."}) {
    EXPECT_NE(ran.output.find(sentence), std::string::npos) << sentence << "\n" << ran.output;
  }
}

TEST_F(Performance, RunsAreJudgedOnceWithFlagsOfTheirSeed) {
  const std::string foci = file("foci", R"(#!/bin/sh
if [ "$1" = info ]; then echo '{"machine": {"model": "AMD EPYC", "cores": 2}}'; exit; fi
echo "{\"records\": [{\"command\": \"foci $*\"}]}")");
  const std::string command = "cd '" + root + "' && python3 bench/judge.py attack small a-0 a-1 " +
                              "--foci '" + foci + "' --results '" + folder_.string() +
                              "' -- --plain dot-{seed}";
  EXPECT_EQ(house::run(command).output, "a-0: 1 Records\na-1: 1 Records\n");
  EXPECT_EQ(house::run(command).output, "");
  EXPECT_EQ(house::read(folder_.string() + "/epyc-2core/attack-small.jsonl"),
            "{\"command\": \"foci attack a-0 --plain dot-0 --json\"}\n"
            "{\"command\": \"foci attack a-1 --plain dot-1 --json\"}\n");
}

TEST_F(Performance, AttacksStandBesideTheOriginals) {
  const json ours{{"clean", 0.9}, {"robust", 0.3}, {"seconds", 9}, {"cpu_seconds", 4}};
  const json theirs{{"clean", 0.9}, {"robust", 0.32}, {"seconds", 9}, {"cpu_seconds", 8}};
  json lines = json::array();
  for (const std::string attack : {"square", "standard"}) {
    lines.push_back({{"metric", "dot"},
                     {"attack", attack},
                     {"eps", 8},
                     {"images", 100},
                     {"ours", ours},
                     {"theirs", theirs},
                     {"commit", "abc"},
                     {"date", "2001-01-01"}});
  }
  file("here/attack.json", json{{"suite", "attack"},
                                {"machine", "here"},
                                {"processor", "a processor"},
                                {"torch", "1"},
                                {"lines", lines}}
                               .dump());
  const auto ran = page();
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  const std::string cells = "8/255 | 100 | 90.0 | 30.0 | 32.0 | -2.0 | 25.00 | 12.50 | 2.00 |";
  EXPECT_NE(ran.output.find("| dot | square | " + cells + " **no** |"), std::string::npos);
  EXPECT_NE(ran.output.find("| dot | standard | " + cells + " yes |"), std::string::npos)
      << ran.output;
}

TEST_F(Performance, WhatPtxasSaysOfAKernelIsReadFromTheBuild) {
  file("build.log",
       "[1/2] Building CUDA object src/CMakeFiles/foci_cuda.dir/cuda/softmax_mma.cu.o\n"
       "ptxas info    : Compiling entry function '_Z4walki' for 'sm_90a'\n"
       "    8 bytes stack frame, 4 bytes spill stores, 12 bytes spill loads\n"
       "ptxas info    : Used 255 registers, used 1 barriers\n");
  const std::string command = "cd '" + root + "' && python3 tools/ptxas.py '" +
                              (folder_ / "build.log").string() + "' --commit abc";
  const auto ran = house::run(command);
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  const json kernel = json::parse(ran.output)["kernels"][0];
  EXPECT_EQ(kernel["source"], "softmax_mma");
  EXPECT_EQ(kernel["spills"], 16);
  EXPECT_EQ(kernel["registers"], 255);
  const auto strict = house::run(command + " --strict");
  EXPECT_EQ(strict.exit_code, 1);
  EXPECT_NE(strict.output.find("spills 16 bytes"), std::string::npos) << strict.output;
  file("here/ptxas.json", ran.output);
  EXPECT_NE(page().output.find("| softmax_mma.cu | sm_90a | 1 | 255 | 1 | 16 |"),
            std::string::npos);
}

TEST_F(Performance, ALineSaysWhatWasAskedAndWhatWasReached) {
  file("here/cpu.json", result().dump());
  file("notes.json", json{{"here", {{"bad", "it rained"}}}}.dump());
  const auto ran = page();
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  for (const std::string row :
       {"## here", "a processor; kernels for avx2 (of avx2, portable); commit `abc`, 2001-01-01.",
        "1 of 2 bars reached.", "- sgemm: OpenBLAS 9", "### Speed",
        "| good | 3.21 ms | 88 | 1.250 | ≥ 1.2 | yes |",
        "| bad | 3.21 ms | 88 | 0.500 | ≥ 1.2 | **no**: it rained |",
        "| plain | 3.21 ms | 88 | 12.3 |  |  |"}) {
    EXPECT_NE(ran.output.find(row + "\n"), std::string::npos) << row << "\n" << ran.output;
  }
}

TEST_F(Performance, ANoteMayStandForAGroupOnAllMachines) {
  file("here/cpu.json", result().dump());
  file("notes.json", json{{"*", {{"speed", "always so"}}}}.dump());
  EXPECT_NE(page().output.find("| plain | 3.21 ms | 88 | 12.3 |  |  |\n\nalways so"),
            std::string::npos);
}

TEST_F(Performance, AFailureIsToldWithoutABarToo) {
  json failed = result();
  failed["lines"][2]["failed"] = "foci: too hard";
  file("here/cpu.json", failed.dump());
  EXPECT_NE(page().output.find("| plain | 3.21 ms | 88 | 12.3 |  | foci: too hard |\n"),
            std::string::npos);
}

TEST_F(Performance, ABusyMachineIsNotTrusted) {
  json busy = result();
  file("here/cpu.json", busy.dump());
  EXPECT_EQ(page().output.find("busy"), std::string::npos);
  busy["busy"] = 1.5;
  file("here/cpu.json", busy.dump());
  EXPECT_NE(page().output.find("**The machine was busy** (1.5 cores)"), std::string::npos);
}

TEST_F(Performance, WithoutResultsThePageSaysSo) {
  const auto ran = page();
  EXPECT_EQ(ran.exit_code, 0);
  EXPECT_NE(ran.output.find("\nNothing has been measured yet.\n"), std::string::npos);
}

/// A command that answers like foci: everything takes a millisecond, and key-covariance fails.
constexpr const char* pretended = R"sh(#!/bin/sh
case "$*" in
  info*) echo '{"commit": "c", "isas": ["portable"], "isa": {"f32": "portable"},
     "machine": {"model": "Some EPYC", "cores": 2}}' ;;
  *key-covariance*) echo "foci: too hard" >&2; exit 1 ;;
  *) echo '{"seconds": 0.001, "gflops": 50, "of_sgemm": 0.87, "peak_rss_bytes": 150000000,
     "machine": "Some EPYC, 2 cores", "versus": {"ratio": 1.035},
     "absent_peers": {"torch-sdpa": "no"},
     "peers": {"sgemm": {"what": "OpenBLAS"},
               "torch-eager": {"what": "torch", "seconds": 0.007}}}' ;;
esac
)sh";

TEST_F(Performance, TheSuiteWritesDownWhatIsMeasured) {
  const std::string foci = file("foci", pretended);
  const auto ran = house::run("cd '" + root + "' && python3 bench/suite.py --foci " + foci +
                              " --results " + folder_.string() + " --commit abc");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  const json written = json::parse(house::read(folder_ / "epyc-2core/cpu.json"));
  EXPECT_EQ(written.at("machine"), "epyc-2core");
  EXPECT_EQ(written.at("commit"), "abc");
  EXPECT_EQ(written.at("peers").size(), 2u);
  std::map<std::string, json> lines;
  for (const json& one : written.at("lines")) {
    lines[one.at("group").get<std::string>() + ": " + one.at("name").get<std::string>()] = one;
    EXPECT_TRUE(written.at("runs").contains(one.at("run").get<std::string>()));
  }
  const auto expect = [&](const std::string& name, const json& value, const json& reached) {
    ASSERT_TRUE(lines.contains(name)) << name;
    EXPECT_EQ(lines[name].at("value"), value) << name;
    EXPECT_EQ(lines[name].at("reached"), reached) << name;
  };
  expect("softmax, f32: share of sgemm: forward, N = 197, 1 thread", 0.87, true);
  expect("softmax, f32: share of sgemm: forward, N = 1024, 2 threads", 0.87, false);
  expect("softmax, f32: against torch's eager attention: forward, N = 1024, 1 thread", 7.0, true);
  expect("what a metric or an extra costs: row statistics, forward", 1.035, true);
  expect("what a metric or an extra costs: key_bias, forward", 1.035, false);
  expect("long sequences: softmax, one head, N = 65536, both passes, memory", 150.0, true);
  expect("small sequences: share of sgemm: forward, N = 16, D = 16", 0.87, nullptr);
  const std::string hard =
      "what a metric or an extra costs: key-covariance, estimate included, against dot, forward";
  expect(hard, nullptr, false);
  EXPECT_EQ(lines[hard].at("failed"), "foci: too hard");
  const auto made = page();
  EXPECT_EQ(made.exit_code, 0) << made.output;
  EXPECT_NE(made.output.find("**no**: foci: too hard |"), std::string::npos) << made.output;
}

TEST_F(Performance, TheSuiteStopsAtItsLimitAndMeasuresWhatIsAskedFor) {
  const std::string foci = file("foci", pretended);
  const std::string suite = "cd '" + root + "' && python3 bench/suite.py --foci " + foci +
                            " --results " + folder_.string() + " --machine m";
  house::run(suite + " --limit 0");
  EXPECT_EQ(house::run(suite + " --limit 0").output.find("MISSED"), std::string::npos);
  house::run(suite + " --only 'row statistics'");
  EXPECT_EQ(json::parse(house::read(folder_ / "m/cpu.json")).at("lines").size(), 1u);
  const auto list = house::run(suite + " --list --turns 3 --only statistics");
  EXPECT_NE(list.output.find("foci bench --shape 1,8,1024,64 --stats --pass forward --threads 1 "
                             "--versus stats=false --peers none --turns 3\n"),
            std::string::npos)
      << list.output;
  EXPECT_EQ(house::run("cd '" + root + "' && python3 bench/suite.py --foci /no/foci").exit_code, 1);
}

}  // namespace
