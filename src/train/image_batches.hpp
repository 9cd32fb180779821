// SPDX-License-Identifier: Apache-2.0
// Images of a set as batches of numbers, made ahead by foci::data's loader. No torch.
#pragma once

#include <foci/classify.hpp>
#include <foci/image.hpp>
#include <foci/loader.hpp>
#include <foci/share.hpp>

#include <memory>

namespace foci::train {

/// Batches to train on: inputs (B,C,S,S) f32, targets (B,classes) f32, mixed and smoothed.
/// `first` counts from the start of the run. Of each batch the share's rows alone, the same whoever
/// has the others.
std::unique_ptr<data::Loader> training_batches(const data::ImageSet& set, const ImageFacts& facts,
                                               std::int64_t side, const ImageTraining& training,
                                               std::int64_t first, const Share& share = {});

/// Every image of the share once in order; targets (B) i64. Nothing where there is none.
std::unique_ptr<data::Loader> judged_batches(const data::ImageSet& set, const ImageFacts& facts,
                                             std::int64_t side, const ImageInput& input,
                                             const Share& share = {});

/// One image. Throws FileError where it has other channels.
data::Image checked_image(const data::ImageSet& set, std::int64_t index, const ImageFacts& facts);

/// Throws where a label is none of the classes, and for masks.
void check_labels(const data::ImageSet& set, const ImageFacts& facts);

}  // namespace foci::train
