// SPDX-License-Identifier: Apache-2.0
// A training step of a vision transformer whose blocks are fused beside one by torch's operators,
// both under autocast and held to f32: on a GPU, or over the emulator's kernels on the processor.
#include "train/autocast.hpp"

#include <foci/device.hpp>
#include <foci/models.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <optional>
#include <string>

namespace foci {
namespace {

#ifdef FOCI_EMULATED
constexpr auto place = at::kCPU;
bool is_here() { return true; }
#else
constexpr auto place = at::kCUDA;
bool is_here() { return at::hasCUDA() && has_cuda() && !devices().empty(); }
#endif

#define FOCI_WANT_PLACE() \
  if (!is_here()) GTEST_SKIP() << "no GPU here"

enum class Way { fused, unfused, exact };
using Found = std::map<std::string, at::Tensor>;

/// f() under autocast, with or without fused steps, or in f32.
template <class F>
auto by(Way way, F&& f) {
  const train::Autocast narrow(way != Way::exact, place);
  std::optional<nn::Unfused> plain;
  if (way != Way::fused) plain.emplace();
  return f();
}

/// ours is as near to what is exact as torch's operators are, give or take a rounding.
void expect_as_near(const Found& ours, const Found& theirs, const Found& exact) {
  ASSERT_EQ(ours.size(), exact.size());
  for (const auto& [name, right] : exact) {
    const auto off = [&](const Found& found) {
      return (found.at(name).to(at::kDouble) - right.to(at::kDouble)).norm().item<double>();
    };
    const double size = right.to(at::kDouble).norm().item<double>();
    EXPECT_LE(off(ours), 2 * off(theirs) + size / 256) << name << " of size " << size;
    EXPECT_LT(off(ours), 0.1 * size + 1e-6) << name;
  }
}

struct Step {
  models::VitOptions options{
      .image = 16, .patch = 4, .channels = 3, .classes = 8, .dim = 64, .depth = 3, .heads = 4};
  std::int64_t batch = 3;

