// SPDX-License-Identifier: Apache-2.0
// The data of a comparison: found, fetched or made, and what results say of it.
#pragma once

#include "cli/compare_plan.hpp"

#include <string>

namespace foci::cli {

struct CompareData {
  std::string path, sha256;
  Json facts;                  ///< results.json's data
  Json flags = Json::array();  ///< that it was made, for instance
};
/// A folder as it is; a known set from data/, fetched where that can be; ListOps made into `out`;
/// images made there where nobody asked for a set and the usual one cannot be had. Throws Misuse,
/// FileError.
CompareData compare_data(const ComparePlan& plan, const Compare& verb, const std::string& out);

}  // namespace foci::cli
