// SPDX-License-Identifier: Apache-2.0
// Lines with their numbers, and the readers of line formats from memory, so that a fuzzer can hold
// them.
#pragma once

#include "data/bytes.hpp"

#include <foci/text.hpp>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace foci::data {

/// take(number from 1, line without its end).
template <class Take>
void for_each_line(std::string_view text, Take&& take) {
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    if (line.ends_with('\r')) line.remove_suffix(1);
    take(number, line);
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

TextSet parse_tsv(std::string_view bytes, const std::string& name,
                  const std::vector<std::string>& classes);
SeriesSet parse_ts(std::string_view bytes, const std::string& name);

}  // namespace foci::data
