// SPDX-License-Identifier: Apache-2.0
// A watch changes nothing and sees every call; the weights that are formed again from it are those
// that the library multiplies values with, whatever the metric and the weighting.
#include <foci/error.hpp>
#include <foci/language.hpp>
#include <foci/measure.hpp>
#include <foci/settings.hpp>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <string>
#include <vector>

namespace {

using namespace foci;

struct Case {
  std::string settings;
  bool causal = false;
};

/// Values that are the identity make the output the weights.
at::Tensor by_values(const nn::Seen& call) {
  const std::int64_t M = call.k.size(2);
  nn::Extras extras = call.extras;
  Options how = call.how;
  const at::Tensor values =
      torch::eye(M, call.q.options()).expand({call.k.size(0), call.k.size(1), M, M});
  if (call.statistics.metric.defined() && call.statistics.metric.size(-2) != call.q.size(3)) {
    const auto form = std::visit(
        [](const auto& m) {
          if constexpr (requires { m.form; }) return m.form;
          return Form::product;
        },
        how.metric);
    extras.metric = call.statistics.metric;  // diagonal: estimated from values as it was
    how.metric = Given{.form = form};
  }
  extras.v_prev = at::Tensor();
  return nn::attend(call.q, call.k, values, extras, how);
}

nn::Seen seen_of(const std::string& settings, bool causal, bool masked) {
  torch::manual_seed(3);
  const auto f64 = torch::kDouble;
  Options how = options_of(parse_settings(settings));
  how.causal = causal;
  const at::Tensor q = torch::randn({2, 4, 9, 6}, f64) + 0.5, k = torch::randn({2, 2, 13, 6}, f64);
  const at::Tensor v = torch::randn({2, 2, 13, 6}, f64);
  nn::Extras extras;
  if (settings.find("layer-change") != settings.npos || settings.find("flat") != settings.npos)
    extras.v_prev = torch::randn({2, 2, 13, 6}, f64);
  if (settings.find("given") != settings.npos) {
    extras.metric = torch::rand({1, 2, 1, 6}, f64);
    if (settings.find("full") != settings.npos) {
      const at::Tensor root = torch::randn({1, 2, 6, 6}, f64);
      extras.metric = torch::matmul(root, root.transpose(2, 3));
    }
  }
  if (masked) {
    extras.key_mask = torch::ones({2, 13}, torch::kBool);
    extras.key_mask[0].slice(0, 0, 5).fill_(false);
    extras.key_mask[1].slice(0, 11).fill_(false);
  }
  const bool biased =
      settings.find("linear") == settings.npos &&
      (settings.find("decay") == settings.npos || settings.find("content=true") != settings.npos);
  if (biased && masked) extras.key_bias = torch::randn({2, 4, 13}, f64);
  nn::Seen seen;
  nn::Watch watch([&](const nn::Seen& call) { seen = call; });
  torch::NoGradGuard without;
  nn::attend(q, k, v, extras, how);
  return seen;
}

TEST(Weights, AreWhatTheValuesAreMultipliedWith) {
  int cases = 0;
  for (const char* metric :
       {"metric=dot", "metric=dot form=distance", "metric=layer-change",
        "metric=layer-change form=distance", "metric=flat", "metric=jacobian", "metric=random",
        "metric=given form=distance", "metric=given extent=full", "metric=key-covariance prior=6",
        "metric=key-covariance prior=6 period=4", "metric=key-covariance prior=6 scale=auto",
        "metric=dot scale=0.7"}) {
    for (const char* weighting :
         {"weighting=softmax", "weighting=relu2", "weighting=relu2 rescale=l2",
          "weighting=identity", "weighting=identity rescale=l1", "weighting=linear",
          "weighting=linear feature=exp", "weighting=decay", "weighting=decay content=true"}) {
      for (const bool causal : {false, true}) {
        for (const bool masked : {false, true}) {
          const std::string words = std::string(metric) + " " + weighting;
          nn::Seen call;
          try {
            call = seen_of(words, causal, masked);
          } catch (const InvalidArgument&) {
            continue;  // metrics and weightings that do not go together
          } catch (const Unsupported&) {
            continue;
          }
          const at::Tensor want = by_values(call), got = measure::weights(call);
          const double off = (want - got).abs().max().item<double>();
          EXPECT_LT(off, 1e-6 * std::max(1.0, want.abs().max().item<double>()))
              << words << (causal ? " causal" : "") << (masked ? " masked" : "");
          ++cases;
        }
      }
    }
  }
  EXPECT_GT(cases, 200);
}

TEST(Weights, SomeRowsAreThoseOfAll) {
  const nn::Seen call = seen_of("metric=key-covariance prior=6 period=4", true, true);
  const at::Tensor all = measure::weights(call);
  const at::Tensor some = measure::weights(call, {.sample = 1, .head = 2, .first = 3, .count = 4});
  ASSERT_EQ(some.sizes(), (std::vector<std::int64_t>{1, 1, 4, 13}));
  EXPECT_TRUE(torch::allclose(some[0][0], all[1][2].slice(0, 3, 7)));
  EXPECT_THROW(measure::weights(call, {.first = 7, .count = 4}), InvalidArgument);
  EXPECT_THROW(measure::weights(call, {.sample = 2}), InvalidArgument);
}

models::VitOptions small_vit(const std::string& metric) {
  models::VitOptions o;
  o.image = 8;
  o.patch = 2;
  o.channels = 1;
  o.classes = 3;
  o.dim = 12;
  o.depth = 3;
  o.heads = 2;
  o.mechanism.words = parse_settings(metric);
  return o;
}

TEST(Watch, SeesEveryLayerAndChangesNothing) {
  torch::manual_seed(1);
  models::Vit vit(small_vit("metric=layer-change"));
  vit->eval();
  const at::Tensor images = torch::randn({2, 1, 8, 8});
  const at::Tensor plain = vit->forward(images);
  std::vector<std::int64_t> layers, passed;
  at::Tensor last;
  {
    nn::Watch watch([&](const nn::Seen& call) { layers.push_back(call.layer); },
                    [&](const nn::Passed& tokens) {
                      passed.push_back(tokens.layers);
                      last = tokens.tokens;
                    });
    const at::Tensor watched = vit->forward(images);  // with gradients
    EXPECT_TRUE(torch::equal(plain, watched));
    EXPECT_TRUE(watched.requires_grad());
    watch.restart();
    torch::NoGradGuard without;
    EXPECT_TRUE(torch::allclose(plain, vit->forward(images), 1e-5, 1e-6));
  }
  EXPECT_EQ(layers, (std::vector<std::int64_t>{0, 1, 2, 0, 1, 2}));
  EXPECT_EQ(passed, (std::vector<std::int64_t>{0, 1, 2, 3, 0, 1, 2, 3}));
  EXPECT_TRUE(
      torch::allclose(vit->norm(last).select(1, 0), vit->tokens(images).select(1, 0), 1e-5, 1e-6));
  vit->forward(images);
  EXPECT_EQ(layers.size(), 6u) << "a watch that is gone hears nothing";
}

TEST(Watch, TheNewestHears) {
  const at::Tensor x = torch::randn({1, 1, 3, 4});
  int outer = 0, inner = 0;
  nn::Watch first([&](const nn::Seen&) { ++outer; });
  {
    nn::Watch second([&](const nn::Seen&) {
      ++inner;
      nn::attend(x, x, x);  // not watched
    });
    nn::attend(x, x, x);
  }
  nn::attend(x, x, x);
  EXPECT_EQ(outer, 1);
  EXPECT_EQ(inner, 1);
}

TEST(Watch, SeesTurnedHeads) {
  models::LanguageOptions o;
  o.vocabulary = 11;
  o.context = 8;
  o.dim = 8;
  o.depth = 2;
  o.heads = 2;
  o.positions = models::Positions::rotary;
  o.mechanism.words = parse_settings("metric=layer-change");
  models::Language model(o);
  model->eval();
  torch::NoGradGuard without;
  std::vector<nn::Seen> calls;
  const at::Tensor tokens = torch::arange(6).unsqueeze(0);
  const at::Tensor plain = model->forward(tokens);
  nn::Watch watch([&](const nn::Seen& call) { calls.push_back(call); });
  EXPECT_TRUE(torch::allclose(plain, model->forward(tokens), 1e-5, 1e-6));
  ASSERT_EQ(calls.size(), 2u);
  EXPECT_TRUE(calls[1].how.causal);
  const at::Tensor a = measure::weights(calls[1]);  // under the metric of the prefix
  EXPECT_TRUE(torch::allclose(torch::matmul(a, calls[1].v), calls[1].statistics.o, 1e-4, 1e-5));
}

}  // namespace
