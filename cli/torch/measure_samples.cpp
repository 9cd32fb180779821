// SPDX-License-Identifier: Apache-2.0
// Samples by task: images are prepared as for judging, text is spelled token by token.
#include "cli/torch/measure_samples.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"
#include "cli/torch/tasks.hpp"

#include <foci/image.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::cli {
namespace {

std::vector<std::string> spelled(const train::Tokenizer& tokenizer,
                                 std::span<const std::int32_t> tokens) {
  std::vector<std::string> names;
  for (const std::int32_t& token : tokens) names.push_back(tokenizer.decode(std::span(&token, 1)));
  return names;
}

std::string described(const Words& words, std::int64_t sample) {
  return fmt::format("{} sample {}", words.at("split"), sample);
}

void add_image(Pictured& of, const Measured& what, const Asked& asked, const RunConfig& config,
               std::int64_t sample) {
  const data::ImageSet set = images_of(config.data, what.words);
  const auto label = std::size_t(set.label(sample));
  of.sample += label < set.classes().size() ? ", " + set.classes()[label] : "";
  of.image = seen_image(image_training(asked.words, asked.common), facts_in(what.run, config.data),
                        set.image(sample));
}

/// What the passes see of it, and the classes that are in it.
void add_window(Pictured& of, const Measured& what, const Asked& asked, const RunConfig& config,
                std::int64_t sample) {
  const data::ImageSet set = images_of(config.data, what.words);
  train::SeenWindow seen = train::seen_window(segment_training(asked.words, asked.common),
                                              facts_in(what.run, config.data), set, sample);
  of.image = std::move(seen.image);
  of.classes = set.classes();
  std::vector<std::int64_t> pixels(of.classes.size());
  for (const std::uint8_t label : seen.mask.pixels) {
    if (label != data::ignored) ++pixels[label];
  }
  for (std::size_t c = 0; c < pixels.size(); ++c) {
    if (pixels[c] > 0) of.present.push_back(std::int64_t(c));
  }
  std::stable_sort(of.present.begin(), of.present.end(), [&](std::int64_t a, std::int64_t b) {
    return pixels[std::size_t(a)] > pixels[std::size_t(b)];
  });
}

void add_text(Pictured& of, const Measured& what, const Asked& asked, const RunConfig& config,
              std::int64_t sample) {
  const train::Tokenizer tokenizer = tokenizer_of(what.run, config);
  const std::string path = data_path(what.words.at("data"));
  const train::TokenText text(tokenizer, train::read_split(path, split_of(what.words.at("split"))),
                              shown(path));
  const auto size = std::int64_t(text.tokens.size());
  const std::int64_t window =
      std::min(text_training(asked.words, asked.common).model.context, size);
  of.tokens = spelled(
      tokenizer, std::span(text.tokens).subspan(std::size_t(sample * window), std::size_t(window)));
}

void add_sequence(Pictured& of, const Measured& what, const Asked& asked, const RunConfig& config,
                  std::int64_t sample) {
  const train::SequenceFacts facts = sequence_facts_of(asked, config.data);
  const auto set = train::open_sequences(data_folder(what.words.at("data")),
                                         split_of(what.words.at("split")), facts);
  const train::Sequence& sequence = set.samples[std::size_t(sample)];
  of.sample += ", " + facts.classes[std::size_t(sequence.label)];
  if (facts.vocabulary > 0 && facts.tokenizer.size() == facts.vocabulary) {
    of.tokens = spelled(facts.tokenizer, sequence.tokens);
    return;
  }
  for (std::int64_t i = 0; i < sequence.length; ++i) {
    of.tokens.push_back(facts.vocabulary > 0 ? std::to_string(sequence.tokens[std::size_t(i)])
                                             : fmt::format("step {}", i));
  }
}

std::int64_t number_of(const Words& words, const char* flag, std::int64_t standard) {
  const auto found = words.find(flag);
  return found == words.end() ? standard : to_count(found->second);
}

std::string last_part(const std::string& path) {
  const auto end = path.find_last_not_of('/');
  const auto begin = path.find_last_of('/', end);
  return path.substr(begin == path.npos ? 0 : begin + 1, end - (begin == path.npos ? -1 : begin));
}

}  // namespace

data::Image seen_image(const train::ImageTraining& training, const train::ImageFacts& facts,
                       const data::Image& image) {
  data::ImagePlan plan;
  plan.size = int(train::side_of(training.model, facts));
  plan.crop_share = training.input.crop_share;
  plan.mean.assign(std::size_t(facts.channels), 0);
  plan.deviation.assign(std::size_t(facts.channels), 1);
  std::vector<float> values(std::size_t(facts.channels) * plan.size * plan.size);
  data::prepare_evaluation(values.data(), image, plan);
  data::Image seen(plan.size, plan.size, int(facts.channels));
  const std::size_t pixels = std::size_t(plan.size) * plan.size;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float value = std::clamp(values[i], 0.0f, 1.0f);
    seen.pixels[i % pixels * std::size_t(facts.channels) + i / pixels] =
        std::uint8_t(std::lround(255 * value));
  }
  return seen;
}

Pictured pictured(const Measured& what, const Common& common, std::int64_t sample) {
  if (sample >= what.passes.samples) {
    throw Misuse(fmt::format("--sample {} is none of the {} {} of {}; they count from 0", sample,
                             what.passes.samples, what.unit, shown(what.name)));
  }
  Pictured of{.name = last_part(what.name),
              .label = last_part(what.name),
              .kind = last_part(what.name),
              .sample = fmt::format("sample {}", sample),
              .pass = {},
              .grids = {}};
  for (const train::Standing& at : what.passes.standing)
    of.grids.push_back({at.leading, at.height, at.width});
  of.pass = [run = what.passes.run, sample] { run(std::span(&sample, 1)); };
  if (what.tokens) of.tokens = what.tokens(sample);
  if (what.run.empty()) return of;
  const RunConfig config = read_config(what.run);
  const Asked asked{what.run, what.words, common};
  of.name = fmt::format("{} ({}, {})", last_part(what.name), what.words.at("model"),
                        what.words.at("metric"));
  of.kind = what.words.at("metric");
  if (what.words.at("weighting") != "softmax") of.kind += ", " + what.words.at("weighting");
  of.sample = described(what.words, sample);
  if (config.task == "images") add_image(of, what, asked, config, sample);
  if (config.task == "segments") add_window(of, what, asked, config, sample);
  if (config.task == "text") add_text(of, what, asked, config, sample);
  if (config.task == "sequences") add_sequence(of, what, asked, config, sample);
  return of;
}

std::vector<std::string> pictures_of(const Measure& verb, const std::vector<Measured>& subjects,
                                     const std::vector<const measure::Report*>& reports) {
  const Words& words = verb.words;
  if (words.count("pictures") == 0) {
    for (const char* flag : {"sample", "in-layer", "head", "query"}) {
      if (words.count(flag) > 0)
        throw Misuse(fmt::format("--{} is for --pictures FOLDER", flag), "see foci help measure");
    }
    return {};
  }
  PictureWish wish{words.at("pictures"), number_of(words, "in-layer", -1),
                   number_of(words, "head", -1), number_of(words, "query", -1)};
  const std::int64_t sample = number_of(words, "sample", 0);
  std::vector<Pictured> all;
  for (const Measured& subject : subjects) all.push_back(pictured(subject, verb.common, sample));
  return write_pictures(wish, all, reports);
}

}  // namespace foci::cli
