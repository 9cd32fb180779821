// SPDX-License-Identifier: Apache-2.0
// What foci compare is to do: from flags and a plan's JSON to one list in which everything has a
// value, and back.
#pragma once

#include "cli/mechanism.hpp"
#include "cli/verbs.hpp"

#include <cstdint>
#include <string>
#include <vector>

namespace foci::cli {

/// One that is compared: a name, and the flags of foci train that make it.
struct Contender {
  std::string name;  ///< "layer-change", "layer-change:form=distance"
  Words words;       ///< metric, weighting, form, ...
};

struct ComparePlan {
  std::string task;  ///< images, segments, text, sequences: as foci train names it
  Words words;       ///< every flag of the page's plan and measures, with a value
  Words train;       ///< flags of foci train for every run; warmup and steps are not settled
  std::vector<Contender> contenders;
  std::vector<std::uint64_t> seeds;
  std::vector<std::string> checkpoints;  ///< runs that are there, in place of the above
  double budget = 0;                     ///< seconds; 0: steps say
  std::int64_t steps = 0;                ///< 0: the budget decides
  std::string split = "test";            ///< that models are judged by
  std::string called = "compare";        ///< as it was: "launch -n 2 -- compare", with these words
  Words typed;
};

/// Throws Misuse, FileError.
ComparePlan plan_of(const Compare& verb);
/// As --plan reads it.
Json json_of(const ComparePlan& plan);

/// Does it again as plan.json in the folder of its results says, in as many processes.
std::string again_command(const ComparePlan& plan, const std::string& out);
/// The same with every flag, for whoever has not the folder; `made_by` makes ./made-images first.
std::string flags_command(const ComparePlan& plan, const std::string& made_by);

/// Whether frost is among corruptions of images, by itself or in weather or all.
bool has_frost(const std::string& corruptions);

Contender contender_of(const std::string& name);
/// "1h30m" -> 5400. Throws Misuse.
double seconds_of(const std::string& text);
/// 5400 -> "1h30m"
std::string duration_text(double seconds);

/// flat and random are there to be beaten by whoever claims a reason.
bool is_control(const Contender& contender);
/// One sentence for the reader of a page.
std::string about(const Contender& contender);

}  // namespace foci::cli
