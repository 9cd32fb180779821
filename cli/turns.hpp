// SPDX-License-Identifier: Apache-2.0
// Contestants that are timed in turn, so that whatever slows the machine slows all of them and a
// ratio comes from one run.
#pragma once

#include "cli/terminal.hpp"

#include <functional>
#include <string>
#include <vector>

namespace foci::cli {

struct Times {
  std::vector<double> seconds;
  double best() const;
  double spread() const;  ///< the median's distance from the best
};

struct Contestant {
  std::string name;
  std::function<double()> run;  ///< once; gives back its seconds
  bool may_leave = false;       ///< before the last turn: when it is slow, or gives no answer
  Times times = {};
  std::string gave_up = {};  ///< why it has no times
};

/// What the clock says `task` took.
double timed(const std::function<void()>& task);

/// Every contestant has run before. Each gets `turns` turns, the contestants in order within each;
/// a turn is one run, or as many as fit into a fraction of a second. Between two contestants
/// nothing runs for a moment, for threads that wait busily would be in the next one's way.
void take_turns(std::vector<Contestant>& contestants, int turns, Progress& progress);

}  // namespace foci::cli
