// SPDX-License-Identifier: Apache-2.0
// Full metrics of the CUDA backend around plain passes, against ref: estimates, lines, and the
// gradient's way back, over awkward shapes.
#include "cuda/full_metric_run.hpp"

namespace foci::cuda {
namespace {

struct Named {
  const char* name;
  Options how;
};

std::vector<Named> ways() {
  const KeyCovariance raw{.ridge = 1e-2}, prior{.ridge = 1e-2, .prior = 3.0};
  const KeyCovariance chunks{.ridge = 1e-2, .prior = 3.0, .period = 4};
  KeyCovariance free = chunks;
  free.scope = Scope::prefix;
  const Given given{Form::product, Extent::full};
  const Identity plain{Rescale::none};
  return {
      {"sequence", {.metric = raw}},
      {"prior", {.metric = prior, .scale = 0.4, .metric_grad = MetricGrad::detached}},
      {"sequence_identity", {.metric = prior, .weighting = plain}},
      {"given", {.metric = given}},
      {"given_causal", {.metric = given, .causal = true}},
      {"given_identity", {.metric = given, .weighting = plain}},
      {"prefix", {.metric = chunks, .causal = true}},
      {"prefix_detached", {.metric = chunks, .causal = true, .metric_grad = MetricGrad::detached}},
      {"prefix_free", {.metric = free}},
      {"prefix_identity", {.metric = chunks, .weighting = plain, .causal = true}},
  };
}

/// The largest error of a handful of numbers says nothing: small shapes are drawn several times,
/// and what is off is judged with more.
void expect_agreement(const Named& way, const Case& c, DType dtype, double size = 1) {
  const int draws = c.N * c.M * c.D > 1000 ? 1 : 4;
  Rule rule;
  for (int seed = 1; seed <= 4 * draws && (seed <= draws || !rule.holds()); ++seed) {
    Three three(c, dtype, size, std::uint64_t(seed));
    give_metric(three.ours, way.how.metric);
    if (seed % 2 == 0) three.ours.normal("key_bias", {c.B, seed % 4 ? c.G : c.H, c.M}, 1);
    draw(rule, three, way.how);
  }
  rule.expect(std::string(way.name) + " " + c.name);
}

TEST(FullMetricOnDevice, agrees_with_ref) {
  for (const Named& way : ways()) {
    const std::string name = way.name;
    for (const Case& c : shapes()) {
      const bool large = c.N * c.M > 10000;  // slow here, so not in every way
      if (!large || name == "sequence" || name == "prefix") expect_agreement(way, c, DType::f32);
    }
  }
}

/// Over a tile of columns, and of a size that shared memory does not hold.
TEST(FullMetricOnDevice, heads_of_any_size) {
  for (const Named& way : ways()) {
    expect_agreement(way, {"wide", 1, 2, 1, 70, 83, 67, 5}, DType::f32);
  }
  expect_agreement(ways().front(), {"widest", 1, 1, 1, 9, 170, 150, 3}, DType::f32);
}

TEST(FullMetricOnDevice, sixteen_bits) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const Named& way : ways())
      expect_agreement(way, {"half", 2, 4, 2, 21, 34, 7, 6, Masked::holes}, dtype);
  }
}

/// Scores of 1e8 tell one key from the others; of 1e-8 none.
TEST(FullMetricOnDevice, large_and_small) {
  for (const double size : {1e4, 1e-4}) {
    for (Named way : ways()) {
      if (!std::holds_alternative<Softmax>(way.how.weighting)) continue;
      const auto* covariance = std::get_if<KeyCovariance>(&way.how.metric);
      if (covariance && covariance->period == 4) way.how.scale = 1 / (size * size);
      expect_agreement(way, {"size", 1, 2, 2, 30, 30, 6, 6}, DType::f32, size);
    }
  }
}

