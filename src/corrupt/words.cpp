// SPDX-License-Identifier: Apache-2.0
// Words and bytes of a text exchanged. A word is what TextAttack takes for one, and how many of a
// line are taken follows its augmenter; ours is seeded and tells what it did.
#include <foci/corrupt_sequences.hpp>

#include "data/folder.hpp"
#include "data/unicode.hpp"

#include <foci/error.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <functional>

namespace foci::corrupt {
namespace {

constexpr std::uint64_t word_stream = 0xaaa, synonym_stream = 0x5170, byte_stream = 0xb17e;

/// The English stop words of NLTK, sorted.
constexpr std::array stop_words = std::to_array<std::string_view>(
    {"a",          "about",    "above",     "after",     "again",   "against", "ain",
     "all",        "am",       "an",        "and",       "any",     "are",     "aren",
     "aren't",     "as",       "at",        "be",        "because", "been",    "before",
     "being",      "below",    "between",   "both",      "but",     "by",      "can",
     "couldn",     "couldn't", "d",         "did",       "didn",    "didn't",  "do",
     "does",       "doesn",    "doesn't",   "doing",     "don",     "don't",   "down",
     "during",     "each",     "few",       "for",       "from",    "further", "had",
     "hadn",       "hadn't",   "has",       "hasn",      "hasn't",  "have",    "haven",
     "haven't",    "having",   "he",        "her",       "here",    "hers",    "herself",
     "him",        "himself",  "his",       "how",       "i",       "if",      "in",
     "into",       "is",       "isn",       "isn't",     "it",      "it's",    "its",
     "itself",     "just",     "ll",        "m",         "ma",      "me",      "mightn",
     "mightn't",   "more",     "most",      "mustn",     "mustn't", "my",      "myself",
     "needn",      "needn't",  "no",        "nor",       "not",     "now",     "o",
     "of",         "off",      "on",        "once",      "only",    "or",      "other",
     "our",        "ours",     "ourselves", "out",       "over",    "own",     "re",
     "s",          "same",     "shan",      "shan't",    "she",     "she's",   "should",
     "should've",  "shouldn",  "shouldn't", "so",        "some",    "such",    "t",
     "than",       "that",     "that'll",   "the",       "their",   "theirs",  "them",
     "themselves", "then",     "there",     "these",     "they",    "this",    "those",
     "through",    "to",       "too",       "under",     "until",   "up",      "ve",
     "very",       "was",      "wasn",      "wasn't",    "we",      "were",    "weren",
     "weren't",    "what",     "when",      "where",     "which",   "while",   "who",
     "whom",       "why",      "will",      "with",      "won",     "won't",   "wouldn",
     "wouldn't",   "y",        "you",       "you'd",     "you'll",  "you're",  "you've",
     "your",       "yours",    "yourself",  "yourselves"});

static_assert(std::is_sorted(stop_words.begin(), stop_words.end()));

bool is_stop_word(std::string_view word) {
  return std::binary_search(stop_words.begin(), stop_words.end(), word);
}

/// May stand in a word, but not begin one.
bool is_joint(char c) { return std::string_view("'-_*@").find(c) != std::string_view::npos; }

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  std::size_t begin = 0, at = 0;
  bool open = false;
  const auto close = [&] {
    if (open) words.push_back(line.substr(begin, at - begin));
    open = false;
  };
  while (at < line.size()) {
    const data::Character c = data::next_character(line.substr(at));
    const bool letter = data::is_letter(c.code) || data::is_number(c.code);
    if (letter && !open) {
      begin = at;
      open = true;
    } else if (!letter && !is_joint(line[at])) {
      close();
    }
    at += c.bytes;
  }
  close();
  return words;
}

/// What a word becomes; empty: it stays.
using Change = std::function<std::string(std::string_view word, data::Random& random)>;

void check_rate(double rate) {
  if (!(rate > 0 && rate <= 1))
    throw InvalidArgument(fmt::format("a rate of {:g}; it must lie in (0, 1]", rate));
}

/// In `line`, at most max(1, rate of all words) words.
void change_line(HarmedText& to, std::string_view line, const TextHarm& how, const Change& change,
                 data::Random& random) {
  const auto words = words_of(line);
  to.words += std::int64_t(words.size());
  const auto most = std::max<std::size_t>(1, std::size_t(how.rate * double(words.size())));
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (!is_stop_word(words[i])) order.push_back(i);
  }
  random.shuffle(order);
  std::map<std::size_t, std::string> chosen;
  for (const std::size_t i : order) {
    if (chosen.size() == most) break;
    std::string other = change(words[i], random);
    if (!other.empty() && other != words[i]) chosen[i] = std::move(other);
  }
  std::size_t done = 0;
  for (const auto& [i, other] : chosen) {
    const auto begin = std::size_t(words[i].data() - line.data());
    to.text += line.substr(done, begin - done);
    to.changes.push_back({std::int64_t(to.text.size()), std::string(words[i]), other});
    to.text += other;
    done = begin + words[i].size();
  }
  to.text += line.substr(done);
}

HarmedText change_words(std::string_view text, const TextHarm& how, std::uint64_t stream,
                        const Change& change) {
  check_rate(how.rate);
  HarmedText to;
  data::Random random(how.chance.seed, stream, how.chance.index);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    change_line(to, text.substr(at, end - at), how, change, random);
    at = end;
  }
  return to;
}

std::string lower(std::string_view word) {
  std::string to(word);
  for (char& c : to) c = c >= 'A' && c <= 'Z' ? char(c - 'A' + 'a') : c;
  return to;
}

}  // namespace

HarmedText swap_words(std::string_view text, const TextHarm& how) {
  return change_words(text, how, word_stream,
                      [](std::string_view, data::Random&) { return std::string("AAA"); });
}

Synonyms read_synonyms(const std::string& path) {
  Synonyms synonyms;
  std::int64_t number = 0;
  for (const std::string& line : data::read_lines(path)) {
    ++number;
    const auto words = words_of(line);
    if (words.size() != 2) {
      throw FileError(fmt::format("{}: line {} has {} words; it needs a word and its synonym", path,
                                  number, words.size()));
    }
    synonyms[std::string(words[0])].emplace_back(words[1]);
  }
  if (synonyms.empty()) throw FileError(path + ": holds no synonyms");
  return synonyms;
}

HarmedText swap_synonyms(std::string_view text, const Synonyms& synonyms, const TextHarm& how) {
  const Change change = [&](std::string_view word, data::Random& random) {
    const auto found = synonyms.find(lower(word));
    if (found == synonyms.end()) return std::string();
    std::string other = found->second[std::size_t(random.below(std::ssize(found->second)))];
    const bool capital = word[0] >= 'A' && word[0] <= 'Z';
    if (capital && other[0] >= 'a' && other[0] <= 'z') other[0] = char(other[0] - 'a' + 'A');
    return other;
  };
  return change_words(text, how, synonym_stream, change);
}

HarmedText change_bytes(std::string_view text, const TextHarm& how) {
  check_rate(how.rate);
  HarmedText to{std::string(text), {}, 0};
  data::Random random(how.chance.seed, byte_stream, how.chance.index);
  constexpr int first = '!', last = '~';
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte <= ' ' || !random.chance(how.rate)) continue;
    int other = int(random.between(first, last - (byte <= last ? 1 : 0)));
    if (byte <= last && other >= byte) ++other;
    to.text[i] = char(other);
    to.changes.push_back({std::int64_t(i), std::string(1, text[i]), std::string(1, char(other))});
  }
  return to;
}

}  // namespace foci::corrupt
