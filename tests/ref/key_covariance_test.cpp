// SPDX-License-Identifier: Apache-2.0
// The full metric at its edges: few keys, ridges that must be raised, keys that cannot be factored,
// the scale that matches dot attention's concentration.
#include "mechanisms.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

std::vector<std::string> warnings;
void remember(std::string_view message) { warnings.emplace_back(message); }

class KeyCovarianceEdges : public testing::Test {
 protected:
  KeyCovarianceEdges() : before_(set_warning_handler(remember)) { warnings.clear(); }
  ~KeyCovarianceEdges() override { set_warning_handler(before_); }

  /// Runs and returns status (B,G[,chunks]).
  std::vector<double> statuses(Made& made, const Options& how) {
    Outputs to{.o = made.fresh("o", {made.c.B, made.c.H, made.c.N, made.c.E}, made.dtype)};
    Shape shape = metric_shape(made.inputs(), how);
    to.metric = made.fresh("metric_used", shape, DType::f64);
    shape.resize(shape.size() - 2);
    Tensor status(DType::i32, shape);
    to.status = status;
    attend(to, made.inputs(), how);
    return status.values();
  }

 private:
  WarningHandler before_;
};

TEST_F(KeyCovarianceEdges, no_keys_give_almost_the_identity) {
  Made made(shape("nothing_to_see"));
  statuses(made, {.metric = KeyCovariance{.ridge = 0.25}});
  for (int i = 0; i < 4; ++i) {
    for (int j = 0; j < 4; ++j)
      EXPECT_DOUBLE_EQ(made["metric_used"].data<double>()[i * 4 + j], i == j ? 1 / 1.25 : 0.0);
  }
}

TEST_F(KeyCovarianceEdges, one_key_gives_the_ridge_alone) {
  Made made({"one_key", 1, 1, 1, 2, 1, 3, 3});
  statuses(made, {.metric = KeyCovariance{.ridge = 0.5}});
  for (int i = 0; i < 9; ++i)
    EXPECT_DOUBLE_EQ(made["metric_used"].data<double>()[i], i % 4 == 0 ? 2.0 : 0.0);
}

TEST_F(KeyCovarianceEdges, few_keys_and_hardly_any_ridge_are_said_aloud) {
  Made few({"few", 1, 1, 1, 4, 4, 8, 8});
  statuses(few, {.metric = KeyCovariance{}});
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(warnings[0],
            "key-covariance: as few keys as head dimensions and hardly any ridge or prior: the "
            "metric is at the mercy of rounding (raise ridge, or set "
            "prior to the head size)");
  warnings.clear();
  statuses(few, {.metric = KeyCovariance{.prior = 8.0}});
  statuses(few, {.metric = KeyCovariance{.ridge = 0.1}});
  Made enough({"enough", 1, 1, 1, 20, 20, 8, 8});
  statuses(enough, {.metric = KeyCovariance{}});
  EXPECT_TRUE(warnings.empty());
}

/// Keys with a coordinate that is the exact copy of another make a singular covariance; large keys
/// make rounding outweigh a tiny ridge, which then has to be raised.
TEST_F(KeyCovarianceEdges, a_ridge_that_rounding_outweighs_is_raised_and_reported) {
  Made made({"copies", 1, 1, 1, 64, 64, 8, 8}, 3, DType::f64, 1e5);
  double* k = made["k"].data<double>();
  for (int j = 0; j < 64; ++j) {
    for (int d = 4; d < 8; ++d) k[j * 8 + d] = k[j * 8 + d - 4] + k[j * 8 + (d + 1) % 4];
  }
  const std::vector<double> status = statuses(made, {.metric = KeyCovariance{.ridge = 1e-9}});
  EXPECT_GE(status[0], 1);
  EXPECT_LE(status[0], 6);
  for (const double x : made["o"].values()) EXPECT_TRUE(std::isfinite(x));
  EXPECT_EQ(statuses(made, {.metric = KeyCovariance{.ridge = 1.0}})[0], 0);
}

