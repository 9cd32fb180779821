// SPDX-License-Identifier: Apache-2.0
// The runs of a comparison while they go on: a table on a terminal that renews itself, elsewhere a
// plain line now and then.
#pragma once

#include "cli/compare_results.hpp"
#include "cli/terminal.hpp"

#include <chrono>
#include <string>
#include <vector>

namespace foci::cli {

class LiveTable {
 public:
  /// `samples`: what is counted a second.
  LiveTable(Show show, std::string samples);
  ~LiveTable();
  LiveTable(const LiveTable&) = delete;
  LiveTable& operator=(const LiveTable&) = delete;

  /// `left`: seconds, 0 where nobody knows; `best`: in words;
  /// `stops`: told to.
  void at(const std::vector<RunState>& runs, double left, const std::string& best,
          bool stops = false);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  Show show_;
  std::string samples_;
  bool moving_;
  int lines_ = 0;  // on the terminal
  Clock::time_point last_{};
};

}  // namespace foci::cli
