// SPDX-License-Identifier: Apache-2.0
// Words or numbers in one text, for messages.
#pragma once

#include <string>
#include <string_view>
#include <type_traits>

namespace foci {

/// "a, b, c"
template <class Range>
std::string listed(const Range& parts, std::string_view separator = ", ") {
  std::string text;
  bool first = true;
  for (const auto& part : parts) {
    if (!first) text += separator;
    first = false;
    if constexpr (std::is_arithmetic_v<std::remove_cvref_t<decltype(part)>>) {
      text += std::to_string(part);
    } else {
      text += part;
    }
  }
  return text;
}

}  // namespace foci
