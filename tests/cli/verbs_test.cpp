// SPDX-License-Identifier: Apache-2.0
// What the verbs promise beyond their flags: files that repeat themselves, results that survive an
// interruption, checks that can fail, and the pieces behind them.
#include "cli/verbs.hpp"
#include "cli/command.hpp"
#include "cli/findings.hpp"
#include "cli/made.hpp"
#include "cli/misuse.hpp"
#include "cli/naive.hpp"
#include "cli/suggest.hpp"

#include <gtest/gtest.h>

#include <sys/types.h>

#include <csignal>
#include <thread>

namespace {

using namespace cli_test;
using foci::DType;
using foci::cli::parse;

TEST(Attend, TheMetadataItWritesGivesTheSameResultAgain) {
  for (const Words& flags :
       std::vector<Words>{{"--metric", "layer-change", "--causal", "--metric-grad", "through"},
                          {"--metric", "key-covariance", "--prior", "2", "--scale", "auto"},
                          {"--metric", "key-covariance", "--causal", "--period", "4"},
                          {"--metric", "random", "--seed", "7", "--layer", "2"},
                          {"--weighting", "decay", "--content", "--causal", "--rate", "0.7"},
                          {"--metric", "jacobian", "--weighting", "linear"}}) {
    const std::string first = folder().file("first.safetensors"),
                      second = folder().file("second.safetensors");
    const std::string in = save("again-in.safetensors", plain_tensors());
    ASSERT_EQ(run_foci(Words{"attend", "--in", in, "--out", first} + flags).status, 0);
    const auto options = foci::Safetensors(first).metadata().at("options");
    const std::string same = save("again.safetensors", plain_tensors(), {{"options", options}});
    const Ran ran = run_foci({"attend", "--in", same, "--out", second, "--flags-from-metadata"});
    ASSERT_EQ(ran.status, 0) << ran.err << options;
    EXPECT_EQ(read(first), read(second)) << options;
  }
}

TEST(Attend, GivenFlagsWinOverStoredOnes) {
  const std::string stored = R"({"metric":"layer-change","normalize":"mean","causal":true})";
  const std::string in = save("wins.safetensors", plain_tensors(), {{"options", stored}});
  const std::string out = folder().file("wins-out.safetensors");
  const auto result = run_foci({"attend", "--in", in, "--out", out, "--flags-from-metadata",
                                "--metric", "dot", "--causal=false", "--json"})
                          .json();
  EXPECT_EQ(result.at("options").at("metric"), "dot");
  EXPECT_FALSE(result.at("options").contains("normalize"));
  EXPECT_EQ(result.at("options").at("causal"), false);
}

TEST(Attend, MayReadAndWriteTheSameFile) {
  const std::string path = save("same.safetensors", plain_tensors());
  const std::string other = folder().file("other.safetensors");
  ASSERT_EQ(run_foci({"attend", "--in", path, "--out", other}).status, 0);
  ASSERT_EQ(run_foci({"attend", "--in", path, "--out", path}).status, 0);
  EXPECT_EQ(read(path), read(other));
}

TEST(Attend, ConvertsToTheTypeAskedFor) {
  const std::string in = save("types.safetensors", plain_tensors());
  const std::string out = folder().file("types-out.safetensors");
  ASSERT_EQ(run_foci({"attend", "--in", in, "--out", out, "--dtype", "bf16"}).status, 0);
  const foci::Safetensors file(out);
  EXPECT_EQ(file.find("o").dtype, DType::bf16);
  EXPECT_EQ(file.find("dq").dtype, DType::bf16);
  EXPECT_EQ(file.find("lse").dtype, DType::f32);
  EXPECT_EQ(file.find("largest_at").dtype, DType::i64);
}

TEST(Attend, PackedSequencesAreAttendedAlone) {
  Tensors packed = plain_tensors(), first = plain_tensors();
  for (const char* name : {"q_offsets", "k_offsets"}) {
    packed[name] = foci::Tensor(DType::i64, {3});
    packed[name].data<std::int64_t>()[1] = 4;
    packed[name].data<std::int64_t>()[2] = 9;
  }
  for (auto& [name, tensor] : first) {
    tensor = foci::Tensor::copy(tensor.view().sliced(2, 0, 4), DType::f32);
  }
  const std::string whole = folder().file("packed-out.safetensors"),
                    part = folder().file("part-out.safetensors");
  const Words flags = {"--metric", "key-covariance", "--prior", "3", "--scale", "auto"};
  ASSERT_EQ(
      run_foci(Words{"attend", "--in", save("packed.safetensors", packed), "--out", whole} + flags)
          .status,
      0);
  ASSERT_EQ(
      run_foci(Words{"attend", "--in", save("part.safetensors", first), "--out", part} + flags)
          .status,
      0);
  for (const char* name : {"o", "lse", "dq", "dk", "dv"}) {
    const foci::Safetensors all(whole), one(part);
    EXPECT_EQ(foci::Tensor::copy(all.find(name).sliced(2, 0, 4), DType::f64).values(),
              foci::Tensor::copy(one.find(name), DType::f64).values())
        << name;
  }
  EXPECT_EQ(foci::to_string(foci::Safetensors(whole).find("scale").sizes()), "(2, 1)");
}

TEST(Attend, NothingToDoIsNoError) {
  for (const foci::Shape& queries : {foci::Shape{1, 2, 0, 4}, foci::Shape{1, 2, 3, 4}}) {
    Tensors tensors;
    tensors["q"] = numbers(queries);
    tensors["k"] = numbers({1, 1, 0, 4});
    tensors["v"] = numbers({1, 1, 0, 4});
    const std::string out = folder().file("none-out.safetensors");
    const Ran ran = run_foci({"attend", "--in", save("none.safetensors", tensors), "--out", out});
    ASSERT_EQ(ran.status, 0) << ran.err;
    for (const double x :
         foci::Tensor::copy(foci::Safetensors(out).find("o"), DType::f64).values()) {
      EXPECT_EQ(x, 0);
    }
  }
}

TEST(Attend, AnInterruptionLeavesNothing) {
  Tensors tensors;
  for (const char* name : {"q", "k", "v", "do"}) tensors[name] = numbers({1, 8, 1500, 64});
  const std::string in = save("large.safetensors", tensors),
                    out = folder().file("interrupted.safetensors");
  int status = 0;
  do {  // until we come before it is done
    fs::remove(out);
    const pid_t child = fork();
    if (child == 0) {
      execl(program.c_str(), "foci", "attend", "--in", in.c_str(), "--out", out.c_str(), "--quiet",
            "--backend", "ref", nullptr);
      _exit(127);
    }
    const std::string maps = "/proc/" + std::to_string(child) + "/maps";
    siginfo_t info{};
    while (info.si_pid == 0 && read(maps).find(in) == std::string::npos) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      waitid(P_PID, id_t(child), &info, WEXITED | WNOHANG | WNOWAIT);
    }
    kill(child, SIGINT);
    waitpid(child, &status, 0);
  } while (WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGINT);
  EXPECT_FALSE(fs::exists(out));
  for (const auto& entry : fs::directory_iterator(fs::path(out).parent_path())) {
    EXPECT_NE(entry.path().extension(), ".tmp") << entry.path();
  }
}

