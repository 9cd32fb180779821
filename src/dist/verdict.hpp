// SPDX-License-Identifier: Apache-2.0
// Which rank is at fault, from what all of them say of themselves: pure, without a store, a thread
// or a clock of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace foci::dist {

/// Before its first sum a rank opens its data, which takes as long as so many patiences.
inline constexpr double start_patiences = 10;
/// Seconds without a beat, once a connection broke.
inline constexpr double silence = 6;

/// What is known of a rank, and since when.
struct Sign {
  using Clock = std::chrono::steady_clock;
  std::string beats, marks;
  bool waits = false, left = false;
  double allowed = 0;
  std::int64_t done = 0;  ///< exchanges with other ranks that it has finished
  Clock::time_point heard, moved;

  /// What it said at `now`: "beats marks waits left allowed done". A rank that begins to wait has
  /// got on.
  void hear(const std::string& text, Clock::time_point now);
  bool begins() const { return marks.empty() || marks == "0"; }
};

struct Blame {
  int rank = -1;  ///< of none: -1
  std::string words;
};

/// Nothing while all goes on. Who is lost comes before who hangs, then who has stood still longest;
/// where all wait for one another, who is behind the others.
std::optional<Blame> blame(const std::vector<Sign>& signs, Sign::Clock::time_point now,
                           double patience, bool broken);

}  // namespace foci::dist
