// SPDX-License-Identifier: Apache-2.0
// foci attack on a GPU: all files come of it, and what they say is what the processor says.
#include "train/child.hpp"

#include <gtest/gtest.h>

namespace {

using namespace train_test;

TEST(AttackOnCuda, FilesComeOfItAsOnTheProcessor) {
  if (call({"info", "--json"}).json().at("devices").size() < 2) GTEST_SKIP() << "no GPU here";
  const std::string run = folder().file("run");
  ASSERT_EQ(call(tiny(run) + Words{"--steps", "60", "--learning-rate", "0.003"}).status, 0);
  const auto attacked = [&](const std::string& device) {
    const std::string out = folder().file(device);
    const Ran ran = call({"attack", run, "--out", out, "--device", device, "--eps", "2,64",
                          "--attack", "apgd-ce,fab-t,square", "--iterations", "6", "--queries",
                          "10", "--check", "6", "--json"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    for (const char* file : {"sheet.png", "curve.svg", "samples.json", "adversarial.safetensors"})
      EXPECT_TRUE(fs::exists(out + "/" + file)) << device << " " << file;
    return ran.json();
  };
  const auto there = attacked("cuda"), here = attacked("cpu");
  EXPECT_NEAR(there.at("clean").get<double>(), here.at("clean").get<double>(), 1.5 / 48);
  const auto& curve = there.at("curve");
  EXPECT_LT(curve[1].at("robust"), there.at("clean"));
  // Rounding may decide about one image in 48.
  for (int i = 0; i < 2; ++i) {
    EXPECT_NEAR(curve[i].at("robust").get<double>(), here.at("curve")[i].at("robust").get<double>(),
                1.5 / 48);
  }
  const Ran again = call({"attack", run, "--out", folder().file("cuda"), "--device", "cuda",
                          "--eps", "2,64", "--attack", "apgd-ce,fab-t,square", "--iterations", "6",
                          "--queries", "10", "--check", "0", "--json"});
  EXPECT_EQ(again.json().at("curve"), curve);  // from the journal
}

}  // namespace
