// SPDX-License-Identifier: Apache-2.0
// What goes wrong while the command trains costs nothing that was done: a corrupt image, a full
// disk, a signal while data is opened; and what was judged once is judged the same again.
#include "train/made_sets.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <limits>

namespace {

using namespace train_test;

constexpr int steps = 40;

/// A folder a class, of 8 x 8 pixels; a.jpg stands among the training images that are not looked at
/// before training begins, and so does b.png.
const std::string& photos() {
  static const std::string path = [] {
    const std::string made = made_folder("photos");
    const std::string jpeg = read(FOCI_SOURCE_DIR "/tests/data/golden/colour.jpg");
    for (const auto& [split, count] : {std::pair(std::string("train"), 1001), {"test", 3}}) {
      for (const std::string of : {"a", "b"}) {
        const std::string in = made + "/" + split + "/" + of;
        fs::create_directories(in);
        for (int i = 0; i < count; ++i) {
          foci::data::Image image(8, 8, 3);
          for (std::size_t k = 0; k < image.pixels.size(); ++k)
            image.pixels[k] =
                std::uint8_t((k * 37 + std::size_t(i) * 101) % (of == "a" ? 90 : 250));
          foci::data::write_png(in + "/" + std::to_string(10000 + i) + ".png", image);
        }
      }
      fs::rename(made + "/" + split + "/b/10000.png", made + "/" + split + "/b/0.png");
      fs::remove(made + "/" + split + "/a/10001.png");
      write(made + "/" + split + "/a/10001.jpg", jpeg);
    }
    return made;
  }();
  return path;
}

Words over_photos(const std::string& run) {
  return {"train",
          "images",
          "--data",
          photos(),
          "--run",
          run,
          "--dim",
          "16",
          "--depth",
          "1",
          "--heads",
          "2",
          "--patch",
          "4",
          "--batch",
          "50",
          "--epochs",
          "1",
          "--ema",
          "0.9",
          "--quiet",
          "--threads",
          "1",
          "--metric",
          "layer-change",
          "--metric-layers",
          "0:"};
}

std::size_t lines_of(const std::string& run) {
  const std::string text = read(run + "/metrics.jsonl");
  return std::size_t(std::count(text.begin(), text.end(), '\n'));
}

const std::string& undisturbed() {
  static const std::string run = [] {
    const std::string path = folder().file("undisturbed");
    const Ran ran = call(over_photos(path));
    EXPECT_EQ(ran.status, 0) << ran.err;
    return path;
  }();
  return run;
}

/// The run that meets half of the image, and then the whole of it.
void meet_half_of(const std::string& image) {
  SCOPED_TRACE(image);
  const std::string path = photos() + "/" + image, whole = read(path), run = folder().file("half");
  ASSERT_GT(whole.size(), 40u);
  undisturbed();
  fs::remove_all(run);
  write(path, whole.substr(0, whole.size() / 2));
  const Ran ran = call(over_photos(run));
  EXPECT_EQ(ran.status, 1);
  EXPECT_TRUE(ran.err.starts_with("foci: " + path + ": is corrupt")) << ran.err;
  EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  const std::size_t done = lines_of(run);
  EXPECT_GT(done, 0u);
  EXPECT_EQ(done == steps, image.starts_with("test/"));
  EXPECT_TRUE(fs::exists(checkpoint(run, int(done)) + "/training.safetensors"));
  const Words resume = over_photos(run) + Words{"--resume"};
  EXPECT_EQ(call(resume).err, ran.err);
  EXPECT_EQ(lines_of(run), done);
  write(path, whole);
  const Ran rest = call(resume);
  ASSERT_EQ(rest.status, 0) << rest.err;
  EXPECT_EQ(curve(run), curve(undisturbed()));
  EXPECT_TRUE(weights(checkpoint(run, steps)) == weights(checkpoint(undisturbed(), steps)));
}

TEST(Faults, ACorruptImageToLearnFromLosesNothing) {
  meet_half_of("train/a/10001.jpg");
  meet_half_of("train/b/0.png");
}

TEST(Faults, ACorruptImageToJudgeByLosesNothing) {
  meet_half_of("test/a/10001.jpg");
  meet_half_of("test/b/10002.png");
}

TEST(Faults, ASignalWhileDataIsOpenedEndsWithZero) {
  const std::string run = folder().file("opened");
  const Words words = over_photos(run) + Words{"--steps", "1000000", "--save-every", "1"};
  const pid_t child = start(words, "opened");
  while (!fs::exists(run + "/lock") && !has_ended(child)) ::usleep(100);
  ::kill(child, SIGTERM);
  const Ran ran = finish(child, "opened");
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.err, "");
}

