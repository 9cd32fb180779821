// SPDX-License-Identifier: Apache-2.0
// foci generate: a small model as llama2.c stores it and a GPT-2, their tokenizers beside them.
#include "cli/made_language.hpp"

#include <gtest/gtest.h>

namespace {

using namespace cli_test;

const bool built = fs::exists(FOCI_BINARY_DIR "/foci-torch");

TEST(Generate, GoesOnFromThePrompt) {
  if (!built) GTEST_SKIP() << "this build has no torch";
  const std::string model = made_model();
  made_tokenizer();
  const Ran plain = run_foci({"generate", model, "--prompt", "ab", "--tokens", "3"});
  ASSERT_EQ(plain.status, 0) << plain.err;
  EXPECT_TRUE(plain.out.starts_with("ab")) << plain.out;
  EXPECT_TRUE(plain.out.ends_with("\n"));
  EXPECT_NE(plain.err.find(" a second\n"), std::string::npos) << plain.err;
  const Ran quiet = run_foci({"generate", model, "--prompt", "ab", "--tokens", "3", "--quiet"});
  EXPECT_EQ(quiet.out, plain.out);
  EXPECT_EQ(quiet.err, "");
  const auto drawn = [&](const char* seed) {
    return run_foci({"generate", model, "--temperature", "5", "--seed", seed, "--json"}).json();
  };
  EXPECT_EQ(drawn("1").at("text"), drawn("1").at("text"));
  EXPECT_NE(drawn("1").at("text"), drawn("2").at("text"));
  EXPECT_LE(drawn("1").at("tokens"), 8);  // its context
  const Ran cut = run_foci(
      {"generate", model, "--temperature", "5", "--top-p", "0.000001", "--seed", "9", "--quiet"});
  EXPECT_EQ(cut.out, run_foci({"generate", model, "--quiet"}).out);
  const Ran one = run_foci({"generate", model, "--threads", "1", "--json", "--tokens", "2"});
  EXPECT_EQ(one.json().at("prompt_tokens"), 1);
}

TEST(Generate, TakesAFolderOfGpt2) {
  if (!built) GTEST_SKIP() << "this build has no torch";
  const std::string model = made_gpt2();
  const Ran bare = run_foci({"generate", model});
  EXPECT_EQ(bare.status, 1);
  EXPECT_NE(bare.err.find("holds no encoder.json and vocab.bpe"), std::string::npos) << bare.err;
  add_pairs(model);
  const Ran ran = run_foci({"generate", model, "--prompt", "a b", "--tokens", "4", "--json"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.json().at("prompt_tokens"), 3);
  EXPECT_TRUE(ran.json().at("text").get<std::string>().starts_with("a b"));
}

TEST(Generate, SaysWhatIsWrong) {
  const auto misuse = [](std::vector<std::string> words) {
    const Ran ran = run_foci(std::move(words));
    EXPECT_EQ(ran.status, 2);
    return ran.err.substr(0, ran.err.find('\n'));
  };
  EXPECT_EQ(misuse({"generate"}), "foci: generate needs a model");
  EXPECT_EQ(misuse({"generate", "m", "--temperature", "-1"}), "foci: --temperature -1 is below 0");
  EXPECT_EQ(misuse({"generate", "m", "--top-p", "0"}), "foci: --top-p 0 does not lie in (0, 1]");
  EXPECT_EQ(misuse({"generate", "m", "--tokens", "0"}),
            "foci: --tokens 0 is not a size; it needs a whole number, 1 or more");
  if (!built) GTEST_SKIP() << "this build has no torch";
  const auto failed = [](std::vector<std::string> words) {
    const Ran ran = run_foci(std::move(words));
    EXPECT_EQ(ran.status, 1);
    return ran.err.substr(0, ran.err.find('\n'));
  };
  EXPECT_EQ(failed({"generate", "nowhere.bin"}), "foci: nowhere.bin: no such file or folder");
  const std::string model = made_model();
  fs::remove(folder().file("tok263.bin"));
  EXPECT_EQ(
      failed({"generate", model}),
      "foci: " + model + ": neither tokenizer.bin nor tok263.bin is beside it: --tokenizer FILE");
  std::ofstream(made_tokenizer(), std::ios::binary | std::ios::app) << raw(0.f) << raw(1) << "c";
  EXPECT_EQ(failed({"generate", model, "--tokenizer", folder().file("tok263.bin")}),
            "foci: " + model + ": a vocabulary of 263, and the tokenizer has 264");
}

/// The same models, looked at while they go over a text.
TEST(Generate, ModelsAreMeasuredOverAText) {
  if (!built) GTEST_SKIP() << "this build has no torch";
  const std::string model = made_model(), text = folder().file("text.txt");
  write(text, "abab baab abba abab");
  made_tokenizer();
  const auto measured = [&](const Words& words) {
    const Ran ran = run_foci(Words{"measure", model, "--text", text, "--json"} + words);
    EXPECT_EQ(ran.status, 0) << ran.err;
    return ran.json().at("measured").at(0);
  };
  const auto plain = measured({});
  EXPECT_EQ(plain.at("samples"), 2);  // windows of 8 tokens
  const auto& layer = plain.at("layers").at(0);
  EXPECT_EQ(layer.at("queries"), 8);
  EXPECT_FALSE(layer.contains("metric"));
  const auto other = measured({"--metric", "random", "--tokenizer", folder().file("tok263.bin")});
  EXPECT_EQ(other.at("layers").at(0).at("metric").at("most"), 1);
  const std::string drawn = folder().file("drawn");
  measured({"--pictures", drawn, "--sample", "1"});
  EXPECT_NE(read(drawn + "/tokens.svg").find(">b</text>"), std::string::npos);
  EXPECT_NE(read(drawn + "/text.svg").find(">a</text>"), std::string::npos);
  const Ran missing = run_foci({"measure", model, "--text", "nowhere"});
  EXPECT_EQ(missing.status, 1);
  EXPECT_NE(missing.err.find("nowhere: is not there, or empty"), std::string::npos) << missing.err;
  const std::string gpt2 = made_gpt2();
  add_pairs(gpt2);
  const Ran ran = run_foci({"measure", gpt2, "--text", text, "--pictures", drawn + "2"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_NE(ran.out.find("tokens after"), std::string::npos) << ran.out;
  EXPECT_NE(ran.out.find(drawn + "2/tokens.svg"), std::string::npos) << ran.out;
}

}  // namespace
