// SPDX-License-Identifier: Apache-2.0
// A run that is killed, told to stop or out of room goes on as if nothing had happened: the same
// curve and the same weights, to the bit.
#include "train/child.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

namespace {

using namespace train_test;

constexpr int steps = 150;

/// Everything that is random is on.
Words long_run(const std::string& run) {
  return tiny(run) + Words{"--steps",      std::to_string(steps),
                           "--save-every", "3",
                           "--ema",        "0.9",
                           "--drop-path",  "0.2",
                           "--augment",    "deit",
                           "--mixup",      "0.8",
                           "--accumulate", "2",
                           "--clip",       "1",
                           "--seed",       "5",
                           "--workers",    "2",
                           "--resume"};
}

/// The uninterrupted run, made once.
const std::string& whole() {
  static const std::string run = [] {
    const std::string path = folder().file("whole");
    const Ran ran = call(long_run(path));
    EXPECT_EQ(ran.status, 0) << ran.err;
    return path;
  }();
  return run;
}

std::size_t lines_of(const std::string& run) {
  const std::string text = read(run + "/metrics.jsonl");
  return std::size_t(std::count(text.begin(), text.end(), '\n'));
}

void expect_same_as_whole(const std::string& run) {
  EXPECT_EQ(curve(run), curve(whole()));
  EXPECT_EQ(lines_of(run), std::size_t(steps));
  EXPECT_TRUE(weights(checkpoint(run, steps)) == weights(checkpoint(whole(), steps)));
  EXPECT_FALSE(fs::exists(checkpoint(run, steps - 6)));  // two are kept
}

/// Waits until there are so many lines, or the child has ended.
void wait_for_lines(pid_t child, const std::string& run, std::size_t lines) {
  while (lines_of(run) < lines && !has_ended(child)) ::usleep(1000);
}

TEST(Killed, TwentyTimesItEndsWithTheSameBits) {
  const std::string run = folder().file("killed");
  std::mt19937 random(7);
  for (int killed = 0; killed < 20;) {
    const pid_t child = start(long_run(run), "killed");
    // Some die before they have done anything, the others a few steps later.
    if (random() % 4 != 0) wait_for_lines(child, run, lines_of(run) + 1 + random() % 8);
    ::usleep(random() % 20000);
    ::kill(child, SIGKILL);
    const Ran ran = finish(child, "killed");
    if (ran.status == -SIGKILL) {
      ++killed;
      continue;
    }
    // It was done before we came: the next one begins anew.
    ASSERT_EQ(ran.status, 0) << ran.err;
    expect_same_as_whole(run);
    fs::remove_all(run);
  }
  const Ran ran = call(long_run(run));
  ASSERT_EQ(ran.status, 0) << ran.err;
  expect_same_as_whole(run);
}

TEST(Killed, SigtermSavesAndEndsWithZero) {
  const std::string run = folder().file("stopped");
  Words words = long_run(run);
  words.erase(std::find(words.begin(), words.end(), "--quiet"));
  Ran ran;
  std::size_t done = 0;
  do {  // until we come before it is done by itself
    fs::remove_all(run);
    const pid_t child = start(words, "stopped");
    wait_for_lines(child, run, 10);
    ::kill(child, SIGTERM);
    ran = finish(child, "stopped");
    ASSERT_EQ(ran.status, 0) << ran.err;
    done = lines_of(run);
    ASSERT_GE(done, 10u);
  } while (done == std::size_t(steps));
  EXPECT_EQ(ran.out,
            run + ": stopped and saved at step " + std::to_string(done) + "; --resume goes on\n");
  EXPECT_TRUE(fs::exists(checkpoint(run, int(done))));
  EXPECT_NE(ran.err.find("step 1 of 150  loss "), std::string::npos);
  EXPECT_NE(ran.err.find(" images/s  "), std::string::npos);
  ASSERT_EQ(call({"train", "images", "--run", run, "--resume", "--quiet", "--threads", "1"}).status,
            0);
  EXPECT_EQ(curve(run), curve(whole()));
}

TEST(Killed, AFullDiskLosesNothing) {
  const std::string run = folder().file("full");
  const Words words = tiny(run) + Words{"--steps", "4", "--save-every", "2", "--resume"};
  const std::string other = folder().file("roomy");
  ASSERT_EQ(call(tiny(other) + Words{"--steps", "4", "--save-every", "2"}).status, 0);
  const Ran none = call(words, 20000);  // config and metrics fit, weights do not
  EXPECT_EQ(none.status, 1);
  EXPECT_TRUE(none.err.ends_with("model.safetensors: cannot be written: File too large\n"))
      << none.err;
  EXPECT_FALSE(fs::exists(checkpoint(run, 2)));
  ASSERT_EQ(call(words).status, 0);
  EXPECT_EQ(curve(run), curve(other));
  EXPECT_TRUE(weights(checkpoint(run, 4)) == weights(checkpoint(other, 4)));
}

/// The programs themselves, by way of foci: killed once, then resumed.
TEST(Killed, TheProgramGoesOn) {
  const std::string run = folder().file("program");
  const Words words = tiny(run) + Words{"--steps", "40", "--save-every", "2", "--resume"};
  const pid_t child = ::fork();
  if (child == 0) {
    std::vector<char*> list{const_cast<char*>(program.c_str())};
    for (const std::string& word : words) list.push_back(const_cast<char*>(word.c_str()));
    list.push_back(nullptr);
    ::execv(program.c_str(), list.data());
    ::_exit(9);
  }
  wait_for_lines(child, run, 5);
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  const Ran ran = run_foci(words);
  EXPECT_EQ(ran.status, 0) << ran.err;
  const std::string other = folder().file("program-whole");
  ASSERT_EQ(call(tiny(other) + Words{"--steps", "40", "--save-every", "2"}).status, 0);
  EXPECT_EQ(curve(run), curve(other));
  EXPECT_TRUE(weights(checkpoint(run, 40)) == weights(checkpoint(other, 40)));
}

}  // namespace
