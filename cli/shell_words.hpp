// SPDX-License-Identifier: Apache-2.0
// Commands as they are typed into a shell: words in quotes where they need them, and back.
#pragma once

#include <string>
#include <vector>

namespace foci::cli {

/// The word, in quotes where a shell would make something else of it.
std::string shell_quoted(const std::string& word);
/// Words as a shell would have them, quotes gone.
std::vector<std::string> shell_words(const std::string& command);

}  // namespace foci::cli