TEST_F(KeyCovarianceEdges, keys_that_no_ridge_helps_are_named) {
  Made made({"zeros", 2, 2, 2, 5, 5, 4, 4});
  for (int i = 0; i < 20; ++i)
    made["k"].data<double>()[3 * 20 + i] = 7;  // batch 1, head 1: all keys alike
  const Options how{.metric = KeyCovariance{.ridge = 0}};
  const std::string message = thrown<NumericalError>([&] { statuses(made, how); });
  EXPECT_EQ(message,
            "key-covariance: the covariance of sequence 1, key head 1 (5 keys) cannot be factored, "
            "not even with ridge 0 raised tenfold 6 times: raise "
            "ridge, or look for NaN or infinity in k");
  made["k"].data<double>()[3 * 20] = std::nan("");
  EXPECT_EQ(thrown<NumericalError>([&] {
              statuses(made, {.metric = KeyCovariance{.ridge = 1}});
            }).find("key-covariance: the covariance of sequence 1"),
            0u);
}

/// The first four keys are (0,0), (0,0), (0,0), (4,4): a covariance of fours, exactly, to which
/// 1e-17 and 1e-16 add nothing. The four after them are ordinary.
TEST_F(KeyCovarianceEdges, each_chunk_raises_its_own_ridge) {
  Made made({"chunks", 1, 1, 1, 12, 12, 2, 2});
  for (int i = 0; i < 8; ++i) made["k"].data<double>()[i] = i < 6 ? 0 : 4;
  const KeyCovariance metric{.ridge = 1e-17, .prior = 0.0, .period = 4};
  EXPECT_EQ(statuses(made, {.metric = metric, .causal = true}), (std::vector<double>{0, 2, 0}));
}

TEST_F(KeyCovarianceEdges, scale_auto_matches_the_concentration_of_dot) {
  Made made(shape("over_a_tile"));
  const auto mean = [](const Tensor& tensor) {
    double sum = 0;
    for (const double x : tensor.values()) sum += x;
    return sum / double(tensor.view().count());
  };
  attend(all_outputs(made, {}), made.inputs(), {});
  std::vector<double> of_dot = made["concentration"].values();
  const double target = mean(made["concentration"]);

  const Options how{.metric = KeyCovariance{.ridge = 1e-3}, .scale = MatchDot{}};
  Outputs to = all_outputs(made, how);
  to.scale = made.fresh("scale", {1, 2}, DType::f64);
  attend(to, made.inputs(), how);
  EXPECT_NEAR(mean(made["concentration"]), target, 1e-9);
  for (const double c : made["scale"].values()) EXPECT_GT(c, 0);
  for (int g = 0; g < 2; ++g) {  // one scale a key head
    double ours = 0, dots = 0;
    for (int i = 0; i < 65; ++i) {
      ours += made["concentration"].data<double>()[g * 65 + i];
      dots += of_dot[std::size_t(g * 65 + i)];
    }
    EXPECT_NEAR(ours, dots, 1e-8);
  }

  const double c = made["scale"].data<double>()[0];
  Made fixed(shape("over_a_tile"));
  Options number = how;
  number.scale = c;
  attend(all_outputs(fixed, number), fixed.inputs(), number);
  for (int i = 0; i < 65 * 8; ++i)
    EXPECT_EQ(fixed["o"].data<double>()[i], made["o"].data<double>()[i]);  // head 0
}

/// The given P that key-covariance computed gives the same attention.
TEST_F(KeyCovarianceEdges, its_metric_given_back_gives_the_same) {
  Made made(shape("over_a_tile")), given(shape("over_a_tile"));
  statuses(made, {.metric = KeyCovariance{.ridge = 1e-3}});
  given.put("metric", Tensor::copy(made["metric_used"], DType::f64));
  attend({.o = given.fresh("o", {1, 2, 65, 8}, DType::f64)}, given.inputs(),
         {.metric = Given{Form::product, Extent::full}});
  for (int i = 0; i < 2 * 65 * 8; ++i)
    EXPECT_NEAR(given["o"].data<double>()[i], made["o"].data<double>()[i], 1e-11);
}

