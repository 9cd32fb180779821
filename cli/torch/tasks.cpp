// SPDX-License-Identifier: Apache-2.0
// The tasks: classes of images, text, classes of sequences, classes of pixels.
#include "cli/torch/tasks.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <foci/dist.hpp>
#include <foci/error.hpp>
#include <foci/subset.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;
using train::Scores;

/// Those that a run trains on, and those that it judges itself by.
struct OwnImages {
  data::ImageSet train, valid;
  Json facts;
};

OwnImages own_images(const Asked& asked) {
  const std::string folder = data_folder(asked.words.at("data"));
  const data::ImageSet train = data::open_images(folder, data::Split::train);
  Json facts = json_of(train::facts_of(train));
  if (!train.has_masks()) facts["class_names"] = train.classes();
  const data::ImageSet valid =
      data::evenly(images_of(facts, asked.words), to_count(asked.words.at("judge-count")));
  facts["train"] = train.size();
  facts["valid"] = valid.size();
  if (data::splits_itself(folder) && !asked.resumes &&
      (asked.group == nullptr || asked.group->rank() == 0)) {
    warn(
        fmt::format("{}: has no train/ and test/; a fifth of every class, chosen by the files' "
                    "names, is kept for judging",
                    shown(folder)));
  }
  return {train, valid, facts};
}

void check_vocabulary(const std::string& run, std::int64_t size, std::int64_t began) {
  if (size == began) return;
  throw FileError(fmt::format("{}: its tokenizer has {} tokens; the run began with {}", shown(run),
                              size, began));
}

/// Where and how it runs, in any training.
template <class Training>
Training placed(Training training, const Asked& asked) {
  training.run.folder = asked.run;
  training.run.resume = asked.resumes;
  training.run.group = asked.group;
  training.run.stops = asked.stops;
  return training;
}

Job open_image_job(const Asked& asked) {
  const auto training = placed(image_training(asked.words, asked.common), asked);
  const OwnImages images = own_images(asked);
  Job job{images.facts, {}};
  job.train = [=](const train::Told& told) {
    return train::train_images(training, images.train, images.valid, told);
  };
  return job;
}

Scores judge_images(const Asked& asked, const Json& data, const std::string& weights) {
  train::ImageTraining training = image_training(asked.words, asked.common);
  training.input.place.bf16 = training.run.bf16;
  return train::evaluate_images(training.model, weights, facts_in(asked.run, data),
                                images_of(data, asked.words), training.input);
}

std::string image_text(const Scores& scores) {
  // Of five classes or fewer all are among the first five.
  const double five = scores.at("top5");
  return fmt::format("top-1 {:.2f} %, {}loss {:.4f}", 100 * scores.at("top1"),
                     five < 1 ? fmt::format("top-5 {:.2f} %, ", 100 * five) : "",
                     scores.at("valid_loss"));
}

/// The tokenizer that the flags ask for; words are those of the training text, byte pairs and
/// pieces that a run was given once are its own.
train::Tokenizer made_tokenizer(const Asked& asked, std::string_view text) {
  const std::string &kind = asked.words.at("tokenizer"), &pairs = asked.words.at("pairs");
  const std::string& pieces = asked.words.at("pieces");
  if (asked.resumes && (kind == "pairs" || kind == "pieces"))
    return train::Tokenizer::load(kind, asked.run);
  if (kind == "words") return train::Tokenizer(data::WordVocabulary::of_text(text));
  if (kind == "bytes") return {};
  if (kind == "pieces" && pieces.empty())
    throw Misuse("--tokenizer pieces needs --pieces FILE", "the file is llama2.c's tokenizer.bin");
  if (kind == "pieces") return train::Tokenizer::pieces(pieces);
  if (pairs.empty()) {
    throw Misuse("--tokenizer pairs needs --pairs FOLDER",
                 "the folder holds GPT-2's encoder.json and vocab.bpe");
  }
  return train::Tokenizer::pairs(pairs);
}

train::TokenText open_text(const train::Tokenizer& tokenizer, const Words& words) {
  const std::string path = data_path(words.at("data"));
  const data::Split split = split_of(words.at("split"));
  return {tokenizer, train::read_split(path, split),
          fmt::format("{} ({})", shown(path), words.at("split"))};
}

