// SPDX-License-Identifier: Apache-2.0
// overlap: one rank of a step whose gradients go round while backward makes them; rank 0 prints
// when what was sent, as JSON, and the time of the same step that sends when backward is over.
// bench/dist.py starts it.
#include <foci/dist.hpp>

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/nn/modules/linear.h>

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <string>
#include <vector>

namespace {

using namespace foci::dist;
using Clock = std::chrono::steady_clock;

constexpr int layers = 16, width = 768, rows = 192, turns = 15;

struct Stack : torch::nn::Module {
  Stack() {
    for (int i = 0; i < layers; ++i)
      all.push_back(register_module(fmt::format("layer{}", i), torch::nn::Linear(width, width)));
  }
  at::Tensor loss(at::Tensor x) {
    for (auto& layer : all) x = layer(x).relu();
    return x.square().mean();
  }
  std::vector<torch::nn::Linear> all;
};

struct Step {
  double backward = 0, whole = 0;
  std::vector<Gradients::Sent> buckets;
};

enum class Sends { meanwhile, afterwards };

Step step_of(Stack& net, Gradients& gradients, const at::Tensor& x, Sends when) {
  for (at::Tensor& p : net.parameters()) p.mutable_grad() = at::Tensor();
  const at::Tensor loss = net.loss(x);
  const auto begin = Clock::now();
  const auto since = [&] { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  if (when == Sends::meanwhile) gradients.begin();
  loss.backward();
  Step step;
  step.backward = since();
  if (when == Sends::afterwards) gradients.begin();
  gradients.finish();
  step.whole = since();
  step.buckets = gradients.buckets();
  return step;
}

/// The middle one of several.
Step typical(Group& group, Stack& net, Gradients& gradients, const at::Tensor& x, Sends when) {
  std::vector<Step> steps;
  for (int i = 0; i < turns; ++i) {
    group.sum(std::vector<double>{0});  // all begin together
    steps.push_back(step_of(net, gradients, x, when));
  }
  std::sort(steps.begin(), steps.end(),
            [](const Step& a, const Step& b) { return a.whole < b.whole; });
  return steps[turns / 2];
}

void measure(const Standing& standing) {
  at::set_num_threads(1);
  Group group({.standing = standing});
  at::manual_seed(0);
  Stack net;
  Gradients gradients(group, net, std::int64_t(4) << 20);
  const at::Tensor x = at::randn({rows, width});
  const Step meanwhile = typical(group, net, gradients, x, Sends::meanwhile);
  const Step afterwards = typical(group, net, gradients, x, Sends::afterwards);
  if (group.rank() > 0) return;
  std::string list;
  for (const auto& [bytes, begun, done] : meanwhile.buckets) {
    list += fmt::format("{}{{\"bytes\": {}, \"begun\": {:.6f}, \"done\": {:.6f}}}",
                        list.empty() ? "" : ", ", bytes, begun, done);
  }
  fmt::print(
      "{{\"ranks\": {}, \"backward\": {:.6f}, \"whole\": {:.6f}, \"afterwards\": {:.6f}, "
      "\"buckets\": [{}]}}\n",
      group.size(), meanwhile.backward, meanwhile.whole, afterwards.whole, list);
}

}  // namespace

int main() {
  try {
    if (const auto own = standing()) measure(*own);
    return 0;
  } catch (const std::exception& fault) {
    fmt::print(stderr, "overlap: {}\n", fault.what());
    return 1;
  }
}
