// SPDX-License-Identifier: Apache-2.0
// The flags of a training run: from the command line, a preset and the defaults of the page to one
// list in which every flag has a value, and from there to the library's structs and config.json.
#pragma once

#include "cli/mechanism.hpp"
#include "cli/verbs.hpp"

#include <foci/classify.hpp>

#include <string>

namespace foci::cli {

/// Flags given here win over the preset, the preset over the defaults. Throws Misuse, FileError.
Words resolved_words(const Words& given);
/// Every flag that is missing as its page has it. Throws Misuse for one that is required.
Words with_defaults(Words words);

/// config.json's flags: numbers as numbers.
Json json_of(const Words& words);
/// Flags of train from a JSON object. Throws FileError that names `path` and the flag.
Words words_in(const Json& flags, const std::string& path);

/// The words of a run that is taken up: its own, `given` may change where and how often alone.
Words resumed_words(const Words& stored, const Words& given);

/// `words` as resolved_words gives them.
train::ImageTraining training_of(const Words& words, const Common& common);

/// The folder of a set: the path itself, or data/NAME. Throws FileError.
std::string data_folder(const std::string& name);
data::Split split_of(const std::string& name);

}  // namespace foci::cli