/// Keys and queries far from the origin, but not from each other.
TEST(FullMetricOnDevice, far_away) {
  for (const Named& way : ways()) {
    Rule rule;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Three three({"far", 1, 2, 1, 33, 40, 6, 6}, DType::f32, 1, seed);
      give_metric(three.ours, way.how.metric);
      for (const char* name : {"q", "k"}) {
        float* x = three.ours[name].data<float>();
        for (std::int64_t i = 0; i < three.ours[name].view().count(); ++i) x[i] += 1e3f;
      }
      draw(rule, three, way.how);
    }
    rule.expect(way.name);
  }
}

TEST(FullMetricOnDevice, packed_sequences) {
  const Packed packed{{0, 9, 9, 30, 37}, {0, 14, 17, 40, 40}};
  for (const Named& way : ways()) {
    Rule rule;
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
      Three three({"packed", 1, 4, 2, 37, 40, 5, 4, Masked::holes}, DType::f32, 1, seed);
      if (std::holds_alternative<Given>(way.how.metric)) {
        three.ours.c.B = seed == 1 ? 1 : 4;  // one for all, or one each
        give_metric(three.ours, way.how.metric);
        three.ours.c.B = 1;
      }
      draw(rule, three, way.how, packed);
    }
    rule.expect(way.name);
  }
}

/// One metric for a whole batch: its gradient is the sum over sequences.
TEST(FullMetricOnDevice, a_given_metric_may_be_shared) {
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 3; ++seed) {
    Three three({"shared", 3, 2, 2, 12, 13, 5, 4}, DType::f32, 1, seed);
    three.ours.c.B = 1;
    give_metric(three.ours, Given{Form::product, Extent::full});
    three.ours.c.B = 3;
    draw(rule, three, {.metric = Given{Form::product, Extent::full}});
  }
  rule.expect("shared");
}

/// Some directions do not count; the gradient knows them nevertheless.
TEST(FullMetricOnDevice, a_given_metric_may_be_flat) {
  for (const std::int64_t rank : {0, 1, 3}) {
    Rule rule;
    for (std::uint64_t seed = 1; seed <= 4; ++seed) {
      Three three({"flat", 1, 2, 2, 12, 13, 9, 4}, DType::f32, 1, seed);
      Tensor P(DType::f64, {1, 2, 9, 9});
      const Tensor half = Tensor::copy(three.ours.normal("half", {2, 9, 5}, 1), DType::f64);
      for (int i = 0; i < 90; ++i)
        half.data<double>()[i] = std::round(4 * half.data<double>()[i]) / 4;  // P is exact
      for (int i = 0; i < 162; ++i) {
        for (int l = 0; l < rank; ++l)
          P.data<double>()[i] += half.data<double>()[i / 9 * 5 + l] *
                                 half.data<double>()[(i / 81 * 9 + i % 9) * 5 + l];
      }
      three.ours.put("metric", Tensor::copy(P, DType::f32));
      draw(rule, three, {.metric = Given{Form::product, Extent::full}});
    }
    rule.expect("rank " + std::to_string(rank));
  }
}

/// Chunks a few at a time, to the bit what all at once give.
TEST(FullMetricOnDevice, waves) {
  const Case c{"waves", 2, 2, 1, 37, 40, 5, 4, Masked::holes};
  const Options how{.metric = KeyCovariance{.ridge = 1e-2, .period = 4}, .causal = true};
  Made once(c, 3, DType::f32), often(c, 3, DType::f32);
  EXPECT_EQ(run_here(once, how, {}).waves, 1);
  EXPECT_EQ(run_here(often, how, {}, {.wave_bytes = 3 * 2 * 40 * 5 * 4}).waves, 4);
  for (const char* name : {"o", "metric_used", "dq", "dmetric"})
    EXPECT_EQ(once[name].values(), often[name].values()) << name;
  for (const char* name : {"dk", "dv"})  // sums over waves are rounded in between
    EXPECT_LT(farthest(once[name].values(), often[name].values()), 3e-6) << name;
}

