// SPDX-License-Identifier: Apache-2.0
// foci train for text, sequences and segments: each learns, goes on to the bit, and is judged again
// by foci eval; their own flags change something, and what is wrong is told in one line.
#include "train/made_sets.hpp"

#include "cli/pages.hpp"

#include <foci/data.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

namespace {

using namespace train_test;

/// GPT-2's two files: every byte by itself, and two pairs that the text has.
const std::string& byte_pairs() {
  static const std::string path = [] {
    const std::string made = made_folder("gpt2");
    nlohmann::json encoder;
    for (int byte = 0, next = 0x100; byte < 256; ++byte) {
      const bool plain = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
      const int letter = plain ? byte : next++;  // two bytes of UTF-8 from 0x80 on
      const std::string far = {char(0xc0 | letter >> 6), char(0x80 | (letter & 63))};
      encoder[letter < 0x80 ? std::string(1, char(letter)) : far] = byte;
    }
    encoder["on"] = 256;
    encoder["one"] = 257;
    write(made + "/encoder.json", encoder.dump());
    write(made + "/vocab.bpe", "#version: 0.2\no n\non e\n");
    return made;
  }();
  return path;
}

struct Tiny {
  std::string task;
  Words words;         ///< of a model that takes a step in a few milliseconds
  std::string score;   ///< that it is judged by
  Words learn;         ///< enough steps
  double least, most;  ///< of the score afterwards
};

const std::vector<Tiny>& tasks() {
  static const std::vector<Tiny> all = {
      {"text",
       {"--data", text_file(), "--context", "12", "--sample", "6", "--dropout", "0.1"},
       "perplexity",
       {"--steps", "60"},
       1,
       4.5},
      {"sequences",
       {"--data", tsv_folder(), "--dropout", "0.1"},
       "accuracy",
       {"--steps", "40"},
       0.9,
       1},
      {"segments",
       {"--data", pair_folder(), "--image", "16", "--patch", "4", "--least-size", "0.8"},
       "miou",
       {"--steps", "40"},
       0.5,
       1},
  };
  return all;
}

Words tiny_task(const Tiny& tiny, const std::string& run) {
  return Words{"train",        tiny.task,   "--run",   run,       "--dim",
               "16",           "--depth",   "2",       "--heads", "2",
               "--batch",      "6",         "--steps", "6",       "--metric",
               "layer-change", "--threads", "1",       "--quiet", "--learning-rate",
               "0.01"} +
         tiny.words;
}

TEST(Tasks, LearnAndAreJudged) {
  for (const Tiny& tiny : tasks()) {
    SCOPED_TRACE(tiny.task);
    const std::string run = folder().file("learned-" + tiny.task);
    const Ran ran = call(tiny_task(tiny, run) + tiny.learn + Words{"--ema", "0.8", "--json"});
    ASSERT_EQ(ran.status, 0) << ran.err;
    const auto result = ran.json();
    EXPECT_GT(result.at(tiny.score).get<double>(), tiny.least);
    EXPECT_LE(result.at(tiny.score).get<double>(), tiny.most);
    const auto judged = call({"eval", run, "--json", "--threads", "1"}).json();
    EXPECT_EQ(judged.at(tiny.score), result.at(tiny.score));
    const auto averaged = call({"eval", run, "--json", "--threads", "1", "--ema"}).json();
    EXPECT_EQ(averaged.at(tiny.score), result.at("ema_" + tiny.score));
    EXPECT_NE(call({"eval", run, "--threads", "1"}).out.find(" of test ("), std::string::npos);
  }
}

TEST(Tasks, GoOnToTheBit) {
  for (const Tiny& tiny : tasks()) {
    SCOPED_TRACE(tiny.task);
    const std::string run = folder().file("whole-" + tiny.task);
    const std::string other = folder().file("resumed-" + tiny.task);
    const Words more = {"--save-every", "2", "--keep", "3", "--ema", "0.9", "--accumulate", "2"};
    ASSERT_EQ(call(tiny_task(tiny, run) + more).status, 0);
    fs::copy(run, other, fs::copy_options::recursive);
    fs::remove_all(checkpoint(other, 6));
    fs::remove_all(checkpoint(other, 4));
    const Ran ran =
        call({"train", tiny.task, "--run", other, "--resume", "--quiet", "--threads", "1"});
    ASSERT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(curve(other), curve(run));
    EXPECT_TRUE(weights(checkpoint(other, 6)) == weights(checkpoint(run, 6)));
  }
}

TEST(Tasks, TextIsSampledAndGenerated) {
  const Tiny& tiny = tasks()[0];
  for (const Words& how : {Words{"--tokenizer", "words"}, Words{"--tokenizer", "bytes"},
                           Words{"--tokenizer", "pairs", "--pairs", byte_pairs()},
                           Words{"--positions", "rotary", "--kv-heads", "1"},
                           Words{"--metric", "dot", "--weighting", "decay", "--rate", "0.7"}}) {
    SCOPED_TRACE(how[1]);
    const std::string run = folder().file("sampled");
    fs::remove_all(run);
    ASSERT_EQ(call(tiny_task(tiny, run) + how).status, 0);
    const std::string metrics = read(run + "/metrics.jsonl");
    const auto last =
        nlohmann::json::parse(metrics.substr(metrics.rfind('\n', metrics.size() - 2) + 1));
    const std::string sample = last.at("sample");
    const std::string events = read(run + "/events.out.tfevents.foci");
    EXPECT_NE(events.find("sample/text_summary"), std::string::npos);
    EXPECT_NE(events.find(sample), std::string::npos);
    const Ran ran = call({"generate", run, "--prompt", "one two", "--tokens", "4", "--quiet"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    EXPECT_TRUE(ran.out.starts_with("one two")) << ran.out;
    const auto judged = call({"eval", run, "--json"}).json();
    if (how[1] == "bytes") {
      const double n = judged.at("count").get<double>();
      EXPECT_NEAR(judged.at("bits_per_byte").get<double>(),
                  judged.at("valid_loss").get<double>() / std::log(2.0) * n / (n + 1), 1e-9);
    }
    if (how[1] == "pairs") {  // each "one" is a token, every other byte too
      const double n = judged.at("count").get<double>();
      const double bytes = judged.at("valid_loss").get<double>() / std::log(2.0) * n /
                           judged.at("bits_per_byte").get<double>();
      const std::string text = read(text_file());
      const std::string last_part = text.substr(text.size() - std::size_t(std::lround(bytes)));
      std::size_t ones = 0;
      for (auto at = last_part.find("one"); at != text.npos; at = last_part.find("one", at + 1))
        ++ones;
      EXPECT_GT(ones, 0u);
      EXPECT_EQ(n, double(last_part.size() - 2 * ones - 1));
    }
  }
}

TEST(Tasks, SequencesAreSeriesAndPixelsToo) {
  const Tiny& tiny = tasks()[1];
  for (const std::string& path : {ts_folder(), images()}) {
    const std::string run = folder().file("sequences");
    fs::remove_all(run);
    const Ran ran = call(tiny_task(tiny, run) + Words{"--data", path, "--length", "49"});
    ASSERT_EQ(ran.status, 0) << ran.err;
    EXPECT_EQ(call({"eval", run, "--json"}).json().at("count"), path == ts_folder() ? 8 : 48);
  }
}

/// What a run does apart from times.
std::string trace_of(const Tiny& tiny, const Words& more) {
  const std::string run = folder().file("trace");
  fs::remove_all(run);
  const Ran ran = call(tiny_task(tiny, run) + Words{"--steps", "2"} + more);
  return std::to_string(ran.status) + ran.err + curve(run);
}

TEST(Tasks, EveryFlagOfTheirOwnChangesSomething) {
  const std::map<std::string, std::map<std::string, std::string>> changes = {
      {"text",
       {{"tokenizer", "bytes"},
        {"context", "8"},
        {"positions", "rotary"},
        {"kv-heads", "1"},
        {"stride", "3"},
        {"sample", "2"},
        {"dropout", "0.5"},
        {"head-dropout", "0.5"}}},
      {"sequences", {{"tokenizer", "bytes"}, {"length", "4"}, {"dropout", "0.5"}}},
      {"segments", {{"least-size", "1.5"}, {"most-size", "3"}, {"shorter", "40"}, {"stride", "5"}}},
  };
  // Tested elsewhere: decay's, files, and what images have too.
  const std::set<std::string> elsewhere = {"rate", "content", "pairs", "pieces"};
  for (const Tiny& tiny : tasks()) {
    const std::string before = trace_of(tiny, {});
    for (const auto& flag : foci::cli::find_verb("train")->flags) {
      const std::string name(flag.name);
      if (foci::cli::belongs(name, "images") || !foci::cli::belongs(name, tiny.task)) continue;
      if (elsewhere.contains(name)) continue;
      ASSERT_TRUE(changes.at(tiny.task).contains(name)) << name;
      EXPECT_NE(before, trace_of(tiny, {"--" + name, changes.at(tiny.task).at(name)})) << name;
    }
  }
}

struct Bad {
  Words words;
  int status;
  std::string says;
};

/// A copy of a folder in which one file is another.
std::string spoiled(const std::string& from, const std::string& file, const std::string& bytes) {
  static int count = 0;
  const std::string path = folder().file("spoiled" + std::to_string(++count));
  fs::copy(from, path, fs::copy_options::recursive);
  write(path + "/" + file, bytes);
  return path;
}

std::string mask_with(std::uint8_t value, int width = 24) {
  foci::data::Image mask(20, width, 1);
  *mask.at(3, 5) = value;
  foci::data::write_png(folder().file("mask.png"), mask);
  return read(folder().file("mask.png"));
}

TEST(Tasks, MistakesAreToldInOneLine) {
  const std::string run = folder().file("bad"), small = folder().file("small.txt");
  write(small, "a b c\nd e f\ng\nh\n");
  const Words text = tiny_task(tasks()[0], run), sequences = tiny_task(tasks()[1], run),
              segments = tiny_task(tasks()[2], run);
  const std::vector<Bad> all = {
      {{"train", "txt"}, 2, "did you mean text?"},
      {text + Words{"--augment", "none"}, 2, "train text has no --augment; it is for images"},
      {segments + Words{"--weighting", "decay"}, 2, "--weighting decay looks back"},
      {text + Words{"--preset", FOCI_SOURCE_DIR "/presets/camvid.json"}, 1,
       "is no flag of train text; it is for "},
      {text + Words{"--data", "nowhere"}, 1, "nowhere: is no folder"},
      {text + Words{"--data", tsv_folder()}, 1, "has no train.txt, wiki.train.tokens"},
      {text + Words{"--data", small, "--split", "valid"}, 1, "small.txt (valid): has 0 tokens"},
      {text + Words{"--context", "2000"}, 1, " tokens, and a window of 2000 needs one more"},
      {text + Words{"--batch", "600"}, 2, "windows of tokens make no step of 600"},
      {text + Words{"--tokenizer", "pairs"}, 2, "--tokenizer pairs needs --pairs FOLDER"},
      {text + Words{"--tokenizer", "pairs", "--pairs", run}, 1, "has neither encoder.json nor"},
      {text + Words{"--model", "vit_micro"}, 2, "vit_micro is for images; text needs"},
      {text + Words{"--stride", "13"}, 2, "1 <= stride <= window <= 12"},
      {sequences + Words{"--split", "valid"}, 1, "has no valid split"},
      {sequences + Words{"--data", spoiled(tsv_folder(), "test.tsv", "")}, 1, "test.tsv"},
      {sequences + Words{"--data", spoiled(tsv_folder(), "test.tsv", "left\tx\n")}, 1,
       "line 1: class 'left' is none of"},
      {sequences + Words{"--data", spoiled(tsv_folder(), "test.tsv", "up\t \n")}, 1,
       "sample 1 is empty"},
      {sequences + Words{"--model", "series_small"}, 2, "these sequences need one of lra_*"},
      {sequences + Words{"--tokenizer", "pairs"}, 2, "--tokenizer pairs is for text"},
      {sequences + Words{"--batch", "60"}, 2, "48 sequences make no step of 60"},
      {segments + Words{"--data", images()}, 2, "segments needs a mask for every image"},
      {segments + Words{"--data", spoiled(pair_folder(), "testannot/1.png", mask_with(77))}, 1,
       "1.png"},
      {segments + Words{"--data", spoiled(pair_folder(), "trainannot/1.png", mask_with(3, 12))}, 1,
       "train/1.png: has 24 x 20 pixels and its mask 12 x 20; both must have the same"},
      {segments + Words{"--data", spoiled(pair_folder(), "testannot/1.png", mask_with(3, 12))}, 1,
       "test/1.png: has 24 x 20 pixels and its mask 12 x 20; both must have the same"},
      {segments + Words{"--least-size", "3"}, 2, "sizes from 3 to 2"},
      {segments + Words{"--model", "vit_micro"}, 2, "segments needs a segmenter"},
  };
  for (const Bad& bad : all) {
    fs::remove_all(run);
    const Ran ran = call(bad.words);
    EXPECT_EQ(ran.status, bad.status) << bad.says << "\n" << ran.err;
    EXPECT_NE(ran.err.find(bad.says), std::string::npos) << bad.says << "\n" << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2) << ran.err;
  }
}

TEST(Tasks, ARunKeepsItsVocabulary) {
  const std::string run = folder().file("vocabulary"), other = folder().file("other.txt");
  ASSERT_EQ(call(tiny_task(tasks()[0], run)).status, 0);
  const Words resume = {"train", "text", "--run", run, "--resume"};
  EXPECT_NE(call({"train", "images", "--run", run, "--resume"}).err.find("is a run of text"),
            std::string::npos);
  const std::string words = read(run + "/vocabulary.txt"), text = read(text_file());
  write(text_file(), "two" + text.substr(3, 600) + "more\n" + text.substr(603));
  EXPECT_NE(call(resume).err.find("the run's vocabulary is another than that of"),
            std::string::npos);
  write(text_file(), text);
  write(run + "/vocabulary.txt", words + "again\n");
  EXPECT_NE(call({"eval", run}).err.find("its tokenizer has 10 tokens; the run began with 9"),
            std::string::npos);
  write(run + "/vocabulary.txt", "one\n");
  EXPECT_NE(call({"generate", run}).err.find("vocabulary.txt: a vocabulary without <unk>"),
            std::string::npos);
  EXPECT_NE(call({"eval", run, "--batch", "3", "--workers", "2"}).err.find("has no --workers"),
            std::string::npos);
}

}  // namespace
