// SPDX-License-Identifier: Apache-2.0
// Any number of processes trains the weights that one does, up to the order of sums: every task,
// everything that is random but dropout, resumed with another number.
#include "dist/ranks.hpp"
#include "train/made_sets.hpp"

namespace {

using namespace dist_test;

// SGD: AdamW divides by gradients that are 0 but for rounding.
const Words sgd = {"--optimizer", "sgd", "--learning-rate", "0.05", "--schedule", "constant"};

/// The curve, the weights and the moments of a run in one process, in two and in four.
void expect_the_same(const Words& words, const std::string& name, int last) {
  const auto run_of = [&](int size) { return folder().file(name + std::to_string(size)); };
  for (const int size : {1, 2, 4}) {
    const Ran ran = call_ranks(words + sgd + Words{"--run", run_of(size)}, size);
    ASSERT_EQ(ran.status, 0) << ran.err;
    if (size == 1) continue;
    EXPECT_EQ(lines_of(run_of(size)), lines_of(run_of(1)));
    for (const char* file : {"model.safetensors", "training.safetensors", "ema.safetensors"}) {
      EXPECT_LT(apart(checkpoint(run_of(1), last), checkpoint(run_of(size), last), file), 1e-4)
          << name << " " << size << " " << file;
    }
    std::ifstream one(run_of(1) + "/metrics.jsonl"), many(run_of(size) + "/metrics.jsonl");
    for (std::string a, b; std::getline(one, a) && std::getline(many, b);) {
      const auto x = nlohmann::json::parse(a), y = nlohmann::json::parse(b);
      for (const auto& [key, value] : x.items()) {
        if (key == "time" || key == "per_second" || key == "memory" || !value.is_number()) continue;
        const double p = value.get<double>();
        EXPECT_NEAR(p, y.at(key).get<double>(), 2e-4 * std::abs(p) + 1e-6) << name << " " << key;
      }
    }
  }
}

const Words small = {"--dim",     "16", "--depth", "2",   "--heads", "2",
                     "--threads", "1",  "--ema",   "0.9", "--quiet"};

TEST(Weights, Images) {
  expect_the_same(Words{"train",
                        "images",
                        "--data",
                        images(),
                        "--patch",
                        "14",
                        "--batch",
                        "22",
                        "--steps",
                        "6",
                        "--metric",
                        "layer-change",
                        "--scope",
                        "running",
                        "--augment",
                        "deit",
                        "--mixup",
                        "0.8",
                        "--cutmix",
                        "1",
                        "--accumulate",
                        "2",
                        "--clip",
                        "0.5",
                        "--evaluate-every",
                        "3"} +
                      small,
                  "images", 6);
}

TEST(Weights, Text) {
  expect_the_same(
      Words{"train", "text", "--data", text_file(), "--context", "8", "--batch", "6", "--steps",
            "4", "--metric", "learned", "--init", "estimate", "--sample", "4", "--stride", "3"} +
          small,
      "text", 4);
}

TEST(Weights, Sequences) {
  expect_the_same(Words{"train", "sequences", "--data", tsv_folder(), "--batch", "9", "--steps",
                        "4", "--metric", "key-covariance"} +
                      small,
                  "sequences", 4);
}

TEST(Weights, Segments) {
  expect_the_same(Words{"train", "segments", "--data", pair_folder(), "--image", "16", "--patch",
                        "4", "--batch", "5", "--steps", "3"} +
                      small,
                  "segments", 3);
}

/// Saved by two, continued by three, then by one.
TEST(Weights, AnyNumberGoesOn) {
  const std::string run = folder().file("changing"), whole = folder().file("unchanging");
  const auto words = [&](const std::string& into, const char* steps) {
    Words all = tiny(into) + sgd + Words{"--save-every", "2", "--ema", "0.9", "--keep", "9"};
    std::replace(all.begin(), all.end(), std::string("--quiet"), std::string("--json"));
    return all + Words{"--steps", steps};
  };
  ASSERT_EQ(call_ranks(words(whole, "6"), 1).status, 0);
  ASSERT_EQ(call_ranks(words(run, "6"), 2).status, 0);
  fs::remove_all(checkpoint(run, 4));
  fs::remove_all(checkpoint(run, 6));
  const Words resume = {"train", "images", "--run", run, "--resume", "--quiet", "--threads", "1"};
  ASSERT_EQ(call_ranks(resume, 3).status, 0);
  fs::remove_all(checkpoint(run, 6));
  ASSERT_EQ(call_ranks(resume, 1).status, 0);
  EXPECT_LT(apart(checkpoint(whole, 6), checkpoint(run, 6), "model.safetensors"), 1e-5);
  EXPECT_LT(apart(checkpoint(whole, 6), checkpoint(run, 6), "ema.safetensors"), 1e-5);
  EXPECT_EQ(lines_of(run), 6u);
}

TEST(Weights, RecordsSayHowManyProcesses) {
  const std::string run = folder().file("records");
  Words words = tiny(run);
  std::replace(words.begin(), words.end(), std::string("--quiet"), std::string("--json"));
  const auto result = call_ranks(words, 2).json();
  const auto command = result.at("records").at(0).at("command").get<std::string>();
  EXPECT_EQ(command.find("foci launch -n 2 -- train images --"), 0u) << command;
  EXPECT_EQ(result.at("records").at(0).at("n"), 48);
}

}  // namespace
