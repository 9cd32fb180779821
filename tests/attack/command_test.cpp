// SPDX-License-Identifier: Apache-2.0
// foci attack on a small trained run: what it says and writes, that a kill costs nothing, that
// every flag changes something, and that every mistake is one line.
#include "train/child.hpp"

#include "cli/compare_results.hpp"
#include "cli/pages.hpp"

#include <foci/record.hpp>
#include <foci/safetensors.hpp>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace {

using namespace train_test;

/// Trained once, until it is right about some.
const std::string& trained() {
  static const std::string run = [] {
    const std::string path = folder().file("attacked");
    const Ran ran = call(tiny(path) + Words{"--steps", "60", "--learning-rate", "0.003"});
    EXPECT_EQ(ran.status, 0) << ran.err;
    return path;
  }();
  return run;
}

Words attack(const std::string& out, const Words& more = {}) {
  const Words base = {"attack", trained(), "--out", folder().file(out), "--threads", "1"};
  return base + more;
}

const Words quick = {"--attack", "apgd-ce,square", "--iterations", "4", "--queries", "5", "--check",
                     "0",        "--eps",          "2,64"};

TEST(AttackCommand, SaysAndWritesWhatWithstands) {
  const std::size_t before = foci::read_records(trained() + "/records.jsonl").size();
  const Words how = {"--iterations", "6", "--queries", "10", "--check", "6", "--eps", "64,2"};
  const Ran ran = call(attack("whole", how + Words{"--json"}));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto json = ran.json();
  const auto& curve = json.at("curve");
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_EQ(curve[0].at("text"), "linf 2/255");
  const double clean = json.at("clean"), little = curve[0].at("robust"),
               much = curve[1].at("robust");
  EXPECT_GT(clean, 0.3);
  EXPECT_LE(little, clean);
  EXPECT_LT(much, little);
  EXPECT_EQ(curve[1].at("after").at("own").size(), 4u);
  std::set<std::string> flags;
  for (const auto& flag : json.at("flags")) {
    flags.insert(flag.at("name").get<std::string>());
    EXPECT_FALSE(flag.at("means").get<std::string>().empty());
    EXPECT_FALSE(flag.at("do").get<std::string>().empty());
  }
  EXPECT_TRUE(flags.contains("few-samples"));
  EXPECT_TRUE(flags.contains("few-classes"));
  const auto records = foci::read_records(trained() + "/records.jsonl");
  EXPECT_EQ(records.size(), before + json.at("records").size());
  const std::string out = folder().file("whole");
  for (const char* file : {"attack.json", "curve.json", "curve.svg", "samples.json", "sheet.png"})
    EXPECT_TRUE(fs::exists(out + "/" + file)) << file;
  EXPECT_EQ(nlohmann::json::parse(read(out + "/samples.json")).size(), 48u);
  const foci::Safetensors file(out + "/adversarial.safetensors");
  const foci::View images = file.find("clean"), others = file.find("adversarial linf 64/255");
  double most = 0;
  for (std::int64_t i = 0; i < 48 * 28 * 28; ++i) {
    const float x = static_cast<const float*>(others.data)[i];
    EXPECT_TRUE(x >= 0 && x <= 1);
    most = std::max(most, double(std::abs(x - static_cast<const float*>(images.data)[i])));
  }
  EXPECT_NEAR(most, 64.0 / 255, 1e-5);
}

