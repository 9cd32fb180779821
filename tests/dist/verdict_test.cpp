// SPDX-License-Identifier: Apache-2.0
// Whom the watch blames: ranks whose beats are made up, at times that are made up.
#include "dist/verdict.hpp"

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <vector>

namespace {

using foci::dist::blame;
using foci::dist::Sign;
using Seconds = std::chrono::duration<double>;

constexpr double patience = 40;

/// So many seconds after the beginning.
Sign::Clock::time_point at(double seconds) {
  return Sign::Clock::time_point() +
         std::chrono::duration_cast<Sign::Clock::duration>(Seconds(1000 + seconds));
}

/// What a rank says: how often it got on, whether it waits, how many exchanges it has finished.
struct Said {
  int marks = 0;
  bool waits = false;
  int done = 0;
};

class Ranks {
 public:
  explicit Ranks(std::size_t size) : signs_(size) {
    for (Sign& sign : signs_) sign.heard = sign.moved = at(0);
  }
  /// A beat of each of them at that second; of a negative number of marks none.
  void beat(double seconds, const std::vector<Said>& all) {
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      const Said& s = all[rank];
      if (s.marks < 0) continue;
      signs_[rank].hear(std::to_string(++beats_) + " " + std::to_string(s.marks) + " " +
                            (s.waits ? "1" : "0") + " 0 0 " + std::to_string(s.done),
                        at(seconds));
    }
  }
  /// "1 is lost: ...", "" when nobody is to blame.
  std::string verdict(double seconds) const {
    const auto found = blame(signs_, at(seconds), patience, false);
    return found ? std::to_string(found->rank) + " " + found->words : "";
  }

 private:
  std::vector<Sign> signs_;
  int beats_ = 0;
};

TEST(Verdict, ARankThatNeverBeginsIsNamedAfterTenPatiences) {
  Ranks ranks(2);
  for (int second = 0; second <= 399; ++second) {
    ranks.beat(second, {{0, true}, {0, false}});  // rank 1 opens its data
    EXPECT_EQ(ranks.verdict(second), "");
  }
  ranks.beat(401, {{0, true}, {0, false}});
  EXPECT_EQ(ranks.verdict(401), "1 hangs: no progress for 401 s (--patience allows for more)");
}

TEST(Verdict, WhoComesLateToTheFirstSumCutNoConnection) {
  Ranks ranks(2);
  for (int second = 0; second < 100; ++second) ranks.beat(second, {{0, true}, {0, false}});
  for (int second = 100; second < 139; ++second) {
    ranks.beat(second, {{0, true}, {0, true}});
    EXPECT_EQ(ranks.verdict(second), "") << second;
  }
}

TEST(Verdict, WhereAllWaitTheOneBehindIsNamed) {
  Ranks ranks(3);
  ranks.beat(0, {{9, true, 9}, {9, true, 9}, {8, true, 8}});
  ranks.beat(39, {{9, true, 9}, {9, true, 9}, {8, true, 8}});
  EXPECT_EQ(ranks.verdict(39), "");
  ranks.beat(41, {{9, true, 9}, {9, true, 9}, {8, true, 8}});
  EXPECT_EQ(ranks.verdict(41),
            "2 hangs: all 3 ranks have waited for 41 s, and others have finished what it has not");
}

TEST(Verdict, WhereNobodyIsBehindAConnectionIsCut) {
  Ranks ranks(2);
  ranks.beat(0, {{9, true, 9}, {9, true, 9}});
  ranks.beat(41, {{9, true, 9}, {9, true, 9}});
  EXPECT_EQ(ranks.verdict(41),
            "-1 all 2 ranks have waited for one another for 41 s: a connection is cut");
}

TEST(Verdict, LostComesBeforeHangingAndTheOldestFirst) {
  Ranks ranks(4);
  ranks.beat(0, {{9}, {9}, {9}, {9}});
  ranks.beat(2, {{9}, {9}, {10}, {9}});
  ranks.beat(4, {{10}, {9}, {10}, {10}});
  ranks.beat(46, {{10}, {9}, {10}, {10}});
  EXPECT_EQ(ranks.verdict(46), "1 hangs: no progress for 46 s (--patience allows for more)");
  ranks.beat(80, {{10}, {9}, {10}, {-1}});
  EXPECT_EQ(ranks.verdict(87), "3 is lost: no sign of life for 41 s");
}

}  // namespace
