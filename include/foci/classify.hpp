// SPDX-License-Identifier: Apache-2.0
// Training and judging classifiers of images, said in plain numbers and names: no torch in sight.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>
#include <foci/run.hpp>
#include <foci/settings.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace foci::train {

/// One that models::listed() names, changed where a number is not 0.
struct ImageModel {
  std::string name = "vit_micro";
  std::int64_t image = 0;  ///< pixels a side; vit_micro's is that of the data
  std::int64_t patch = 0, dim = 0, depth = 0, heads = 0;
  double mlp_ratio = 0, drop_path = 0;
  Settings mechanism = {};  ///< models::Mechanism
  std::int64_t first_layer = 0, last_layer = -1;
};

/// What a model must know of its data; the numbers of a training set of up to 10,000 images, or of
/// 1,000 where they are in files.
struct ImageFacts {
  std::int64_t channels = 0, classes = 0, side = 0;  ///< side: the shorter one of the first image
  std::vector<float> mean = {}, deviation = {};      ///< a channel
};
FOCI_API ImageFacts facts_of(const data::ImageSet& train);

/// Pixels a side that the model sees.
FOCI_API std::int64_t side_of(const ImageModel& model, const ImageFacts& facts);

/// none; moved by a few pixels and mirrored; DeiT's recipe.
enum class Augment { none, shift, deit };
struct Augmentation {
  Augment how = Augment::shift;
  int shift = 2;       ///< pixels at most, black beyond the edge
  double flip = 0.5;   ///< probability
  double area = 0.08;  ///< deit: the least share of an image that a crop has
  double magnitude = 9, erasing = 0.25, jitter = 0;  ///< deit
  double mixup = 0, cutmix = 0;                      ///< 0: not
  double smoothing = 0.1;                            ///< of labels
  std::int64_t repeats = 1;  ///< of an image in a batch, each changed by itself
};

/// How an image becomes numbers, and where they are worked on.
struct ImageInput {
  std::int64_t batch = 128;
  double crop_share = 1;  ///< of a judged image, its middle
  int workers = 1;        ///< threads that make batches
  Place place = {};
};

struct ImageTraining {
  ImageModel model = {};
  Augmentation augmentation = {};
  ImageInput input = {};
  std::int64_t epochs = 10;
  std::string weights = {};  ///< a plain checkpoint to begin with, models::load_plain
  RunOptions run = {};       ///< steps, save_every and evaluate_every of 0 follow from the epoch
};

/// Scores: top1, top5, valid_loss; with ema_ before them those of the average.
FOCI_API Outcome train_images(const ImageTraining& training, const data::ImageSet& train,
                              const data::ImageSet& valid, const Told& told = {});

/// The weights of a checkpoint over a whole set: top1, top5, valid_loss, count.
FOCI_API Scores evaluate_images(const ImageModel& model, const std::string& weights,
                                const ImageFacts& facts, const data::ImageSet& set,
                                const ImageInput& input);

}  // namespace foci::train
