// SPDX-License-Identifier: Apache-2.0
// What a language model begins with.
#pragma once

#include <foci/language.hpp>

#include <string>

namespace foci::train {

/// GPT-2's, llama2.c's, converted ones, or those of a run of foci. Throws FileError,
/// InvalidArgument.
void load_text_weights(models::Language& model, const std::string& path);

}  // namespace foci::train
