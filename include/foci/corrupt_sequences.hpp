// SPDX-License-Identifier: Apache-2.0
// Harm that is not aimed, of text and of time series: words swapped, synonyms, bytes; noise, spikes
// and missing spans at five severities. Whatever is random follows from the seed. No torch.
#pragma once

#include <foci/export.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci::corrupt {

/// What stands at a place of the new text, and what stood there before.
struct FOCI_API TextChange {
  std::int64_t at = 0;  ///< bytes from the beginning of the new text
  std::string from, to;
};
struct FOCI_API HarmedText {
  std::string text;
  std::vector<TextChange> changes;  ///< in order
  std::int64_t words = 0;           ///< that were there to choose from, stop words among them
};

/// Each text or series of a set has its own chance.
struct FOCI_API Chance {
  std::uint64_t seed = 0, index = 0;
};
struct FOCI_API TextHarm {
  double rate = 0.015;  ///< of the words of a line, or of bytes; in (0, 1]
  Chance chance = {};
};

/// The word swap of the literature: in every line max(1, rate of its words) words that are no stop
/// words become AAA. A word is what TextAttack takes for one: <unk> is the word unk.
FOCI_API HarmedText swap_words(std::string_view text, const TextHarm& how);

/// Words and what may stand for them.
using Synonyms = std::map<std::string, std::vector<std::string>, std::less<>>;
/// A line a pair: the word, a space, its synonym. Throws FileError that names the line.
FOCI_API Synonyms read_synonyms(const std::string& path);
/// As many words as swap_words would take, of those that have a synonym; a capital stays one.
FOCI_API HarmedText swap_synonyms(std::string_view text, const Synonyms& synonyms,
                                  const TextHarm& how);

/// Every byte that is no white space becomes another printable one with probability `rate`.
FOCI_API HarmedText change_bytes(std::string_view text, const TextHarm& how);

struct FOCI_API SeriesHarm {
  enum Kind { noise, spikes, missing };
  Kind kind = noise;
  int severity = 1;  ///< 1 to 5
  Chance chance = {};
};

/// (length, channels) of mean 0 and deviation 1, in place. Noise: normal, of deviation .1 .2 .4 .7
/// 1. Spikes: 1 2 4 7 10 % of the values, up or down by 5. Missing: 5 10 20 35 50 % of the steps in
/// spans of up to a tenth of the series, all channels 0.
FOCI_API void harm_series(std::span<float> values, std::int64_t channels, const SeriesHarm& how);

}  // namespace foci::corrupt
