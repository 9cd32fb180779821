// SPDX-License-Identifier: Apache-2.0
// The optimisers against torch's own, the rate's course by hand, the average, checkpoints that are
// whole or not there, TensorBoard's records, and a run over a module of one's own.
#include <foci/train.hpp>

#include "thrown.hpp"
#include "train/events.hpp"

#include <foci/error.hpp>
#include <foci/nn.hpp>

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/ops/randn.h>
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <memory>

namespace foci::train {
namespace {

namespace fs = std::filesystem;

struct Net : torch::nn::Module {
  Net() {
    at::manual_seed(1);
    wide = register_module("wide", torch::nn::Linear(5, 7));
    deep = register_module("deep", torch::nn::Linear(7, 2));
  }
  at::Tensor loss(std::int64_t step) {
    at::manual_seed(100 + std::uint64_t(step));
    return deep(wide(at::randn({6, 5})).tanh()).square().sum();
  }
  std::vector<at::Tensor> of_rank(int rank) const {
    std::vector<at::Tensor> found;
    for (const at::Tensor& p : parameters()) {
      if (p.dim() == rank) found.push_back(p);
    }
    return found;
  }
  torch::nn::Linear wide = nullptr, deep = nullptr;
};

double farthest(const Net& a, const Net& b) {
  double most = 0;
  for (std::size_t i = 0; i < a.parameters().size(); ++i)
    most = std::max(most, (a.parameters()[i] - b.parameters()[i]).abs().max().item<double>());
  return most;
}

template <class Other>
void train_both(Net& ours, Optimizer& optimizer, Net& other, Other& theirs) {
  for (int step = 0; step < 20; ++step) {
    optimizer.forget_gradients();
    theirs.zero_grad();
    ours.loss(step).backward();
    other.loss(step).backward();
    optimizer.step(0.01);
    theirs.step();
  }
}

/// Weight decay for matrices, none for biases: two groups of torch's.
TEST(Optimizer, AdamwIsTorchs) {
  using Options = torch::optim::AdamWOptions;
  Net ours, other;
  Optimizer optimizer(ours, {.weight_decay = 0.1});
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(other.of_rank(2), std::make_unique<Options>(Options(0.01).weight_decay(0.1)));
  groups.emplace_back(other.of_rank(1), std::make_unique<Options>(Options(0.01).weight_decay(0)));
  torch::optim::AdamW theirs(groups, Options(0.01));
  train_both(ours, optimizer, other, theirs);
  EXPECT_LT(farthest(ours, other), 1e-6);
  EXPECT_GT(farthest(ours, Net()), 0.01);
}

TEST(Optimizer, SgdIsTorchs) {
  Net ours, other;
  Optimizer optimizer(ours, {.algorithm = Algorithm::sgd, .weight_decay = 0});
  torch::optim::SGD theirs(other.parameters(),
                           torch::optim::SGDOptions(0.01).momentum(0.9).nesterov(true));
  train_both(ours, optimizer, other, theirs);
  EXPECT_LT(farthest(ours, other), 1e-5);
}

TEST(Optimizer, ClipsAllGradientsTogether) {
  Net net;
  Optimizer optimizer(net, {});
  net.loss(0).backward();
  const double before = optimizer.clip(0), after = optimizer.clip(before / 2);
  EXPECT_DOUBLE_EQ(before, after);  // what it found
  EXPECT_NEAR(optimizer.clip(0), before / 2, 1e-5 * before);
}

TEST(Optimizer, AStateOfAnotherModelIsRefused) {
  Net net;
  Optimizer optimizer(net, {});
  Tensors state = optimizer.state();
  state.erase("exp_avg.wide.bias");
  EXPECT_EQ(thrown<InvalidArgument>([&] { optimizer.load(state); }),
            "the optimiser's state has no exp_avg.wide.bias of this shape");
}

TEST(Schedule, WarmsUpAndGoesDown) {
  Schedule s{.rate = 1, .last = 0.2, .warmup = 10, .start = 0, .steps = 110};
  EXPECT_DOUBLE_EQ(rate_at(s, 0), 0);
  EXPECT_DOUBLE_EQ(rate_at(s, 5), 0.5);
  EXPECT_DOUBLE_EQ(rate_at(s, 10), 1);
  EXPECT_DOUBLE_EQ(rate_at(s, 60), 0.6);
  EXPECT_DOUBLE_EQ(rate_at(s, 110), 0.2);
  s.course = Course::poly;
  s.power = 2;
  EXPECT_DOUBLE_EQ(rate_at(s, 60), 0.2 + 0.8 * 0.25);
  s.course = Course::constant;
  EXPECT_DOUBLE_EQ(rate_at(s, 60), 1);
}

TEST(Average, LagsBehindAndChangesPlaces) {
  Net net;
  Average average(net, 0.75);
  const at::Tensor before = net.wide->weight.detach().clone();
  {
    const at::NoGradGuard without;
    net.wide->weight.add_(4);
  }
  average.update(net);
  average.exchange(net);
  EXPECT_TRUE(net.wide->weight.allclose(before + 1));
  EXPECT_TRUE(average.tensors().at("wide.weight").allclose(before + 4));
  EXPECT_EQ(thrown<InvalidArgument>([&] { average.load({}); }),
            "the average has no deep.bias of this shape");
}

class Runs : public testing::Test {
 protected:
  void TearDown() override { fs::remove_all(run_); }
  Outcome go(Net& net, RunOptions o, const Told& told = {}) const {
    std::int64_t next = 0;
    o.folder = run_.string();
    o.schedule.steps = 6;
    o.save_every = 2;
    Task task{.module = &net,
              .samples = 6,
              .start_at = [&](std::int64_t batch) { next = batch; },
              .loss = [&] { return net.loss(next++); }};
    return run(task, o, told);
  }
  bool has(const std::string& name) const { return fs::exists(run_ / "checkpoints" / name); }
  fs::path run_ = fs::temp_directory_path() / ("foci-run-" + std::to_string(getpid()));
};

TEST_F(Runs, GoOnFromTheLastWholeCheckpoint) {
  Net whole, begun;
  const auto resumed = std::make_shared<Net>();  // torch walks through modules that are shared
  go(whole, {.ema = 0.9});
  EXPECT_FALSE(has("step-2"));  // two are kept
  EXPECT_TRUE(has("step-4/ema.safetensors") && has("step-6/training.safetensors"));
  fs::remove_all(run_);
  const Outcome stopped = go(begun, {.ema = 0.9}, [](const Line& line) { return line.step < 5; });
  EXPECT_EQ(stopped.steps, 5);
  EXPECT_FALSE(stopped.finished);
  fs::remove(run_ / "checkpoints/step-5/training.safetensors");  // half of one
  std::vector<std::int64_t> steps;
  const Outcome rest = go(*resumed, {.resume = true, .ema = 0.9}, [&](const Line& line) {
    steps.push_back(line.step);
    return true;
  });
  EXPECT_EQ(steps, (std::vector<std::int64_t>{5, 6}));
  EXPECT_TRUE(rest.finished);
  EXPECT_EQ(farthest(whole, *resumed), 0);
  std::ifstream metrics(run_ / "metrics.jsonl");
  const std::string text(std::istreambuf_iterator<char>(metrics), {});
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 6);
}

TEST_F(Runs, SayWhereTheyLostIt) {
  Net net;
  {
    const at::NoGradGuard without;
    net.deep->weight[0][0] = std::numeric_limits<float>::quiet_NaN();
  }
  EXPECT_EQ(thrown<NumericalError>([&] { go(net, {}); }),
            "step 1: the loss is nan; first not finite: deep.weight");
  Net other;
  other.wide->weight.register_hook(
      [](at::Tensor g) { return g * std::numeric_limits<float>::infinity(); });
  EXPECT_EQ(thrown<NumericalError>([&] { go(other, {}); }),
            "step 1: the gradient is not finite, first that of wide.weight");
}

TEST_F(Runs, AFolderThatCannotBeMadeIsTold) {
  fs::create_directories(run_);
  std::ofstream(run_ / "checkpoints") << "in the way";
  Net net;
  EXPECT_NE(thrown<FileError>([&] { go(net, {}); }).find("checkpoints/step-2: "),
            std::string::npos);
}

TEST(Events, AreRecordsWithMaskedSums) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  const std::string record = event_of(1.5, 300, {{"loss", 0.25}});
  std::uint64_t length = 0;
  std::memcpy(&length, record.data(), 8);
  ASSERT_EQ(record.size(), length + 16);
  const std::string event = record.substr(12, length);
  const std::string time(reinterpret_cast<const char*>("\x09\0\0\0\0\0\0\xf8\x3f"), 9);
  const std::string step = "\x10\xac\x02";
  const std::string value("\x0a\x04loss\x15\0\0\x80\x3e", 11);
  EXPECT_EQ(event, time + step + "\x2a\x0d\x0a\x0b" + value);
  EXPECT_NE(first_event(0).find("brain.Event:2"), std::string::npos);
  const std::string text =
      "\x0a\x13sample/text_summary\x42\x0c\x08\x07\x12\x04\x12\x02\x08\x01"
      "\x42\x02hi\x4a\x08\x0a\x06\x0a\x04text";
  EXPECT_NE(event_of(1.5, 300, {}, "hi").find(text), std::string::npos);
}

TEST(Threads, AreToldToProductsToo) {
  using Count = int (*)();
  const auto count = reinterpret_cast<Count>(::dlsym(RTLD_DEFAULT, "openblas_get_num_threads"));
  const int before = at::get_num_threads();
  for (const int threads : {2, 1, 2}) {
    use_threads(threads);
    EXPECT_EQ(at::get_num_threads(), threads);
    EXPECT_EQ(count ? count() : threads, threads);
    use_threads(0);
    EXPECT_EQ(at::get_num_threads(), threads);
  }
  use_threads(before);
}

}  // namespace
}  // namespace foci::train
