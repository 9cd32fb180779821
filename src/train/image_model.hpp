// SPDX-License-Identifier: Apache-2.0
// The model that a run of images names, as numbers.
#pragma once

#include <foci/classify.hpp>
#include <foci/models.hpp>

namespace foci::train {

/// Throws InvalidArgument for a model that is for something else.
models::VitOptions vit_options(const ImageModel& model, const ImageFacts& facts);

}  // namespace foci::train