TEST(AttackCommand, TheAdaptiveSuiteTakesTheWorstOfAll) {
  const Words how = {"--suite",   "adaptive", "--eps",   "8", "--iterations", "5",
                     "--queries", "5",        "--check", "0", "--json"};
  const Ran ran = call(attack("adaptive", how));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto point = ran.json().at("curve").at(0);
  const double worst = point.at("robust");
  for (const char* arm : {"detached", "through", "plain"}) {
    const auto& after = point.at("after").at(arm);
    EXPECT_EQ(after.size(), arm == std::string("plain") ? 2u : 4u);
    for (const auto& [name, share] : after.items()) EXPECT_LE(worst, share.get<double>()) << name;
    EXPECT_GE(point.at("fooled_alone").at(arm).get<int>(), 0);
  }
  const Ran table = call(attack("adaptive-table", Words(how.begin(), how.end() - 1)));
  for (const char* arm : {"detached", "through", "plain"})
    EXPECT_NE(table.out.find(std::string("by ") + arm + " alone"), std::string::npos);
  const std::string plain = folder().file("plain-run");
  ASSERT_EQ(call(tiny(plain) + Words{"--metric", "dot"}).status, 0);
  EXPECT_EQ(call(attack("adaptive-plain", how + Words{"--plain", plain})).status, 0);
}

/// Killed again and again, it ends with the same files.
TEST(AttackCommand, AKillCostsNothing) {
  const Words how = quick + Words{"--batch", "3", "--quiet"};
  ASSERT_EQ(call(attack("unkilled", how)).status, 0);
  const std::string out = folder().file("killed");
  const auto files = [&] {
    std::error_code none;
    std::size_t count = 0;
    for ([[maybe_unused]] const auto& file : fs::directory_iterator(out + "/journal", none))
      ++count;
    return count;
  };
  for (const std::size_t enough : {1u, 4u, 9u}) {
    const pid_t child = start(attack("killed", how), "killed-call");
    int status = 0;
    while (files() < enough && ::waitpid(child, &status, WNOHANG) == 0) ::usleep(1000);
    ::kill(child, SIGKILL);
    ::waitpid(child, &status, 0);
  }
  ASSERT_EQ(call(attack("killed", how)).status, 0);
  for (const char* name : {"adversarial.safetensors", "samples.json", "curve.json"})
    EXPECT_EQ(read(out + "/" + name), read(folder().file("unkilled") + "/" + name)) << name;
  const Ran other = call(attack("killed", how + Words{"--seed", "3"}));
  EXPECT_EQ(other.status, 2);
  EXPECT_NE(other.err.find("holds another attack, or one on other weights"), std::string::npos);
}

/// It has enough to do until `sign` is there; without one for minutes it is ended all the same.
Ran interrupted(const Words& how, const std::string& name, int signal,
                const std::function<bool()>& sign) {
  const pid_t child = start(attack("interrupted", how), name);
  for (int i = 0; i < 20000 && !sign() && !has_ended(child); ++i) ::usleep(10000);
  ::kill(child, signal);
  return finish(child, name);
}

/// Ctrl-C and SIGTERM say where the journal is; the same command says what it takes from there.
TEST(AttackCommand, AnInterruptedAttackSaysHowItGoesOn) {
  const Words how = {"--attack", "fgsm,square", "--queries", "1000000", "--eps", "0.01"};
  const std::string journal = folder().file("interrupted") + "/journal";
  const Ran first = interrupted(how, "first-call", SIGINT,
                                [&] { return fs::exists(journal + "/own0-0-0.safetensors"); });
  EXPECT_EQ(first.status, -SIGINT) << first.err;
  const std::string says =
      "foci: stopped; what was found stands in " + journal + ", and the same command goes on";
  EXPECT_NE(first.err.find(says), std::string::npos) << first.err;
  EXPECT_EQ(first.err.find("done before"), std::string::npos) << first.err;
  const std::string before = "1 batch done before is taken from " + journal;
  const Ran second = interrupted(how, "second-call", SIGTERM, [&] {
    return read(folder().file("second-call.err")).find(before) != std::string::npos;
  });
  EXPECT_EQ(second.status, -SIGTERM) << second.err;
  EXPECT_NE(second.err.find(before), std::string::npos) << second.err;
}

