// SPDX-License-Identifier: Apache-2.0
// What a run's attention looks like on a few images: weights of every layer and head, and keys in
// the plane of two coordinates of the metric.
#pragma once

#include "cli/mechanism.hpp"

#include <cstdint>
#include <string>

namespace foci::cli {

/// "maps" and "ellipses" as results.json has them, of images evenly over the run's judged split.
/// Models of more than 256 tokens have none, and "flags" says so.
Json compare_maps(const std::string& run, std::int64_t images);

}  // namespace foci::cli
