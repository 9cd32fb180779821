// SPDX-License-Identifier: Apache-2.0
// Numbers of a text, line by line, so that what is none can be told with its place.
#include "cli/number_file.hpp"

#include "cli/suggest.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <sstream>

namespace foci::cli {

std::vector<double> numbers_of(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw FileError(fmt::format("{}: cannot be read", shown(path)));
  std::vector<double> numbers;
  std::string line;
  for (int at = 1; std::getline(file, line); ++at) {
    std::replace(line.begin(), line.end(), ',', ' ');
    std::istringstream parts(line);
    for (std::string part; parts >> part;) {
      double x = 0;
      const auto [end, fault] = std::from_chars(part.data(), part.data() + part.size(), x);
      if (fault != std::errc() || end != part.data() + part.size()) {
        throw FileError(
            fmt::format("{}: line {}: '{}' is no number", shown(path), at, shown(part)));
      }
      numbers.push_back(x);
    }
  }
  return numbers;
}

}  // namespace foci::cli
