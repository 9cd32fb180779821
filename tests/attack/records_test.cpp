// SPDX-License-Identifier: Apache-2.0
// What is said of an attack: the ball where experiments are made, both ways to differentiate, and
// what each way fooled alone.
#include "attack/linear.hpp"

#include "cli/torch/attack_records.hpp"

#include <gtest/gtest.h>

#include <string>

namespace {

using namespace attack_test;
namespace cli = foci::cli;

/// A subject with the arms of the adaptive suite, of which `through` has gradients that mislead.
cli::Attacked subject() {
  const Linear& l = linear();
  const Model wrong = [&l](const at::Tensor& x) {
    const at::Tensor z = l.model(x);
    return 2 * z.detach() - z;
  };
  const std::vector<Attack> attacks = {Apgd{.iterations = 10}, Square{.queries = 50}};
  cli::Attacked made{.words = {{"data", FOCI_SOURCE_DIR "/tests/attack/linear.hpp"},
                               {"seed", "0"},
                               {"model", "linear"},
                               {"metric", "dot"},
                               {"weighting", "softmax"}},
                     .weights = {},
                     .plain_weights = {},
                     .model = l.model,
                     .pixels = {l.images, l.labels, torch::arange(200)},
                     .images = l.images,
                     .labels = l.labels,
                     .arms = {},
                     .classes = 5};
  made.arms = {{"detached", l.model, {}, attacks},
               {"through", wrong, {}, attacks},
               {"plain", l.model, l.model, {attacks[0]}}};
  return made;
}

std::vector<cli::Judged> judged(const cli::Attacked& of, const std::vector<double>& sizes) {
  std::vector<cli::Judged> all;
  for (const double eps : sizes) {
    cli::Judged j{
        .reach = {eps, "linf " + std::to_string(eps)}, .arms = {}, .robust = {}, .images = {}};
    for (std::size_t a = 0; a < of.arms.size(); ++a) {
      j.arms.push_back(run(of.arms[a].model, of.images, of.labels, of.arms[a].attacks,
                           within(Norm::linf, eps), {},
                           all.empty() ? nullptr : &all.back().arms[a]));
    }
    j.robust = j.arms[0].robust;
    for (const Outcome& arm : j.arms) j.robust = j.robust.logical_and(arm.robust);
    j.accuracy = cli::share_of(j.robust);
    all.push_back(std::move(j));
  }
  return all;
}

/// The flags of a name, wherever they are.
std::vector<std::string> meanings(const std::vector<foci::Record>& records,
                                  const std::string& name) {
  std::vector<std::string> found;
  for (const foci::RecordFlag& flag : cli::all_flags(records)) {
    if (flag.name == name) found.push_back(flag.means);
  }
  return found;
}

/// At eps 0 nothing is fooled, at 0.2 everything: only the one between shows anything.
TEST(AttackRecords, ExperimentsAreMadeWhereTheyShowSomething) {
  const cli::Attacked of = subject();
  cli::AttackPlan plan;
  plan.check = 100;
  const auto all = judged(of, {0, .05, .3});
  const auto records = cli::attack_records({of.words, "here", "foci attack"}, plan, of, all);
  const auto noise = meanings(records, "noise-beats-gradient");
  ASSERT_EQ(noise.size(), 1u);
  EXPECT_EQ(noise[0].find("through: at linf 12.75/255 "), 0u) << noise[0];
  EXPECT_EQ(meanings(records, "few-samples").size(), 1u);  // all ways alike
  plan.check = 0;
  const auto cheap = cli::attack_records({of.words, "here", "foci attack"}, plan, of, all);
  EXPECT_EQ(meanings(cheap, "few-samples").size(), 1u);
  EXPECT_TRUE(meanings(cheap, "noise-beats-gradient").empty());
}

/// What Square found in a smaller ball is no doubt about a larger one.
TEST(AttackRecords, SignsAreOfTheirBallAlone) {
  const cli::Attacked of = subject();
  cli::AttackPlan plan;
  plan.check = 0;
  const auto all = judged(of, {.05, .0501});
  ASSERT_EQ(all[1]
                .arms[1]
                .by.eq(1)
                .logical_and(all[1].arms[1].inherited.logical_not())
                .sum()
                .item<long>(),
            0);
  const auto records = cli::attack_records({of.words, "here", "foci attack"}, plan, of, all);
  int with = 0;
  for (const foci::Record& record : records) {
    const bool flagged = !meanings({record}, "black-box-beats-white-box").empty();
    EXPECT_EQ(flagged, record.name.starts_with("robust linf 0.050000")) << record.name;
    with += flagged ? 1 : 0;
  }
  EXPECT_GT(with, 0);
}

TEST(AttackRecords, WhatEachWayFooledAloneIsCounted) {
  cli::Attacked of = subject();
  of.arms.pop_back();
  const auto all = judged(of, {.02});
  const std::vector<std::int64_t> alone = cli::fooled_alone(all[0]);
  ASSERT_EQ(alone.size(), 2u);
  const at::Tensor one = all[0].arms[0].by.ge(0), other = all[0].arms[1].by.ge(0);
  EXPECT_EQ(alone[0], one.logical_and(other.logical_not()).sum().item<long>());
  EXPECT_EQ(alone[1], other.logical_and(one.logical_not()).sum().item<long>());
  EXPECT_GT(alone[0], 0);  // the other way misleads
  EXPECT_EQ(cli::curve_json(of, all).at("curve")[0].at("fooled_alone").at("detached"), alone[0]);
}

}  // namespace
