// SPDX-License-Identifier: Apache-2.0
// Hostile text: the first byte picks TSV, .ts, the splitter, the word vocabulary or byte pairs
// whose files are the two halves around the first NUL.
#include "data/lines.hpp"
#include "fuzz/refusals.hpp"

using namespace foci::data;

namespace {

void split(std::string_view text) {
  std::size_t at = 0;
  for (const std::string_view piece : gpt2_pieces(text)) {
    require(!piece.empty() && piece.data() == text.data() + at, "pieces follow one another");
    at += piece.size();
  }
  require(at == text.size(), "pieces make up the text");
}

void pair_up(std::string_view text) {
  const std::size_t middle = std::min(text.find('\0'), text.size());
  const std::string_view encoder = text.substr(0, middle);
  const std::string_view merges = text.substr(std::min(middle + 1, text.size()));
  const BytePairs pairs(BytePairs::Files{encoder, merges, "fuzz", "fuzz"});
  require(pairs.decode(pairs.encode(text)) == text, "text comes back");
}

void read(unsigned reader, std::string_view text) {
  switch (reader % 5) {
    case 0:
      require(!parse_tsv(text, "fuzz", {}).samples.empty(), "a good file has samples");
      break;
    case 1:
      for (const Series& series : parse_ts(text, "fuzz").samples) {
        touch(std::as_bytes(std::span(series.values)));
      }
      break;
    case 2:
      split(text);
      break;
    case 3: {
      const WordVocabulary words = WordVocabulary::of_text(text);
      const Tokens tokens = words.encode(text);
      require(words.encode(words.decode(tokens)) == tokens, "tokens come back");
      break;
    }
    default:
      pair_up(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  refusals_are_told([&] { read(data[0], text); });
  return 0;
}
