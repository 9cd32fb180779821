// SPDX-License-Identifier: Apache-2.0
// What of a comparison's plan hangs on the images themselves: how large models see them.
#pragma once

#include "cli/compare_plan.hpp"

#include <cstdint>
#include <string>

namespace foci::cli {

/// Shorter sides of some images of the training split, evenly over it.
struct ImageSides {
  std::int64_t least = 0, median = 0, most = 0;
  bool is_mixed() const { return least < most; }
};
ImageSides image_sides(const std::string& data);

/// Of vit_micro, where the plan says neither image nor patch: images of mixed sizes, or of more
/// than 32 pixels a side, become at most 64 x 64 and at most 64 patches.
void settle_images(ComparePlan& plan, const ImageSides& sides);

/// What a model is to see.
struct ImageInputs {
  std::int64_t side = 0, patch = 0;
  std::int64_t tokens() const { return side / patch * (side / patch); }
};
ImageInputs image_inputs(const ComparePlan& plan, const std::string& data);
/// "images become 64 x 64 (shorter sides of 256 to 450), patch 8: 64 tokens"
std::string inputs_text(const ImageInputs& inputs, const ImageSides& sides);
/// A doubt where settle_images made images smaller than they are; null elsewhere.
Json smaller_images(const ComparePlan& plan, const ImageInputs& inputs, const ImageSides& sides);

}  // namespace foci::cli
