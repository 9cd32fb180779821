// SPDX-License-Identifier: Apache-2.0
// What makes a robust accuracy doubtful: models that deserve each flag, and images that do not
// hold.
#include "attack/linear.hpp"
#include "attack/problem.hpp"

#include <gtest/gtest.h>

#include <cmath>
#include <set>
#include <string>

namespace {

using namespace attack_test;

std::set<std::string> names_of(const std::vector<foci::RecordFlag>& flags) {
  std::set<std::string> names;
  for (const foci::RecordFlag& flag : flags) {
    EXPECT_FALSE(flag.means.empty() || flag.remedy.empty()) << flag.name;
    names.insert(flag.name);
  }
  return names;
}

TEST(Attack, DoubtsAreTold) {
  const Linear& l = linear();
  const Options options = within(Norm::linf, .05);
  const auto flags = [&](const Model& model) {
    return names_of(doubts(model, l.images, l.labels, options, 20));
  };
  EXPECT_EQ(flags(l.model), std::set<std::string>{"few-samples"});
  for (const auto& [norm, eps] : {std::pair(Norm::l2, .1), {Norm::l1, .3}, {Norm::l1, .6}}) {
    const auto sound = doubts(l.model, l.images, l.labels, within(norm, eps), 200);
    EXPECT_EQ(names_of(sound), std::set<std::string>{"few-samples"}) << int(norm) << " " << eps;
  }
  const auto stairs = flags([&](const at::Tensor& x) { return (l.model(x) * 50).round() / 50; });
  EXPECT_TRUE(stairs.contains("zero-gradients"));
  EXPECT_TRUE(stairs.contains("unbounded-eps"));
  // A gradient that points the wrong way: noise does better, and so does Square.
  const Model wrong = [&](const at::Tensor& x) {
    const at::Tensor z = l.model(x);
    return 2 * z.detach() - z;
  };
  EXPECT_TRUE(flags(wrong).contains("noise-beats-gradient"));
  const std::vector<Attack> both = {Apgd{.iterations = 10}, Square{.queries = 50}};
  const Outcome out = run(wrong, l.images, l.labels, both, options);
  EXPECT_TRUE(names_of(doubts(out, both)).contains("black-box-beats-white-box"));
  // In a larger ball what Square found before is no sign: gradients were not asked about it.
  const Outcome larger =
      run(wrong, l.images, l.labels, {Apgd{.iterations = 10}}, within(Norm::linf, .06), {}, &out);
  EXPECT_GT(larger.by.eq(1).sum().item<long>(), 0);
  EXPECT_FALSE(names_of(doubts(larger, both)).contains("black-box-beats-white-box"));
}

/// Steps that end before the edge are told, those of the defaults reach it.
TEST(Attack, StepsThatCannotReachTheEdgeAreTold) {
  std::vector<Attack> standard;
  for (const char* name : {"noise", "fgsm", "pgd", "mpgd", "apgd-ce", "fab", "square", "spsa"})
    standard.push_back(attack_of(name));
  for (const Norm norm : {Norm::linf, Norm::l2, Norm::l1})
    EXPECT_TRUE(doubts(standard, norm).empty()) << int(norm);
  EXPECT_TRUE(doubts({Pgd{.steps = 30}}, Norm::linf).empty());
  EXPECT_TRUE(doubts({Pgd{.steps = 5, .step = .25}}, Norm::linf).empty());
  const auto five = doubts({Pgd{.steps = 5}, Pgd{.steps = 29, .momentum = 1}}, Norm::linf);
  ASSERT_EQ(five.size(), 2u);
  EXPECT_EQ(names_of(five), std::set<std::string>{"short-steps"});
  EXPECT_EQ(five[0].means.find("pgd takes 5 steps of eps/30"), 0u) << five[0].means;
  EXPECT_EQ(five[1].means.find("mpgd takes 29 steps"), 0u) << five[1].means;
  EXPECT_EQ(five[0].remedy.find("take 30 steps or more"), 0u) << five[0].remedy;
  EXPECT_EQ(doubts({Pgd{.steps = 39}}, Norm::l2).size(), 1u);
}

/// Wells as far apart as a step of the ten: forty smaller steps stay in the first.
TEST(Attack, MoreStepsThatDoWorseAreTold) {
  const Linear& l = linear();
  const double apart = .25 * .05 / (2 * M_PI);
  const Model wells = [&](const at::Tensor& x) {
    return l.model(x + 1.5 * apart * (x / apart).sin());
  };
  const at::Tensor labels = wells(l.images).argmax(1);
  const auto flags = doubts(wells, l.images, labels, within(Norm::linf, .05), 200);
  ASSERT_TRUE(names_of(flags).contains("more-steps-worse"));
  EXPECT_FALSE(names_of(doubts(wells, l.images, labels, within(Norm::linf, 0), 200))
                   .contains("more-steps-worse"));
  for (const foci::RecordFlag& flag : flags) {
    if (flag.name != "more-steps-worse") continue;
    EXPECT_EQ(flag.means.find("at linf 12.75/255 "), 0u) << flag.means;
  }
}

/// No image is attacked for them, and no batch is larger than was said.
TEST(Attack, DoubtsThatCostNothingStandWithoutExperiments) {
  const Linear& l = linear();
  Options options = within(Norm::linf, .05);
  options.batch = 7;
  std::int64_t most = 0;
  const auto flags = [&](const Model& model, std::int64_t checked) {
    const Model heard = [&](const at::Tensor& x) {
      most = std::max(most, x.size(0));
      EXPECT_TRUE(checked > 0 || !x.requires_grad());
      return model(x);
    };
    return names_of(doubts(heard, l.images, l.labels, options, checked));
  };
  EXPECT_EQ(flags(l.model, 0), std::set<std::string>{"few-samples"});
  for (const std::int64_t checked : {0, 20}) {
    const auto soft = flags([&](const at::Tensor& x) { return l.model(x).softmax(1); }, checked);
    EXPECT_TRUE(soft.contains("probabilities"));
    const auto noisy = flags(
        [&](const at::Tensor& x) {
          return l.model(x) + torch::randn({x.size(0), 5}) * .01;
        },
        checked);
    EXPECT_TRUE(noisy.contains("random-model"));
  }
  EXPECT_EQ(most, 7);
}

TEST(Attack, ImagesThatDoNotHoldAreRejectedAndTold) {
  const Linear& l = linear();
  const at::Tensor x = l.images.slice(0, 0, 5), y = l.labels.slice(0, 0, 5);
  const at::Tensor places = torch::arange(5), zeros = torch::zeros_like(y);
  const Options options = within(Norm::linf, .3);
  Problem problem(l.model, options, {x, y, places, places, zeros, {}});
  const Outcome fooling = run(l.model, x, y, {Apgd{.iterations = 20}}, options);
  ASSERT_TRUE(fooling.by.ge(0).all().item<bool>());
  at::Tensor images = fooling.images.clone();
  images[0][0][0][0] = NAN;
  images[1][0][0][0] = 1.01;                                       // out of the range
  images[2][0][0][0] = x[2][0][0][0].item<double>() > .5 ? 0 : 1;  // out of the ball
  images[3] = x[3];                                                // fools nobody
  problem.settle(torch::ones(5, torch::kBool), images, {x, y, places, places, zeros, {}});
  const Found found = problem.found(places + 10);
  EXPECT_EQ(found.rejected, 3);
  ASSERT_EQ(found.samples.size(0), 1);
  EXPECT_EQ(found.samples[0].item<long>(), 14);
  Outcome out = fooling;
  EXPECT_FALSE(names_of(doubts(out, {Apgd{}})).contains("rejected-images"));
  out.rejected = found.rejected;
  EXPECT_TRUE(names_of(doubts(out, {Apgd{}})).contains("rejected-images"));
}

}  // namespace
