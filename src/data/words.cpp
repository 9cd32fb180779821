// SPDX-License-Identifier: Apache-2.0
// The word vocabulary of WikiText and the Penn Treebank, and files of running text.
#include "data/bytes.hpp"
#include "data/folder.hpp"

#include <foci/error.hpp>
#include <foci/text.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <unordered_map>

namespace foci::data {
namespace {

constexpr std::string_view unknown = "<unk>", line_end = "<eos>";

bool is_blank(char c) { return c == ' ' || (c >= '\t' && c <= '\r' && c != '\n'); }

/// Calls take(word) for every word, and take("<eos>") at the end of each line. A last line without
/// its end counts when it is not empty.
template <class Take>
void for_each_word(std::string_view text, Take&& take) {
  std::size_t at = 0;
  bool open = false;  // a line has begun and not ended
  while (at < text.size()) {
    const char c = text[at];
    if (c == '\n') {
      take(line_end);
      open = false;
      ++at;
    } else if (is_blank(c)) {
      open = true;
      ++at;
    } else {
      const std::size_t begin = at;
      while (at < text.size() && text[at] != '\n' && !is_blank(text[at])) ++at;
      take(text.substr(begin, at - begin));
      open = true;
    }
  }
  if (open) take(line_end);
}

}  // namespace

struct WordVocabulary::Contents {
  std::vector<std::string> words;
  std::unordered_map<std::string_view, std::int32_t> ids;  // views of `words`
  std::int32_t unknown = 0;
};

WordVocabulary::WordVocabulary(std::vector<std::string> words) {
  auto all = std::make_shared<Contents>();
  all->words = std::move(words);
  for (std::size_t i = 0; i < all->words.size(); ++i) {
    const auto [at, fresh] = all->ids.try_emplace(all->words[i], std::int32_t(i));
    if (!fresh) {
      throw InvalidArgument(fmt::format("word {} comes twice, as {} and {}",
                                        in_quotes(all->words[i]), at->second, i));
    }
  }
  for (const std::string_view needed : {unknown, line_end}) {
    if (!all->ids.contains(needed)) {
      throw InvalidArgument(fmt::format("a vocabulary without {}; it needs it", needed));
    }
  }
  all->unknown = all->ids.at(unknown);
  contents_ = std::move(all);
}

WordVocabulary WordVocabulary::of_text(std::string_view text) {
  std::unordered_map<std::string_view, std::size_t> places;
  std::vector<std::pair<std::string_view, std::int64_t>> counted;
  const auto count = [&](std::string_view word) {
    const auto [at, fresh] = places.try_emplace(word, counted.size());
    if (fresh) counted.emplace_back(word, 0);
    ++counted[at->second].second;
  };
  for_each_word(text, count);
  for (const std::string_view needed : {unknown, line_end}) {
    if (!places.contains(needed)) counted.emplace_back(needed, 0);
  }
  std::stable_sort(counted.begin(), counted.end(),
                   [](const auto& a, const auto& b) { return a.second > b.second; });
  std::vector<std::string> words;
  words.reserve(counted.size());
  for (const auto& [word, times] : counted) words.emplace_back(word);
  return WordVocabulary(std::move(words));
}

std::int64_t WordVocabulary::size() const { return std::int64_t(contents_->words.size()); }
const std::vector<std::string>& WordVocabulary::words() const { return contents_->words; }

std::int32_t WordVocabulary::id_of(std::string_view word) const {
  const auto found = contents_->ids.find(word);
  return found == contents_->ids.end() ? contents_->unknown : found->second;
}

Tokens WordVocabulary::encode(std::string_view text) const {
  Tokens tokens;
  for_each_word(text, [&](std::string_view word) { tokens.push_back(id_of(word)); });
  return tokens;
}

std::string WordVocabulary::decode(std::span<const std::int32_t> tokens) const {
  std::string text;
  for (const std::int32_t token : tokens) {
    if (token < 0 || token >= size()) {
      throw InvalidArgument(fmt::format("token {} of a vocabulary of {}", token, size()));
    }
    const std::string& word = contents_->words[std::size_t(token)];
    if (word == line_end) {
      text += '\n';
    } else {
      if (!text.empty() && text.back() != '\n') text += ' ';
      text += word;
    }
  }
  return text;
}

std::string read_text(const std::string& path) {
  const Bytes bytes = read_maybe_gzip(path);
  if (bytes.empty()) refuse(path, "is empty; it needs text");
  return std::string(text_of(bytes));
}

std::string find_text(const std::string& folder, Split split) {
  const std::string part(name_of(split));
  for (const std::string& name : {part + ".txt", "wiki." + part + ".tokens",
                                  "wiki." + part + ".raw", "ptb." + part + ".txt"}) {
    if (is_file(joined(folder, name))) return joined(folder, name);
  }
  refuse(folder, fmt::format("has no {}.txt, wiki.{}.tokens or ptb.{}.txt", part, part, part));
}

Tokens byte_tokens(std::string_view text) {
  Tokens tokens;
  tokens.reserve(text.size());
  for (const char c : text) tokens.push_back(static_cast<unsigned char>(c));
  return tokens;
}

}  // namespace foci::data
