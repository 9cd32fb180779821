// SPDX-License-Identifier: Apache-2.0
// Runs that somebody measured one by one: what of it may stand side by side. A number over 48
// images is not held against one over 10, nor what withstood one attack against another's.
#pragma once

#include "cli/run_facts.hpp"

#include <span>

namespace foci::cli {

/// A run and what was found of it.
struct MeasuredRun {
  const RunFacts* facts;
  RunFound* found;
};

/// How a Record was measured, in words: its samples, and its command without what says where, how
/// fast or of which run it is. Training judges as foci eval does.
std::string way_of(const Record& record, const Words& run);

/// Of each name the newest Records that all runs have measured one way come last in their lists; a
/// name that has no such way goes from all of them. Gives a doubt for those that went; null: none.
Json keep_alike(std::span<const MeasuredRun> runs);

/// Throws FileError for runs that were judged by several splits of their data.
void check_one_split(std::span<const RunFacts> runs);

}  // namespace foci::cli