/// Taken up only on the same data and, where gradients come from another run, the same weights.
TEST(AttackCommand, WhatItIsTiedToIsAllThatItHangsOn) {
  const std::string data = folder().file("other-images"), plain = folder().file("tied-plain");
  fs::copy(images(), data, fs::copy_options::recursive);
  const Words one = quick + Words{"--eps", "8", "--data", data, "--quiet"};
  ASSERT_EQ(call(attack("tied", one)).status, 0);
  ASSERT_EQ(call(attack("tied", one)).status, 0);
  const std::string labels = data + "/t10k-labels-idx1-ubyte";
  std::string bytes = read(labels);
  ASSERT_GT(bytes.size(), 8u);
  bytes.back() = char((bytes.back() + 1) % 4);
  write(labels, bytes);
  const Ran moved = call(attack("tied", one));
  EXPECT_EQ(moved.status, 2);
  EXPECT_NE(moved.err.find("or one on other weights or data"), std::string::npos) << moved.err;
  const Words led = {"--suite", "adaptive", "--plain",   plain, "--iterations", "2", "--quiet",
                     "--check", "0",        "--queries", "2",   "--eps",        "8"};
  ASSERT_EQ(call(tiny(plain) + Words{"--metric", "dot"}).status, 0);
  ASSERT_EQ(call(attack("tied-led", led)).status, 0);
  ASSERT_EQ(call(attack("tied-led", led)).status, 0);
  fs::remove_all(plain);
  ASSERT_EQ(call(tiny(plain) + Words{"--metric", "dot", "--seed", "5"}).status, 0);
  EXPECT_EQ(call(attack("tied-led", led)).status, 2);
}

TEST(AttackCommand, ImagesOfTheGoalsClassAreLeftOut) {
  const Words how = {"--attack", "pgd", "--check", "0", "--eps", "255", "--json"};
  const auto whole = call(attack("aimless", how)).json();
  int others = 0;
  for (const std::string goal : {"0", "1", "2", "3"}) {
    const Ran ran = call(attack("aimed-" + goal, how + Words{"--goal", goal}));
    ASSERT_EQ(ran.status, 0) << ran.err;
    const auto aimed = ran.json();
    const int count = aimed.at("count"), left_out = aimed.at("of_the_goal");
    EXPECT_GT(left_out, 0);
    EXPECT_EQ(count + left_out, 48);
    others += left_out;
    for (const auto& record : aimed.at("records")) {
      EXPECT_EQ(record.at("n"), count);
      const std::string name = record.at("name");
      EXPECT_NE(name.find(" goal " + goal), std::string::npos) << name;
      EXPECT_FALSE(foci::cli::measure_kind(name)) << name;  // no robust accuracy of a comparison
    }
    const auto samples =
        nlohmann::json::parse(read(folder().file("aimed-" + goal) + "/samples.json"));
    EXPECT_EQ(int(samples.size()), count);
    for (const auto& sample : samples) EXPECT_NE(sample.at("label"), std::stoi(goal));
  }
  EXPECT_EQ(others, whole.at("count").get<int>());
  EXPECT_EQ(whole.at("of_the_goal"), 0);
}

/// What is refused leaves nothing that would refuse the corrected command; a targeted Record is
/// found again by its name.
TEST(AttackCommand, AMistakeLeavesTheFolderToTheCorrectedCommand) {
  const Words how = {"--attack", "pgd", "--iterations", "5", "--check", "0", "--eps", "4"};
  const std::string out = folder().file("mended");
  for (const Words& wrong : {Words{"--goal", "9"}, Words{"--goal", "worst"},
                             Words{"--attack", "cw"}, Words{"--attack", "pdg"}}) {
    const Ran ran = call(attack("mended", how + wrong));
    EXPECT_EQ(ran.status, 2) << ran.err;
    EXPECT_FALSE(fs::exists(out)) << ran.err;
    EXPECT_EQ(ran.err.find("foci info"), std::string::npos) << ran.err;
  }
  const Ran mended = call(attack("mended", how + Words{"--goal", "least"}));
  ASSERT_EQ(mended.status, 0) << mended.err;
  EXPECT_NE(mended.out.find("doubt: short-steps: pgd takes 5 steps"), std::string::npos)
      << mended.out;
  bool found = false;
  for (const auto& record : foci::read_records(trained() + "/records.jsonl"))
    found = found || record.name == "robust linf 4/255 goal least";
  EXPECT_TRUE(found);
}