/// With the backend's own passes.
TEST(FullMetricOnDevice, goes_with_tiles) {
  for (const Named& way : ways()) {
    if (!std::holds_alternative<Softmax>(way.how.weighting)) continue;
    Rule rule;
    for (std::uint64_t seed = 1; seed <= 12 && (seed <= 2 || !rule.holds()); ++seed) {
      Three three({"tiles", 2, 4, 2, 31, 45, 6, 5, Masked::holes}, DType::f32, 1, seed);
      give_metric(three.ours, way.how.metric);
      three.ours.normal("key_bias", {2, seed % 2 ? 2 : 4, 45}, 1);
      draw(rule, three, way.how, {},
           {.between = Between::tiles, .wave_bytes = seed == 1 ? FullMetric::standard_wave : 1});
    }
    rule.expect(way.name);
  }
}

TEST(FullMetricOnDevice, packed_sequences_go_with_tiles) {
  const Packed packed{{0, 9, 9, 30, 37}, {0, 14, 17, 40, 40}};
  const Options how{.metric = KeyCovariance{.ridge = 1e-2, .period = 4}, .causal = true};
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 12 && (seed <= 3 || !rule.holds()); ++seed) {
    Three three({"packed", 1, 4, 2, 37, 40, 5, 4, Masked::holes}, DType::f32, 1, seed);
    draw(rule, three, how, packed, {.between = Between::tiles});
  }
  rule.expect("packed");
}

/// The scale that ref finds, and what follows from it.
TEST(FullMetricOnDevice, matches_dot) {
  for (const Metric& metric : {Metric(KeyCovariance{.ridge = 1e-2, .prior = 3.0}),
                               Metric(Given{Form::product, Extent::full})}) {
    for (const Case& c : {Case{"match", 2, 4, 2, 12, 17, 6, 4, Masked::holes},
                          Case{"none", 2, 2, 2, 5, 6, 4, 4, Masked::everything},
                          Case{"one", 1, 2, 1, 3, 1, 4, 4}}) {
      Rule rule;
      for (std::uint64_t seed = 1; seed <= 8 && (seed <= 2 || !rule.holds()); ++seed) {
        Three three(c, DType::f32, 1, seed);
        give_metric(three.ours, metric);
        three.ours.normal("key_bias", {c.B, c.H, c.M}, 1);  // not looked at
        draw(rule, three, {.metric = metric, .scale = foci::MatchDot{}}, {},
             {.between = Between::tiles});
        const std::vector<double> ours = three.ours["scale"].values(),
                                  exact = three.exact["scale"].values();
        for (std::size_t i = 0; i < ours.size(); ++i)
          EXPECT_NEAR(ours[i], exact[i], 2e-5 * exact[i]) << c.name;
      }
      rule.expect(c.name);
    }
  }
}

/// Keys of the second head that are no numbers: said by the status, shown by its rows alone.
TEST(FullMetricOnDevice, what_cannot_be_factored_shows) {
  Made made({"bad", 1, 2, 2, 5, 6, 3, 3}, 1, DType::f32);
  made["k"].data<float>()[6 * 3] = NAN;
  run_here(made, {.metric = KeyCovariance{}}, {});
  EXPECT_EQ(made["status"].values(), (std::vector<double>{0, 7}));
  const std::vector<double> o = made["o"].values();
  for (std::size_t i = 0; i < o.size(); ++i) EXPECT_EQ(std::isnan(o[i]), i >= o.size() / 2);
}

/// A ridge below what rounding leaves of a covariance of rank one.
TEST(FullMetricOnDevice, ridges_are_raised) {
  Made ours({"flat", 1, 1, 1, 5, 6, 3, 3}, 1, DType::f32);
  for (int i = 0; i < 18; ++i) ours["k"].data<float>()[i] = float((i % 3 + 1) * (i / 3)) * 1e6f;
  run_here(ours, {.metric = KeyCovariance{.ridge = 1e-5}}, {});
  const double raises = ours["status"].values().front();
  EXPECT_GE(raises, 1);
  EXPECT_LE(raises, 6);
  for (const double x : ours["metric_used"].values()) EXPECT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace foci::cuda