TEST(Check, AWrongAnswerInTheFileFails) {
  const foci::Safetensors golden(golden_folder + "/flat.safetensors");
  Tensors tensors;
  for (const std::string& name : golden.names()) {
    tensors[name] = foci::Tensor::copy(golden.find(name), golden.find(name).dtype);
  }
  tensors["dk"].data<double>()[3] += 1e-6;
  const std::string path = save("wrong.safetensors", tensors, golden.metadata());
  const Ran ran = run_foci({"check", "--in", path, "--flags-from-metadata", "--json"});
  EXPECT_EQ(ran.status, 1);
  const auto result = ran.json();
  EXPECT_EQ(result.at("passed"), false);
  for (const auto& tensor : result.at("tensors")) {
    EXPECT_EQ(tensor.at("passed"),
              !(tensor.at("name") == "dk" && tensor.at("against") == "the file"));
  }
}

TEST(Check, GradientsOfEveryMetricAgreeWithDifferences) {
  for (const Words& flags :
       std::vector<Words>{{"--metric", "dot", "--form", "distance"},
                          {"--metric", "layer-change", "--metric-grad", "through"},
                          {"--metric", "flat", "--causal"},
                          {"--metric", "jacobian", "--metric-grad", "through"},
                          {"--metric", "key-covariance", "--causal", "--period", "4"},
                          {"--metric", "key-covariance", "--scale", "auto"},
                          {"--metric", "random", "--weighting", "relu2"},
                          {"--metric", "given", "--given", "full"}}) {
    const Ran ran =
        run_foci(Words{"check", "--shape", "2,4,11,6", "--kv-heads", "2", "--quiet"} + flags);
    EXPECT_EQ(ran.status, 0) << foci::cli::listed(flags) << ran.err;
  }
}

