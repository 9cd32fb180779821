// SPDX-License-Identifier: Apache-2.0
// Bad input from the command line, case by case: the exit status, one line that says what is wrong
// (and perhaps a hint), nothing on standard output, and no file where the result would have been.
#include "cli/bad_contest.hpp"
#include "cli/bad_input.hpp"

#include <foci/device.hpp>

#include <gtest/gtest.h>

#include <limits>

namespace {

using namespace cli_test;
using foci::has_cuda;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

class BadInput : public testing::TestWithParam<Bad> {};

TEST_P(BadInput, IsToldInOneLine) {
  const Bad& bad = GetParam();
  if (has_cuda() && bad.says.find("is not in this build") != std::string_view::npos)
    GTEST_SKIP() << "this build has CUDA";
  const std::string out = folder().file("never.safetensors");
  fs::remove(out);
  Words words = bad.words;
  if (!words.empty() && words[0] == "attend" && bad.out == Out::usual)
    words = words + Words{"--out", out};
  const Ran ran = run_foci(words);
  EXPECT_EQ(ran.status, bad.status) << ran.err;
  EXPECT_EQ(ran.out, "");
  const auto lines = lines_of(ran.err);
  ASSERT_GE(lines.size(), 1u);
  ASSERT_LE(lines.size(), 2u) << ran.err;
  EXPECT_TRUE(lines[0].starts_with("foci: ")) << lines[0];
  EXPECT_NE(lines[0].find(bad.says), std::string::npos) << lines[0];
  EXPECT_TRUE(lines.size() == 1 || lines[1].starts_with("foci: hint: ")) << ran.err;
  EXPECT_FALSE(fs::exists(out));
  for (const auto& entry : fs::directory_iterator(fs::path(out).parent_path())) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
}

INSTANTIATE_TEST_SUITE_P(Words, BadInput, testing::ValuesIn(bad_words()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Options, BadInput, testing::ValuesIn(bad_options()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Pairs, BadInput, testing::ValuesIn(bad_pairs()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Shapes, BadInput, testing::ValuesIn(bad_shapes()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Contests, BadInput, testing::ValuesIn(bad_contests()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Theory, BadInput, testing::ValuesIn(bad_theories()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Experiments, BadInput, testing::ValuesIn(bad_experiments()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Tensors, BadInput, testing::ValuesIn(bad_tensors()), name_of_case);
INSTANTIATE_TEST_SUITE_P(Files, BadInput, testing::ValuesIn(bad_files()), name_of_case);

TEST(BadInput, AnUnknownInstructionSetIsToldInALineAndAHint) {
  const Ran ran = run_shell("FOCI_ISA=mmx " + quoted(program) + " check --shape 1,1,4,4");
  EXPECT_EQ(ran.status, 2) << ran.err;
  EXPECT_EQ(ran.out, "");
  EXPECT_EQ(lines_of(ran.err).size(), 2u) << ran.err;
  EXPECT_TRUE(ran.err.starts_with("foci: FOCI_ISA is 'mmx'; this machine has: ")) << ran.err;
  const Ran well = run_shell("FOCI_ISA=portable " + quoted(program) + " check --shape 1,1,4,4");
  EXPECT_EQ(well.status, 0) << well.err;
}

TEST(BadInput, AnOldResultSurvivesAFailure) {
  const std::string in = save("old-in.safetensors", plain_tensors());
  const std::string out = folder().file("old.safetensors");
  write(out, "precious");
  const Words base = {"attend", "--in", in, "--out", out};
  EXPECT_EQ(run_foci(base + Words{"--metric", "key-covariance", "--ridge", "-1"}).status, 2);
  EXPECT_EQ(read(out), "precious");
  EXPECT_EQ(run_foci(base).status, 0);
  EXPECT_NE(read(out), "precious");
}

TEST(BadInput, NaNInOneQueryStaysInItsRow) {
  Tensors tensors = plain_tensors();
  tensors.erase("do");
  tensors["q"].data<float>()[5 * 4 + 1] = std::numeric_limits<float>::quiet_NaN();
  const std::string out = folder().file("nan-out.safetensors");
  const Ran ran =
      run_foci({"attend", "--in", save("nan.safetensors", tensors), "--out", out, "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto o = foci::Tensor::copy(foci::Safetensors(out).find("o"), foci::DType::f64).values();
  for (std::size_t i = 0; i < o.size(); ++i) EXPECT_EQ(std::isnan(o[i]), i / 4 == 5) << i;
  const auto flags = ran.json().at("flags");
  ASSERT_EQ(flags.size(), 1u);
  EXPECT_EQ(flags[0].at("name"), "not-a-number");
  EXPECT_EQ(flags[0].at("means"), "1 of 18 rows of o hold NaN or infinity");
}

/// What should not be trusted is said on standard error, and --quiet does not silence it.
TEST(BadInput, DoubtsAreNotQuiet) {
  Tensors tensors = plain_tensors();
  tensors.erase("do");
  for (std::int64_t i = 0; i < tensors["q"].view().count(); ++i) {
    tensors["q"].data<float>()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  const std::string out = folder().file("doubt-out.safetensors");
  const Words base = {"attend", "--in", save("doubt.safetensors", tensors), "--out", out};
  const Ran quiet = run_foci(base + Words{"--quiet"});
  EXPECT_EQ(quiet.status, 0);
  EXPECT_EQ(quiet.out, "");
  EXPECT_EQ(quiet.err,
            "foci: not-a-number: 18 of 18 rows of o hold NaN or infinity; look for NaN or infinity "
            "in q, k, v; means over rows leave such rows out\n");
  const Ran json = run_foci(base + Words{"--json"});
  EXPECT_TRUE(json.json().at("concentration").is_null());
}

/// Where ref has no number there is nothing to agree with.
TEST(BadInput, CheckSaysWhatItCouldNotCompare) {
  Tensors tensors = plain_tensors();
  tensors["q"].data<float>()[0] = std::numeric_limits<float>::quiet_NaN();
  const Ran one = run_foci({"check", "--in", save("nan-one.safetensors", tensors), "--json"});
  ASSERT_EQ(one.status, 0) << one.out;
  const auto some = one.json();
  ASSERT_EQ(some.at("flags").size(), 1u);
  EXPECT_EQ(some.at("flags")[0].at("name"), "not-a-number");
  EXPECT_EQ(some.at("tensors").back().at("compared"), false);
  EXPECT_EQ(some.at("tensors").back().at("note"), "o holds NaN or infinity");
  for (std::int64_t i = 0; i < tensors["q"].view().count(); ++i) {
    tensors["q"].data<float>()[i] = std::numeric_limits<float>::quiet_NaN();
  }
  const Ran all = run_foci({"check", "--in", save("nan-all.safetensors", tensors)});
  EXPECT_EQ(all.status, 1);
  EXPECT_NE(all.out.find("FAILED: nothing could be compared"), std::string::npos) << all.out;
  EXPECT_EQ(all.out.find("passed"), std::string::npos) << all.out;
}

/// As foci.measure counts them.
TEST(BadInput, RowsThatSeeNoKeyAreInNoMean) {
  Tensors tensors = plain_tensors();
  tensors.erase("do");
  const std::string out = folder().file("mean-out.safetensors");
  const Words words = {"attend", "--in", "", "--out", out, "--causal", "--json"};
  const auto mean = [&](const std::string& file) {
    Words here = words;
    here[2] = file;
    return run_foci(here).json().at("effective_keys").get<double>();
  };
  const double whole = mean(save("mean-whole.safetensors", tensors));
  tensors["key_mask"] = foci::Tensor(foci::DType::boolean, {1, 9});
  for (int i = 0; i < 9; ++i) tensors["key_mask"].data<bool>()[i] = i == 8;
  EXPECT_EQ(mean(save("mean-last.safetensors", tensors)), 1);  // the last query and key alone
  EXPECT_GT(whole, 1);
}

TEST(BadInput, ATensorUnderAnothersNameIsMentioned) {
  Tensors tensors = plain_tensors();
  tensors["attention_mask"] = foci::Tensor(foci::DType::boolean, {1, 9});
  const Ran ran = run_foci({"attend", "--in", save("theirs.safetensors", tensors), "--out",
                            folder().file("theirs-out.safetensors"), "--quiet"});
  EXPECT_EQ(ran.status, 0);
  EXPECT_EQ(ran.err,
            "foci: unread-tensor: the file holds `attention_mask`, which is not read; call it "
            "`key_mask` if that is what it is\n");
}

/// A limit on file sizes would end the program with half a file beside the target.
TEST(BadInput, AFileThatMayNotGrowLeavesNothing) {
  const std::string in = save("grow.safetensors", plain_tensors());
  const std::string out = folder().file("grow-out.safetensors");
  const Ran ran = run_shell("ulimit -f 1; " + program + " attend --in " + in + " --out " + out);
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(lines_of(ran.err).size(), 1u) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(out));
}

TEST(BadInput, AnOutputThatFillsUpIsAFailure) {
  const Ran ran = run_shell(program + " info > /dev/full");
  EXPECT_EQ(ran.status, 1);
  EXPECT_EQ(lines_of(ran.err).size(), 1u) << ran.err;
}

}  // namespace