  /// The loss, and gradients of all parameters and of the images.
  Found found(Way way) const {
    at::manual_seed(3);
    models::Vit model(options);
    {
      const at::NoGradGuard without;  // weights large enough for every branch to count
      for (at::Tensor& p : model->parameters()) {
        if (p.dim() > 1) p.mul_(5);
      }
    }
    model->to(place);
    at::Tensor images = at::randn({batch, 3, options.image, options.image}).to(place);
    images.requires_grad_(true);
    const at::Tensor labels = at::arange(batch, at::kLong).to(place);
    const at::Tensor loss =
        by(way, [&] { return at::cross_entropy_loss(model->forward(images), labels); });
    loss.backward();
    Found all{{"loss", loss.detach().view({1})}, {"images", images.grad()}};
    for (const auto& item : model->named_parameters()) {
      EXPECT_TRUE(item.value().grad().defined()) << item.key();
      EXPECT_EQ(item.value().grad().scalar_type(), at::kFloat) << item.key();
      all[item.key()] = item.value().grad();
    }
    return all;
  }
};

TEST(Fused, AStepIsAsNearToF32AsTorchs) {
  FOCI_WANT_PLACE();
  for (const char* metric : {"dot", "layer-change", "flat", "key-covariance"}) {
    SCOPED_TRACE(metric);
    Step step;
    step.options.mechanism = {.words = {{"metric", metric}}};
    expect_as_near(step.found(Way::fused), step.found(Way::unfused), step.found(Way::exact));
  }
}

TEST(Fused, SoDoOtherSizesAndWeightings) {
  FOCI_WANT_PLACE();
  Step step;
  step.options.dim = 72, step.options.heads = 3, step.options.mlp_ratio = 2;
  step.options.mechanism = {.words = {{"weighting", "linear"}}};
  expect_as_near(step.found(Way::fused), step.found(Way::unfused), step.found(Way::exact));
}

/// Sizes that kernels do not take are torch's, within the same model.
TEST(Fused, LeavesOddSizesToTorch) {
  FOCI_WANT_PLACE();
  Step step;
  step.options.dim = 36, step.options.heads = 3;
  expect_as_near(step.found(Way::fused), step.found(Way::unfused), step.found(Way::exact));
}

std::string maker_of(Way way, const at::Tensor& images, models::Vit& model) {
  const at::Tensor tokens = by(way, [&] { return model->tokens(images); });
  return tokens.grad_fn()->name();
}

TEST(Fused, IsWhatAutocastGetsAndNobodyElse) {
  FOCI_WANT_PLACE();
  models::Vit model(Step().options);
  model->to(place);
  const at::Tensor images = at::randn({2, 3, 16, 16}).to(place);
  EXPECT_NE(maker_of(Way::fused, images, model).find("AddNorm"), std::string::npos);
  for (const Way way : {Way::unfused, Way::exact})
    EXPECT_EQ(maker_of(way, images, model).find("AddNorm"), std::string::npos);
  EXPECT_EQ(model->tokens(images).grad_fn()->name().find("AddNorm"), std::string::npos);
  const at::NoGradGuard without;
  const at::Tensor seen = by(Way::fused, [&] { return model->forward(images); });
  const at::Tensor right = by(Way::exact, [&] { return model->forward(images); });
  EXPECT_LT((seen - right).norm().item<double>(), 0.02 * right.norm().item<double>());
}

/// Values go up to the next layer and their gradient comes back; keys that are padding.
TEST(Fused, ALayerTakesValuesFromBelowAndMasks) {
  FOCI_WANT_PLACE();
  at::manual_seed(5);
  nn::Attention layer(
      nn::AttentionOptions{.dim = 64,
                           .heads = 4,
                           .kv_heads = 2,
                           .how = {.metric = LayerChange{}, .metric_grad = MetricGrad::through}});
  layer->to(place);
  const at::Tensor x = at::randn({2, 19, 64}).to(place),
                   below = at::randn({2, 2, 19, 16}).to(place),
                   up = at::randn({2, 2, 19, 16}).to(place), dy = at::randn({2, 19, 64}).to(place);
  at::Tensor mask = at::ones({2, 19}, at::kBool);
  mask[1].slice(0, 11).fill_(false);
  mask = mask.to(place);
  const auto found = [&](Way way) {
    at::Tensor from = x.clone().requires_grad_(true), v = below.clone().requires_grad_(true);
    layer->zero_grad();
    const at::Tensor sum = by(way, [&] {
      const at::Tensor narrow = way == Way::exact ? v : v.to(at::kBFloat16);
      const auto done = layer->forward(from, narrow, mask);
      return (done.y * dy).sum() + (done.v * up).sum();
    });
    sum.backward();
    Found all{{"x", from.grad()}, {"v_prev", v.grad()}};
    for (const auto& item : layer->named_parameters())
      all[item.key()] = item.value().grad().clone();
    return all;
  };
  expect_as_near(found(Way::fused), found(Way::unfused), found(Way::exact));
}

TEST(Fused, BranchesThatAreLeftOutGetNoGradient) {
  FOCI_WANT_PLACE();
  Step step;
  step.options.drop_path = 1 - 1e-9;  // of the last layer; half of it of the second one
  const Found found = step.found(Way::fused);
  for (const char* part : {"attn.qkv", "attn.proj", "mlp.fc1", "mlp.fc2", "norm1", "norm2"}) {
    const std::string name = std::string(part) + ".weight";
    EXPECT_EQ(found.at("blocks.2." + name).norm().item<double>(), 0) << name;
    EXPECT_GT(found.at("blocks.0." + name).norm().item<double>(), 0) << name;
  }
  for (const auto& [name, gradient] : found)
    EXPECT_TRUE(at::isfinite(gradient).all().item<bool>()) << name;
}

TEST(Fused, HasNoSecondDerivativeAndSaysSo) {
  FOCI_WANT_PLACE();
  models::Vit model(Step().options);
  model->to(place);
  const at::Tensor images = at::randn({2, 3, 16, 16}).to(place).requires_grad_(true);
  const at::Tensor sum = by(Way::fused, [&] { return model->forward(images).sum(); });
  try {
    torch::autograd::grad({sum}, {images}, {}, {}, /*create_graph=*/true);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::NotImplementedError& error) {
    EXPECT_NE(std::string(error.what()).find("have no second derivative"), std::string::npos);
  }
}

}  // namespace
}  // namespace foci
