// SPDX-License-Identifier: Apache-2.0
// From the words of a command line to a verb and its flags as text, by way of a CLI11 tree built
// from the tables of flags.hpp. What the flags mean together is parse.cpp's and mechanism.cpp's.
#pragma once

#include "cli/flags.hpp"

#include <string>
#include <vector>

namespace foci::cli {

/// A verb as it was called: every flag is known to it and every value is valid by itself.
struct Called {
  std::string verb;                    ///< one of verb_pages(), or "version"
  std::string word;                    ///< the word after the verb, for verbs that take one
  std::string second;                  ///< the word after that, likewise
  std::vector<std::string> rest = {};  ///< all after the first, where its name ends in "..."
  Words words;
};

/// `arguments` without the program's name. Throws Misuse.
Called read_call(const std::vector<std::string>& arguments);

}  // namespace foci::cli