/// Small entries beside large ones count: nothing is dropped that the type can tell from zero.
TEST_F(KeyCovarianceEdges, a_given_metric_keeps_its_small_directions) {
  for (const double large : {1e3, 1e6, 1e9}) {
    Made full({"full", 1, 1, 1, 2, 2, 8, 8}, 3, DType::f32),
        diagonal({"full", 1, 1, 1, 2, 2, 8, 8}, 3, DType::f32);
    Tensor P(DType::f32, {1, 1, 8, 8}), m(DType::f32, {1, 1, 1, 8});
    for (int d = 0; d < 8; ++d)
      P.data<float>()[d * 9] = m.data<float>()[d] = d == 0 ? float(large) : 1.0f;
    for (Made* made : {&full, &diagonal}) {
      for (int i = 0; i < 2; ++i)
        made->find("q").at<float>({0, 0, i, 0})[0] = made->find("k").at<float>({0, 0, i, 0})[0] = 0;
    }
    full.put("metric", std::move(P));
    diagonal.put("metric", std::move(m));
    attend({.o = full.fresh("o", {1, 1, 2, 8}, DType::f32)}, full.inputs(),
           {.metric = Given{Form::product, Extent::full}});
    attend({.o = diagonal.fresh("o", {1, 1, 2, 8}, DType::f32)}, diagonal.inputs(),
           {.metric = Given{Form::distance}, .scale = 1.0});
    for (int i = 0; i < 16; ++i)
      EXPECT_NEAR(full["o"].data<float>()[i], diagonal["o"].data<float>()[i], 1e-5) << large;
  }
}

TEST_F(KeyCovarianceEdges, scale_auto_keeps_a_nan_in_its_row) {
  Made clean(shape("small")), poisoned(shape("small"));
  const Options how{.metric = KeyCovariance{.ridge = 0.1}, .scale = MatchDot{}};
  for (Made* made : {&clean, &poisoned}) {
    if (made == &poisoned) made->find("q").at<double>({0, 0, 2, 0})[0] = std::nan("");
    Outputs to = all_outputs(*made, how);
    to.scale = made->fresh("scale", {2, 2}, DType::f64);
    attend(to, made->inputs(), how);
  }
  EXPECT_NEAR(poisoned["scale"].data<double>()[0], clean["scale"].data<double>()[0],
              0.2);  // one query fewer
  EXPECT_NE(poisoned["scale"].data<double>()[0], 1.0);
  EXPECT_EQ(poisoned["scale"].data<double>()[1], clean["scale"].data<double>()[1]);
  EXPECT_TRUE(std::isnan(poisoned["o"].data<double>()[2 * 4]));
  EXPECT_FALSE(std::isnan(poisoned["o"].data<double>()[3 * 4]));
}

/// Two keys at the same distance keep S = 1 at any scale, while dot tells them apart.
TEST_F(KeyCovarianceEdges, scale_auto_says_when_it_cannot) {
  Made made({"even", 1, 1, 1, 1, 2, 1, 1});
  made["k"].data<double>()[0] = 1;
  made["k"].data<double>()[1] = -1;
  made["q"].data<double>()[0] = 0;
  const Options how{.metric = KeyCovariance{.ridge = 0.1}, .scale = MatchDot{}};
  Outputs to = all_outputs(made, how);
  to.scale = made.fresh("scale", {1, 1}, DType::f64);
  attend(to, made.inputs(), how);
  EXPECT_TRUE(warnings.empty());  // dot does not tell them apart either
  made["k"].data<double>()[0] = 3;
  made["k"].data<double>()[1] = 1;
  made["q"].data<double>()[0] = 2;
  attend(to, made.inputs(), how);
  ASSERT_EQ(warnings.size(), 1u);
  EXPECT_EQ(
      warnings[0],
      "scale auto: no scale gives this metric the concentration of dot attention; it stays at 1");
  EXPECT_EQ(made["scale"].data<double>()[0], 1.0);
}

/// A metric that ignores a coordinate (P semidefinite) is allowed.
TEST_F(KeyCovarianceEdges, a_semidefinite_metric_may_be_given) {
  Made made(shape("small")), moved(shape("small"));
  Tensor P(DType::f64, {1, 2, 4, 4});
  for (int g = 0; g < 2; ++g) {
    for (int d = 0; d < 3; ++d) P.data<double>()[g * 16 + d * 5] = 1 + d;
  }
  for (Made* which : {&made, &moved}) which->put("metric", Tensor::copy(P, DType::f64));
  for (std::int64_t i = 3; i < moved["k"].view().count(); i += 4) moved["k"].data<double>()[i] *= 5;
  const Options how{.metric = Given{Form::product, Extent::full}};
  attend({.o = made.fresh("o", {2, 4, 9, 4}, DType::f64)}, made.inputs(), how);
  attend({.o = moved.fresh("o", {2, 4, 9, 4}, DType::f64)}, moved.inputs(), how);
  for (int i = 0; i < 2 * 4 * 9 * 4; ++i)
    EXPECT_NEAR(made["o"].data<double>()[i], moved["o"].data<double>()[i], 1e-12);
}

}  // namespace
}  // namespace foci
