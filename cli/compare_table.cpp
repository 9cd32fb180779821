// SPDX-License-Identifier: Apache-2.0
// A few lines on standard error.
#include "cli/compare_table.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstdio>

namespace foci::cli {
namespace {

std::string place_of(const RunState& run, const std::string& samples) {
  std::string text = run.place.empty() ? "" : run.place + ": ";
  text += run.stage.empty() ? "starting" : run.stage;
  if (run.stage == "training" && run.steps > 0)
    text += fmt::format(" {} of {}, {:.0f} {}/s", run.step, run.steps, run.per_second, samples);
  return text;
}

std::string sum_of(const std::vector<RunState>& runs, double left, const std::string& best,
                   bool stops) {
  const auto count = [&](const char* state) {
    return std::count_if(runs.begin(), runs.end(),
                         [&](const RunState& run) { return run.state == state; });
  };
  std::string text = fmt::format("{} of {} runs done", count("done"), runs.size());
  if (count("failed") > 0) text += fmt::format(", {} failed", count("failed"));
  if (stops) return text + ", told to stop: the others save";
  if (left > 0) text += ", " + time_left(left);
  if (!best.empty()) text += "; best so far: " + best;
  return text;
}

}  // namespace

LiveTable::LiveTable(Show show, std::string samples)
    : show_(show), samples_(std::move(samples)), moving_(can_move()) {}

LiveTable::~LiveTable() { clear(); }

void LiveTable::clear() {
  if (lines_ > 0) fmt::print(stderr, "\x1b[{}A\x1b[J", lines_);
  lines_ = 0;
  std::fflush(stderr);
}

void LiveTable::at(const std::vector<RunState>& runs, double left, const std::string& best,
                   bool stops) {
  if (show_ == Show::nothing) return;
  const auto time = Clock::now();
  if (std::chrono::duration<double>(time - last_).count() < (moving_ ? 0.3 : 15.0)) return;
  last_ = time;
  std::vector<std::string> lines = {"compare: " + sum_of(runs, left, best, stops)};
  std::string plain;
  for (const RunState& run : runs) {
    if (run.state != "running") continue;
    lines.push_back(
        fmt::format("  {:<18} seed {:<3} {}", run.mechanism, run.seed, place_of(run, samples_)));
    plain += fmt::format("; {} {}: {}", run.mechanism, run.seed, place_of(run, samples_));
  }
  if (!moving_) {
    fmt::print(stderr, "{}{}\n", lines[0], plain);
    return;
  }
  clear();
  for (const std::string& line : lines)
    fmt::print(stderr, "{}\n", line.substr(0, terminal_columns() - 1));
  std::fflush(stderr);
  lines_ = int(lines.size());
}

}  // namespace foci::cli
