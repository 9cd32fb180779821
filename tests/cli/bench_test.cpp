// SPDX-License-Identifier: Apache-2.0
// What foci bench promises: ratios from one run, peers that are there or say why not, memory as it
// is. A script that speaks like bench/peers.py stands in for torch where torch is not the point.
#include "cli/command.hpp"

#include <gtest/gtest.h>

namespace {

using namespace cli_test;

const Words small = {"bench", "--shape", "1,2,9,4", "--turns", "2", "--json"};

/// A "python" that runs this shell code instead of bench/peers.py.
std::string python(const std::string& name, const std::string& code) {
  const std::string path = folder().file(name);
  write(path, "#!/bin/sh\n" + code);
  fs::permissions(path, fs::perms::owner_all);
  return path;
}

Ran run_with(const std::string& python_path, const Words& words) {
  setenv("FOCI_PYTHON", python_path.c_str(), 1);
  const Ran ran = run_foci(words);
  unsetenv("FOCI_PYTHON");
  return ran;
}

constexpr const char* hello =
    R"(echo '{"torch-sdpa": {"what": "pretended"}, "torch-eager": {"why_not": "not today"}}')";

TEST(Bench, VersusComesFromTheSameRun) {
  const auto result = run_foci(small + Words{"--peers", "none", "--metric", "key-covariance",
                                             "--ridge", "1e-3", "--versus", "metric=dot"})
                          .json();
  const auto& versus = result.at("versus");
  EXPECT_EQ(versus.at("flags"), "metric=dot");
  EXPECT_DOUBLE_EQ(versus.at("ratio").get<double>(),
                   result.at("seconds").get<double>() / versus.at("seconds").get<double>());
  EXPECT_NE(versus.at("peak_bytes"), result.at("peak_bytes"));
  EXPECT_NE(versus.at("error"), result.at("error"));
}

TEST(Bench, VersusOfAnotherShapeHasItsOwnFlops) {
  const auto result =
      run_foci(small + Words{"--peers", "none", "--versus", "shape=1,2,18,4 threads=1"}).json();
  const auto flops = [](const nlohmann::json& of) {
    return of.at("gflops").get<double>() * of.at("seconds").get<double>();
  };
  EXPECT_NEAR(flops(result.at("versus")) / flops(result), 4, 1e-9);
}

TEST(Bench, TurnsAreAsManyAsAsked) {
  const auto runs = [](const char* turns) {
    return run_foci({"bench", "--shape", "1,4,300,64", "--backend", "ref", "--threads", "1",
                     "--pass", "both", "--peers", "none", "--turns", turns, "--json"})
        .json()
        .at("repetitions")
        .get<int>();
  };
  EXPECT_EQ(runs("1"), 1);
  EXPECT_EQ(runs("3"), 3);
}

TEST(Bench, TheKeyBiasHasAGradient) {
  const auto result =
      run_foci(small + Words{"--peers", "none", "--pass", "both", "--key-bias", "--backend", "ref"})
          .json();
  EXPECT_TRUE(result.at("tensors").contains("dkey_bias"));
}

TEST(Bench, ResidentMemoryHoldsTheTensors) {
  const auto result = run_foci({"bench", "--shape", "64,8,64,64", "--peers", "none", "--turns", "1",
                                "--threads", "1", "--json"})
                          .json();
  if (result.at("peak_rss_bytes").is_null()) GTEST_SKIP() << "/proc/self/clear_refs is closed";
  const double tensors = result.at("peak_bytes").get<double>();
  EXPECT_GE(tensors, 4.0 * 64 * 8 * 64 * 64 * 4);
  EXPECT_GT(result.at("peak_rss_bytes").get<double>(), tensors);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  EXPECT_LT(result.at("peak_rss_bytes").get<double>(), tensors + 16e6);
#endif
}

TEST(Bench, TheShareOfSgemmIsOfTheSameRun) {
  const Ran ran = run_foci(small + Words{"--peers", "sgemm", "--threads", "1"});
  if (!fs::exists(FOCI_BINARY_DIR "/bench/sgemm")) {
    EXPECT_EQ(ran.status, 2);
    EXPECT_NE(ran.err.find("--peers sgemm: sgemm is not in"), std::string::npos) << ran.err;
    GTEST_SKIP() << "built without OpenBLAS";
  }
  const auto result = ran.json();
  const auto& sgemm = result.at("peers").at("sgemm");
  EXPECT_EQ(sgemm.at("what").get<std::string>().substr(0, 8), "OpenBLAS");
  EXPECT_NEAR(sgemm.at("gflops").get<double>() * sgemm.at("seconds").get<double>(),
              2 * 2.048 * 2.048 * 2.048, 1e-9);
  EXPECT_DOUBLE_EQ(result.at("of_sgemm").get<double>(),
                   result.at("gflops").get<double>() / sgemm.at("gflops").get<double>());
}

TEST(Bench, SgemmRefusesNonsense) {
  const std::string sgemm = FOCI_BINARY_DIR "/bench/sgemm";
  if (!fs::exists(sgemm)) GTEST_SKIP() << "built without OpenBLAS";
  EXPECT_EQ(run_shell(sgemm).status, 2);
  EXPECT_EQ(run_shell(sgemm + " 0").status, 2);
  const Ran ran = run_shell("echo go | " + sgemm + " 1 100");
  EXPECT_EQ(ran.status, 0);
  EXPECT_NE(ran.out.find("\n{\"seconds\": "), std::string::npos) << ran.out;
}

TEST(Bench, PeersAreAskedAndTheirTimesKept) {
  const auto result = run_with(python("slow", std::string(hello) + R"(; while read name; do
                 echo '{"seconds": 0.5}'; done)"),
                               small + Words{"--metric", "random", "--peers", "torch"})
                          .json();
  const auto& peer = result.at("peers").at("torch-sdpa");
  EXPECT_EQ(peer.at("what"), "pretended");
  EXPECT_EQ(peer.at("seconds"), 0.5);
  EXPECT_EQ(peer.at("repetitions"), 2);
  EXPECT_TRUE(peer.at("difference").is_null());
  EXPECT_EQ(result.at("absent_peers").at("torch-eager"), "not today");
}

TEST(Bench, PeersGetTheShape) {
  const std::string said = folder().file("said");
  run_with(
      python("curious", "echo \"$@\" > " + said + "\n"),
      Words{"bench",     "--shape", "1,4,9,8", "--kv-heads", "2",       "--keys",     "11",
            "--values",  "6",       "--dtype", "bf16",       "--pass",  "backward",   "--causal",
            "--threads", "2",       "--turns", "1",          "--peers", "torch-sdpa", "--quiet"});
  for (const char* flag :
       {"bench/peers.py --serve", "--shape=1,4,9,8", "--kv-heads=2", "--keys=11", "--values=6",
        "--dtype=bf16", "--pass=backward", "--causal", "--threads=2", "--peers=torch-sdpa "}) {
    EXPECT_NE(read(said).find(flag), std::string::npos) << flag << "\n" << read(said);
  }
}

TEST(Bench, APeerThatIsNotThereSaysWhy) {
  struct Case {
    const char *name, *code, *why;
  };
  for (const Case& c : std::vector<Case>{
           {"ends", "exit 3", "ended without an answer"},
           {"talks", "echo 'no object'", "it said 'no object'"},
           {"fails", R"(echo '{"error": "no torch: none"}')", "no torch: none"},
           {"strange", R"(echo '{"other": {"what": "x"}}')", "its program does not know it"}}) {
    const Ran named = run_with(python(c.name, c.code), small + Words{"--peers", "torch-sdpa"});
    EXPECT_EQ(named.status, 2);
    EXPECT_NE(named.err.find(std::string("foci: --peers torch-sdpa: ")), std::string::npos);
    EXPECT_NE(named.err.find(c.why), std::string::npos) << named.err;
  }
  const auto all = run_with("/no/python", small + Words{"--peers", "all"}).json();
  EXPECT_EQ(all.at("absent_peers").at("torch-sdpa"),
            "/no/python cannot be started: No such file or directory");
  const Ran nowhere = run_with("/no/python", small + Words{"--peers", "torch"});
  EXPECT_NE(nowhere.err.find("--peers torch: /no/python cannot be started"), std::string::npos)
      << nowhere.err;
}

TEST(Bench, APeerThatStopsAnsweringIsLeftOut) {
  for (const char* code : {"; read name; exit 1", "; read name; echo '{\"error\": \"too hot\"}'",
                           "; read name; echo '{\"seconds\": 0}'"}) {
    const Ran ran = run_with(python("stops", std::string(hello) + code),
                             small + Words{"--metric", "random", "--peers", "torch"});
    ASSERT_EQ(ran.status, 0) << ran.err;
    EXPECT_TRUE(ran.json().at("absent_peers").contains("torch-sdpa"));
    EXPECT_FALSE(ran.json().at("peers").contains("torch-sdpa"));
  }
}

TEST(Bench, WithoutItsCompanionsItStillWorks) {
  const std::string alone = folder().file("alone");
  fs::copy_file(program, alone, fs::copy_options::overwrite_existing);
  const std::string command = "LD_LIBRARY_PATH=" FOCI_BINARY_DIR "/lib " + alone +
                              " bench --shape 1,1,4,4 --turns 1 --json --peers ";
  const auto result = run_shell(command + "all").json();
  EXPECT_TRUE(result.at("peers").contains("naive"));
  EXPECT_EQ(result.at("absent_peers").size(), 3u);
  const Ran ran = run_shell(command + "sgemm");
  EXPECT_EQ(ran.status, 2);
  EXPECT_NE(ran.err.find("foci: --peers sgemm: sgemm is not in "), std::string::npos) << ran.err;
}

TEST(Bench, TorchAgreesWithUs) {
  bool found = false;
  for (const Words& flags : std::vector<Words>{{"--dtype", "f32"},
                                               {"--dtype", "f64", "--causal", "--keys", "17"},
                                               {"--dtype", "bf16"}}) {
    const auto result =
        run_foci(Words{"bench", "--shape", "2,4,12,8", "--kv-heads", "2", "--pass", "both",
                       "--threads", "1", "--turns", "1", "--peers", "all", "--json"} +
                 flags)
            .json();
    for (const char* name : {"torch-sdpa", "torch-eager"}) {
      if (!result.at("peers").contains(name)) continue;
      found = true;
      const double most = flags[1] == "bf16" ? 0.3 : flags[1] == "f32" ? 1e-4 : 1e-12;
      EXPECT_LT(result.at("peers").at(name).at("difference").get<double>(), most) << flags[1];
    }
  }
  if (!found) GTEST_SKIP() << "no python with torch";
}

TEST(Bench, TextSaysWhatWasFound) {
  const Ran ran = run_with(python("again", std::string(hello) + R"(; while read name; do
                 echo '{"seconds": 0.5}'; done)"),
                           {"bench", "--shape", "1,2,9,4", "--turns", "1", "--metric", "random",
                            "--versus", "metric=dot", "--peers", "naive,torch"});
  for (const char* part : {"versus metric=dot", "times the time", "times as fast",
                           "torch-sdpa: pretended", "torch-eager is not timed: not today"}) {
    EXPECT_NE(ran.out.find(part), std::string::npos) << part << "\n" << ran.out;
  }
}

}  // namespace
