// SPDX-License-Identifier: Apache-2.0
// Training and judging a Segmenter, which gives every pixel of an image a class, said in plain
// numbers and names. No torch.
#pragma once

#include <foci/export.h>
#include <foci/classify.hpp>

#include <cstdint>
#include <string>

namespace foci::train {

/// How a pair of image and mask is changed for training: both by the same factor, then a window
/// anywhere, then both mirrored. What lies beyond the image does not count.
struct PairChange {
  double least = 0.5, most = 2;  ///< sizes, times the image's
  double flip = 0.5;             ///< probability
};

struct SegmentTraining {
  ImageModel model = {.name = "segmenter_micro"};  ///< `image` is a window's side
  PairChange change = {};
  std::int64_t batch = 8;
  std::int64_t shorter = 0;  ///< an image's shorter side becomes this first; 0: it stays
  std::int64_t stride = 0;   ///< of the windows over a judged image; 0: half a window
  int workers = 1;           ///< threads that make batches
  std::int64_t epochs = 10;
  std::string weights = {};  ///< of a plain vision transformer without head, for the encoder
  Place place = {};
  RunOptions run = {};  ///< steps, save_every and evaluate_every of 0 follow from the epoch
};

/// Scores, over masks as they are stored: miou, pixel_accuracy, mean_accuracy.
FOCI_API Outcome train_segments(const SegmentTraining& training, const data::ImageSet& train,
                                const data::ImageSet& valid, const Told& told = {});

/// The weights of a checkpoint over a whole set: the same, and count, of images.
FOCI_API Scores evaluate_segments(const SegmentTraining& training, const std::string& weights,
                                  const ImageFacts& facts, const data::ImageSet& set);

}  // namespace foci::train