TEST(Faults, AFullDiskLeavesTheCheckpointThatIsThere) {
  const std::string run = folder().file("full-later"), other = folder().file("roomy-later");
  const Words more = {"--steps", "4", "--save-every", "2", "--ema", "0.9"};
  ASSERT_EQ(call(tiny(other) + more).status, 0);
  fs::copy(other, run, fs::copy_options::recursive);
  fs::remove_all(checkpoint(run, 4));
  const std::string before = weights(checkpoint(run, 2));
  const Words resume = {"train", "images", "--run", run, "--resume", "--quiet", "--threads", "1"};
  // Config and metrics fit; of the checkpoint first nothing, then all but the moments.
  const auto moments = fs::file_size(checkpoint(run, 2) + "/training.safetensors");
  for (const rlim_t room : {rlim_t(20000), rlim_t(moments - 1)}) {
    const Ran none = call(resume, room);
    EXPECT_EQ(none.status, 1);
    EXPECT_TRUE(none.err.ends_with(".safetensors: cannot be written: File too large\n"))
        << none.err;
    EXPECT_FALSE(fs::exists(checkpoint(run, 4)));
    EXPECT_TRUE(weights(checkpoint(run, 2)) == before);
  }
  ASSERT_EQ(call(resume).status, 0);
  EXPECT_EQ(curve(run), curve(other));
  EXPECT_TRUE(weights(checkpoint(run, 4)) == weights(checkpoint(other, 4)));
}

TEST(Faults, AFinishedRunThatIsResumedAddsNoRecords) {
  const std::string run = folder().file("finished");
  ASSERT_EQ(call(tiny(run)).status, 0);
  const std::string records = read(run + "/records.jsonl"), before = curve(run);
  EXPECT_EQ(std::count(records.begin(), records.end(), '\n'), 3);
  const Ran again = call({"train", "images", "--run", run, "--resume", "--json"});
  EXPECT_EQ(again.status, 0) << again.err;
  EXPECT_EQ(again.json().at("records").size(), 3u);
  EXPECT_EQ(read(run + "/records.jsonl"), records);
  EXPECT_EQ(curve(run), before);
  fs::remove(run + "/records.jsonl");  // as if it had been killed before they were written
  ASSERT_EQ(call({"train", "images", "--run", run, "--resume"}).status, 0);
  EXPECT_EQ(read(run + "/records.jsonl").size(), records.size());
}

struct Task {
  std::string name;
  Words words;
};

const std::vector<Task>& tasks() {
  static const std::vector<Task> all = {
      {"images", {"--data", images(), "--patch", "14"}},
      {"text", {"--data", text_file(), "--context", "12", "--sample", "0"}},
      {"sequences", {"--data", tsv_folder()}},
      {"segments", {"--data", pair_folder(), "--image", "16", "--patch", "4"}},
  };
  return all;
}

Words small(const Task& task, const std::string& run) {
  return Words{"train",   task.name,  "--run",        run,
               "--dim",   "16",       "--depth",      "2",
               "--heads", "2",        "--batch",      "6",
               "--steps", "3",        "--quiet",      "--threads",
               "1",       "--metric", "layer-change", "--save-every",
               "1"} +
         task.words;
}

