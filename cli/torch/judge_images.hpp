// SPDX-License-Identifier: Apache-2.0
// A classifier over a set of images, image by image.
#pragma once

#include <foci/classify.hpp>

#include <string>

namespace foci::cli {

struct Judgement {
  train::Scores scores;  ///< top1, top5, valid_loss, count
  std::string right;     ///< a digit an image: 1, named right
};

/// The weights of a checkpoint over a whole set, a piece of it at a time.
Judgement judge_each(const train::ImageTraining& training, const std::string& weights,
                     const train::ImageFacts& facts, const data::ImageSet& set);

}  // namespace foci::cli
