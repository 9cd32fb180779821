// SPDX-License-Identifier: Apache-2.0
// Turns of equal length for contestants of unequal speed.
#include "cli/turns.hpp"

#include "cli/process.hpp"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <thread>

namespace foci::cli {
namespace {

constexpr double turn_seconds = 0.02;
// OpenBLAS' idle threads spin for 2^26 cycles before they sleep.
constexpr auto pause = std::chrono::milliseconds(30);
constexpr double most_seconds = 10;
constexpr std::size_t fewest_runs = 3;

void take_turn(Contestant& contestant) {
  auto& seconds = contestant.times.seconds;
  const double before = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  const bool enough = before > most_seconds && seconds.size() >= fewest_runs;
  if (!contestant.gave_up.empty() || (contestant.may_leave && enough)) return;
  try {
    double spent = 0;
    while (spent < turn_seconds) {
      seconds.push_back(contestant.run());
      spent += seconds.back();
    }
  } catch (const NoAnswer& fault) {
    if (!contestant.may_leave) throw;
    contestant.gave_up = fault.what();
    seconds.clear();
  }
}

}  // namespace

double Times::best() const { return *std::min_element(seconds.begin(), seconds.end()); }

double Times::spread() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[sorted.size() / 2] - sorted[0];
}

double timed(const std::function<void()>& task) {
  const auto begin = std::chrono::steady_clock::now();
  task();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void take_turns(std::vector<Contestant>& contestants, int turns, Progress& progress) {
  for (int turn = 0; turn < turns; ++turn) {
    for (Contestant& contestant : contestants) {
      if (contestants.size() > 1) std::this_thread::sleep_for(pause);
      progress.now(contestant.name);
      take_turn(contestant);
    }
    progress.at(turn + 1, turns);
  }
}

}  // namespace foci::cli
