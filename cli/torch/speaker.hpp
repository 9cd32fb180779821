// SPDX-License-Identifier: Apache-2.0
// A language model with the words it speaks, wherever it comes from.
#pragma once

#include "cli/verbs.hpp"

#include <foci/language.hpp>

#include <functional>
#include <string>

namespace foci::cli {

struct Spoken {
  std::string model;      ///< llama2.c's .bin or a converted one, GPT-2's folder or file, or a run
  std::string tokenizer;  ///< its file or folder; empty = beside the model
  models::Mechanism mechanism = {};  ///< that others' weights are given; a run has its own
};

struct Speaker {
  models::Language model = nullptr;
  std::int64_t pieces = 0;
  std::function<data::Tokens(const std::string&)> encode;
  std::function<std::string(const data::Tokens&)> decode;
  std::function<bool(std::int32_t)> ends;
};
/// Throws FileError, Misuse.
Speaker open_speaker(const Spoken& what, const Common& common);

}  // namespace foci::cli
