// SPDX-License-Identifier: Apache-2.0
// What lies in a folder, in an order that does not depend on the file system.
#pragma once

#include <string>
#include <vector>

namespace foci::data {

bool is_folder(const std::string& path);
bool is_file(const std::string& path);
/// "a/b" and "c" -> "a/b/c".
std::string joined(const std::string& folder, const std::string& name);

/// Names of the folders in a folder, sorted; hidden ones left out. Throws FileError.
std::vector<std::string> folders_in(const std::string& folder);
/// Paths of images below a folder at any depth, by their ending, sorted.
std::vector<std::string> images_below(const std::string& folder);

/// The lines of a text file without their ends; a last empty line does not count.
std::vector<std::string> read_lines(const std::string& path);

}  // namespace foci::data
