// SPDX-License-Identifier: Apache-2.0
// The pieces behind foci bench: programs that are asked line by line, and turns that are shared
// out.
#include "cli/process.hpp"
#include "cli/turns.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <thread>

namespace {

using namespace std::chrono_literals;
using foci::cli::Contestant;
using foci::cli::NoAnswer;
using foci::cli::Process;

std::string reason(const std::function<void()>& what) {
  try {
    what();
  } catch (const NoAnswer& fault) {
    return fault.what();
  }
  return "no fault";
}

TEST(Process, AnswersLineByLine) {
  Process cat({"cat"});
  cat.say("one");
  EXPECT_EQ(cat.hear(10s), "one");
  cat.say("two\nthree");
  EXPECT_EQ(cat.hear(10s), "two");
  EXPECT_EQ(cat.hear(10s), "three");
  const std::string wide(100'000, 'x');
  cat.say(wide);
  EXPECT_EQ(cat.hear(10s), wide);
}

TEST(Process, SaysWhyThereIsNoAnswer) {
  EXPECT_EQ(reason([] { Process({"/no/such/program"}); }),
            "/no/such/program cannot be started: No such file or directory");
  EXPECT_EQ(reason([] { Process({"true"}).hear(10s); }), "true ended without an answer");
  EXPECT_EQ(reason([] { Process({"sleep", "60"}).hear(1s); }), "sleep gave no answer in 1 s");
}

TEST(Process, SpeakingToOneThatEndedIsNoSignal) {
  Process ended({"true"});
  std::this_thread::sleep_for(100ms);
  for (int i = 0; i < 3; ++i) ended.say("hello");
  EXPECT_EQ(reason([&] { ended.hear(10s); }), "true ended without an answer");
}

TEST(Process, EndsWithItsOwner) {
  std::string id;
  {
    Process deaf({"sh", "-c", "echo $$; trap '' TERM; exec sleep 60"});
    id = deaf.hear(10s);
    EXPECT_EQ(kill(std::stoi(id), 0), 0);
  }
  EXPECT_NE(kill(std::stoi(id), 0), 0);
}

/// Runs in no time, and says that it took `seconds`.
Contestant claims(const std::string& name, double seconds, std::string& order) {
  return {.name = name, .run = [=, &order] {
            order += name;
            return seconds;
          }};
}

void take(std::vector<Contestant>& contestants, int turns) {
  foci::cli::Progress progress("", "", foci::cli::Show::nothing);
  foci::cli::take_turns(contestants, turns, progress);
}

TEST(Turns, AreTakenInOrderAndLastEquallyLong) {
  std::string order;
  std::vector<Contestant> both = {claims("a", 1, order), claims("b", 0.007, order)};
  take(both, 2);
  EXPECT_EQ(order, "abbbabbb");
  EXPECT_EQ(both[1].times.seconds.size(), 6u);
}

TEST(Turns, OnlyPeersLeaveWhenTheyAreSlow) {
  std::string order;
  std::vector<Contestant> both = {claims("a", 100, order), claims("b", 6, order)};
  both[1].may_leave = true;
  take(both, 9);
  EXPECT_EQ(order, "abababaaaaaa");
}

TEST(Turns, APeerThatGivesNoAnswerIsOut) {
  std::string order;
  std::vector<Contestant> both = {claims("a", 1, order), claims("b", 1, order)};
  both[1].may_leave = true;
  both[1].run = [count = 0]() mutable -> double {
    if (++count > 1) throw NoAnswer("gone");
    return 1;
  };
  take(both, 3);
  EXPECT_EQ(order, "aaa");
  EXPECT_EQ(both[1].gave_up, "gone");
  EXPECT_TRUE(both[1].times.seconds.empty());
}

TEST(Turns, BestAndSpread) {
  const foci::cli::Times times{{3, 1, 2, 9, 5}};
  EXPECT_EQ(times.best(), 1);
  EXPECT_EQ(times.spread(), 2);
  EXPECT_GE(foci::cli::timed([] { std::this_thread::sleep_for(5ms); }), 0.005);
}

}  // namespace
