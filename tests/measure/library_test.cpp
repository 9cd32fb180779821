// SPDX-License-Identifier: Apache-2.0
// Numbers that are known of one small matrix, and streams against whole matrices.
#include "measure/stack.hpp"

#include <foci/error.hpp>
#include <foci/settings.hpp>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <vector>

namespace {

using namespace foci;
using measure_test::Stack;

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

/// With one sample the error is that of the spectrum; with several it is in the error of the mean.
TEST(Measure, ErrorsOfASpectrumReachTheReport) {
  const Stack stack;
  const measure::SpectrumOptions probed{.exact = 1, .probes = 8};
  const auto measured = [&](std::int64_t samples, const measure::SpectrumOptions& how) {
    measure::Meter meter({.closely = -1, .spectrum = how});
    meter.add([&] { stack.pass(0, samples); });
    return meter.report().embedded.effective_rank;
  };
  const measure::Estimate alone = measure::spectrum(stack.x[0], probed).effective_rank;
  ASSERT_GT(alone.error, 0);
  EXPECT_EQ(measured(1, probed).mean, alone.value);
  EXPECT_EQ(measured(1, probed).error, alone.error);
  EXPECT_EQ(measured(1, {}).error, 0) << "an exact one has none";
  double values = 0, squares = 0, own = 0;
  for (int b = 0; b < 6; ++b) {
    measure::SpectrumOptions how = probed;
    how.seed = std::uint64_t(b);
    const measure::Estimate one = measure::spectrum(stack.x[b], how).effective_rank;
    values += one.value / 6;
    squares += one.value * one.value;
    own += one.error * one.error;
  }
  EXPECT_NEAR(measured(6, probed).mean, values, 1e-9);
  EXPECT_NEAR(measured(6, probed).error, std::sqrt((squares - 6 * values * values) / 30 + own / 36),
              1e-9);
}

/// A number that a row does not have is none; nobody makes a 0 of it.
TEST(Measure, QueriesThatHaveNoNumber) {
  Stack stack;
  stack.keep = torch::ones({6, 7}, torch::kBool);
  stack.keep.slice(1, 5).fill_(false);
  stack.how = options_of({{"weighting", "relu2"}});
  measure::Meter meter({.closely = 4, .grids = {{1, 2, 3}}, .queries = true});
  for (int i = 0; i < 6; i += 3) meter.add([&] { stack.pass(i, 3); });
  const measure::Layer layer = meter.report().layers[0];
  const std::vector<nn::Seen> calls = stack.calls(0, 6);
  const at::Tensor absent = layer.by_query.isnan();
  ASSERT_EQ(layer.by_query.sizes(), (std::vector<std::int64_t>{6, 2, 7}));
  EXPECT_TRUE(absent[2].all().item<bool>()) << "relu2 has no entropy";
  for (const int number : {0, 1, 3, 4, 5}) {
    EXPECT_TRUE(absent[number].slice(1, 5).all().item<bool>()) << number << ": padding";
    EXPECT_EQ(absent[number].slice(1, number == 4 ? 1 : 0, 5).any().item<bool>(), false) << number;
  }
  EXPECT_TRUE(absent[4].select(1, 0).all().item<bool>()) << "it stands nowhere";
  const at::Tensor a = measure::weights(calls[0]).slice(0, 0, 4).to(torch::kDouble);
  const at::Tensor row = a.select(1, 1).select(1, 3).slice(1, 1);  // token 3: row 0, column 2
  at::Tensor far = torch::zeros({6}, torch::kDouble);
  for (int j = 0; j < 6; ++j) far[j] = std::hypot(j / 3, 2 - j % 3);
  const at::Tensor mass = row.sum(-1);
  const at::Tensor distance =
      ((row * far).sum(-1) / mass).index_select(0, mass.gt(0).nonzero().squeeze(1));
  EXPECT_NEAR(layer.by_query[4][1][3].item<double>(), distance.mean().item<double>(), 1e-5);
}

/// Where all weights would be too many, rows that are spread evenly stand for all.
TEST(Measure, RowsStandForAllWhereThereAreTooMany) {
  const Stack stack;
  const measure::Options some{.closely = -1, .queries = true, .weights = 2 * 7 * 3, .rollout = 0};
  measure::Meter meter(some), whole({.closely = -1, .rollout = 0});
  meter.add([&] { stack.pass(0, 6); });
  whole.add([&] { stack.pass(0, 6); });
  const measure::Layer layer = meter.report().layers[1];
  EXPECT_EQ(layer.looked, 3);
  EXPECT_EQ(whole.report().layers[1].looked, 7);
  const at::Tensor a = measure::weights(stack.calls(0, 6)[1]).to(torch::kDouble);
  const at::Tensor rows = torch::tensor({0, 2, 4}), place = torch::arange(7, torch::kDouble);
  const at::Tensor far = (place.unsqueeze(1) - place.unsqueeze(0)).abs();
  const at::Tensor distance = (a * far).sum(-1).index_select(2, rows);  // (6,2,3)
  EXPECT_NEAR(layer.rows.distance.mean, distance.mean().item<double>(), 1e-5);
  EXPECT_TRUE(layer.by_query[4].select(1, 1).isnan().all().item<bool>());
  EXPECT_NEAR(layer.by_query[4][0][2].item<double>(), distance.mean(0)[0][1].item<double>(), 1e-5);
  double apart = 0;
  const at::Tensor part = a.index_select(2, rows);
  for (int i = 0; i < 6; ++i)
    apart += (part[i][0] - part[i][1]).square().sum().mul(7.0 / 3).sqrt().item<double>() / 6;
  EXPECT_NEAR(layer.head_distance.mean, apart, 1e-5);
  EXPECT_EQ(layer.rows.concentration.mean, whole.report().layers[1].rows.concentration.mean);
}

/// Means of a metric have errors over the samples they were taken of; extremes have none.
TEST(Measure, AMetricHasItsOwnSamplesAndErrors) {
  Stack stack;
  stack.how = options_of({{"metric", "key-covariance"}, {"prior", "3"}});
  measure::Meter meter({.closely = 4});
  for (int i = 0; i < 6; i += 3) meter.add([&] { stack.pass(i, 3); });
  const measure::Layer layer = meter.report().layers[1];
  EXPECT_EQ(layer.metric_samples, 4) << "of full metrics only the closely measured samples";
  const at::Tensor P = stack.calls(0, 6)[1].statistics.metric;
  std::vector<double> anisotropy;
  for (int b = 0; b < 4; ++b)
    anisotropy.push_back(measure::health(P.narrow(0, b, 1), Extent::full).anisotropy);
  const at::Tensor each = torch::tensor(anisotropy, torch::kDouble);
  EXPECT_NEAR(layer.metric->anisotropy, each.mean().item<double>(), 1e-9);
  EXPECT_NEAR(layer.metric_error->anisotropy, each.std().item<double>() / 2, 1e-9);
  EXPECT_TRUE(std::isnan(layer.metric_error->most));
  EXPECT_NEAR(layer.metric->most, measure::health(P.narrow(0, 0, 4), Extent::full).most, 1e-9);
  EXPECT_TRUE(torch::allclose(layer.metric->typical, P.narrow(0, 0, 4).to(torch::kDouble).mean(0)));
  measure::Meter single({.closely = 4});
  for (int i = 0; i < 6; ++i) single.add([&] { stack.pass(i, 1); });
  EXPECT_EQ(single.report().layers[1].metric_samples, 4);
  stack.how = options_of({{"metric", "random"}});
  measure::Meter drawn({.closely = 4});
  for (int i = 0; i < 6; i += 3) drawn.add([&] { stack.pass(i, 3); });
  EXPECT_EQ(drawn.report().layers[1].metric_samples, 6) << "one metric that all have";
  EXPECT_NEAR(drawn.report().layers[1].metric_error->anisotropy, 0, 1e-12);
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

}  // namespace
