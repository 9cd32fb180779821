// SPDX-License-Identifier: Apache-2.0
// Options as words: every default and every odd choice comes back as it went, and what does not
// belong is refused by name.
#include <foci/settings.hpp>

#include "thrown.hpp"

#include <foci/error.hpp>

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace foci {
namespace {

std::string again(const std::string& text) {
  return to_text(settings_of(options_of(parse_settings(text))));
}

TEST(Settings, ComeBackAsTheyWent) {
  for (const std::string text : {
           "metric=dot weighting=softmax causal=false form=distance",
           "metric=layer-change weighting=relu2 allow_leak=true backend=cpu causal=true "
           "form=product metric_grad=through normalize=none reduce=median rescale=l2 scale=0.1 "
           "scope=sequence",
           "metric=flat weighting=linear allow_leak=false causal=false feature=exp form=product "
           "normalize=mean reduce=mean",
           "metric=jacobian weighting=identity allow_leak=false causal=false form=distance "
           "normalize=max rescale=none",
           "metric=key-covariance weighting=softmax allow_leak=false causal=true "
           "metric_grad=detached period=7 prior=2.5 ridge=0.3333333333333333 scale=auto "
           "scope=prefix",
           "metric=random weighting=decay causal=true content=true floor=0.25 form=product "
           "layer=3 normalize=max rate=0.75 seed=18446744073709551615",
           "metric=given weighting=softmax backend=ref causal=false extent=full form=product",
       }) {
    EXPECT_EQ(again(text), text);
  }
}

TEST(Settings, NothingSaidIsPlainAttention) {
  EXPECT_EQ(again(""), "metric=dot weighting=softmax causal=false form=product");
  EXPECT_EQ(again("   causal=true  "), "metric=dot weighting=softmax causal=true form=product");
}

TEST(Settings, EqualOptionsAreThoseOfEqualValues) {
  const Options how{.metric = KeyCovariance{.ridge = 0.1}, .scale = MatchDot{}};
  EXPECT_EQ(how, options_of(settings_of(how)));
  EXPECT_NE(how, (Options{.metric = KeyCovariance{.ridge = 0.2}, .scale = MatchDot{}}));
  EXPECT_NE(how, (Options{.metric = KeyCovariance{.ridge = 0.1}}));
  EXPECT_NE((Options{.metric = Dot{}}), (Options{.metric = Flat{}}));
}

TEST(Settings, EveryDefaultIsTheStructs) {
  const Options how = options_of({{"metric", "key-covariance"}});
  const auto& metric = std::get<KeyCovariance>(how.metric);
  EXPECT_EQ(metric.ridge, KeyCovariance{}.ridge);
  EXPECT_FALSE(metric.prior);
  EXPECT_EQ(metric.period, KeyCovariance{}.period);
  EXPECT_EQ(metric.scope, Scope::automatic);
  EXPECT_EQ(how.metric_grad, MetricGrad::standard);
  EXPECT_EQ(how.backend, Backend::automatic);
  EXPECT_TRUE(std::holds_alternative<std::monostate>(how.scale));
}

TEST(Settings, WhatDoesNotBelongIsRefused) {
  const auto said = [](const std::string& text) {
    return thrown<InvalidArgument>([&] { options_of(parse_settings(text)); });
  };
  EXPECT_EQ(said("metric=doot"),
            "metric is 'doot'; it must be one of dot, layer-change, flat, jacobian, "
            "key-covariance, random, given");
  EXPECT_EQ(said("weighting=max"),
            "weighting is 'max'; it must be one of softmax, relu2, identity, linear, decay");
  EXPECT_EQ(said("ridge=1"), "ridge belongs to metric key-covariance; the metric is dot");
  EXPECT_EQ(said("rate=1"), "rate belongs to weighting decay; the weighting is softmax");
  EXPECT_EQ(said("allow_leak=true"),
            "allow_leak belongs to metric layer-change, flat, jacobian, key-covariance; the metric "
            "is dot");
  EXPECT_EQ(said("colour=red"), "there is no setting 'colour'");
  EXPECT_EQ(said("causal=yes"), "causal is 'yes'; it must be one of true, false");
  EXPECT_EQ(said("metric=key-covariance ridge=tiny"), "ridge is 'tiny'; it must be a number");
  EXPECT_EQ(said("metric=key-covariance period=1.5"), "period is '1.5'; it must be a whole number");
  EXPECT_EQ(said("scale=wide"), "scale is 'wide'; it must be a number");
  EXPECT_EQ(said("causal"), "settings are name=value; got 'causal'");
  EXPECT_EQ(said("=1"), "settings are name=value; got '=1'");
  EXPECT_EQ(said("causal=true causal=true"), "causal is said twice");
}

TEST(Settings, OwnersAreThoseWhoHaveIt) {
  EXPECT_EQ(owners("period"), std::vector<std::string_view>{"key-covariance"});
  EXPECT_EQ(owners("rescale"), (std::vector<std::string_view>{"relu2", "identity"}));
  EXPECT_TRUE(owners("causal").empty());
  EXPECT_TRUE(owners("colour").empty());
}

}  // namespace
}  // namespace foci