/// Among the tensors that seed 0 makes is a score next to 0, where the sum of |s| has a kink.
TEST(Check, AKinkWithinTheStepIsNoFault) {
  EXPECT_EQ(run_foci({"check", "--weighting", "identity", "--rescale", "l1"}).status, 0);
}

TEST(Findings, DrawsArePooledByTheRule) {
  std::vector<foci::cli::Finding> findings(1);
  findings[0] = {.name = "o",
                 .against = {},
                 .error = 5,
                 .naive_error = 1,
                 .tolerance = 3,
                 .passed = false,
                 .note = {}};
  const auto another = [](double error, double naive, double tolerance) {
    return std::vector<foci::cli::Finding>{{.name = "o",
                                            .against = {},
                                            .error = error,
                                            .naive_error = naive,
                                            .tolerance = tolerance,
                                            .note = {}}};
  };
  foci::cli::pool(findings, another(2, 2, 4.5));
  EXPECT_EQ(findings[0].error, 5);
  EXPECT_EQ(findings[0].tolerance, 5);  // 2 x 2, and the larger rounding
  EXPECT_TRUE(findings[0].passed);
  foci::cli::pool(findings, another(6, 0, 0.5));
  EXPECT_FALSE(findings[0].passed);
}

TEST(Check, AFileNeedsNoGradientAndAMetricMayBeShared) {
  Tensors tensors;
  for (const char* name : {"q", "k", "v"}) tensors[name] = numbers({3, 2, 7, 3}, name[0]);
  tensors["metric"] = foci::Tensor(DType::f32, {1, 2, 3, 3});
  for (int i = 0; i < 18; ++i) tensors["metric"].data<float>()[i] = i % 9 % 4 == 0 ? 1.5f : 0.25f;
  const std::string path = save("shared.safetensors", tensors);
  const Ran ran = run_foci(
      {"check", "--in", path, "--metric", "given", "--given", "full", "--scale", "auto", "--json"});
  EXPECT_EQ(ran.status, 0) << ran.err << ran.out;
  int gradients = 0;
  const auto result = ran.json();
  for (const auto& tensor : result.at("tensors")) {
    gradients += tensor.at("against") == "finite differences" && tensor.at("compared") == true;
  }
  EXPECT_EQ(gradients, 3);
}

TEST(Findings, TheRuleOfTolerance) {
  using foci::cli::precision_findings;
  foci::cli::Tensors ours, naive, exact;
  for (auto* set : {&ours, &naive, &exact}) (*set)["o"] = numbers({2, 3});
  EXPECT_TRUE(precision_findings(ours, naive, exact).at(0).passed);
  naive["o"].data<float>()[0] += 1e-3f;
  ours["o"].data<float>()[4] += 1.9e-3f;
  EXPECT_TRUE(precision_findings(ours, naive, exact).at(0).passed);
  ours["o"].data<float>()[4] += 0.3e-3f;
  EXPECT_FALSE(precision_findings(ours, naive, exact).at(0).passed);
  ours["o"].data<float>()[4] = NAN;
  EXPECT_FALSE(precision_findings(ours, naive, exact).at(0).passed);
}

TEST(Naive, AgreesWithRef) {
  foci::Executor threads(2);
  for (const bool causal : {false, true}) {
    foci::Options how;
    how.causal = causal;
    const auto problem =
        foci::cli::made_problem({.B = 2, .H = 4, .G = 2, .N = 5, .M = 9, .D = 3, .E = 6}, how, 3);
    const auto ref = foci::cli::answers(problem, how, threads);
    foci::cli::NaiveAttention<double> naive(problem, how, threads);
    naive.forward();
    naive.backward();
    const auto near = [&](const std::vector<double>& ours, const char* name) {
      const auto theirs = ref.at(name).values();
      ASSERT_EQ(ours.size(), theirs.size());
      for (std::size_t i = 0; i < ours.size(); ++i) EXPECT_NEAR(ours[i], theirs[i], 1e-13) << name;
    };
    near(naive.o(), "o");
    near(naive.dq(), "dq");
    near(naive.dk(), "dk");
    near(naive.dv(), "dv");
  }
}

