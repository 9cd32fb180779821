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

TEST(Reproduce, SaysWhichOfSeveralItTook) {
  const std::string run = folder().file("twice-judged");
  fs::copy(two_runs() + "/runs/dot", run, fs::copy_options::recursive);
  add_record(run, "top1", {{"value", 7}});
  const Ran ran = run_foci({"reproduce", run + "/records.jsonl", "--name", "top1"});
  EXPECT_EQ(ran.status, 1) << "7 is no share of images";
  EXPECT_NE(ran.err.find("the last of 2 Records named top1, line "), std::string::npos) << ran.err;
}

}  // namespace
