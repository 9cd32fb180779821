// SPDX-License-Identifier: Apache-2.0
// A budget of a comparison: refused as soon as it is certainly too small, with a command that fits.
#include "compare/compared.hpp"

#include "cli/misuse.hpp"
#include "cli/torch/compare_costs.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

namespace {

using namespace train_test;
using foci::cli::ComparePlan;
using nlohmann::json;

TEST(CompareBudget, OneThatIsTooSmallSaysWhatFits) {
  const std::string out = folder().file("budget");
  Words words = small(out);
  words.erase(std::find(words.begin(), words.end(), "--steps"),
              std::find(words.begin(), words.end(), "--steps") + 2);
  const Ran hopeless = call(words + Words{"--budget", "1s"});
  EXPECT_EQ(hopeless.status, 2);
  EXPECT_NE(hopeless.err.find("foci: --budget 1s is too small for 4 runs: to time and start them "
                              "takes 7s alone\n"),
            std::string::npos)
      << hopeless.err;
  EXPECT_FALSE(fs::exists(out));
  const Ran ran =
      call(words + Words{"--budget", "9s", "--attack-samples", "48", "--iterations", "4000"});
  EXPECT_EQ(ran.status, 2);
  EXPECT_NE(ran.err.find("--budget 9s is too small for 4 runs: 20 steps each need about "),
            std::string::npos)
      << ran.err;
  EXPECT_NE(ran.err.find("of that "), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find(" attacks"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("; this fits: foci compare --attack-samples 16 --budget "),
            std::string::npos)
      << ran.err;
  // As if this machine had been timed at 300 images a second.
  ASSERT_EQ(call(words + Words{"--steps", "1", "--seeds", "1", "--attack", "none"}).status, 0);
  json timing = json::parse(read(out + "/timing.json"));
  for (json& speed : timing.at("speeds"))
    std::fill(speed.at("per_second").begin(), speed.at("per_second").end(), 300);
  timing["together"] = 300;
  timing["seconds"] = 3;
  write(out + "/timing.json", timing.dump());
  const Ran fits = call(words + Words{"--budget", "25s", "--seeds", "1", "--attack", "none"});
  ASSERT_EQ(fits.status, 0) << fits.err;
  const int steps = results_of(out).at("runs")[0].at("steps").get<int>();
  EXPECT_GT(steps, 20);
  EXPECT_NE(fits.err.find(std::to_string(steps) + " steps a run fit into --budget 25s: about "),
            std::string::npos)
      << fits.err;
  // What the page names as the way to do it again says the same steps, whatever a timing says.
  EXPECT_EQ(json::parse(read(out + "/plan.json")).at("steps"), steps);
  EXPECT_EQ(results_of(out).at("reproduce"),
            "foci compare --plan " + out + "/plan.json --out again");
  const auto again =
      std::get<foci::cli::WithTorch>(foci::cli::parse({"compare", "--plan", out + "/plan.json"}))
          .verb;
  EXPECT_EQ(foci::cli::plan_of(std::get<foci::cli::Compare>(again)).steps, steps);
  // The same steps again, though the machine may be slower now.
  const auto before = times_of(out);
  ASSERT_EQ(call(words + Words{"--budget", "25s", "--seeds", "1", "--attack", "none"}).status, 0);
  EXPECT_EQ(times_of(out), before);
}

TEST(CompareBudget, WhatIsSaidToFitFits) {
  const foci::cli::CompareSite site{
      .out = folder().file("none"), .data = images(), .data_sha256 = {}};
  const auto hint = [&](const ComparePlan& plan, double rate) -> std::string {
    const foci::cli::CompareReckoning reckoning(plan, site, 2);
    try {
      reckoning.refuse({.speeds = {}, .together = rate, .seconds = 3});
    } catch (const foci::cli::Misuse& fault) {
      EXPECT_TRUE(std::string(fault.what()).starts_with("--budget ")) << fault.what();
      return fault.hint();
    }
  };
  for (const double rate : {5.0, 60.0, 300.0}) {
    for (const char* budget : {"1m", "7m"}) {
      const std::string text = hint(plan_from({"--data", images(), "--budget", budget}), rate);
      const std::size_t at = text.find("; this fits: foci compare ");
      ASSERT_NE(at, std::string::npos) << text;
      std::istringstream command(text.substr(at + 26));
      Words words;
      for (std::string word; command >> word;) words.push_back(word);
      const ComparePlan fits = plan_from(words);
      const foci::cli::CompareReckoning reckoning(fits, site, 2);
      // Also where every other mechanism turns out to be half as fast.
      foci::cli::CompareTiming slow{.speeds = {}, .together = rate, .seconds = 12};
      for (const auto& contender : fits.contenders)
        slow.speeds[contender.name].per_second = {slow.speeds.size() == 1 ? rate : rate / 2};
      EXPECT_GE(reckoning.estimate(slow).steps, 20) << text;
    }
  }
  // A budget that holds it all but for the attacks stays.
  const std::string attacks =
      hint(plan_from({"--data", images(), "--budget", "10m", "--iterations", "20000"}), 300);
  EXPECT_EQ(attacks.find("--budget", attacks.find("this fits")),
            attacks.find("--budget 10m", attacks.find("this fits")))
      << attacks;
  EXPECT_NE(attacks.find("--attack-samples 16"), std::string::npos) << attacks;
}

}  // namespace