TEST(Faults, LayersWhoseOutputIsLostAreNamed) {
  for (const Task& task : tasks()) {
    const std::string run = folder().file("lost-" + task.name);
    const Ran ran = call(small(task, run) + Words{"--learning-rate", "1e30"});
    EXPECT_EQ(ran.status, 1) << task.name;
    EXPECT_TRUE(ran.err.starts_with("foci: step 2: the loss is ")) << ran.err;
    const std::string place = task.name == "segments" ? "encoder.blocks.0" : "blocks.0";
    EXPECT_TRUE(ran.err.ends_with("; first not finite: the output of " + place + "\n")) << ran.err;
    EXPECT_TRUE(fs::exists(checkpoint(run, 1) + "/training.safetensors"));
  }
}

/// Every number of a tensor becomes the largest: finite, and its products are not.
void overdo(const std::string& file, const std::string& tensor) {
  std::string bytes = read(file);
  std::uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  const auto at = nlohmann::json::parse(bytes.substr(8, header)).at(tensor).at("data_offsets");
  const float most = std::numeric_limits<float>::max();
  for (std::size_t i = at[0]; i < at[1].get<std::size_t>(); i += sizeof most)
    std::memcpy(bytes.data() + 8 + header + i, &most, sizeof most);
  write(file, bytes);
}

TEST(Faults, DeeperLayersAreNamedToo) {
  const std::vector<std::vector<std::string>> all = {
      {"images", "blocks.1.mlp.fc1.weight", "blocks.1"},
      {"images", "head.weight", "head"},
      {"text", "blocks.1.mlp.fc1.weight", "blocks.1"},
      {"sequences", "blocks.1.mlp.fc1.weight", "blocks.1"},
      {"sequences", "head.weight", "head"},
      {"segments", "encoder.blocks.1.mlp.fc1.weight", "encoder.blocks.1"},
      {"segments", "decoder.proj_dec.weight", "decoder.proj_dec"},
      {"segments", "decoder.blocks.1.mlp.fc1.weight", "decoder.blocks.1"},
      {"segments", "decoder.proj_patch", "decoder.proj_patch"},
      {"segments", "decoder.proj_classes", "decoder.proj_classes"},
  };
  for (const auto& words : all) {
    const std::string run = folder().file("deep-" + words[0]);
    const auto task = std::find_if(tasks().begin(), tasks().end(),
                                   [&](const Task& one) { return one.name == words[0]; });
    if (!fs::exists(run)) ASSERT_EQ(call(small(*task, run)).status, 0);
    fs::remove_all(checkpoint(run, 3));
    const std::string model = checkpoint(run, 2) + "/model.safetensors", before = read(model);
    overdo(model, words[1]);
    const Ran ran = call({"train", words[0], "--run", run, "--resume", "--threads", "1"});
    write(model, before);
    EXPECT_EQ(ran.status, 1) << words[1];
    EXPECT_TRUE(ran.err.starts_with("foci: step 3: the loss is ")) << ran.err;
    EXPECT_TRUE(ran.err.ends_with("; first not finite: the output of " + words[2] + "\n"))
        << words[1] << ran.err;
  }
}

TEST(Faults, EvalJudgesInTheRunsPrecision) {
  for (const Task& task : tasks()) {
    SCOPED_TRACE(task.name);
    const std::string run = folder().file("narrow-" + task.name);
    const Ran ran = call(small(task, run) + Words{"--precision", "bf16", "--ema", "0.5", "--json",
                                                  "--learning-rate", "0.01"});
    ASSERT_EQ(ran.status, 0) << ran.err;
    const auto trained = ran.json();
    const auto judged = call({"eval", run, "--json", "--threads", "1"}).json();
    const auto average = call({"eval", run, "--json", "--threads", "1", "--ema"}).json();
    int scores = 0;
    for (const auto& [name, value] : trained.items()) {
      if (!judged.contains(name) || !trained.contains("ema_" + name)) continue;
      EXPECT_EQ(judged.at(name), value) << name;
      EXPECT_EQ(average.at(name), trained.at("ema_" + name)) << name;
      ++scores;
    }
    EXPECT_GE(scores, 2);
    if (task.name != "images") continue;
    const auto each = call({"eval", run, "--json", "--threads", "1", "--count", "48"}).json();
    EXPECT_NEAR(each.at("valid_loss").get<double>(), trained.at("valid_loss").get<double>(), 1e-4);
  }
}

