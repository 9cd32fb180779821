// SPDX-License-Identifier: Apache-2.0
// nn::Attention and nn::Block: what they compute, what their metrics remember, decoding, weights in
// files, and the checkpoint that is not evaluated under another metric.
#include <foci/nn.hpp>

#include "thrown.hpp"

#include <foci/error.hpp>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/serialize.h>
#include <torch/serialize/archive.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <sstream>
#include <string>

namespace foci::nn {
namespace {

using Result = AttentionImpl::Result;

AttentionOptions layer(const Metric& metric, bool causal = false) {
  return {.dim = 24, .heads = 4, .kv_heads = 2, .how = {.metric = metric, .causal = causal}};
}

at::Tensor tokens(std::int64_t n = 7) {
  at::manual_seed(3);
  return at::randn({2, n, 24});
}

at::Tensor below(std::int64_t n = 7) {
  at::manual_seed(4);
  return at::randn({2, 2, n, 6});
}

TEST(Layer, ProjectsAttendsAndProjectsBack) {
  at::manual_seed(0);
  Attention attention(layer(LayerChange{}));
  const at::Tensor x = tokens();
  const Result r = attention->forward(x, below());
  const auto parts = attention->qkv(x).split_with_sizes({24, 12, 12}, 2);
  const auto heads = [](const at::Tensor& t, std::int64_t h) {
    return t.view({2, 7, h, 6}).transpose(1, 2);
  };
  const at::Tensor o = attend(heads(parts[0], 4), heads(parts[1], 2), heads(parts[2], 2),
                              {.v_prev = below()}, {.metric = LayerChange{}});
  EXPECT_TRUE(r.y.equal(attention->proj(o.transpose(1, 2).reshape({2, 7, 24}))));
  EXPECT_TRUE(r.v.equal(heads(parts[2], 2)));
}

TEST(Layer, TheLowestIsDot) {
  at::manual_seed(0);
  AttentionOptions options = layer(LayerChange{.reduce = Reduce::median});
  options.lowest = true;
  Attention lowest(options);
  at::manual_seed(0);
  Attention dot(layer(Dot{}));
  EXPECT_TRUE(lowest->forward(tokens()).y.equal(dot->forward(tokens()).y));
  EXPECT_EQ(lowest->mechanism(), dot->mechanism());
  EXPECT_EQ(thrown<InvalidArgument>([&] { lowest->forward(tokens(), below()); }),
            "v_prev came, but this is the lowest layer: it has none below");
}

TEST(Layer, KeyCovarianceIsShrunkAndScaled) {
  Attention attention(layer(KeyCovariance{}));
  EXPECT_EQ(attention->mechanism(),
            "metric=key-covariance weighting=softmax allow_leak=false causal=false head_dim=6 "
            "heads=4 kv_heads=2 metric_grad=through period=64 prior=6 ridge=1e-06 "
            "scale=0.4082482904638631 scope=sequence");
}

TEST(Layer, TrainsThroughALearnedMetric) {
  for (const Extent extent : {Extent::diagonal, Extent::full}) {
    AttentionOptions options = layer(Dot{});
    options.learned = Learned{.extent = extent};
    at::manual_seed(0);
    Attention attention(options);
    at::manual_seed(0);
    AttentionOptions plain = layer(Dot{});
    if (extent == Extent::full) plain.how = {.metric = Dot{.form = Form::distance}};
    Attention dot(plain);
    const at::Tensor y = attention->forward(tokens()).y;
    EXPECT_TRUE(
        at::allclose(y, dot->forward(tokens()).y, 1e-4, 1e-5));  // it begins at the identity
    y.pow(2).sum().backward();
    const at::Tensor parameter =
        extent == Extent::full ? attention->metric_factor : attention->metric_raw;
    EXPECT_GT(parameter.grad().abs().max().item<float>(), 0);
  }
}

TEST(Layer, ALearnedMetricStartsWhereItIsTold) {
  AttentionOptions options = layer(Dot{});
  options.learned = Learned{.init = Init::estimate};
  Attention estimate(options);
  EXPECT_EQ(thrown<InvalidArgument>([&] { estimate->forward(tokens()); }),
            "a learned metric with init estimate starts from how values change: the first batch "
            "needs v_prev (or use init identity)");
  const Result r = estimate->forward(tokens(), below());
  const at::Tensor change = (r.v - below()).abs().mean(at::IntArrayRef({0, 2}));
  EXPECT_TRUE(at::allclose(at::softplus(estimate->metric_raw), change / change.amax({-1}, true),
                           1e-4, 1e-5));
  const at::Tensor first = estimate->metric_raw.clone();
  estimate->forward(tokens(9), below(9));
  EXPECT_TRUE(estimate->metric_raw.equal(first));
  options.learned = Learned{.extent = Extent::full, .init = Init::random};
  Attention random(options);
  EXPECT_FALSE(random->metric_factor.tril().equal(at::eye(6).expand({2, 6, 6})));
}

TEST(Layer, RunningScopeUsesEarlierBatchesAlone) {
  AttentionOptions options = layer(LayerChange{});
  options.running = Running{.momentum = 0.5};
  at::manual_seed(0);
  Attention attention(options);
  at::manual_seed(0);
  Attention dot(layer(Dot{}));
  const Result first = attention->forward(tokens(), below());
  EXPECT_TRUE(first.y.equal(dot->forward(tokens()).y));  // m = 1 before the first
  const at::Tensor raw = (first.v - below()).abs().mean(at::IntArrayRef({0, 2}));
  EXPECT_TRUE(at::allclose(attention->running_m, raw * 0.5, 1e-5));
  const Result second = attention->forward(tokens(9), below(9));
  const at::Tensor more = (second.v - below(9)).abs().mean(at::IntArrayRef({0, 2}));
  EXPECT_TRUE(at::allclose(attention->running_m, raw * 0.25 + more * 0.5, 1e-5));
  EXPECT_EQ(attention->running_steps.item<std::int64_t>(), 2);
  attention->eval();
  const at::Tensor m = attention->running_m / 0.75;
  const at::Tensor y = attention->forward(tokens()).y;  // needs no values of the layer below
  const auto parts = attention->qkv(tokens()).split_with_sizes({24, 12, 12}, 2);
  const auto heads = [](const at::Tensor& t, std::int64_t h) {
    return t.view({2, 7, h, 6}).transpose(1, 2);
  };
  const at::Tensor o =
      attend(heads(parts[0], 4), heads(parts[1], 2), heads(parts[2], 2),
             {.metric = (m / m.amax({-1}, true)).unsqueeze(0).unsqueeze(2)}, {.metric = Given{}});
  EXPECT_TRUE(at::allclose(y, attention->proj(o.transpose(1, 2).reshape({2, 7, 24})), 1e-4, 1e-6));
  EXPECT_EQ(attention->running_steps.item<std::int64_t>(), 2);
}

TEST(Layer, RunningCovarianceIsTheIdentityBeforeTheFirstBatch) {
  AttentionOptions options = layer(KeyCovariance{});
  options.running = Running{};
  at::manual_seed(0);
  Attention attention(options);
  AttentionOptions plain = layer(Dot{.form = Form::distance});
  at::manual_seed(0);
  Attention euclid(plain);
  EXPECT_TRUE(
      at::allclose(attention->forward(tokens()).y, euclid->forward(tokens()).y, 1e-4, 1e-5));
  EXPECT_FALSE(
      at::allclose(attention->forward(tokens()).y, euclid->forward(tokens()).y, 1e-4, 1e-5));
}

class Decoding : public testing::TestWithParam<int> {};

TEST_P(Decoding, GivesWhatTheFullPassGives) {
  const Metric metrics[] = {Dot{},   LayerChange{}, Flat{}, Jacobian{}, KeyCovariance{.period = 3},
                            Random{}};
  AttentionOptions options = layer(metrics[std::size_t(GetParam()) % 6], true);
  if (GetParam() == 6) options.learned = Learned{.extent = Extent::full, .init = Init::random};
  at::manual_seed(0);
  Attention attention(options);
  attention->eval();
  const at::NoGradGuard without;
  const bool compares = GetParam() == 1 || GetParam() == 2;
  const at::Tensor x = tokens(8);
  const at::Tensor v_prev = compares ? below(8) : at::Tensor();
  const Result full = attention->forward(x, v_prev);
  Cache cache(8);
  std::int64_t at = 0;
  for (const std::int64_t n : {3, 1, 1, 3}) {
    const at::Tensor part = compares ? v_prev.slice(2, at, at + n) : v_prev;
    const Result r = attention->step(x.slice(1, at, at + n), cache, part);
    EXPECT_TRUE(at::allclose(r.y, full.y.slice(1, at, at + n), 1e-4, 1e-5)) << at;
    EXPECT_TRUE(r.v.equal(full.v.slice(2, at, at + n)) ||
                at::allclose(r.v, full.v.slice(2, at, at + n), 1e-5, 1e-6));
    at += n;
  }
  EXPECT_EQ(cache.length(), 8);
  cache.reset();
  EXPECT_EQ(cache.length(), 0);
}
INSTANTIATE_TEST_SUITE_P(Metrics, Decoding, testing::Range(0, 7));

TEST(Layer, DecodingWantsACausalLayerWithoutGradients) {
  Cache cache(4);
  Attention full(layer(Dot{})), causal(layer(Dot{}, true));
  EXPECT_EQ(thrown<InvalidArgument>([&] { full->step(tokens(1), cache); }),
            "a cache needs a causal layer: set causal");
  EXPECT_EQ(thrown<InvalidArgument>([&] { causal->step(tokens(1), cache); }),
            "a cache keeps no gradients: decode under torch::NoGradGuard");
  EXPECT_EQ(thrown<InvalidArgument>([] { Cache(0); }),
            "a cache of 0 tokens; it must hold at least 1");
}

TEST(Layer, AChecksPointsMetricIsTheLayers) {
  const std::string path = testing::TempDir() + "foci_layer_" + std::to_string(getpid());
  BlockOptions options{.attention = layer(LayerChange{})};
  Block block(options), other(options);
  save_weights(*block, path);
  const at::Tensor x = tokens();
  EXPECT_FALSE(other->forward(x, below()).y.equal(block->forward(x, below()).y));
  load_weights(*other, path);
  EXPECT_TRUE(other->forward(x, below()).y.equal(block->forward(x, below()).y));

  options.attention.how.metric = LayerChange{.normalize = Normalize::mean};
  Block wrong(options);
  const at::Tensor before = wrong->mlp->fc1->weight.clone();
  const std::string refusal = thrown<InvalidArgument>([&] { load_weights(*wrong, path); });
  EXPECT_EQ(refusal.substr(0, 50), "attn.mechanism: the checkpoint was made under `met");
  EXPECT_NE(refusal.find("normalize=max"), refusal.npos);
  EXPECT_NE(refusal.find("normalize=mean"), refusal.npos);
  EXPECT_TRUE(wrong->mlp->fc1->weight.equal(before));

  options.attention.dim = 48;
  Block wide(options);
  EXPECT_NE(thrown<InvalidArgument>([&] { load_weights(*wide, path); }).find("this module needs"),
            std::string::npos);
  Attention alone(layer(LayerChange{}));
  EXPECT_NE(thrown<InvalidArgument>([&] { load_weights(*alone, path); }).find("has no tensor"),
            std::string::npos);
  std::remove(path.c_str());
}

TEST(Layer, HeadsAreComparedAndTrainingIsNot) {
  const std::string path = testing::TempDir() + "foci_heads_" + std::to_string(getpid());
  AttentionOptions options{.dim = 24, .heads = 4, .how = {.metric = LayerChange{}}};
  Attention saved(options);
  save_weights(*saved, path);
  options.how.metric_grad = MetricGrad::through;
  options.how.scale = 1 / std::sqrt(6.0);  // the standard one, said aloud
  Attention tuned(options);
  load_weights(*tuned, path);
  EXPECT_TRUE(tuned->qkv->weight.equal(saved->qkv->weight));
  options.heads = 2;  // the same shapes
  options.how.scale = {};
  Attention other(options);
  EXPECT_NE(thrown<InvalidArgument>([&] { load_weights(*other, path); }).find("heads=2"),
            std::string::npos);
  std::remove(path.c_str());
}

TEST(Layer, ALearnedMetricThatNobodyLooksAtHasNoGradient) {
  AttentionOptions options{.dim = 24, .heads = 4, .how = {.weighting = Decay{}, .causal = true}};
  options.learned = Learned{};
  Attention attention(options);
  attention->forward(tokens()).y.sum().backward();
  EXPECT_EQ(attention->metric_raw.grad().abs().max().item<float>(), 0);
}

TEST(Layer, TorchsOwnArchiveIsCheckedToo) {
  Attention saved(layer(KeyCovariance{})), wrong(layer(KeyCovariance{.ridge = 0.5}));
  std::stringstream bytes;
  torch::save(saved, bytes);
  EXPECT_NE(thrown<InvalidArgument>([&] { torch::load(wrong, bytes); }).find("ridge=0.5"),
            std::string::npos);
}

TEST(Layer, RefusesWhatDoesNotFit) {
  const auto said = [](const AttentionOptions& options) {
    return thrown<InvalidArgument>([&] { Attention attention(options); });
  };
  EXPECT_EQ(said({.dim = 0}), "a layer of dim 0 and 1 heads; both must be at least 1");
  EXPECT_EQ(said({.dim = 10, .heads = 3}),
            "dim 10 is no multiple of 3 heads: take one that is, or set head_dim");
  EXPECT_EQ(said({.dim = 12, .heads = 3, .kv_heads = 2}), "3 heads is no multiple of kv_heads 2");
  EXPECT_EQ(said(layer(Given{})),
            "metric given has no tensor in a layer: use nn::attend, or learned");
  AttentionOptions options = layer(Flat{});
  options.learned = Learned{};
  EXPECT_EQ(said(options),
            "learned takes the place of the metric, and that is flat: leave one out");
  options = layer(Dot{});
  options.running = Running{};
  EXPECT_EQ(said(options),
            "scope running belongs to metrics that are estimated; the metric is dot");
  options = layer(LayerChange{.scope = Scope::sequence});
  options.running = Running{};
  EXPECT_EQ(said(options), "scope running takes the place of another scope: leave one out");
  options = layer(LayerChange{});
  options.running = Running{.momentum = 1};
  EXPECT_EQ(said(options), "momentum is 1; it must lie in [0, 1)");
  Attention attention(layer(LayerChange{}));
  EXPECT_EQ(thrown<InvalidArgument>([&] {
              attention->forward(at::zeros({2, 24}));
            }),
            "x has shape (2, 24); it must be (batch, tokens, 24)");
  EXPECT_EQ(thrown<InvalidArgument>([&] { attention->forward(tokens()); }),
            "the metric compares values with those of the layer below: v_prev is missing (on the "
            "lowest layer set lowest, which makes it dot)");
  Attention leaking(layer(LayerChange{.scope = Scope::sequence}, true));
  EXPECT_NE(
      thrown<InvalidArgument>([&] { leaking->forward(tokens(), below()); }).find("future tokens"),
      std::string::npos);
}

}  // namespace
}  // namespace foci::nn
