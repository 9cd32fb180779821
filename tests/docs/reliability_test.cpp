// SPDX-License-Identifier: Apache-2.0
// docs/reliability.md is what tools/reliability.py makes of bench/results; bench/fuzz.py adds up
// what fuzzers say, reader by reader, and keeps what they find.
#include "house/run.hpp"
#include "house/tree.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include <unistd.h>

namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string root = FOCI_SOURCE_DIR;

class Reliability : public testing::Test {
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

  static house::Ran run(const std::string& words) {
    return house::run("cd '" + root + "' && python3 " + words);
  }
  house::Ran fuzz(const std::string& words) const {
    return run("bench/fuzz.py --build '" + folder_.string() + "' --results '" + folder_.string() +
               "/results' --machine here " + words);
  }
  json figures() const {
    return json::parse(house::read((folder_ / "results/here/reliability.json").string()));
  }

  fs::path folder_ = fs::temp_directory_path() / ("foci-reliability-" + std::to_string(getpid()));
};

TEST_F(Reliability, ThePageIsFresh) {
  const auto ran = run("tools/reliability.py");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  EXPECT_TRUE(house::read(root + "/docs/reliability.md") == ran.output)
      << "docs/reliability.md is not what bench/results says; `make docs` makes it again";
}

json turn(const std::string& fuzzer, const std::string& commit, std::int64_t runs) {
  return {{"fuzzer", fuzzer},        {"commit", commit},
          {"sanitizers", "address"}, {"runs", runs},
          {"seconds", 10},           {"readers", json::object()},
          {"date", "2001"},          {"findings", json::array()}};
}

TEST_F(Reliability, ThePageTellsWhatWasReachedAndWhatWasNot) {
  json few = turn("text", "a", 30), found = turn("text", "b", 10);
  few["readers"] = {{"TSV", 10}, {"words", 20}};
  found["readers"] = {{"TSV", 10}};
  found["findings"] = {{{"said", "SUMMARY: overflow"}, {"input_sha256", nullptr}}};
  const json soak = {{"processes", 2},
                     {"commit", "b"},
                     {"deaths", 1234},
                     {"terms", 5},
                     {"at_once", 6},
                     {"runs", 7},
                     {"saved_checked", 8},
                     {"steps_done_again", 9},
                     {"longest_end_seconds", 2.5},
                     {"seconds", 60},
                     {"date", "2001"},
                     {"failures", {"step 3 was saved"}},
                     {"used",
                      {{"steps", 800},
                       {"early_mebibytes", 100.5},
                       {"late_mebibytes", 101},
                       {"early_files", 9},
                       {"late_files", 9}}}};
  file("here/reliability.json", json{{"machine", "here"},
                                     {"processor", "a processor"},
                                     {"fuzz", {few, turn("flags", "a", 10000000), found}},
                                     {"soak", {soak}}}
                                    .dump());
  const auto ran = run("tools/reliability.py '" + folder_.string() + "'");
  ASSERT_EQ(ran.exit_code, 0) << ran.output;
  for (const char* row :
       {"1 of 3 readers had them", "| flags | flags | 10,000,000 | 0 | yes |",
        "| text | TSV | 20 | 10 | **no**: 0.0002 % |", "| text | 40 | 2 | 1 | 1 |",
        "- text, `b`: SUMMARY: overflow", "| 2 | `b` | 1,234 | 5 | 6 | 8 | 9 | 7 | 2.5 s | 1 |",
        "| 2 | `b` | 800 | 100.5 | 101.0 | 9 | 9 |", "- Failed with 2 at `b`: step 3 was saved."}) {
    EXPECT_NE(ran.output.find(row), std::string::npos) << row << "\n" << ran.output;
  }
  fs::remove_all(folder_ / "here");
  EXPECT_NE(run("tools/reliability.py '" + folder_.string() + "'").output.find("Nothing has been"),
            std::string::npos);
}

/// A fuzzer that says what libFuzzer says.
constexpr const char* pretended = R"sh(#!/bin/sh
case "$FOCI_FUZZ_READER" in
  '') printf 'reader TSV: 30\nreader words: 70\n' ;;
  0) printf 'reader TSV: 100\nreader words: 0\n' ;;
  1) printf 'reader TSV: 0\nreader words: 100\n' ;;
esac >&2
echo 'stat::number_of_executed_units: 100' >&2
)sh";

TEST_F(Reliability, CallsAddUpAndThePoorestReaderIsNext) {
  file("text_fuzz", pretended);
  EXPECT_EQ(fuzz("--commit a --to 100").exit_code, 0);
  const json entry = figures().at("fuzz").at(0);
  EXPECT_EQ(entry.at("runs"), 300);
  EXPECT_EQ(entry.at("readers"), (json{{"TSV", 130}, {"words", 170}}));
  EXPECT_EQ(fuzz("--commit a --to 100").output, "");  // nothing is missing
  EXPECT_EQ(fuzz("--commit b --to 250").exit_code, 0);
  ASSERT_EQ(figures().at("fuzz").size(), 2u);
  EXPECT_EQ(figures().at("fuzz").at(1).at("runs"), 300);
  EXPECT_NE(fuzz("--only nothing").output.find("no fuzzers in "), std::string::npos);
}

TEST_F(Reliability, AFindingIsKeptAndEndsThatFuzzer) {
  const std::string input = file("crash-1", "x");
  file("flags_fuzz",
       "#!/bin/sh\necho 'does not hold: a message is one line' >&2\n"
       "echo 'artifact_prefix=; Test unit written to " +
           input + "' >&2\nexit 77\n");
  const auto ran = fuzz("--commit a --to 100");
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(ran.output,
            "flags: flags: FOUND does not hold: a message is one line: " + input + "\n");
  const json entry = figures().at("fuzz").at(0);
  EXPECT_EQ(entry.at("runs"), 0);
  EXPECT_EQ(entry.at("findings").at(0).at("said"), "does not hold: a message is one line");
  EXPECT_EQ(entry.at("findings").at(0).at("input_sha256"),
            "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881");
}

}  // namespace
