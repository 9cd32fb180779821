// SPDX-License-Identifier: Apache-2.0
// A vision transformer in thirty lines of foci::nn, trained for a moment on images of bars: which
// of four positions has the bright one? Prints accuracy and how many keys a row looks at.
#include <foci/nn.hpp>

#include <ATen/ATen.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/adamw.h>

#include <cstdio>
#include <vector>

struct TinyViT : torch::nn::Module {
  explicit TinyViT(int depth) {
    patch = register_module("patch", torch::nn::Linear(16, 32));
    place = register_parameter("place", at::randn({1, 16, 32}) * 0.1);
    for (int i = 0; i < depth; ++i) {
      foci::nn::AttentionOptions attention{
          .dim = 32, .heads = 4, .how = {.metric = foci::LayerChange{}}, .lowest = i == 0};
      blocks.push_back(register_module("block" + std::to_string(i),
                                       foci::nn::Block(foci::nn::BlockOptions{attention, 2})));
    }
    head = register_module("head", torch::nn::Linear(32, 4));
  }

  at::Tensor forward(const at::Tensor& images) {  // (B,16,16)
    at::Tensor x = images.unfold(1, 4, 4).unfold(2, 4, 4).reshape({images.size(0), 16, 16});
    x = patch(x) + place;
    at::Tensor v;  // the values of the layer below
    for (auto& block : blocks) {
      const auto result = block->forward(x, v);
      x = result.y;
      v = result.v;
    }
    return head(x.mean(1));
  }

  torch::nn::Linear patch = nullptr, head = nullptr;
  at::Tensor place;
  std::vector<foci::nn::Block> blocks;
};

int main() {
  at::manual_seed(0);
  TinyViT model(3);
  torch::optim::AdamW optimizer(model.parameters(), torch::optim::AdamWOptions(3e-3));
  double right = 0;
  for (int step = 0; step < 60; ++step) {
    const at::Tensor label = at::randint(0, 4, {64}, at::kLong);
    at::Tensor images = at::randn({64, 16, 16}) * 0.5;
    for (int i = 0; i < 64; ++i)
      images[i].slice(1, 4 * label[i].item<int>(), 4 * label[i].item<int>() + 4) += 1;
    const at::Tensor logits = model.forward(images);
    const at::Tensor loss = at::cross_entropy_loss(logits, label);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
    right = logits.argmax(1).eq(label).to(at::kDouble).mean().item<double>();
    if (step % 20 == 0) std::printf("step %2d  loss %.3f\n", step, loss.item<double>());
  }
  const at::Tensor q = at::randn({1, 4, 16, 8});
  const auto seen = foci::nn::measure(q, q, q).effective_keys.mean().item<double>();
  std::printf("accuracy %.2f; a random row uses %.1f of 16 keys\n", right, seen);
  return right > 0.9 ? 0 : 1;
}
