// SPDX-License-Identifier: Apache-2.0
// Hostile text: the first byte picks TSV, .ts, the splitter, the word vocabulary as it is counted
// or as it is stored, byte pairs whose files are the two halves around the first NUL, or one of the
// lists: synonyms, ADE20K's names, names of classes, images and their classes.
#include "data/image_set.hpp"
#include "data/lines.hpp"
#include "fuzz/held_file.hpp"
#include "fuzz/refusals.hpp"

#include <foci/corrupt_sequences.hpp>

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

void count_words(std::string_view text) {
  const WordVocabulary words = WordVocabulary::of_text(text);
  const Tokens tokens = words.encode(text);
  require(words.encode(words.decode(tokens)) == tokens, "tokens come back");
}

void take_words(std::string_view text) {
  std::vector<std::string> lines;
  for_each_line(text, [&](int, std::string_view line) { lines.emplace_back(line); });
  try {
    const WordVocabulary words(lines);
    for (std::size_t i = 0; i < lines.size(); ++i)
      require(words.id_of(lines[i]) == std::int32_t(i), "a stored word keeps its number");
    static_cast<void>(words.decode(words.encode(text)));
  } catch (const foci::InvalidArgument& error) {
    require_line(error.what());
  }
}

void pair_up(std::string_view text) {
  const std::size_t middle = std::min(text.find('\0'), text.size());
  const std::string_view encoder = text.substr(0, middle);
  const std::string_view merges = text.substr(std::min(middle + 1, text.size()));
  const BytePairs pairs(BytePairs::Files{encoder, merges, "fuzz", "fuzz"});
  require(pairs.decode(pairs.encode(text)) == text, "text comes back");
}

void name_classes(const std::string& path) {
  static const ImageSet set = [] {
    ImageSet::Contents all;
    all.classes = {"n01", "n02", "n03"};
    all.labels = {0, 2, 1};
    all.files = {"a.png", "b.png", "c.png"};
    return set_of(std::move(all));
  }();
  try {
    const ImageSet named = with_class_names(set, path);
    for (std::int64_t i = 0; i < named.size(); ++i)
      require(named.label(i) < int(named.classes().size()), "every label has a name");
  } catch (const foci::FileError& error) {
    require_line(error.what());  // names the image, where that has a class too many
  }
}

void list_images(const std::string& path) {
  static const std::vector<std::string> classes = {"cat", "dog"};
  const ImageSet set = read_image_list("/proc", path, classes);
  for (std::int64_t i = 0; i < set.size(); ++i)
    require(set.label(i) < 2, "an image has one of the classes");
}

void read_list(std::size_t reader, const std::string& path) {
  if (reader == 6) {
    for (const auto& [word, others] : foci::corrupt::read_synonyms(path))
      require(!word.empty() && !others.empty(), "a word has a synonym");
  } else if (reader == 7) {
    require(ade20k_rule(path).classes.size() == 150, "ADE20K has 150 classes");
  } else if (reader == 8) {
    name_classes(path);
  } else {
    list_images(path);
  }
}

void read(std::size_t reader, std::string_view text) {
  switch (reader) {
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
    case 3:
      count_words(text);
      break;
    case 4:
      pair_up(text);
      break;
    default:
      take_words(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  static Readers readers({"TSV", ".ts", "GPT-2's splitter", "words of a text",
                          "byte pairs (vocabulary and merges)", "stored vocabulary", "synonyms",
                          "ADE20K's names", "names of classes", "list of images"});
  const std::size_t reader = readers.picked_by(data[0]);
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (reader < 6) {
    refusals_are_told([&] { read(reader, text); });
    return 0;
  }
  static HeldFile file;
  const std::string path = file.with(text);
  refusals_are_told([&] { read_list(reader, path); }, path);
  return 0;
}
