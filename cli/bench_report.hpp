// SPDX-License-Identifier: Apache-2.0
// What foci bench measured, and how it is shown: a table for people, one object for programs.
#pragma once

#include "cli/peers.hpp"
#include "cli/turns.hpp"

#include <string>
#include <utility>
#include <vector>

namespace foci::cli {

struct BenchReport {
  const Bench& verb;
  Subject& ours;
  Times times;
  Subject* versus = nullptr;
  Times versus_times = {};
  std::vector<std::pair<Peer, Times>> peers = {};
  std::vector<std::pair<std::string, std::string>> absent = {};  ///< name and why
};

Json json_of(const BenchReport& report, const Json& flags);
void print_report(const BenchReport& report);

}  // namespace foci::cli