std::vector<double> losses(const std::string& run) {
  std::istringstream lines(read(run + "/metrics.jsonl"));
  std::vector<double> all;
  for (std::string line; std::getline(lines, line);)
    all.push_back(nlohmann::json::parse(line).at("loss"));
  return all;
}

/// A model that learns nothing tells an image from itself, changed otherwise.
TEST(Faults, RepeatsAreOneImageChangedAnew) {
  const auto farthest = [&](const Words& change) {
    const std::string once = folder().file("once"), often = folder().file("often");
    const Words still = {"--learning-rate", "0", "--last-rate", "0", "--steps", "6"};
    for (const std::string& run : {once, often}) fs::remove_all(run);
    EXPECT_EQ(call(tiny(once) + still + change + Words{"--batch", "1"}).status, 0);
    const Ran ran = call(tiny(often) + still + change + Words{"--batch", "4", "--repeats", "4"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    const auto one = losses(once), four = losses(often);
    EXPECT_EQ(one.size(), 6u);
    double most = 0;
    for (std::size_t i = 0; i < one.size() && i < four.size(); ++i)
      most = std::max(most, std::abs(one[i] - four[i]));
    return most;
  };
  EXPECT_LT(farthest({"--augment", "none"}), 1e-5);
  EXPECT_GT(farthest({"--augment", "shift"}), 1e-4);
}

struct Wrong {
  std::string flag, value, says;
  std::string task = "images";
};

TEST(Faults, NumbersOutOfRangeAreRefused) {
  const std::string lower = "it must lie in [0, 1)", share = "it must lie in [0, 1]",
                    some = "it must lie in (0, 1]", least = "it must be 0 or more",
                    above = "it must be above 0";
  const std::vector<Wrong> all = {
      {"ema", "2", lower},
      {"ema", "1", lower},
      {"beta1", "2", lower},
      {"beta2", "1", lower},
      {"momentum", "-0.1", lower},
      {"running-momentum", "1.5", lower},
      {"label-smoothing", "2", lower},
      {"drop-path", "1", lower},
      {"dropout", "1", lower, "text"},
      {"head-dropout", "-1", lower, "text"},
      {"flip", "7", share},
      {"flip", "-1", share, "segments"},
      {"erasing", "1.1", share},
      {"area", "0", some},
      {"crop-share", "1.5", some},
      {"magnitude", "11", "it must lie in [0, 10]"},
      {"learning-rate", "-1", least},
      {"last-rate", "-0.1", least},
      {"first-rate", "-1", least},
      {"weight-decay", "-0.05", least},
      {"power", "-1", least},
      {"clip", "-1", least},
      {"mixup", "-1", least},
      {"cutmix", "-1", least},
      {"jitter", "-0.5", least},
      {"mlp-ratio", "-4", least},
      {"repeats", "0", "it must be 1 or more"},
      {"epsilon", "0", above},
      {"least-size", "0", above, "segments"},
      {"most-size", "-2", above, "segments"},
  };
  const std::string run = folder().file("ranges"), preset = folder().file("range.json");
  for (const Wrong& wrong : all) {
    const std::string text = "--" + wrong.flag + " " + wrong.value + ": " + wrong.says + "\n";
    const Words begin = {"train", wrong.task, "--data", images(), "--run", run};
    const Ran typed = call(begin + Words{"--" + wrong.flag, wrong.value});
    EXPECT_EQ(typed.status, 2) << text;
    EXPECT_EQ(typed.err, "foci: " + text);
    write(preset, "{\"" + wrong.flag + "\": " + wrong.value + "}");
    const Ran told = call(begin + Words{"--preset", preset});
    EXPECT_EQ(told.status, 1) << text;
    EXPECT_EQ(told.err, "foci: " + preset + ": " + text);
  }
  const Ran warm = call(tiny(run) + Words{"--warmup", "4"});
  EXPECT_EQ(warm.status, 2);
  EXPECT_TRUE(
      warm.err.starts_with("foci: --warmup 4: the run has 3 steps; it must be at most those\n"))
      << warm.err;
  fs::remove_all(run);
  EXPECT_EQ(call(tiny(run) + Words{"--warmup", "3"}).status, 0);
}

}  // namespace