TEST(AttackCommand, EqualBallsAreOne) {
  const Words how = {"--attack", "fgsm", "--check", "0", "--json", "--eps", "8,4.0,8/255,4"};
  const Ran ran = call(attack("equal", how));
  ASSERT_EQ(ran.status, 0) << ran.err;
  const auto curve = ran.json().at("curve");
  ASSERT_EQ(curve.size(), 2u);
  EXPECT_EQ(curve[0].at("text"), "linf 4.0/255");
  EXPECT_EQ(curve[1].at("text"), "linf 8/255");
}

/// Where there is no GPU it is refused in one line, where there is one all files come of it.
TEST(AttackCommand, TheDeviceIsUsedOrRefused) {
  const Words how = quick + Words{"--eps", "64", "--device", "cuda"};
  const Ran ran = call(attack("on-cuda", how));
  const auto devices = call({"info", "--json"}).json().at("devices");
  if (ran.status != 0) {
    EXPECT_EQ(devices.size(), 1u) << ran.err;
    EXPECT_NE(ran.err.find("the nearest is --device cpu"), std::string::npos) << ran.err;
    return;
  }
  for (const char* file : {"sheet.png", "adversarial.safetensors", "samples.json"})
    EXPECT_TRUE(fs::exists(folder().file("on-cuda") + "/" + file)) << file;
}

struct Traced {
  int status = 0;
  std::string all;
};
Traced trace_of(const Words& more) {
  const std::string out = folder().file("traced");
  fs::remove_all(out);
  const Ran ran = call(attack("traced", more));
  std::string all = std::to_string(ran.status) + ran.err + ran.out;
  std::error_code none;
  for (const char* name : {"adversarial.safetensors", "samples.json", "sheet.png"})
    all += fs::exists(out + "/" + name, none) ? read(out + "/" + name) : "";
  return {ran.status, all};
}

TEST(AttackCommand, EveryFlagChangesSomething) {
  const Words base = quick + Words{"--eps", "8"};
  const Words aimed = {"--attack", "apgd-t", "--iterations", "3", "--eps", "4", "--check", "0"};
  const Words bare = {"--iterations", "3", "--queries", "2", "--check", "0", "--eps", "8"};
  const Words adaptive = bare + Words{"--suite", "adaptive"};
  const std::map<std::string, std::pair<Words, Words>> all = {
      {"suite", {bare, {"--suite", "plus"}}},
      {"attack", {base, {"--attack", "noise"}}},
      {"norm", {base, {"--norm", "l2"}}},
      {"eps", {base, {"--eps", "9"}}},
      {"goal", {base, {"--goal", "least"}}},
      {"iterations", {base, {"--iterations", "2"}}},
      {"queries", {base + Words{"--attack", "square", "--eps", "16"}, {"--queries", "60"}}},
      {"restarts", {base + Words{"--attack", "pgd"}, {"--restarts", "9"}}},
      {"targets", {aimed, {"--targets", "1"}}},
      {"metric-grad", {base, {"--metric-grad", "through"}}},
      {"data", {base, {"--data", "nowhere"}}},
      {"split", {base, {"--split", "train"}}},
      {"count", {base, {"--count", "5"}}},
      {"ema", {base, {"--ema"}}},
      {"plain", {adaptive, {"--plain", "nowhere"}}},
      {"check", {base, {"--check", "2"}}},
      {"sheet", {base + Words{"--eps", "64"}, {"--sheet", "1"}}},
      {"seed", {base, {"--seed", "7"}}},
      {"quiet", {base, {"--quiet"}}},
      {"json", {base, {"--json"}}},
  };
  // Tested elsewhere: random models, files, devices, and what must change nothing.
  const std::set<std::string> elsewhere = {"eot", "out", "help", "threads", "batch", "device"};
  const std::set<std::string> refused = {"data", "plain", "ema"};  // what they name is not there
  std::map<Words, std::string> seen;
  for (const auto& flag : foci::cli::find_verb("attack")->flags) {
    const std::string name(flag.name);
    if (elsewhere.contains(name)) continue;
    ASSERT_TRUE(all.contains(name)) << "no change is listed for --" << name;
    const auto& [before, more] = all.at(name);
    if (!seen.contains(before)) {
      const Traced plain = trace_of(before);
      EXPECT_EQ(plain.status, 0) << plain.all;
      seen[before] = plain.all;
    }
    const Traced changed = trace_of(before + more);
    EXPECT_EQ(changed.status, refused.contains(name) ? 1 : 0) << "--" << name << changed.all;
    EXPECT_TRUE(seen[before] != changed.all) << "--" << name << " changed nothing";
  }
  const Words quiet = base + Words{"--quiet"};
  EXPECT_EQ(trace_of(quiet).all, trace_of(quiet + Words{"--batch", "7"}).all);
}

