// SPDX-License-Identifier: Apache-2.0
// deit_step MODEL METRIC DEVICE BATCH: the loop of `foci train images` on a batch that lies ready,
// bf16 on a GPU. Every line on standard input is a number of steps; answered by their seconds.
#include <foci/models.hpp>
#include <foci/train.hpp>

#include <ATen/ATen.h>

#include <fmt/core.h>

#include <chrono>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>

namespace {

using namespace foci;
using Clock = std::chrono::steady_clock;

/// Answers lines; between two of them the run waits. The first is answered before any step.
class Turns {
 public:
  bool next() {
    const std::chrono::duration<double> spent = Clock::now() - begin_;
    if (left_ > 0 && --left_ > 0) return true;
    fmt::print("{:.6f}\n", spent.count());
    std::fflush(stdout);
    const bool more = bool(std::cin >> left_) && left_ > 0;
    begin_ = Clock::now();
    return more;
  }

 private:
  std::int64_t left_ = 0;
  Clock::time_point begin_ = Clock::now();
};

void train_vit(const std::string& name, const std::string& metric, const std::string& device,
               std::int64_t batch) {
  at::manual_seed(0);
  models::VitOptions options = models::find(name).vit;
  options.mechanism = {.words = {{"metric", metric}}, .first = metric == "dot" ? 0 : 1};
  models::Vit model(options);
  const at::Device place(device == "cuda" ? at::kCUDA : at::kCPU);
  model->to(place);
  const at::Tensor images =
      at::randn({batch, options.channels, options.image, options.image}).to(place);
  const at::Tensor labels = at::randint(options.classes, {batch}, at::kLong).to(place);
  train::Task task;
  task.module = model.get();
  task.samples = batch;
  task.start_at = [](std::int64_t) {};
  task.loss = [&] { return at::cross_entropy_loss(model->forward(images), labels); };
  train::RunOptions run;
  run.bf16 = place.is_cuda();
  run.schedule = {.rate = 1e-4, .steps = std::int64_t(1) << 40, .course = train::Course::constant};
  Turns turns;
  train::run(task, run, [&](const train::Line&) { return turns.next(); });
}

}  // namespace

int main(int count, char** words) try {
  if (count != 5) {
    fmt::print(stderr, "deit_step needs MODEL METRIC cpu|cuda BATCH\n");
    return 2;
  }
  train_vit(words[1], words[2], words[3], std::stoll(words[4]));
  return 0;
} catch (const std::exception& fault) {
  fmt::print(stderr, "deit_step: {}\n", fault.what());
  return 1;
}
