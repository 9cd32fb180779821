// SPDX-License-Identifier: Apache-2.0
// foci compare of every task but images, on a few made samples: it ends with a page, and its runs
// can be compared again without a word on what they are.
#include "compare/compared.hpp"

#include <gtest/gtest.h>

namespace {

using namespace train_test;
using nlohmann::json;

struct Task {
  const char *name, *model, *decides;
  std::string data;
};

std::string streets() {
  const std::string path = folder().file("compared-streets");
  call({"data", "make", "streets", "--out", path, "--count", "10"});
  return path;
}

std::string text() {
  std::string lines;
  for (int i = 0; i < 300; ++i) lines += i % 3 == 0 ? "one two\n" : "red fox sees\n";
  write(folder().file("compared.txt"), lines);
  return folder().file("compared.txt");
}

std::string expressions() {
  const std::string path = folder().file("compared-tsv");
  fs::create_directories(path);
  std::string lines;
  for (int i = 0; i < 12; ++i) lines += i % 2 == 0 ? "up\tu u x\n" : "down\td d\n";
  for (const char* part : {"train", "test"}) write(path + "/" + part + ".tsv", lines);
  return path;
}

std::string waves() {
  const std::string path = folder().file("compared-ts");
  fs::create_directories(path);
  std::string lines = "@problemName Waves\n@univariate true\n@classLabel true slow fast\n@data\n";
  for (int i = 0; i < 12; ++i) lines += i % 2 == 0 ? "1,2,3,2,1,0:slow\n" : "1,0,1,0,1,0:fast\n";
  for (const char* part : {"TRAIN", "TEST"}) write(path + "/Waves_" + part + ".ts", lines);
  return path;
}

/// The folder of a comparison of two mechanisms, and its results.
json compared(const Task& task, const std::string& out) {
  const Ran ran = call({"compare",
                        "--task",
                        task.name,
                        "--data",
                        task.data,
                        "--out",
                        out,
                        "--model",
                        std::string("dim=16 depth=1 heads=2 batch=4 ") + task.model,
                        "--mechanisms",
                        "dot,flat",
                        "--seeds",
                        "1",
                        "--steps",
                        "2",
                        "--jobs",
                        "1",
                        "--threads",
                        "1",
                        "--measure-samples",
                        "2"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  return results_of(out);
}

TEST(CompareTasks, EndWithAPage) {
  const Task all[] = {
      {"segment", "image=24 patch=6 shorter=0", "miou", streets()},
      {"text", "context=9", "perplexity", text()},
      {"listops", "", "accuracy", expressions()},
      {"series", "", "accuracy", waves()},
  };
  const std::map<std::string, std::string> harmed = {{"text", "perplexity_swap"},
                                                     {"series", "accuracy_spikes_3"}};
  for (const Task& task : all) {
    SCOPED_TRACE(task.name);
    const std::string out = folder().file(std::string("compared-") + task.name);
    const json results = compared(task, out);
    EXPECT_EQ(results.at("state"), "done");
    EXPECT_EQ(measure(results, task.decides).at("decides"), true);
    EXPECT_EQ(measure(results, "concentration").at("values").at("flat").size(), 1u);
    if (harmed.contains(task.name)) measure(results, harmed.at(task.name));
    EXPECT_EQ(results.at("maps").empty(), std::string(task.name) != "segment");
    EXPECT_NE(read(out + "/report.html").find("</html>"), std::string::npos);
    std::string runs;
    for (const json& run : results.at("runs"))
      runs += (runs.empty() ? "" : ",") + out + "/" + run.at("folder").get<std::string>();
    const Ran taken = call({"compare", "--checkpoint", runs, "--out", out + "-again", "--jobs", "1",
                            "--threads", "1", "--measure-samples", "0", "--corruptions", "none"});
    ASSERT_EQ(taken.status, 0) << taken.err;
    const json again = results_of(out + "-again");
    EXPECT_EQ(again.at("plan").at("task"), task.name) << "said by the runs";
    EXPECT_EQ(measure(again, task.decides).at("values"),
              measure(results, task.decides).at("values"));
  }
}

TEST(Report, LongNamesAreShortAndHaveALegend) {
  const std::string a = folder().file("named-a"), b = folder().file("named-b"),
                    out = folder().file("named");
  ASSERT_EQ(call(tiny(a)).status, 0);
  ASSERT_EQ(call(tiny(b) + Words{"--learning-rate", "0.01", "--clip", "0.5", "--steps", "5",
                                 "--metric-layers", "1:"})
                .status,
            0);
  for (const std::string& run : {a, b}) ASSERT_EQ(call({"eval", run, "--quiet"}).status, 0);
  const Ran ran = call({"report", a, b, "--out", out});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const json results = results_of(out);
  const json& mechanisms = results.at("mechanisms");
  ASSERT_EQ(mechanisms.size(), 2u);
  EXPECT_EQ(mechanisms[0].at("name"), "layer-change 1");
  EXPECT_EQ(mechanisms[1].at("name"), "layer-change 2");
  const std::string about = mechanisms[1].at("about");
  EXPECT_NE(about.find("clip 0.5, learning-rate 0.01, metric-layers 1:, steps 5"), about.npos)
      << about;
  EXPECT_NE(ran.out.find("layer-change 2: " + about), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find("measure             n  layer-change 1  layer-change 2\n"),
            std::string::npos)
      << ran.out;
  const json& shared = results.at("model").at("words");
  EXPECT_TRUE(shared.contains("dim") && !shared.contains("clip") && !shared.contains("seed"));
}

}  // namespace
