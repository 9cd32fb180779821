// SPDX-License-Identifier: Apache-2.0
// The model that a run of images names, as numbers, and which of its layers is the first whose
// output is not finite.
#pragma once

#include <foci/classify.hpp>
#include <foci/models.hpp>

#include <string>

namespace foci::train {

/// Throws InvalidArgument for a model that is for something else.
models::VitOptions vit_options(const ImageModel& model, const ImageFacts& facts);

/// "patch_embed.proj", "blocks.3", "norm", "head": the images go through layer by layer. Empty
/// where all are.
std::string lost_layer(models::Vit& model, const at::Tensor& images);

}  // namespace foci::train
