// SPDX-License-Identifier: Apache-2.0
// Windows of images and of their masks as batches of numbers, made ahead. No torch.
#pragma once

#include <foci/image.hpp>
#include <foci/loader.hpp>
#include <foci/share.hpp>
#include <foci/train_segments.hpp>

#include <memory>

namespace foci::train {

/// inputs (B,C,S,S) f32, targets (B,S,S) i64. `first` counts from the start of the run. Of each
/// batch the share's rows alone.
std::unique_ptr<data::Loader> window_batches(const data::ImageSet& set, const ImageFacts& facts,
                                             std::int64_t side, const SegmentTraining& training,
                                             std::int64_t first, const Share& share = {});

/// An image as it is judged: (C,H,W) f32 in `values`.
struct JudgedImage {
  std::int64_t height = 0, width = 0;
  std::vector<float> values;
};
JudgedImage judged_image(data::Image image, const ImageFacts& facts, std::int64_t shorter);

/// Throws FileError for a mask of another size than its image.
void check_sizes(const data::ImageSet& set, std::int64_t index, const data::Image& image,
                 const data::Image& mask);

/// Throws where there are no masks or other classes.
void check_masks(const data::ImageSet& set, const ImageFacts& facts);

}  // namespace foci::train
