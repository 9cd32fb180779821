// SPDX-License-Identifier: Apache-2.0
// Flags that say how images are corrupted, as foci corrupt and foci eval share them.
#pragma once

#include "cli/pages.hpp"

#include <foci/corrupt.hpp>

#include <optional>
#include <string>
#include <vector>

namespace foci::cli {

inline constexpr std::string_view harm_group = "The corruption";

/// --severity, --scale, --frost.
Flags harm_flags();

struct Harm {
  std::vector<corrupt::Corruption> corruptions;
  std::vector<int> severities;
  std::optional<corrupt::Scale> scale;  ///< absent: that of the images
  std::vector<data::Image> frost;
};
/// Of flags that have been checked; pictures are read. Throws Misuse and FileError.
Harm harm_of(const Words& words);
/// "1,3" -> {1, 3}, all five without --severity.
std::vector<int> severities_of(const Words& words);

}  // namespace foci::cli
