// SPDX-License-Identifier: Apache-2.0
// What a word was meant to be: another name, part of one, or one with typing errors by optimal
// string alignment; and text made safe for a one-line message.
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <cstddef>
#include <map>

namespace foci::cli {
namespace {

constexpr std::size_t longest_compared = 40;
constexpr std::size_t longest_shown = 300;

/// Bytes of the UTF-8 character that starts `text`, 0 when it does not start with one.
std::size_t character(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned lead = byte(0);
  const std::size_t bytes = lead < 0x80   ? 1
                            : lead < 0xc2 ? 0
                            : lead < 0xe0 ? 2
                            : lead < 0xf0 ? 3
                                          : 4;
  if (bytes == 0 || lead > 0xf4 || bytes > text.size()) return 0;
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
  }
  if (lead == 0xe0 && byte(1) < 0xa0) return 0;
  if (lead == 0xed && byte(1) > 0x9f) return 0;
  if (lead == 0xf0 && byte(1) < 0x90) return 0;
  if (lead == 0xf4 && byte(1) > 0x8f) return 0;
  return bytes;
}

}  // namespace

std::size_t typing_errors(std::string_view a, std::string_view b) {
  a = a.substr(0, longest_compared);
  b = b.substr(0, longest_compared);
  std::vector<std::size_t> before(b.size() + 1), above(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) above[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = above[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, change});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before[j - 2] + 1);
      }
    }
    std::swap(before, above);
    std::swap(above, row);
  }
  return above[b.size()];
}

namespace {

constexpr double unlike = 1000;

std::string_view without_dashes(std::string_view word) {
  return word.substr(std::min(word.find_first_not_of('-'), word.size()));
}

/// What others call it.
std::string_view own_name(std::string_view word) {
  static const std::map<std::string_view, std::string_view> names = {
      {"gpu", "cuda"},
      {"half", "f16"},
      {"float16", "f16"},
      {"bfloat16", "bf16"},
      {"float", "f32"},
      {"float32", "f32"},
      {"double", "f64"},
      {"float64", "f64"},
      {"lr", "learning-rate"},
      {"elliptical", "layer-change"},
      {"euclidean", "dot"},
      {"plain", "dot"},
      {"mahalanobis", "key-covariance"},
      {"classification", "images"},
      {"segmentation", "segments"},
      {"language", "text"}};
  const auto found = names.find(word);
  return found == names.end() ? std::string_view() : found->second;
}

/// Whether a name, or a part of it behind a dash, begins so; two letters are anybody's.
bool begins_part(std::string_view word, std::string_view name) {
  const std::size_t at = word.size() < 3 ? name.npos : name.find(word);
  return at != name.npos && (at == 0 || name[at - 1] == '-' || name[at - 1] == '_');
}

/// 0 for the same thing under another name, else about how many typing errors.
double unlikeness(std::string_view word, std::string_view candidate) {
  word = without_dashes(word), candidate = without_dashes(candidate);
  if (own_name(word) == candidate) return 0;
  if (begins_part(word, candidate)) return candidate.starts_with(word) ? 0.5 : 1.5;
  const std::size_t errors = typing_errors(word, candidate);
  return errors <= (std::max(word.size(), candidate.size()) + 1) / 3 ? double(errors) : unlike;
}

}  // namespace

std::string suggestion(std::string_view word, const std::vector<std::string>& candidates) {
  const auto farther = [&](const std::string& a, const std::string& b) {
    return unlikeness(word, a) < unlikeness(word, b);
  };
  const auto best = std::min_element(candidates.begin(), candidates.end(), farther);
  if (best == candidates.end() || unlikeness(word, *best) >= unlike) return {};
  return fmt::format("; did you mean {}?", *best);
}

std::string listed(const std::vector<std::string>& words, std::string_view separator) {
  std::string text;
  for (const std::string& word : words) {
    if (&word != &words.front()) text += separator;
    text += word;
  }
  return text;
}

std::string shown(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    if (out.size() > longest_shown) return out + "...";
    const std::size_t bytes = character(text);
    const unsigned lead = static_cast<unsigned char>(text[0]);
    const bool second_controls =
        bytes == 2 && lead == 0xc2 && static_cast<unsigned char>(text[1]) < 0xa0;
    if (bytes == 0 || lead < 0x20 || lead == 0x7f || second_controls) {
      out += fmt::format("\\x{:02x}", lead);
      text.remove_prefix(1);
    } else {
      out += text.substr(0, bytes);
      text.remove_prefix(bytes);
    }
  }
  return out;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  for (;;) {
    const std::size_t end = text.find(separator);
    parts.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

}  // namespace foci::cli
