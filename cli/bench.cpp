// SPDX-License-Identifier: Apache-2.0
// foci bench: checks a mechanism's result, then times it in turn with another of ours and with
// peers. What is printed is bench_report.cpp's.
#include "cli/bench_report.hpp"
#include "cli/remarks.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

namespace foci::cli {
namespace {

Contestant contestant_of(Subject& subject, const std::string& name) {
  return {.name = name, .run = [&subject] { return timed([&] { subject.run(); }); }};
}

/// A fault says whose it is: ours may be as right as can be.
void start_versus(std::optional<Subject>& to, const Versus& versus, std::uint64_t seed) try {
  to.emplace(versus.timed, seed);
} catch (const InvalidArgument& fault) {
  throw InvalidArgument(fmt::format("--versus {}: {}", versus.text, fault.what()));
} catch (const Unsupported& fault) {
  throw Unsupported(fmt::format("--versus {}: {}", versus.text, fault.what()));
} catch (const NumericalError& fault) {
  throw NumericalError(fmt::format("--versus {}: {}", versus.text, fault.what()));
}

/// Ours, versus, then the peers that are here.
std::vector<Contestant> contestants_of(Subject& ours, std::optional<Subject>& versus,
                                       const std::vector<Peer>& peers) {
  std::vector<Contestant> all = {contestant_of(ours, "ours")};
  if (versus) all.push_back(contestant_of(*versus, "versus"));
  for (const Peer& peer : peers) {
    if (!peer.why_not.empty()) continue;
    all.push_back({.name = peer.name, .run = peer.run, .may_leave = true});
  }
  return all;
}

void add_peer(BenchReport& report, const Peer& peer, const std::vector<Contestant>& contestants) {
  std::string why_not = peer.why_not;
  for (const Contestant& contestant : contestants) {
    if (contestant.name != peer.name) continue;
    why_not = contestant.gave_up;
    if (why_not.empty()) report.peers.emplace_back(peer, contestant.times);
  }
  if (!why_not.empty()) report.absent.emplace_back(peer.name, why_not);
}

}  // namespace

int run(const Bench& verb) {
  Remarks remarks;
  Subject ours(verb.ours, verb.common.seed);
  std::optional<Subject> versus;
  if (verb.versus) start_versus(versus, *verb.versus, verb.common.seed);
  const std::vector<Peer> peers = start_peers(verb.peers, ours);
  std::vector<Contestant> contestants = contestants_of(ours, versus, peers);
  {
    const bool hidden = verb.common.json || verb.common.quiet;
    Progress progress("bench", "turns", hidden ? Show::nothing : Show::progress);
    take_turns(contestants, verb.turns, progress);
  }
  BenchReport report{.verb = verb, .ours = ours, .times = contestants[0].times};
  if (versus) {
    report.versus = &*versus;
    report.versus_times = contestants[1].times;
  }
  for (const Peer& peer : peers) add_peer(report, peer, contestants);
  remarks.add_for(verb.ours.mechanism.how);
  if (verb.common.json) {
    print_json(json_of(report, remarks.json()));
  } else {
    print_report(report);
    remarks.print();
  }
  return 0;
}

}  // namespace foci::cli
