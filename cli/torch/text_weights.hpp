// SPDX-License-Identifier: Apache-2.0
// A run over text that begins with somebody's weights has their shape and their tokenizer.
#pragma once

#include "cli/run_words.hpp"

#include <initializer_list>
#include <string>

namespace foci::cli {

/// The first of `names` that is in the folder, as a path; empty where none is.
std::string first_in(const std::string& folder, std::initializer_list<std::string> names);

/// `words` of a new run with what its --weights say in place of what was not typed. Throws
/// FileError, and Misuse where the tokenizer must be named.
Words following_weights(Words words, const Words& typed);

}  // namespace foci::cli
