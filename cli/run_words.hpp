// SPDX-License-Identifier: Apache-2.0
// The flags of a training run: from the command line, a preset and the defaults of the page to one
// list in which every flag has a value, and from there to the library's structs and config.json.
#pragma once

#include "cli/mechanism.hpp"
#include "cli/verbs.hpp"

#include <foci/classify.hpp>
#include <foci/train_segments.hpp>
#include <foci/train_sequences.hpp>
#include <foci/train_text.hpp>

#include <string>

namespace foci::cli {

/// Flags given here win over the preset, the preset over the defaults. Throws Misuse, FileError.
Words resolved_words(const std::string& task, const Words& given);
/// Every flag of the task that is missing as its page has it. Throws Misuse for one that is
/// required.
Words with_defaults(const std::string& task, Words words);
/// Flags whose text in the page is prose or belongs to another flag: without a value unless given.
bool is_of_mechanism(std::string_view flag);

/// config.json's flags: numbers as numbers.
Json json_of(const Words& words);
/// Flags of a task from a JSON object. Throws FileError that names `path` and the flag.
Words words_in(const std::string& task, const Json& flags, const std::string& path);

/// The words of a run that is taken up: its own, `given` may change where and how often alone.
Words resumed_words(const Words& stored, const Words& given);

/// The file itself, or presets/NAME.json here, beside the sources or installed. Throws FileError.
std::string preset_path(const std::string& name);

/// What the library is told; `words` as resolved_words gives them.
train::ImageTraining image_training(const Words& words, const Common& common);
train::TextTraining text_training(const Words& words, const Common& common);
train::SequenceTraining sequence_training(const Words& words, const Common& common);
train::SegmentTraining segment_training(const Words& words, const Common& common);

/// The folder of a set: the path itself, or data/NAME. Throws FileError.
std::string data_folder(const std::string& name);
/// The same where a file will do.
std::string data_path(const std::string& name);
data::Split split_of(const std::string& name);

}  // namespace foci::cli
