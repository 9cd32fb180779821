// SPDX-License-Identifier: Apache-2.0
// What is timed beside us. naive: softmax attention as a textbook has it, in this process. sgemm:
// the machine's own matrix multiplication; torch-sdpa, torch-eager: torch's attention; these run in
// processes of their own (bench/sgemm.cpp, bench/peers.py) with as many threads as ours.
#pragma once

#include "cli/subject.hpp"

#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace foci::cli {

struct Peer {
  std::string name;
  std::string what;                  ///< "OpenBLAS 0.3.21, ..."
  double flops = 0;                  ///< of one run
  std::function<double()> run;       ///< once; gives back its seconds; may throw NoAnswer
  std::string why_not;               ///< why it cannot be timed; empty when it can
  std::optional<double> difference;  ///< largest |its result - ours|, where both compute the same
};

/// All that were asked for, whether they are here or not; each that is here has run once. Throws
/// Misuse when one that was asked for by name is not.
std::vector<Peer> start_peers(const PeerChoice& choice, Subject& ours);

}  // namespace foci::cli
