// SPDX-License-Identifier: Apache-2.0
// foci models, by way of foci-torch: the list, one of them, and a foci that has no foci-torch.
#include "cli/command.hpp"

#include <gtest/gtest.h>

namespace {

using namespace cli_test;

const bool built = fs::exists(FOCI_BINARY_DIR "/foci-torch");

TEST(Models, AreListed) {
  if (!built) GTEST_SKIP() << "this build has no torch";
  const Ran ran = run_foci({"models", "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto all = ran.json().at("models");
  ASSERT_GE(all.size(), 7u);
  EXPECT_EQ(all[1].at("name"), "deit_tiny_patch16_224");
  EXPECT_EQ(all[1].at("parameters"), 5717416);
  EXPECT_EQ(run_foci({"models", "deit_tiny_patch16_224", "--json"}).json(), all[1]);
  EXPECT_NE(run_foci({"models"}).out.find("5.72 M"), std::string::npos);
  EXPECT_NE(run_foci({"models", "vit_micro"}).out.find("\ndepth          4\n"), std::string::npos);
}

TEST(Models, AnUnknownOneIsTold) {
  if (!built) GTEST_SKIP() << "this build has no torch";
  const Ran ran = run_foci({"models", "vit_mico"});
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(ran.err,
            "foci: no model is called 'vit_mico'; did you mean vit_micro?\n"
            "foci: hint: see foci help models\n");
}

TEST(Models, NeedFociTorchBesideFoci) {
  const std::string alone = folder().file("foci");
  fs::copy_file(program, alone);
  const Ran ran = run_shell("LD_LIBRARY_PATH=" FOCI_BINARY_DIR "/lib " + alone + " models");
  EXPECT_EQ(ran.status, 2);
  EXPECT_TRUE(ran.err.starts_with("foci: models needs torch, and this build has no ")) << ran.err;
}

}  // namespace
