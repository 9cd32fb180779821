// SPDX-License-Identifier: Apache-2.0
// One sample of what is measured, as a picture shows it: its image as the model saw it, or its
// tokens.
#pragma once

#include "cli/torch/measure_pictures.hpp"
#include "cli/torch/measure_subject.hpp"

#include <foci/classify.hpp>

namespace foci::cli {

/// An image as the model sees it: in [0,255], cut and resized as for judging.
data::Image seen_image(const train::ImageTraining& training, const train::ImageFacts& facts,
                       const data::Image& image);

/// Throws Misuse for a sample that is none, FileError.
Pictured pictured(const Measured& what, const Common& common, std::int64_t sample);

/// Pictures for --pictures, and of several subjects one more of them all. The files that were
/// written; none without the flag.
std::vector<std::string> pictures_of(const Measure& verb, const std::vector<Measured>& subjects,
                                     const std::vector<const measure::Report*>& reports);

}  // namespace foci::cli
