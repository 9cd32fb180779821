// SPDX-License-Identifier: Apache-2.0
// For a word nobody knows: the nearest of the words that are known, and how to show both on one
// line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace foci::cli {

/// Typing errors between two words: letters added, lost, changed or swapped with a neighbour.
std::size_t typing_errors(std::string_view a, std::string_view b);

/// "; did you mean softmax?"; empty where none is like it: an error then lists what there is.
std::string suggestion(std::string_view word, const std::vector<std::string>& candidates);

/// "a, b, c"
std::string listed(const std::vector<std::string>& words, std::string_view separator = ", ");

/// The text with control characters and broken UTF-8 spelled out and its length bounded.
std::string shown(std::string_view text);

/// The parts between separators; "" has one empty part.
std::vector<std::string> split(std::string_view text, char separator);

}  // namespace foci::cli