/// A new run keeps its tokenizer; one that is resumed must find its own.
void keep(const train::Tokenizer& tokenizer, const Asked& asked) {
  if (asked.group != nullptr && asked.group->rank() > 0) return;
  if (asked.resumes) {
    if (tokenizer == train::Tokenizer::load(tokenizer.kind(), asked.run)) return;
    throw FileError(fmt::format("{}: the run's vocabulary is another than that of {}",
                                shown(asked.run), shown(asked.words.at("data"))));
  }
  std::error_code fault;
  fs::create_directories(asked.run, fault);
  if (fault) throw FileError(fmt::format("{}: {}", shown(asked.run), fault.message()));
  tokenizer.save(asked.run);
}

Job open_text_job(const Asked& asked) {
  const auto training = placed(text_training(asked.words, asked.common), asked);
  const std::string path = data_path(asked.words.at("data"));
  const std::string text = train::read_split(path, data::Split::train);
  const train::Tokenizer tokenizer = made_tokenizer(asked, text);
  const auto train = std::make_shared<const train::TokenText>(
      tokenizer, text, fmt::format("{} (train)", shown(path)));
  const auto valid = std::make_shared<const train::TokenText>(open_text(tokenizer, asked.words));
  keep(tokenizer, asked);
  Job job{{{"train", train->tokens.size()},
           {"valid", valid->tokens.size()},
           {"vocabulary", tokenizer.size()}},
          {}};
  job.train = [=](const train::Told& told) {
    return train::train_text(training, tokenizer, *train, *valid, told);
  };
  return job;
}

Scores judge_text(const Asked& asked, const Json& data, const std::string& weights) {
  const train::Tokenizer tokenizer = tokenizer_of(asked.run, {"text", asked.words, data});
  return train::evaluate_text(text_training(asked.words, asked.common), weights, tokenizer,
                              open_text(tokenizer, asked.words));
}

std::string perplexity_text(const Scores& scores) {
  return fmt::format("perplexity {:.2f}, {:.4f} bits per byte, loss {:.4f}",
                     scores.at("perplexity"), scores.at("bits_per_byte"), scores.at("valid_loss"));
}

Json sequence_json(const train::SequenceFacts& facts) {
  return {{"classes", facts.classes},
          {"vocabulary", facts.vocabulary},
          {"channels", facts.channels},
          {"longest", facts.longest},
          {"mean", facts.mean},
          {"deviation", facts.deviation},
          {"tokens", facts.tokenizer.kind()}};
}

Job open_sequence_job(const Asked& asked) {
  const auto training = placed(sequence_training(asked.words, asked.common), asked);
  const std::string folder = data_folder(asked.words.at("data"));
  const std::string& kind = asked.words.at("tokenizer");
  if (kind == "pairs" || kind == "pieces")
    throw Misuse(fmt::format("--tokenizer {} is for text; sequences have words or bytes", kind));
  const auto facts = train::sequence_facts(folder, kind);
  const auto train = std::make_shared<const train::SequenceSet>(
      train::open_sequences(folder, data::Split::train, facts));
  const auto valid = std::make_shared<const train::SequenceSet>(
      train::open_sequences(folder, split_of(asked.words.at("split")), facts));
  keep(facts.tokenizer, asked);
  Job job{{{"train", train->samples.size()}, {"valid", valid->samples.size()}}, {}};
  job.data.update(sequence_json(facts));
  job.train = [=](const train::Told& told) {
    return train::train_sequences(training, facts, *train, *valid, told);
  };
  return job;
}

}  // namespace

train::SequenceFacts sequence_facts_of(const Asked& asked, const Json& data) {
  train::SequenceFacts facts{.vocabulary = count_in(asked.run, data, "vocabulary"),
                             .channels = count_in(asked.run, data, "channels"),
                             .longest = count_in(asked.run, data, "longest")};
  try {
    facts.classes = data.at("classes").get<std::vector<std::string>>();
    facts.mean = data.at("mean").get<std::vector<float>>();
    facts.deviation = data.at("deviation").get<std::vector<float>>();
    facts.tokenizer = train::Tokenizer::load(data.at("tokens").get<std::string>(), asked.run);
  } catch (const Json::exception& fault) {
    throw FileError(fmt::format("{}/config.json: {}", shown(asked.run), shown(fault.what())));
  }
  if (facts.channels == 0) check_vocabulary(asked.run, facts.tokenizer.size(), facts.vocabulary);
  return facts;
}

