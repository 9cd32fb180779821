// SPDX-License-Identifier: Apache-2.0
// A rank that is silent is lost; one that neither gets on nor waits hangs; when all wait, either
// one is behind the others or a connection is cut.
#include "dist/verdict.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <sstream>

namespace foci::dist {
namespace {

using Clock = Sign::Clock;

double between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

/// The rank of which `since` is the longest ago, of those that it is asked of.
template <class Asked, class Since>
int oldest(const std::vector<Sign>& signs, const Asked& asked, const Since& since) {
  int found = -1;
  for (int rank = 0; rank < int(signs.size()); ++rank) {
    const Sign& sign = signs[std::size_t(rank)];
    if (!asked(sign)) continue;
    if (found < 0 || since(sign) < since(signs[std::size_t(found)])) found = rank;
  }
  return found;
}

/// The first of those that have finished fewer exchanges than another; -1: all have as many.
int behind(const std::vector<Sign>& signs) {
  const auto [least, most] = std::minmax_element(
      signs.begin(), signs.end(), [](const Sign& a, const Sign& b) { return a.done < b.done; });
  return least->done < most->done ? int(least - signs.begin()) : -1;
}

}  // namespace

void Sign::hear(const std::string& text, Clock::time_point now) {
  std::istringstream words(text);
  std::string beat, mark;
  int waiting = 0, gone = 0;
  words >> beat >> mark >> waiting >> gone >> allowed >> done;
  if (beat != beats) heard = now;
  if (mark != marks || (waiting != 0) != waits) moved = now;
  beats = beat;
  marks = mark;
  waits = waiting != 0;
  left = gone != 0;
}

std::optional<Blame> blame(const std::vector<Sign>& signs, Clock::time_point now, double patience,
                           bool broken) {
  const auto heard = [](const Sign& sign) { return sign.heard; };
  const auto moved = [](const Sign& sign) { return sign.moved; };
  const double silent = broken ? std::min(silence, patience) : patience;
  const int lost = oldest(
      signs, [&](const Sign& sign) { return !sign.left && between(sign.heard, now) > silent; },
      heard);
  if (lost >= 0) {
    return Blame{lost, fmt::format("is lost: no sign of life for {:.0f} s",
                                   between(signs[std::size_t(lost)].heard, now))};
  }
  const int hangs = oldest(
      signs,
      [&](const Sign& sign) {
        const double most = sign.begins() ? start_patiences * patience : patience + sign.allowed;
        return !sign.left && !sign.waits && between(sign.moved, now) > most;
      },
      moved);
  if (hangs >= 0) {
    return Blame{hangs, fmt::format("hangs: no progress for {:.0f} s (--patience allows for more)",
                                    between(signs[std::size_t(hangs)].moved, now))};
  }
  double waited = 1e9;
  for (const Sign& sign : signs)  // one that is done waits for those that are not
    waited = std::min(waited, sign.waits && !sign.left ? between(sign.moved, now) : 0);
  if (waited < patience) return {};
  const int late = behind(signs);
  if (late < 0) {
    return Blame{-1, fmt::format("all {} ranks have waited for one another for {:.0f} s: a "
                                 "connection is cut",
                                 signs.size(), waited)};
  }
  return Blame{late, fmt::format("hangs: all {} ranks have waited for {:.0f} s, and others have "
                                 "finished what it has not",
                                 signs.size(), waited)};
}

}  // namespace foci::dist
