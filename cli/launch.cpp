// SPDX-License-Identifier: Apache-2.0
// foci launch: starts the processes, passes on what they say and the signals that come, and ends
// all when one ends badly.
#include "cli/launch.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <memory>

#include <poll.h>
#include <sys/wait.h>

namespace foci::cli {
namespace {

using Clock = std::chrono::steady_clock;
using Ranks = std::vector<std::unique_ptr<Rank>>;

/// For the others to find out by themselves who is lost, and to say so.
constexpr auto grace = std::chrono::seconds(12);
constexpr int glance_ms = 100;

volatile std::sig_atomic_t caught = 0;

void listen_to_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { caught = number; };
  for (const int number : {SIGTERM, SIGINT, SIGUSR1, SIGHUP}) ::sigaction(number, &action, nullptr);
}

void hear(const Ranks& ranks) {
  std::vector<pollfd> files;
  std::vector<std::pair<Rank*, int>> whose;
  for (const auto& rank : ranks) {
    for (int which = 0; which < 2; ++which) {
      if (rank->output(which) < 0) continue;
      files.push_back({.fd = rank->output(which), .events = POLLIN, .revents = 0});
      whose.emplace_back(rank.get(), which);
    }
  }
  if (::poll(files.data(), nfds_t(files.size()), glance_ms) <= 0) return;
  for (std::size_t i = 0; i < files.size(); ++i) {
    if (files[i].revents != 0) whose[i].first->read(whose[i].second);
  }
}

/// Those that ended badly since the last look.
std::vector<const Rank*> reap(const Ranks& ranks) {
  std::vector<const Rank*> bad;
  int status = 0;
  for (pid_t child = 0; (child = ::waitpid(-1, &status, WNOHANG)) > 0;) {
    for (const auto& rank : ranks) {
      if (rank->process() != child) continue;
      rank->end(status);
      if (rank->status() != 0) bad.push_back(rank.get());
    }
  }
  return bad;
}

/// Training needs all; of a comparison only rank 0, which writes the results.
bool is_needed(const Launch& launch, const Rank& rank) {
  return launch.command[0] != "compare" || rank.rank() == 0;
}

std::string end_of(const Rank& rank) {
  const int status = rank.status();
  if (status <= 128) return fmt::format("rank {} ended with status {}", rank.rank(), status);
  return fmt::format("rank {} was ended by signal {} ({}{})", rank.rank(), status - 128,
                     ::strsignal(status - 128),
                     status == 128 + SIGKILL ? ": by hand, or for want of memory" : "");
}

bool all_ended(const Ranks& ranks) {
  return std::all_of(ranks.begin(), ranks.end(), [](const auto& rank) {
    return rank->ended() && rank->output(0) < 0 && rank->output(1) < 0;
  });
}

}  // namespace

int run(const Launch& launch) {
  listen_to_signals();
  const Place place = place_of(launch);
  Told told;
  Ranks ranks;
  for (const Seat& seat : seats_of(launch))
    ranks.push_back(std::make_unique<Rank>(launch, seat, place, told));
  const auto tell = [&](int number) {
    for (const auto& rank : ranks) rank->signal(number);
  };
  int status = 0;
  Clock::time_point last_moment = Clock::time_point::max();
  while (!all_ended(ranks)) {
    hear(ranks);
    if (caught != 0) {
      tell(caught);
      caught = 0;
    }
    for (const Rank* bad : reap(ranks)) {
      const bool needed = is_needed(launch, *bad);
      if (status != 0) continue;  // it ends because another did
      if (!launch.quiet)
        fmt::print(stderr, "foci: {}; all others {}\n", end_of(*bad), needed ? "end" : "go on");
      if (!needed) continue;
      status = bad->status() > 128 ? 1 : bad->status();
      last_moment = Clock::now() + grace;
    }
    if (Clock::now() > last_moment) tell(SIGKILL);
  }
  return status;
}

}  // namespace foci::cli