namespace {

Scores judge_sequences(const Asked& asked, const Json& data, const std::string& weights) {
  const train::SequenceFacts facts = sequence_facts_of(asked, data);
  const auto set = train::open_sequences(data_folder(asked.words.at("data")),
                                         split_of(asked.words.at("split")), facts);
  return train::evaluate_sequences(sequence_training(asked.words, asked.common), weights, facts,
                                   set);
}

std::string accuracy_text(const Scores& scores) {
  return fmt::format("accuracy {:.2f} %, loss {:.4f}", 100 * scores.at("accuracy"),
                     scores.at("valid_loss"));
}

Job open_segment_job(const Asked& asked) {
  const auto training = placed(segment_training(asked.words, asked.common), asked);
  const OwnImages images = own_images(asked);
  Job job{images.facts, {}};
  job.train = [=](const train::Told& told) {
    return train::train_segments(training, images.train, images.valid, told);
  };
  return job;
}

Scores judge_segments(const Asked& asked, const Json& data, const std::string& weights) {
  return train::evaluate_segments(segment_training(asked.words, asked.common), weights,
                                  facts_in(asked.run, data), images_of(data, asked.words));
}

std::string segment_text(const Scores& scores) {
  return fmt::format("mIoU {:.2f} %, pixels {:.2f} %, mean of classes {:.2f} %",
                     100 * scores.at("miou"), 100 * scores.at("pixel_accuracy"),
                     100 * scores.at("mean_accuracy"));
}

/// The passes, and what they go over.
template <class Kept>
train::Passes keeping(std::shared_ptr<Kept> kept, train::Passes passes) {
  passes.run = [kept, run = std::move(passes.run)](std::span<const std::int64_t> which) {
    run(which);
  };
  return passes;
}

train::Passes look_at_images(const Asked& asked, const Json& data, const std::string& weights) {
  const train::ImageTraining training = image_training(asked.words, asked.common);
  return train::passes_of(training.model, weights, facts_in(asked.run, data),
                          images_of(data, asked.words), training.input);
}

train::Passes look_at_text(const Asked& asked, const Json& data, const std::string& weights) {
  const train::Tokenizer tokenizer = tokenizer_of(asked.run, {"text", asked.words, data});
  const auto text = std::make_shared<const train::TokenText>(open_text(tokenizer, asked.words));
  return keeping(
      text, train::passes_of(text_training(asked.words, asked.common), weights, tokenizer, *text));
}

train::Passes look_at_sequences(const Asked& asked, const Json& data, const std::string& weights) {
  const train::SequenceFacts facts = sequence_facts_of(asked, data);
  const auto set = std::make_shared<const train::SequenceSet>(train::open_sequences(
      data_folder(asked.words.at("data")), split_of(asked.words.at("split")), facts));
  return keeping(
      set, train::passes_of(sequence_training(asked.words, asked.common), weights, facts, *set));
}

train::Passes look_at_segments(const Asked& asked, const Json& data, const std::string& weights) {
  return train::passes_of(segment_training(asked.words, asked.common), weights,
                          facts_in(asked.run, data), images_of(data, asked.words));
}

}  // namespace

const TaskKind& task_of(std::string_view name) {
  static constexpr TaskKind tasks[] = {
      {"images", "images", open_image_job, judge_images, image_text, look_at_images},
      {"text", "tokens", open_text_job, judge_text, perplexity_text, look_at_text},
      {"sequences", "sequences", open_sequence_job, judge_sequences, accuracy_text,
       look_at_sequences},
      {"segments", "images", open_segment_job, judge_segments, segment_text, look_at_segments},
  };
  return *std::find_if(std::begin(tasks), std::end(tasks),
                       [&](const TaskKind& task) { return task.name == name; });
}

std::string weights_of(const std::string& run, bool ema) {
  const std::string folder = train::last_checkpoint(run);
  if (folder.empty()) throw FileError(fmt::format("{}: has no whole checkpoint", shown(run)));
  const std::string file = folder + (ema ? "/ema.safetensors" : "/model.safetensors");
  if (!fs::is_regular_file(file))
    throw FileError(fmt::format("{}: is not there; the run keeps no average (--ema)", file));
  return file;
}

train::Tokenizer tokenizer_of(const std::string& run, const RunConfig& config) {
  const train::Tokenizer tokenizer = train::Tokenizer::load(config.words.at("tokenizer"), run);
  check_vocabulary(run, tokenizer.size(), count_in(run, config.data, "vocabulary"));
  return tokenizer;
}

}  // namespace foci::cli