TEST(Parse, MakesPlainStructs) {
  const auto bench = std::get<foci::cli::Bench>(
      parse({"bench", "--shape", "2,6,8,4", "--kv-heads=3", "--metric", "key-covariance", "--ridge",
             "1e-3", "--causal", "--period", "16", "--pass", "both"}));
  EXPECT_EQ(bench.ours.sizes.G, 3);
  EXPECT_EQ(bench.ours.sizes.M, 8);
  EXPECT_EQ(bench.ours.pass, foci::cli::Pass::both);
  EXPECT_EQ(bench.turns, 9);
  const auto& metric = std::get<foci::KeyCovariance>(bench.ours.mechanism.how.metric);
  EXPECT_EQ(metric.ridge, 1e-3);
  EXPECT_EQ(metric.period, 16);
  EXPECT_TRUE(bench.ours.mechanism.how.causal);
  EXPECT_TRUE(std::holds_alternative<foci::cli::Version>(parse({"--version"})));
  EXPECT_THROW(parse({"bench", "--metric"}), foci::cli::Misuse);
}

TEST(Parse, VersusIsOursWithFlagsChanged) {
  const auto bench =
      std::get<foci::cli::Bench>(parse({"bench", "--shape", "1,6,8,4", "--metric", "key-covariance",
                                        "--ridge", "1e-3", "--stats", "--threads", "2", "--versus",
                                        "metric=random  --floor=0.5 stats=false "
                                        "threads=1 causal"}));
  ASSERT_TRUE(bench.versus.has_value());
  const foci::cli::Timed& other = bench.versus->timed;
  EXPECT_EQ(std::get<foci::Random>(other.mechanism.how.metric).floor, 0.5);
  EXPECT_TRUE(bench.ours.stats && !other.stats);
  EXPECT_TRUE(other.mechanism.how.causal && !bench.ours.mechanism.how.causal);
  EXPECT_EQ(other.threads, 1);
  EXPECT_EQ(other.sizes.H, 6);
}

TEST(Parse, PeersByName) {
  using Words = std::vector<std::string>;
  const auto peers = [](const std::string& text) {
    return std::get<foci::cli::Bench>(parse({"bench", "--peers", text})).peers;
  };
  EXPECT_EQ(peers("none").names, Words{});
  EXPECT_EQ(peers("all").names, (Words{"sgemm", "naive", "torch-sdpa", "torch-eager"}));
  EXPECT_EQ(peers("all").words, Words{});
  EXPECT_EQ(peers("torch-eager,naive,torch").names, (Words{"torch-eager", "naive", "torch-sdpa"}));
  EXPECT_EQ(peers("torch").words, Words{"torch"});
}

TEST(Suggest, CountsTypingErrors) {
  using foci::cli::typing_errors;
  EXPECT_EQ(typing_errors("softmax", "softmax"), 0u);
  EXPECT_EQ(typing_errors("sotfmax", "softmax"), 1u);
  EXPECT_EQ(typing_errors("sofmax", "softmax"), 1u);
  EXPECT_EQ(typing_errors("", "dot"), 3u);
  EXPECT_EQ(foci::cli::suggestion("lineer", {"softmax", "linear"}), "; did you mean linear?");
}

TEST(Suggest, NamesWhatIsMeantOrNothing) {
  const Words metrics = {"dot", "layer-change", "flat", "key-covariance"};
  const std::vector<std::tuple<std::string, Words, std::string>> all = {
      {"xyz", metrics, ""},
      {"euclid", metrics, ""},
      {"layer", metrics, "layer-change"},
      {"covariance", metrics, "key-covariance"},
      {"elliptical", metrics, "layer-change"},
      {"gpu", {"cpu", "cuda"}, "cuda"},
      {"half", {"f64", "f32", "bf16", "f16"}, "f16"},
      {"--head", {"--shape", "--seed", "--kv-heads"}, "--kv-heads"},
      {"--frob", {"--form", "--floor"}, ""},
      {"trane", {"train", "theory"}, "train"},
      {"--metrics", {"--metric-layers", "--metric"}, "--metric"},
      {"apgd-c", {"apgd-t", "apgd-ce"}, "apgd-ce"},
      {"fashion", {"camvid", "fashion-mnist"}, "fashion-mnist"},
      {"", {"dot"}, ""},
      {"dot", {}, ""},
  };
  for (const auto& [word, candidates, meant] : all) {
    const std::string says = meant.empty() ? "" : "; did you mean " + meant + "?";
    EXPECT_EQ(foci::cli::suggestion(word, candidates), says) << word;
  }
}

TEST(Suggest, ShowsOnlyWhatFitsOnALine) {
  EXPECT_EQ(foci::cli::shown("a\tb\n\x1b[1m"), "a\\x09b\\x0a\\x1b[1m");
  EXPECT_EQ(foci::cli::shown("\xc3\xa9 \xff \xc2\x85"), "\xc3\xa9 \\xff \\xc2\\x85");
  EXPECT_LE(foci::cli::shown(std::string(5000, 'x')).size(), 310u);
}

}  // namespace
