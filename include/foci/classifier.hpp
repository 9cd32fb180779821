// SPDX-License-Identifier: Apache-2.0
// A trained classifier as a function of pixels in [0,1], and the images it is judged by: what
// attacks and other measurements of a run begin with.
#pragma once

#include <foci/export.h>
#include <foci/classify.hpp>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

namespace foci::train {

/// images (B,C,S,S) in [0,1] to logits (B,classes), differentiable by the images alone: mean and
/// deviation of the data are inside. The mechanism may differ from the checkpoint's in
/// `metric_grad`. `plain`: the same weights, and the metric is dot.
FOCI_API std::function<at::Tensor(const at::Tensor&)> open_classifier(const ImageModel& model,
                                                                      const std::string& weights,
                                                                      const ImageFacts& facts,
                                                                      const Place& place,
                                                                      bool plain = false);

/// `count` images, evenly over the set, or all where it has no more; cut and resized as they are
/// for evaluate_images().
struct Pixels {
  at::Tensor images, labels,
      samples;  ///< (N,C,S,S) in [0,1]; (N) i64; (N) their numbers in the set
};
FOCI_API Pixels pixels_of(const ImageModel& model, const ImageFacts& facts,
                          const data::ImageSet& set, const ImageInput& input, std::int64_t count);

}  // namespace foci::train
