// SPDX-License-Identifier: Apache-2.0
// UTF-8, a character at a time, and the classes of characters that GPT-2's splitter asks for.
#pragma once

#include <cstddef>
#include <string_view>

namespace foci::data {

/// Stands for a byte that is not part of well-formed UTF-8.
inline constexpr char32_t not_a_character = 0xffffffff;

struct Character {
  char32_t code = 0;
  std::size_t bytes = 0;
};
/// Of a text that is not empty.
Character next_character(std::string_view text);

bool is_letter(char32_t c);
bool is_number(char32_t c);
bool is_space(char32_t c);

}  // namespace foci::data
