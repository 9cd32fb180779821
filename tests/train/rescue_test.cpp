// SPDX-License-Identifier: Apache-2.0
// A fault in a batch or in an evaluation, a stop or a kill while the model is judged: the last
// whole step is saved, and the run that goes on from it is the one that nothing happened to.
#include <foci/train.hpp>

#include "thrown.hpp"
#include "train/ranks.hpp"

#include <foci/error.hpp>

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>

namespace foci::train {
namespace {

namespace fs = std::filesystem;

/// Its buffer moves with every batch that it sees.
struct Net : torch::nn::Module {
  Net() {
    at::manual_seed(1);
    layer = register_module("layer", torch::nn::Linear(5, 2));
    seen = register_buffer("seen", at::zeros({5}));
  }
  at::Tensor loss(std::int64_t batch) {
    at::manual_seed(100 + std::uint64_t(batch));
    const at::Tensor x = at::randn({6, 5});
    seen.mul_(0.9).add_(x.mean(0), 0.1);
    return layer(x - seen).square().sum();
  }
  torch::nn::Linear layer = nullptr;
  at::Tensor seen;
};

std::string text_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class Rescue : public testing::Test {
 protected:
  static constexpr std::int64_t steps = 6;

  void TearDown() override { fs::remove_all(root_); }

  /// Saves every 2 steps, judges every 3 by a number of the weights, averages.
  Outcome go(const std::string& name, const RunOptions& more = {}) {
    const auto net = std::make_shared<Net>();
    RunOptions o = more;
    o.folder = (root_ / name).string();
    o.resume = true;
    o.accumulate = 2;
    o.ema = 0.9;
    o.schedule.steps = steps;
    o.save_every = 2;
    o.evaluate_every = 3;
    std::int64_t next = 0;
    Task task{.module = net.get(),
              .samples = 6,
              .start_at = [&](std::int64_t batch) { next = batch; },
              .loss =
                  [&] {
                    at::Tensor loss = net->loss(next);
                    if (batch_) batch_(next);
                    ++next;
                    return loss;
                  },
              .evaluate =
                  [&] {
                    ++judged_;
                    if (judge_) judge_();
                    go_on_judging(o);
                    const double sum = net->layer->weight.sum().item<double>();
                    return Scores{{"sum", sum}};
                  }};
    return run(task, o);
  }
  std::string place(const std::string& name, std::int64_t step) const {
    return (root_ / name / "checkpoints" / ("step-" + std::to_string(step))).string();
  }
  bool has(const std::string& name, std::int64_t step) const {
    return fs::exists(place(name, step) + "/training.safetensors");
  }
  std::vector<nlohmann::json> lines(const std::string& name) const {
    std::ifstream file(root_ / name / "metrics.jsonl");
    std::vector<nlohmann::json> all;
    for (std::string line; std::getline(file, line);) {
      all.push_back(nlohmann::json::parse(line));
      for (const char* differs : {"time", "per_second", "memory"}) all.back().erase(differs);
    }
    return all;
  }
  void expect_undisturbed(const std::string& name) {
    batch_ = {};
    judge_ = {};
    go("whole");
    EXPECT_EQ(lines(name), lines("whole"));
    ASSERT_EQ(lines(name).size(), std::size_t(steps));
    for (const char* file : {"/model", "/ema", "/training"}) {
      const std::string bytes = text_of(place(name, steps) + file + ".safetensors");
      EXPECT_FALSE(bytes.empty());
      EXPECT_TRUE(bytes == text_of(place("whole", steps) + file + ".safetensors")) << file;
    }
  }

  fs::path root_ = fs::temp_directory_path() / ("foci-rescue-" + std::to_string(getpid()));
  std::function<void(std::int64_t batch)> batch_;
  std::function<void()> judge_;
  int judged_ = 0;
};

TEST_F(Rescue, AFaultInABatchKeepsTheWholeSteps) {
  // The second half of the sixth step: the buffer has gone on by then, the weights have not.
  batch_ = [](std::int64_t batch) {
    if (batch == 11) throw FileError("photo.jpg: is no JPEG");
  };
  EXPECT_EQ(thrown<FileError>([&] { go("fault"); }), "photo.jpg: is no JPEG");
  EXPECT_TRUE(has("fault", 5));
  EXPECT_EQ(lines("fault").size(), 5u);
  EXPECT_EQ(thrown<FileError>([&] { go("fault"); }), "photo.jpg: is no JPEG");
  EXPECT_TRUE(has("fault", 5) && has("fault", 4));
  batch_ = {};
  EXPECT_TRUE(go("fault").finished);
  expect_undisturbed("fault");
}

TEST_F(Rescue, AFaultInTheFirstStepLeavesNothing) {
  batch_ = [](std::int64_t batch) {
    if (batch == 1) throw FileError("photo.jpg: is no JPEG");
  };
  EXPECT_THROW(go("fault"), FileError);
  EXPECT_FALSE(fs::exists(root_ / "fault" / "checkpoints"));
  batch_ = {};
  go("fault");
  expect_undisturbed("fault");
}

TEST_F(Rescue, AFaultWhileJudgedLosesNothing) {
  // At step 3 nothing is due to be saved, at step 6 it is; and the average's weights are in the
  // model's place at every second evaluation.
  for (const int at : {1, 2, 3, 4}) {
    SCOPED_TRACE(at);
    const std::int64_t step = at < 3 ? 3 : 6;
    const std::string name = "fault" + std::to_string(at);
    judged_ = 0;
    judge_ = [&] {
      if (judged_ == at) throw FileError("photo.jpg: is no JPEG");
    };
    EXPECT_EQ(thrown<FileError>([&] { go(name); }), "photo.jpg: is no JPEG");
    ASSERT_TRUE(has(name, step));
    ASSERT_EQ(lines(name).size(), std::size_t(step));
    EXPECT_FALSE(lines(name).back().contains("sum"));
    judge_ = {};
    judged_ = 0;
    const Outcome rest = go(name);
    EXPECT_TRUE(rest.finished);
    EXPECT_EQ(rest.scores.count("ema_sum"), 1u);
    EXPECT_EQ(judged_, at < 3 ? 4 : 2);
    expect_undisturbed(name);
  }
}

TEST_F(Rescue, AStopWhileJudgedIsFollowed) {
  for (const int at : {1, 2, 3, 4}) {
    SCOPED_TRACE(at);
    const std::int64_t step = at < 3 ? 3 : 6;
    const std::string name = "stop" + std::to_string(at);
    judged_ = 0;
    const Outcome left = go(name, {.stops = [&] { return judged_ == at; }});
    EXPECT_EQ(left.steps, step);
    EXPECT_FALSE(left.finished);
    EXPECT_TRUE(has(name, step));
    ASSERT_EQ(lines(name).size(), std::size_t(step));
    EXPECT_FALSE(lines(name).back().contains("sum"));
    judged_ = 0;
    EXPECT_TRUE(go(name).finished);
    EXPECT_EQ(judged_, at < 3 ? 4 : 2);
    expect_undisturbed(name);
  }
}

TEST_F(Rescue, AStopBeforeTheFirstStepIsFollowed) {
  const Outcome left = go("stop", {.stops = [] { return true; }});
  EXPECT_EQ(left.steps, 0);
  EXPECT_FALSE(left.finished);
  EXPECT_FALSE(fs::exists(root_ / "stop" / "checkpoints"));
}

/// What a kill in the middle of an evaluation leaves is what is there then.
TEST_F(Rescue, AKillWhileJudgedLosesNothing) {
  judge_ = [&] {
    if (judged_ == 3) fs::copy(root_ / "begun", root_ / "killed", fs::copy_options::recursive);
  };
  go("begun");
  ASSERT_TRUE(has("killed", 6));
  EXPECT_EQ(lines("killed").size(), 5u);
  judge_ = {};
  judged_ = 0;
  EXPECT_TRUE(go("killed").finished);
  EXPECT_EQ(judged_, 2);
  expect_undisturbed("killed");
  const auto before = lines("killed");
  go("killed");
  EXPECT_EQ(lines("killed"), before);
}

TEST_F(Rescue, HalvesOfCheckpointsGo) {
  go("halves", {.stops = [&] { return judged_ == 1; }});  // steps 2 and 3
  fs::create_directories(place("halves", 9));
  std::ofstream(place("halves", 9) + "/model.safetensors") << "half";
  std::ofstream(place("halves", 9) + "/.foci-12-0.tmp") << "half";
  std::ofstream(place("halves", 3) + "/.foci-12-1.tmp") << "half";
  judged_ = 0;
  judge_ = [&] {
    if (judged_ > 1) return;
    EXPECT_FALSE(fs::exists(place("halves", 9)));
    EXPECT_FALSE(fs::exists(place("halves", 3) + "/.foci-12-1.tmp"));
    EXPECT_TRUE(has("halves", 3));
  };
  go("halves");
  expect_undisturbed("halves");
}

TEST_F(Rescue, BuffersThatAreNotFiniteAreNotSaved) {
  const auto net = std::make_shared<Net>();
  RunOptions o{.folder = (root_ / "lost").string(), .save_every = 1};
  o.schedule.steps = 3;
  std::int64_t step = 0;
  const Task task{.module = net.get(),
                  .start_at = [](std::int64_t) {},
                  .loss =
                      [&] {
                        const at::Tensor loss = net->loss(step);
                        if (++step == 2) net->seen[3] = std::numeric_limits<float>::infinity();
                        return loss;
                      }};
  EXPECT_EQ(thrown<NumericalError>([&] { run(task, o); }),
            "step 2: seen is not finite, so nothing was saved");
  EXPECT_TRUE(has("lost", 1));
  EXPECT_FALSE(fs::exists(place("lost", 2)));
}

}  // namespace
}  // namespace foci::train
