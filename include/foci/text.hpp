// SPDX-License-Identifier: Apache-2.0
// Text as tokens: words as WikiText counts them, GPT-2's byte pairs, bytes; labelled text in TSV;
// time series in UEA's .ts. What is wrong with a file is told with its line.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci::data {

using Tokens = std::vector<std::int32_t>;

/// The whole file.
FOCI_API std::string read_text(const std::string& path);
/// train.txt, wiki.train.tokens, ptb.train.txt or the like of a folder. Throws FileError.
FOCI_API std::string find_text(const std::string& folder, Split split);

/// Words between spaces, and <eos> at the end of every line, an empty one too. The most frequent
/// word is 0; of equals the one seen first.
class FOCI_API WordVocabulary {
 public:
  /// Counts a training text; <unk> and <eos> are always in it.
  static WordVocabulary of_text(std::string_view text);
  /// From stored words, in order. Throws InvalidArgument when one comes twice or <unk> or <eos> is
  /// missing.
  explicit WordVocabulary(std::vector<std::string> words);

  std::int64_t size() const;
  const std::vector<std::string>& words() const;
  std::int32_t id_of(std::string_view word) const;  ///< that of <unk> for one it does not know
  Tokens encode(std::string_view text) const;
  std::string decode(std::span<const std::int32_t> tokens) const;

 private:
  struct Contents;
  std::shared_ptr<const Contents> contents_;
};

/// GPT-2's byte-level BPE. Any bytes encode, and decode to what they were.
class FOCI_API BytePairs {
 public:
  /// Paths of encoder.json (vocab.json) and vocab.bpe (merges.txt).
  BytePairs(const std::string& encoder, const std::string& merges);
  /// From the files' bytes; their names are for messages.
  struct FOCI_API Files {
    std::string_view encoder, merges;
    std::string encoder_name, merges_name;
  };
  explicit BytePairs(const Files& files);

  std::int64_t size() const;
  Tokens encode(std::string_view text) const;
  std::string decode(std::span<const std::int32_t> tokens) const;  ///< InvalidArgument: no such id

 private:
  struct Contents;
  std::shared_ptr<const Contents> contents_;
};

/// The pieces that GPT-2 cuts a text into before it merges pairs; together they are the text.
FOCI_API std::vector<std::string_view> gpt2_pieces(std::string_view text);

/// Bytes are tokens 0 to 255.
FOCI_API Tokens byte_tokens(std::string_view text);

struct FOCI_API LabelledText {
  std::int32_t label = 0;
  std::string text;
};
struct FOCI_API TextSet {
  std::vector<std::string> classes;  ///< sorted
  std::vector<LabelledText> samples;
};
/// A sample a line: the first field is its class, the last one its text, tabs between. `classes`
/// are those of the training split, so that numbers agree; without them they are collected.
FOCI_API TextSet read_tsv(const std::string& path, const std::vector<std::string>& classes = {});

struct FOCI_API Series {
  std::int32_t label = 0;
  std::int64_t length = 0;
  std::vector<float> values;  ///< (channels, length)
};
struct FOCI_API SeriesSet {
  std::vector<std::string> classes;  ///< as the file lists them
  std::int64_t channels = 0;
  std::int64_t longest = 0;
  std::vector<Series> samples;
};
/// UEA and UCR .ts files with class labels, of one or several channels; lengths may differ between
/// samples. Missing values and time stamps are refused with their place.
FOCI_API SeriesSet read_ts(const std::string& path);

}  // namespace foci::data
