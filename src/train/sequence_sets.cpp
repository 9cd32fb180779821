// SPDX-License-Identifier: Apache-2.0
// Three kinds of folders as sequences with a class each: TSV, UEA's .ts, images. No torch.
#include <foci/train_sequences.hpp>

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

namespace foci::train {
namespace {

namespace fs = std::filesystem;
using data::Split;

/// The split's file: train.tsv, NAME_TRAIN.ts; empty where there is none.
std::string tsv_of(const std::string& folder, Split split) {
  const std::string name(data::name_of(split));
  for (const std::string& file : {name + ".tsv", std::string("val.tsv")}) {
    if (file == "val.tsv" && split != Split::valid) continue;
    if (fs::is_regular_file(fs::path(folder) / file)) return (fs::path(folder) / file).string();
  }
  return {};
}
std::string ts_of(const std::string& folder, Split split) {
  const std::string ending = split == Split::train  ? "_TRAIN.ts"
                             : split == Split::test ? "_TEST.ts"
                                                    : "_VALID.ts";
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(folder, none)) {
    if (entry.path().filename().string().ends_with(ending)) return entry.path().string();
  }
  return {};
}

enum class Kind { text, series, pixels };
Kind kind_of(const std::string& folder) {
  if (!tsv_of(folder, Split::train).empty()) return Kind::text;
  return ts_of(folder, Split::train).empty() ? Kind::pixels : Kind::series;
}

std::string needed(const std::string& path, const std::string& folder, Split split) {
  if (!path.empty()) return path;
  throw FileError(fmt::format("{}: has no {} split", folder, data::name_of(split)));
}

/// The tokens of a line; the end of the line is none of them.
data::Tokens line_tokens(const Tokenizer& tokenizer, const std::string& text) {
  data::Tokens tokens = tokenizer.encode(text);
  if (tokenizer.kind() == "words" && !tokens.empty()) tokens.pop_back();
  return tokens;
}

data::Tokens grey_pixels(const data::Image& image) {
  data::Tokens tokens;
  for (std::size_t i = 0; i < image.pixels.size(); i += std::size_t(image.channels)) {
    const std::uint8_t* p = image.pixels.data() + i;
    tokens.push_back(image.channels == 1 ? p[0]
                                         : (19595 * p[0] + 38470 * p[1] + 7471 * p[2] + 32768) >>
                                               16);  // PIL's convert("L")
  }
  return tokens;
}

SequenceSet open_text(const std::string& path, const SequenceFacts& facts) {
  SequenceSet set{path, {}};
  for (const data::LabelledText& text : data::read_tsv(path, facts.classes).samples) {
    data::Tokens tokens = line_tokens(facts.tokenizer, text.text);
    const auto length = std::int64_t(tokens.size());
    set.samples.push_back({text.label, length, std::move(tokens), {}});
  }
  return set;
}

SequenceSet open_pixels(const std::string& folder, Split split, const SequenceFacts& facts) {
  const data::ImageSet images = data::open_images(folder, split);
  SequenceSet set{folder, {}};
  for (std::int64_t i = 0; i < images.size(); ++i) {
    if (images.label(i) < 0 || images.label(i) >= std::int64_t(facts.classes.size())) {
      throw FileError(fmt::format("{}: has label {}; the training set has {} classes",
                                  images.name(i), images.label(i), facts.classes.size()));
    }
    data::Tokens tokens = grey_pixels(images.image(i));
    const auto length = std::int64_t(tokens.size());
    set.samples.push_back({images.label(i), length, std::move(tokens), {}});
  }
  return set;
}

/// (channels, length) to (length, channels), each channel of mean 0 and deviation 1.
Sequence scaled(const data::Series& series, const SequenceFacts& facts) {
  Sequence sample{series.label, series.length, {}, {}};
  for (std::int64_t step = 0; step < series.length; ++step) {
    for (std::int64_t c = 0; c < facts.channels; ++c) {
      const float x = series.values[std::size_t(c * series.length + step)];
      sample.values.push_back((x - facts.mean[std::size_t(c)]) / facts.deviation[std::size_t(c)]);
    }
  }
  return sample;
}

SequenceSet open_series(const std::string& path, const SequenceFacts& facts) {
  const data::SeriesSet series = data::read_ts(path);
  if (series.classes != facts.classes || series.channels != facts.channels) {
    throw FileError(fmt::format(
        "{}: has {} classes and {} channels; the training set has {} and "
        "{}, and their names must agree",
        path, series.classes.size(), series.channels, facts.classes.size(), facts.channels));
  }
  SequenceSet set{path, {}};
  for (const data::Series& one : series.samples) set.samples.push_back(scaled(one, facts));
  return set;
}

SequenceFacts series_facts(const std::string& path) {
  const data::SeriesSet series = data::read_ts(path);
  SequenceFacts facts{
      .classes = series.classes, .channels = series.channels, .longest = series.longest};
  for (std::int64_t c = 0; c < series.channels; ++c) {
    double sum = 0, squares = 0, count = 0;
    for (const data::Series& one : series.samples) {
      for (std::int64_t step = 0; step < one.length; ++step) {
        const double x = one.values[std::size_t(c * one.length + step)];
        sum += x;
        squares += x * x;
      }
      count += double(one.length);
    }
    const double mean = sum / count, variance = squares / count - mean * mean;
    facts.mean.push_back(float(mean));
    facts.deviation.push_back(float(std::sqrt(std::max(variance, 1e-12))));
  }
  return facts;
}

SequenceFacts text_facts(const std::string& path, const std::string& tokenizer) {
  const data::TextSet texts = data::read_tsv(path);
  SequenceFacts facts{.classes = texts.classes};
  if (tokenizer == "words") {
    std::string all;
    for (const data::LabelledText& text : texts.samples) all += text.text + "\n";
    facts.tokenizer = Tokenizer(data::WordVocabulary::of_text(all));
  }
  facts.vocabulary = facts.tokenizer.size();
  for (const data::LabelledText& text : texts.samples) {
    facts.longest =
        std::max(facts.longest, std::int64_t(line_tokens(facts.tokenizer, text.text).size()));
  }
  return facts;
}

}  // namespace

SequenceFacts sequence_facts(const std::string& folder, const std::string& tokenizer) {
  const Kind kind = kind_of(folder);
  if (kind == Kind::text) return text_facts(tsv_of(folder, Split::train), tokenizer);
  if (kind == Kind::series) return series_facts(ts_of(folder, Split::train));
  const data::ImageSet images = data::open_images(folder, Split::train);
  const data::Image first = images.image(0);
  return {.classes = images.classes(),
          .vocabulary = 256,
          .longest = std::int64_t(first.height) * first.width};
}

SequenceSet open_sequences(const std::string& folder, Split split, const SequenceFacts& facts) {
  const Kind kind = kind_of(folder);
  SequenceSet set =
      kind == Kind::text     ? open_text(needed(tsv_of(folder, split), folder, split), facts)
      : kind == Kind::series ? open_series(needed(ts_of(folder, split), folder, split), facts)
                             : open_pixels(folder, split, facts);
  for (std::size_t i = 0; i < set.samples.size(); ++i) {
    if (set.samples[i].length == 0)
      throw FileError(fmt::format("{}: sample {} is empty", set.name, i + 1));
  }
  return set;
}

}  // namespace foci::train
