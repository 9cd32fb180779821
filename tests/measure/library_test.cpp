// SPDX-License-Identifier: Apache-2.0
// Numbers that are known of one small matrix, streams against whole matrices, and what comes out
// where there is nothing to divide by.
#include <foci/error.hpp>
#include <foci/measure.hpp>
#include <foci/settings.hpp>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace {

using namespace foci;

constexpr double six_digits = 1e-6;  // what was printed may be off by one in its last digit

at::Tensor known() {
  return torch::tensor({{1.0, 0.0, 2.0}, {0.0, 1.0, 1.0}, {1.0, 1.0, 0.0}, {2.0, -1.0, 1.0}},
                       torch::kDouble);
}

nn::Seen self_attention(const at::Tensor& x) {
  const at::Tensor heads = x.unsqueeze(0).unsqueeze(0);
  nn::Seen seen;
  nn::Watch watch([&](const nn::Seen& call) { seen = call; });
  torch::NoGradGuard without;
  nn::attend(heads, heads, heads);
  return seen;
}

void expect_near(const at::Tensor& got, const std::vector<double>& want, double tolerance) {
  const at::Tensor flat = got.flatten().to(torch::kDouble).contiguous();
  ASSERT_EQ(std::size_t(flat.numel()), want.size());
  for (std::size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(flat.data_ptr<double>()[i], want[i], tolerance) << "at " << i;
}

TEST(Measure, TokensOfAKnownMatrix) {
  const at::Tensor x = known();
  const measure::Likeness like = measure::likeness(x.unsqueeze(0));
  EXPECT_NEAR(like.cosine.item<double>(), 0.41127583, six_digits);
  EXPECT_NEAR(like.high_low.item<double>(), 0.904534, six_digits);
  EXPECT_NEAR(like.residual.item<double>(), 0.649519, six_digits);
  EXPECT_NEAR(like.dirichlet.item<double>(), 1.6875, six_digits);
  EXPECT_NEAR(like.dirichlet_relative.item<double>(), 1.6875 / 15, six_digits);
  const measure::Spectrum of = measure::spectrum(x);
  EXPECT_NEAR(of.effective_rank.value, 2.793788, six_digits);
  EXPECT_NEAR(of.effective_rank_squares.value, 2.319348, six_digits);
  EXPECT_NEAR(of.stable_rank.value, 1.489376, six_digits);
  EXPECT_NEAR(of.participation.value, 1.956522, six_digits);
  EXPECT_EQ(of.effective_rank.error, 0);
}

TEST(Measure, AttentionOfAKnownMatrix) {
  const at::Tensor x = known();
  const nn::Seen call = self_attention(x);
  expect_near(call.statistics.entropy, {1.076428, 1.295771, 1.349619, 0.789689}, six_digits);
  expect_near(call.statistics.entropy.exp(), {2.934179, 3.653811, 3.855957, 2.202711}, six_digits);
  expect_near(call.statistics.effective_keys, {2.489733, 3.427025, 3.703334, 1.781925}, six_digits);
  expect_near(call.statistics.concentration, {0.788944, 0.925611, 0.962202, 0.667444}, six_digits);
  const at::Tensor a = measure::weights(call)[0][0];
  const at::Tensor other = 0.5 * torch::eye(4, torch::kDouble) + 0.125;
  EXPECT_NEAR(measure::dirichlet(x, a), 3.797808, six_digits);
  EXPECT_NEAR(measure::head_distance(torch::stack({a, other})), 0.545094, six_digits);
  const at::Tensor rolled = measure::rollout({a.unsqueeze(0), other.unsqueeze(0)});
  expect_near(rolled[0], {0.651747, 0.088460, 0.072191, 0.187603}, six_digits);
}

/// A model of two layers, each of its own weights: tokens on a grid of 2 x 3 behind one more.
struct Stack {
  at::Tensor x = (torch::manual_seed(5), torch::randn({6, 7, 8}));
  at::Tensor keep;
  Options how = {};

  std::vector<nn::Seen> calls(std::int64_t first, std::int64_t count) const {
    std::vector<nn::Seen> seen;
    nn::Watch watch([&](const nn::Seen& call) { seen.push_back(call); });
    pass(first, count);
    return seen;
  }
  void pass(std::int64_t first, std::int64_t count) const {
    const torch::NoGradGuard without;
    at::Tensor y = x.slice(0, first, first + count);
    const at::Tensor mask = keep.defined() ? keep.slice(0, first, first + count) : at::Tensor();
    nn::Watch* watch = nn::Watch::current();
    if (watch) watch->pass(y, mask);
    for (int layer = 0; layer < 2; ++layer) {
      const at::Tensor heads = y.view({count, 7, 2, 4}).transpose(1, 2);
      const at::Tensor o = nn::attend(heads + layer, heads * 2, heads, {.key_mask = mask}, how);
      y = y + o.transpose(1, 2).reshape_as(y);
      if (watch) watch->pass(y, mask);
    }
  }
};

TEST(Measure, AMeterAgreesWithWholeMatrices) {
  const Stack stack;
  const measure::Options options{.closely = -1, .top = 2, .grids = {{1, 2, 3}}, .queries = true};
  measure::Meter meter(options);
  meter.add([&] { stack.pass(0, 6); });
  const measure::Report report = meter.report();
  ASSERT_EQ(report.layers.size(), 2u);
  EXPECT_EQ(report.samples, 6);
  const std::vector<nn::Seen> calls = stack.calls(0, 6);
  const at::Tensor a = measure::weights(calls[1]).to(torch::kDouble);  // (6,2,7,7)
  const measure::Layer& layer = report.layers[1];
  EXPECT_NEAR(layer.rows.concentration.mean,
              calls[1].statistics.concentration.mean().item<double>(), 1e-6);
  EXPECT_NEAR(layer.rows.entropy.mean, calls[1].statistics.entropy.mean().item<double>(), 1e-6);
  EXPECT_NEAR(layer.by_head[1].effective_keys.mean,
              calls[1].statistics.effective_keys.select(1, 1).mean().item<double>(), 1e-5);
  const at::Tensor samples = calls[1].statistics.concentration.mean({1, 2});
  EXPECT_NEAR(layer.rows.concentration.error, samples.std().item<double>() / std::sqrt(6.0), 1e-6);
  EXPECT_EQ(layer.rows.concentration.n, 6);
  EXPECT_NEAR(layer.by_query[0][1][3].item<double>(),
              calls[1].statistics.concentration.select(1, 1).select(1, 3).mean().item<double>(),
              1e-6);
  double distance = 0, apart = 0;
  for (int i = 0; i < 6; ++i) {
    at::Tensor far = torch::zeros({6}, torch::kDouble);
    for (int j = 0; j < 6; ++j) far[j] = std::hypot(i / 3 - j / 3, i % 3 - j % 3);
    const at::Tensor row = a.select(2, i + 1).slice(2, 1);
    distance += ((row * far).sum(-1) / row.sum(-1)).mean().item<double>() / 6;
    apart += measure::head_distance(a[i]) / 6;
  }
  EXPECT_NEAR(layer.rows.distance.mean, distance, 1e-5);
  EXPECT_NEAR(layer.rows.top.mean, std::get<0>(a.topk(2)).sum(-1).mean().item<double>(), 1e-5);
  EXPECT_NEAR(layer.head_distance.mean, apart, 1e-5);
  const at::Tensor rolled =
      measure::rollout({measure::weights(calls[0]), measure::weights(calls[1])});
  EXPECT_NEAR(layer.rollout_keys.mean, (1 / rolled.square().sum(-1)).mean().item<double>(), 1e-4);
  const at::Tensor k = calls[1].k.to(torch::kDouble), below = calls[0].k.to(torch::kDouble);
  EXPECT_NEAR(layer.key_change.mean,
              ((k - below).abs().sum({1, 2, 3}) / below.abs().sum({1, 2, 3})).mean().item<double>(),
              1e-6);
  EXPECT_EQ(report.layers[0].key_change.n, 0);
  EXPECT_NEAR(report.embedded.cosine.mean, measure::likeness(stack.x).cosine.mean().item<double>(),
              1e-9);
  EXPECT_GT(layer.tokens.effective_rank.mean, 1);
}

TEST(Measure, BatchesAddUp) {
  Stack stack;
  stack.keep = torch::ones({6, 7}, torch::kBool);
  stack.keep[1].slice(0, 4).fill_(false);
  stack.keep[4].slice(0, 1).fill_(false);
  const measure::Options options{.closely = 4};
  measure::Meter whole(options), parts(options);
  whole.add([&] { stack.pass(0, 6); });
  for (int i = 0; i < 6; i += 3) parts.add([&] { stack.pass(i, 3); });
  const measure::Report one = whole.report(), other = parts.report();
  const auto same = [](const measure::Value& a, const measure::Value& b) {
    EXPECT_NEAR(a.mean, b.mean, 1e-9);
    EXPECT_NEAR(a.error, b.error, 1e-9);
    EXPECT_EQ(a.n, b.n);
  };
  const measure::Layer &a = one.layers[1], &b = other.layers[1];
  same(a.rows.concentration, b.rows.concentration);
  same(a.rows.distance, b.rows.distance);
  EXPECT_EQ(a.rows.concentration.n, 6);
  EXPECT_EQ(a.rows.distance.n, 4);
  same(a.tokens.cosine, b.tokens.cosine);
  same(a.tokens.effective_rank, b.tokens.effective_rank);
  same(a.head_distance, b.head_distance);
  EXPECT_THROW(whole.add([] {}), InvalidArgument);
}

/// What is padded neither counts as a row nor as a token.
TEST(Measure, PaddingDoesNotCount) {
  Stack padded, alone;
  padded.keep = torch::ones({6, 7}, torch::kBool);
  padded.keep.slice(1, 5).fill_(false);
  padded.x.slice(1, 5).fill_(1e3);
  const std::vector<nn::Seen> calls = padded.calls(0, 6);
  measure::Meter meter({.closely = -1, .rollout = 0});
  meter.add([&] { padded.pass(0, 6); });
  const measure::Layer layer = meter.report().layers[0];
  const at::Tensor rows = calls[0].statistics.concentration.slice(2, 0, 5);
  EXPECT_NEAR(layer.rows.concentration.mean, rows.mean().item<double>(), 1e-6);
  EXPECT_NEAR(meter.report().embedded.cosine.mean,
              measure::likeness(alone.x.slice(1, 0, 5)).cosine.mean().item<double>(), 1e-9);
  EXPECT_LT(layer.rows.distance.mean, 4);
  EXPECT_EQ(layer.rollout_keys.n, 0);
}

TEST(Measure, ASpectrumFromProbesLiesWithinItsError) {
  torch::manual_seed(2);
  const at::Tensor sizes = torch::pow(0.97, torch::arange(200, torch::kDouble));
  const at::Tensor x = torch::randn({300, 200}, torch::kDouble) * sizes;
  const measure::Spectrum exact = measure::spectrum(x);
  const measure::Spectrum probed = measure::spectrum(x, {.exact = 10, .probes = 40});
  const auto near = [](const measure::Estimate& got, const measure::Estimate& want) {
    EXPECT_GT(got.error, 0);
    EXPECT_LT(got.error, 0.1 * want.value);
    EXPECT_LT(std::abs(got.value - want.value), 4 * got.error);
  };
  near(probed.effective_rank, exact.effective_rank);
  near(probed.effective_rank_squares, exact.effective_rank_squares);
  near(probed.participation, exact.participation);
  EXPECT_NEAR(probed.stable_rank.value, exact.stable_rank.value, 1e-4 * exact.stable_rank.value);
  const measure::Spectrum turned = measure::spectrum(x.t().contiguous(), {.exact = 10});
  EXPECT_NEAR(turned.effective_rank.value, exact.effective_rank.value,
              4 * turned.effective_rank.error);
}

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

TEST(Measure, HealthOfAMetric) {
  const at::Tensor m = torch::tensor({1.0, 0.5, 0.5, 0.0}, torch::kDouble).view({1, 1, 1, 4});
  const measure::Health of = measure::health(m);
  EXPECT_EQ(of.least, 0);
  EXPECT_EQ(of.most, 1);
  EXPECT_EQ(of.mean, 0.5);
  EXPECT_NEAR(of.variation, std::sqrt(0.125) / 0.5, 1e-12);
  EXPECT_EQ(of.anisotropy, 2);
  EXPECT_EQ(of.condition, 1e12);
  EXPECT_EQ(of.at_floor, 0.25);
  EXPECT_NEAR(of.entropy, 1.5 * std::log(2.0) / std::log(4.0), 1e-12);
  const measure::Health circle = measure::health(torch::ones({2, 3, 1, 4}));
  EXPECT_EQ(circle.variation, 0);
  EXPECT_EQ(circle.condition, 1);
  EXPECT_EQ(circle.entropy, 1);
  const measure::Health nothing = measure::health(torch::zeros({2, 3, 1, 4}));
  EXPECT_EQ(nothing.anisotropy, 1);
  EXPECT_EQ(nothing.entropy, 1);
  const at::Tensor P = torch::diag(torch::tensor({4.0, 1.0})).view({1, 1, 2, 2});
  EXPECT_NEAR(measure::health(P, Extent::full).condition, 4, 1e-12);
  EXPECT_EQ(measure::drift(torch::ones({2}), 2 * torch::ones({2})), 1);
  EXPECT_EQ(measure::drift(torch::zeros({2}), torch::ones({2})), 0);
  EXPECT_THROW(measure::health(torch::ones({3})), InvalidArgument);
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
