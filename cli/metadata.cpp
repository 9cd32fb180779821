// SPDX-License-Identifier: Apache-2.0
// Flags from a file's metadata; the same checks as on the command line, with the file named.
#include "cli/metadata.hpp"

#include "cli/mechanism.hpp"
#include "cli/misuse.hpp"
#include "cli/parsed.hpp"
#include "cli/suggest.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>

namespace foci::cli {
namespace {

/// Flags of `foci attend` that say what is computed, not where it is read or shown.
const Flag* storable(const std::string& name) {
  static const std::vector<std::string_view> elsewhere = {
      "in", "out", "flags-from-metadata", "threads", "device", "json", "quiet", "help"};
  if (std::find(elsewhere.begin(), elsewhere.end(), name) != elsewhere.end()) return nullptr;
  for (const Flag& flag : find_verb("attend")->flags) {
    if (flag.name == name) return &flag;
  }
  return nullptr;
}

Words words_in(const std::string& text, const std::string& path) {
  const Json options = parsed(text);
  if (!options.is_object()) {
    throw FileError(fmt::format("{}: __metadata__.options is not a JSON object", shown(path)));
  }
  Words words;
  for (const auto& [name, value] : options.items()) {
    const Flag* flag = storable(name);
    if (flag == nullptr) {
      throw FileError(
          fmt::format("{}: __metadata__.options has '{}', which is no flag of a mechanism",
                      shown(path), shown(name)));
    }
    const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    try {
      check_value(*flag, word);
    } catch (const Misuse& fault) {
      throw FileError(fmt::format("{}: __metadata__.options: {}", shown(path), fault.what()));
    }
    words[name] = word;
  }
  return words;
}

}  // namespace

Mechanism completed(const Mechanism& given, const Safetensors& file, const std::string& path) {
  if (!given.from_metadata) return given;
  const auto found = file.metadata().find("options");
  if (found == file.metadata().end()) {
    throw FileError(fmt::format("{}: has no __metadata__.options to take flags from", shown(path)));
  }
  Mechanism mechanism = given;
  mechanism.words = overruled(words_in(found->second, path), given.words);
  mechanism.how = options_of(mechanism.words);
  mechanism.dtype = dtype_of_words(mechanism.words);
  return mechanism;
}

DType dtype_of_q(const Safetensors& file) {
  const View q = file.find("q");
  return q && is_floating(q.dtype) ? q.dtype : DType::f32;
}

}  // namespace foci::cli
