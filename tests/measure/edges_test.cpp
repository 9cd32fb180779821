// SPDX-License-Identifier: Apache-2.0
// What comes out where there is nothing to divide by, one key or a million, numbers that are none,
// and what is said of what cannot be measured.
#include "measure/stack.hpp"

#include <foci/error.hpp>
#include <foci/settings.hpp>

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace {

using namespace foci;
using measure_test::Stack;

TEST(Measure, NothingToDivideBy) {
  const at::Tensor zero = torch::zeros({1, 4, 3}), one = torch::ones({1, 4, 3}),
                   single = torch::ones({1, 1, 3});
  for (const at::Tensor& x : {zero, one, single}) {
    const measure::Likeness like = measure::likeness(x);
    const measure::Spectrum of = measure::spectrum(x[0]);
    const double some = x.abs().sum().item<double>() > 0 ? 1 : 0;
    EXPECT_EQ(like.cosine.item<double>(), some);
    EXPECT_EQ(like.high_low.item<double>(), 0);
    EXPECT_EQ(like.residual.item<double>(), 0);
    EXPECT_EQ(like.dirichlet.item<double>(), 0);
    EXPECT_EQ(like.dirichlet_relative.item<double>(), 0);
    EXPECT_NEAR(of.effective_rank.value, some, 1e-9);
    EXPECT_NEAR(of.stable_rank.value, some, 1e-9);
    EXPECT_NEAR(of.participation.value, some, 1e-9);
  }
  const at::Tensor opposite = torch::cat({one, -one}, 1);  // mean 0
  EXPECT_EQ(measure::likeness(opposite).high_low.item<double>(), 1e12);
  EXPECT_NEAR(measure::likeness(opposite).cosine.item<double>(), -1.0 / 7, 1e-12);
}

TEST(Measure, OneKeyAndNone) {
  const at::Tensor x = torch::randn({2, 1, 1, 3});
  measure::Meter meter({.closely = -1, .grids = {{0, 1, 1}}});
  meter.add([&] {
    nn::attend(x, x, x, {}, options_of({{"metric", "key-covariance"}, {"prior", "3"}}));
  });
  const measure::Layer layer = meter.report().layers[0];
  EXPECT_EQ(layer.rows.concentration.mean, 1);
  EXPECT_EQ(layer.rows.effective_keys.mean, 1);
  EXPECT_EQ(layer.rows.entropy.mean, 0);
  EXPECT_EQ(layer.rows.distance.mean, 0);
  EXPECT_EQ(layer.rows.top.mean, 1);
  EXPECT_EQ(layer.head_distance.mean, 0);
  EXPECT_NEAR(layer.rollout_keys.mean, 1, 1e-6);
  EXPECT_NEAR(layer.metric->anisotropy, 1, 1e-6);
  measure::Meter blind({.closely = -1});
  const at::Tensor hidden = torch::zeros({2, 1}, torch::kBool);
  blind.add([&] { nn::attend(x, x, x, {.key_mask = hidden}); });
  EXPECT_EQ(blind.report().layers[0].rows.concentration.n, 0)
      << "rows that see nothing do not count";
  EXPECT_EQ(blind.report().layers[0].rows.distance.n, 0);
}

TEST(Measure, AMillionTokens) {
  torch::manual_seed(1);
  const int threads = torch::get_num_threads();
  torch::set_num_threads(1);  // on a busy machine several would wait for one another
  const std::int64_t M = 1000000;
  const at::Tensor k = torch::randn({1, 1, M, 4}), q = torch::randn({1, 1, 2, 4});
  measure::Meter meter({.closely = 1});
  meter.add([&] {
    nn::attend(q, k, k);
    nn::Watch::current()->pass(k[0]);
  });
  const measure::Layer layer = meter.report().layers[0];
  for (const measure::Value& value :
       {layer.rows.concentration, layer.rows.entropy, layer.rows.distance, layer.rows.top,
        layer.tokens.cosine, layer.tokens.effective_rank, layer.tokens.residual}) {
    EXPECT_EQ(value.n, 1);
    EXPECT_TRUE(std::isfinite(value.mean));
  }
  EXPECT_NEAR(layer.rows.distance.mean, 5e5, 5e4);
  EXPECT_NEAR(layer.tokens.effective_rank.mean, 4, 1e-3);
  EXPECT_EQ(layer.rollout_keys.n, 0);
  const at::Tensor many = q[0][0][0].expand({1, 1, 1000, 4});
  const nn::Seen call{.q = many, .k = k, .v = k};
  EXPECT_NEAR(measure::weights(call, {.first = 999}).sum().item<double>(), 1, 1e-3);
  EXPECT_THROW(measure::weights(call), Unsupported);
  const auto thin = [](const at::Tensor& x) { return x.slice(3, 0, 1); };
  const auto pass = [&] { nn::attend(thin(many).slice(2, 0, 540), thin(k), thin(k)); };
  EXPECT_THROW(measure::maps(pass), Unsupported);
  torch::set_num_threads(threads);
}

/// A sample that is not finite is left out of every number, and nothing else is.
TEST(Measure, WhatIsNotFiniteIsLeftOut) {
  Stack whole, broken;
  whole.how = broken.how = options_of({{"metric", "random"}});
  broken.x = torch::cat({whole.x, torch::full({1, 7, 8}, std::nan(""))});
  measure::Meter one({.closely = -1}), other({.closely = -1});
  one.add([&] { whole.pass(0, 6); });
  other.add([&] { broken.pass(0, 7); });
  const measure::Layer a = one.report().layers[1], b = other.report().layers[1];
  for (const measure::Value measure::Rows::*of :
       {&measure::Rows::concentration, &measure::Rows::entropy, &measure::Rows::distance,
        &measure::Rows::top}) {
    EXPECT_NEAR((a.rows.*of).mean, (b.rows.*of).mean, 1e-6);
    EXPECT_EQ((b.rows.*of).n, 6);
  }
  for (const measure::Value measure::Tokens::*of :
       {&measure::Tokens::cosine, &measure::Tokens::high_low, &measure::Tokens::residual,
        &measure::Tokens::dirichlet_relative, &measure::Tokens::effective_rank}) {
    EXPECT_NEAR((a.tokens.*of).mean, (b.tokens.*of).mean, 1e-6);
    EXPECT_EQ((b.tokens.*of).n, 6);
  }
  EXPECT_EQ(b.head_distance.n, 6);
  EXPECT_EQ(b.key_change.n, 6);
  EXPECT_EQ(b.rollout_keys.n, 6);
  EXPECT_EQ(b.metric->most, a.metric->most);
}

/// Packed sequences have row statistics; their weights are no one matrix.
TEST(Measure, PackedSequencesHaveRowStatistics) {
  torch::manual_seed(4);
  const at::Tensor x = torch::randn({1, 2, 7, 4});
  const at::Tensor offsets = torch::tensor({0, 3, 7}, torch::kLong);
  measure::Meter meter;
  meter.add([&] { nn::attend(x, x, x, {.q_offsets = offsets, .k_offsets = offsets}); });
  const measure::Layer layer = meter.report().layers[0];
  const auto alone = [&](int first, int last) {
    const at::Tensor part = x.slice(2, first, last);
    return nn::measure(part, part, part).concentration.sum().item<double>();
  };
  EXPECT_NEAR(layer.rows.concentration.mean, (alone(0, 3) + alone(3, 7)) / 14, 1e-6);
  EXPECT_EQ(layer.rows.distance.n, 0);
}

/// A message that says these words.
template <class F>
void expect_told(F&& f, const std::string& words) {
  try {
    f();
    FAIL() << "nothing was thrown; wanted: " << words;
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

TEST(Measure, SaysWhatItNeeds) {
  const Stack stack;
  const auto metered = [&](const measure::Options& options) {
    measure::Meter meter(options);
    meter.add([&] { stack.pass(0, 6); });
  };
  expect_told(
      [&] {
        metered({.grids = {{1, 3, 3}}});
      },
      "layer 0 has 7 keys, and its grid 1 leading");
  expect_told([&] { metered({.top = 0}); }, "top 0");
  expect_told([&] { metered({.weights = 0}); }, "weights 0; they must be");
  expect_told([] { measure::Meter().add([] {}); }, "made no call of attention");
  measure::Meter meter;
  meter.add([&] { stack.pass(0, 2); });
  const at::Tensor x = torch::randn({2, 1, 3, 4});
  expect_told([&] { meter.add([&] { nn::attend(x, x, x); }); }, "1 layers and the first one had 2");
  expect_told(
      [&] {
        meter.add([&] {
          for (int i = 0; i < 3; ++i) nn::attend(x, x, x);
        });
      },
      "more than the 2 layers");
  expect_told(
      [&] {
        measure::Meter().add([&] {
          nn::attend(x, x, x);
          nn::attend(x[0].unsqueeze(0), x[0].unsqueeze(0), x[0].unsqueeze(0));
        });
      },
      "a pass must keep its batch");
  expect_told(
      [&] {
        measure::rollout({torch::ones({2, 3, 4})});
      },
      "rollout of a map of shape (2, 3, 4)");
  expect_told([&] { measure::rollout({}); }, "rollout of no layers");
  expect_told([&] { measure::likeness(torch::ones({3, 4})); }, "tokens have shape (3, 4)");
  expect_told([&] { measure::likeness(x[0], torch::ones({3}, torch::kBool)); },
              "a mask of shape (3)");
  expect_told([&] { measure::spectrum(x[0]); }, "(1, 3, 4); they must be (tokens, size)");
  expect_told([&] { measure::spectrum(torch::ones({3, 2}), {.probes = 1}); }, "1 probes");
  expect_told([&] { measure::head_distance(x); }, "must be (heads, queries, keys)");
  expect_told(
      [&] {
        measure::dirichlet(torch::ones({3, 2}), torch::ones({2, 2}));
      },
      "(N, D) and (N, N)");
  expect_told([&] { measure::images([](const at::Tensor& y) { return y; }, x, {}, 0); },
              "in batches of 0");
  models::VitOptions small;
  small.image = 3;
  small.patch = 4;
  expect_told([&] { models::Vit vit(small); }, "3 pixels in patches of 4");
  nn::Seen packed{.q = x, .k = x, .v = x, .extras = {.q_offsets = torch::zeros({2}, torch::kLong)}};
  expect_told([&] { measure::weights(packed); }, "weights of packed sequences");
}

}  // namespace
