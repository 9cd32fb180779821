// SPDX-License-Identifier: Apache-2.0
// GPT-2's splitter, which its authors wrote as a regular expression: a contraction ('s 't 're 've
// 'm 'll 'd), or letters, or numbers, or other signs, each with one space before it if there is
// one, or white space. The last white space before a sign stays for that sign when it is a space.
#include "data/unicode.hpp"

#include <foci/text.hpp>

namespace foci::data {
namespace {

enum class Sort { letter, number, space, other };

Sort sort_of(char32_t c) {
  if (c == not_a_character) return Sort::other;
  if (is_letter(c)) return Sort::letter;
  if (is_number(c)) return Sort::number;
  return is_space(c) ? Sort::space : Sort::other;
}

std::size_t contraction(std::string_view text) {
  for (const std::string_view ending : {"'s", "'t", "'re", "'ve", "'m", "'ll", "'d"}) {
    if (text.starts_with(ending)) return ending.size();
  }
  return 0;
}

/// Bytes of the run of one sort that `text` begins with.
std::size_t run_of(std::string_view text, Sort sort) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Character c = next_character(text.substr(at));
    if (sort_of(c.code) != sort) break;
    at += c.bytes;
  }
  return at;
}

/// White space that ends the text is one piece; before a sign its last character is left over,
/// unless it is all there is.
std::size_t spaces_of(std::string_view text) {
  std::size_t at = 0, last = 0;
  while (at < text.size()) {
    const Character c = next_character(text.substr(at));
    if (sort_of(c.code) != Sort::space) break;
    last = at;
    at += c.bytes;
  }
  return at == text.size() || last == 0 ? at : last;
}

std::size_t piece_of(std::string_view text) {
  if (const std::size_t length = contraction(text); length > 0) return length;
  const std::size_t lead = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const std::string_view rest = text.substr(lead);
  const Sort sort = sort_of(next_character(rest).code);
  if (sort != Sort::space) return lead + run_of(rest, sort);
  return spaces_of(text);
}

}  // namespace

std::vector<std::string_view> gpt2_pieces(std::string_view text) {
  std::vector<std::string_view> pieces;
  while (!text.empty()) {
    const std::size_t length = piece_of(text);
    pieces.push_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  return pieces;
}

}  // namespace foci::data
