// SPDX-License-Identifier: Apache-2.0
// Files of plain numbers.
#pragma once

#include <string>
#include <vector>

namespace foci::cli {

/// White space and commas between them. Throws FileError that names the line.
std::vector<double> numbers_of(const std::string& path);

}  // namespace foci::cli
