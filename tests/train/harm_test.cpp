// SPDX-License-Identifier: Apache-2.0
// foci eval --corrupt: images, text and time series are judged harmed, the Records say so, and what
// is wrong is told in one line.
#include "train/child.hpp"

#include <foci/data.hpp>
#include <foci/record.hpp>

#include <gtest/gtest.h>

#include <algorithm>

namespace {

using namespace train_test;

std::string made_folder(const std::string& name) {
  fs::create_directories(folder().file(name));
  return folder().file(name);
}

std::string ice() {
  const std::string path = made_folder("ice");
  foci::data::Image picture(200, 200, 3);
  for (std::size_t i = 0; i < picture.pixels.size(); ++i)
    picture.pixels[i] = std::uint8_t(i * 31 % 251);
  foci::data::write_png(path + "/1.png", picture);
  return path;
}

/// A run of the smallest model; `more` begins with the task and its data.
std::string trained(const std::string& name, const Words& more, int steps = 20) {
  const std::string run = folder().file(name);
  const Ran ran = call(Words{"train"} + more +
                       Words{"--run", run, "--dim", "16", "--depth", "1", "--heads", "2", "--batch",
                             "6", "--steps", std::to_string(steps), "--threads", "1", "--quiet",
                             "--learning-rate", "0.01"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  return run;
}

const std::string& image_run() {
  static const std::string run =
      trained("harm-images", {"images", "--data", images(), "--patch", "14"});
  return run;
}

nlohmann::json judged(const std::string& run, const Words& more) {
  const Ran ran = call(Words{"eval", run, "--threads", "1", "--json"} + more);
  EXPECT_EQ(ran.status, 0) << ran.err;
  return ran.status == 0 ? ran.json() : nlohmann::json();
}

TEST(Harm, ImagesAreJudgedUnderEveryCorruption) {
  const std::string run = image_run();
  const auto all = judged(run, {"--corrupt", "all", "--frost", ice()});
  ASSERT_TRUE(all.contains("mce_alexnet"));
  double sum = 0;
  for (int severity = 1; severity <= 5; ++severity)
    sum += all.at("error_fog_" + std::to_string(severity)).get<double>();
  EXPECT_NEAR(all.at("error_fog").get<double>(), sum / 5, 1e-12);
  const auto clean = call({"eval", run, "--json"}).json();
  EXPECT_NEAR(all.at("error_clean").get<double>(), 1 - clean.at("top1").get<double>(), 1e-12);
  const auto again = judged(run, {"--corrupt", "all", "--frost", ice(), "--baseline", run});
  EXPECT_NEAR(again.at("mce_baseline").get<double>(), 100, 1e-9);
  EXPECT_EQ(all.at("error_snow_3"), again.at("error_snow_3"));
  const auto records = foci::read_records(run + "/records.jsonl");
  const auto mce = std::find_if(records.begin(), records.end(),
                                [](const auto& r) { return r.name == "mce_alexnet"; });
  ASSERT_NE(mce, records.end());
  EXPECT_EQ(mce->unit, "percent");
  EXPECT_EQ(mce->n, 48);
  const auto flagged = [&](const std::string& name) {
    return std::any_of(mce->flags.begin(), mce->flags.end(),
                       [&](const auto& flag) { return flag.name == name; });
  };
  EXPECT_TRUE(flagged("alexnet") && flagged("regenerated"));
  const auto error = std::find_if(records.begin(), records.end(),
                                  [](const auto& r) { return r.name == "error_fog_5"; });
  ASSERT_NE(error, records.end());
  EXPECT_EQ(error->unit, "share");
  EXPECT_TRUE(error->spread.has_value());
}

/// Errors of other images are no unit: what differs is named.
TEST(Harm, ABaselineThatCannotBeComparedIsRefused) {
  const std::string base = trained("harm-base", {"images", "--data", images(), "--patch", "14"}, 2);
  const Words all = {"--corrupt", "all", "--frost", ice()};
  judged(base, all + Words{"--count", "8", "--seed", "3"});
  const auto said = [&](const Words& more) {
    const Ran ran = call(Words{"eval", image_run(), "--baseline", base, "--threads", "1"} + more);
    EXPECT_EQ(ran.status, 1) << ran.err;
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
    return ran.err;
  };
  const Words same = {"--count", "8", "--seed", "3"};
  EXPECT_NE(said(all + Words{"--count", "9", "--seed", "3"}).find("images are 8 there and 9 here"),
            std::string::npos);
  EXPECT_NE(said(all + Words{"--count", "8"}).find("--seed is 3 there and 0 here"),
            std::string::npos);
  EXPECT_NE(said(all + same + Words{"--scale", "64"}).find("--scale is 32 there and 64 here"),
            std::string::npos);
  const std::string snow = made_folder("snow"), again = made_folder("ice-again");
  foci::data::write_png(snow + "/1.png", foci::data::Image(200, 200, 3));
  EXPECT_NE(said(Words{"--corrupt", "all", "--frost", snow} + same).find("--frost is "),
            std::string::npos);
  const auto compared = [&](const Words& more) {
    return judged(image_run(), Words{"--baseline", base} + same + more).contains("mce_baseline");
  };
  fs::copy(ice() + "/1.png", again + "/1.png");
  EXPECT_TRUE(compared({"--corrupt", "all", "--frost", again}));
  // A later call over other images hides nothing.
  judged(base, all + Words{"--count", "9", "--seed", "3"});
  EXPECT_TRUE(compared(all + Words{"--scale", "32"}));
}

TEST(Harm, ASetThatWasWrittenGivesTheSameError) {
  const std::string out = folder().file("written-c");
  ASSERT_EQ(
      call({"corrupt", images(), "--out", out, "--corrupt", "contrast", "--severity", "4"}).status,
      0);
  const auto harmed = judged(image_run(), {"--corrupt", "contrast", "--severity", "4"});
  const auto plain = judged(image_run(), {"--data", out + "/contrast/4"});
  EXPECT_NEAR(harmed.at("error_contrast_4").get<double>(), 1 - plain.at("top1").get<double>(),
              1e-12);
  EXPECT_FALSE(harmed.contains("error_contrast"));
  EXPECT_FALSE(harmed.contains("mce_alexnet"));
}

TEST(Harm, TextIsJudgedWithAndWithoutItsChanges) {
  std::string lines;
  for (int i = 0; i < 400; ++i) lines += "one red fox sees two dogs and a cat now \n";
  const std::string text = folder().file("harm.txt"), list = folder().file("synonyms.txt");
  write(text, lines);
  write(list, "fox dogs\nred one\n");
  for (const std::string tokenizer : {"words", "bytes"}) {
    const std::string run =
        trained("harm-" + tokenizer,
                {"text", "--data", text, "--context", "12", "--tokenizer", tokenizer}, 100);
    const auto harmed = judged(run, {"--corrupt", "swap,synonyms,bytes", "--synonyms", list});
    const double clean = harmed.at("perplexity_clean");
    EXPECT_EQ(call({"eval", run, "--json"}).json().at("perplexity"), clean);
    for (const std::string name : {"swap", "synonyms", "bytes"}) {
      const double all = harmed.at("perplexity_" + name);
      const double untouched = harmed.at("perplexity_" + name + "_untouched");
      EXPECT_GT(all, clean) << tokenizer << name;
      EXPECT_LT(untouched, all) << tokenizer << name;
      EXPECT_GT(harmed.at("changes_" + name), 0);
    }
    const std::string changes = read(run + "/changes-swap.tsv");
    EXPECT_EQ(double(std::count(changes.begin(), changes.end(), '\n')),
              harmed.at("changes_swap").get<double>());
    EXPECT_NE(changes.find("\tAAA\n"), std::string::npos);
    const auto more = judged(run, {"--corrupt", "swap", "--rate", "0.5"});
    EXPECT_GT(more.at("changes_swap"), harmed.at("changes_swap"));
  }
}

std::string ts_folder() {
  const std::string made = made_folder("harm-ts");
  for (const auto& [name, count] : {std::pair("TRAIN", 24), {"TEST", 8}}) {
    std::string lines =
        "@problemName Lines\n@timeStamps false\n@univariate true\n@equalLength true\n"
        "@classLabel true rise fall\n@data\n";
    for (int i = 0; i < count; ++i) {
      for (int k = 0; k < 12; ++k)
        lines += (k > 0 ? "," : "") + std::to_string(i % 2 == 0 ? k : 11 - k);
      lines += i % 2 == 0 ? ":rise\n" : ":fall\n";
    }
    write(made + "/Lines_" + name + ".ts", lines);
  }
  return made;
}

TEST(Harm, SequencesAreJudgedByAccuracy) {
  const std::string run = trained("harm-series", {"sequences", "--data", ts_folder()});
  const auto series = judged(run, {"--corrupt", "noise,spikes,missing", "--severity", "1,5"});
  for (const std::string name : {"noise_1", "noise_5", "spikes_5", "missing_1", "missing_5"})
    EXPECT_TRUE(series.contains("accuracy_" + name)) << name;
  EXPECT_FALSE(series.contains("accuracy_noise_2"));
  const std::string tsv = made_folder("harm-tsv");
  for (const std::string name : {"train", "test"}) {
    std::string lines;
    for (int i = 0; i < 24; ++i) lines += i % 2 == 0 ? "up\tgood good film\n" : "down\tbad bad\n";
    write(tsv + "/" + name + ".tsv", lines);
  }
  const std::string words = trained("harm-reviews", {"sequences", "--data", tsv});
  const auto text = judged(words, {"--corrupt", "swap,bytes", "--rate", "1"});
  EXPECT_EQ(text.at("accuracy_clean"), 1);
  EXPECT_LT(text.at("accuracy_swap"), 1);  // every word is AAA
  const std::string changes = read(words + "/changes-swap.tsv");
  EXPECT_EQ(double(std::count(changes.begin(), changes.end(), '\n')), text.at("changes_swap"));
  EXPECT_EQ(text.at("changes_swap"), 12 * 3 + 12 * 2);
  EXPECT_EQ(changes.find("0\t0\tgood\tAAA\n0\t4\tgood\tAAA\n"), 0u) << changes;
  EXPECT_NE(changes.find("\n1\t0\tbad\tAAA\n"), std::string::npos) << changes;
}

TEST(Harm, MistakesAreToldInOneLine) {
  const std::string run = image_run();
  const std::string series = trained("harm-bad", {"sequences", "--data", ts_folder()});
  struct Bad {
    Words words;
    int status;
    std::string says;
  };
  const std::vector<Bad> all = {
      {{run, "--corrupt", "rain"}, 2, "--corrupt does not know 'rain'"},
      {{run, "--corrupt", "swap"}, 2, "--corrupt does not know 'swap'"},
      {{run, "--corrupt", "frost"}, 2, "frost needs pictures of it: --frost FOLDER"},
      {{run, "--corrupt", "fog", "--severity", "6"}, 2, "--severity does not know '6'"},
      {{run, "--corrupt", "fog", "--severity", "1,1,2,3,4"}, 2, "--severity 1,1,2,3,4 has 1 twice"},
      {{series, "--corrupt", "noise", "--severity", "2,2"}, 2, "--severity 2,2 has 2 twice"},
      {{run, "--severity", "1"}, 2, "--severity goes with --corrupt"},
      {{run, "--corrupt", "pixelate", "--baseline", run}, 2, "--baseline needs all 15 corruptions"},
      {{series, "--corrupt", "fog"}, 2, "--corrupt fog is not for a run of sequences"},
      {{series, "--corrupt", "swap"}, 2, "--corrupt swap is not for a run of sequences"},
  };
  for (const Bad& bad : all) {
    const Ran ran = call(Words{"eval"} + bad.words);
    EXPECT_EQ(ran.status, bad.status) << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(bad.says), std::string::npos) << ran.err;
  }
}

}  // namespace