TEST(AttackCommand, MistakesAreToldInOneLine) {
  const Words base = attack("bad");
  const std::vector<std::tuple<Words, int, std::string>> all = {
      {{"attack"}, 2, "attack needs the folder of a run"},
      {{"attack", "nowhere"}, 1, "nowhere/config.json: is not there; is it a run?"},
      {base + Words{"--eps", "-1"}, 2, "--eps -1 is below 0"},
      {base + Words{"--eps", "8,x"}, 2, "--eps 'x' is no number"},
      {base + Words{"--eps", "inf"}, 2, "--eps 'inf' is no number"},
      {base + Words{"--eps", "8,nan"}, 2, "--eps 'nan' is no number"},
      {base + Words{"--eps", "1/inf"}, 2, "--eps '1/inf' is no number"},
      {base + Words{"--attack", "noise,fgsm,spsa", "--restarts", "2"}, 2,
       "--restarts changes nothing here: it is for pgd, mpgd,"},
      {base + Words{"--attack", "cw", "--norm", "l2", "--restarts", "2"}, 2, "--restarts changes"},
      {base + Words{"--attack", "noise,fgsm,spsa,fab", "--targets", "2"}, 2,
       "--targets changes nothing here: it is for apgd-t and fab-t"},
      {base + Words{"--goal", "1", "--targets", "2"}, 2, "with a goal there is one target"},
      {base + Words{"--attack", "pdg"}, 2, "there is no attack 'pdg'; it is one of noise, fgsm"},
      {base + Words{"--attack", "pgd", "--suite", "plus"}, 2, "--attack and --suite: one of them"},
      {base + Words{"--attack", "cw", "--count", "2"}, 2, "cw measures in l2; the nearest"},
      {base + Words{"--attack", "fgsm,cw", "--norm", "l1"}, 2, "foci help attack names all"},
      {base + Words{"--targets", "4"}, 2, "--targets 4: the model has 4 classes, so 3 others"},
      {base + Words{"--plain", trained()}, 2, "--plain is for --suite adaptive"},
      {base + Words{"--suite", "adaptive", "--metric-grad", "through"}, 2, "both ways; leave"},
      {base + Words{"--goal", "4"}, 2, "--goal '4' is no class; the model has 4"},
      {base + Words{"--batch", "0"}, 2, "--batch 0 is not a size"},
      {base + Words{"--ema"}, 1, "the run keeps no average"},
  };
  for (const auto& [words, status, says] : all) {
    fs::remove_all(folder().file("bad"));
    const Ran ran = call(words);
    EXPECT_EQ(ran.status, status) << says << "\n" << ran.err;
    EXPECT_EQ(ran.out, "");
    EXPECT_NE(ran.err.find(says), std::string::npos) << says << "\n" << ran.err;
    EXPECT_LE(std::count(ran.err.begin(), ran.err.end(), '\n'), 2) << ran.err;
  }
}

}  // namespace
