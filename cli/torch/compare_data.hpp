// SPDX-License-Identifier: Apache-2.0
// The data of a comparison: found, fetched or made, and what results say of it.
#pragma once

#include "cli/run_facts.hpp"
#include "cli/torch/compare_images.hpp"
#include "cli/torch/compare_stages.hpp"

#include <string>
#include <vector>

namespace foci::cli {

/// The plan of a call, its attacks read as foci attack will: what is wrong is told before training.
ComparePlan whole_plan(const Compare& verb);

struct CompareData {
  std::string path, sha256;
  Json facts;                  ///< results.json's data
  Json flags = Json::array();  ///< that it was made, for instance
  std::string inputs;          ///< what images become
  std::string made_by;         ///< a command that makes them as ./made-images; empty elsewhere
};
/// A folder as it is; a known set from data/, fetched where that can be; ListOps made into `out`;
/// images made there where nobody asked for a set and the usual one cannot be had. The plan is
/// settled by it. Throws Misuse, FileError.
CompareData compare_data(ComparePlan& plan, const Compare& verb, const std::string& out);

/// What the plan leaves to the data, the same on every rank: the split that models are judged by,
/// valid where there is no test, and how large models see images.
/// Gives the sides of images, which take a moment to read; zeros where nothing hangs on them.
ImageSides settle_plan(ComparePlan& plan, const std::string& path);

/// Where a plan has checkpoints: contenders and seeds become theirs, and what they say of
/// themselves is given back. Throws FileError where task or data are others, Misuse for twins.
std::vector<RunFacts> take_checkpoints(ComparePlan& plan, const CompareSite& site);

}  // namespace foci::cli
