// SPDX-License-Identifier: Apache-2.0
// From the words of a run to what the library is told.
#include "cli/run_words.hpp"
#include "cli/suggest.hpp"

#include <algorithm>

namespace foci::cli {
namespace {

double number(const Words& words, const char* flag) { return to_number(words.at(flag)); }
std::int64_t count(const Words& words, const char* flag) { return to_count(words.at(flag)); }

/// What the layers attend with, in the library's names.
Settings mechanism_in(const Words& words) {
  Settings settings{{"metric", words.at("metric")}, {"weighting", words.at("weighting")}};
  for (const auto& [flag, text] : words) {
    if (!is_of_mechanism(flag)) continue;
    std::string name = flag == "running-momentum" ? "momentum" : flag;
    std::replace(name.begin(), name.end(), '-', '_');
    settings[name] = text;
  }
  if (words.at("metric") == "random") settings["seed"] = words.at("seed");
  return settings;
}

/// The layers that have the metric: first, and one past the last.
struct Layers {
  std::int64_t first = 0, last = -1;
};
Layers layers_of(const Words& words) {
  const auto ends = split(words.at("metric-layers"), ':');
  return {ends[0].empty() ? 0 : to_count(ends[0]), ends[1].empty() ? -1 : to_count(ends[1])};
}

train::ImageModel image_model(const Words& words) {
  const Layers layers = layers_of(words);
  return {.name = words.at("model"),
          .image = count(words, "image"),
          .patch = count(words, "patch"),
          .dim = count(words, "dim"),
          .depth = count(words, "depth"),
          .heads = count(words, "heads"),
          .mlp_ratio = number(words, "mlp-ratio"),
          .drop_path = number(words, "drop-path"),
          .mechanism = mechanism_in(words),
          .first_layer = layers.first,
          .last_layer = layers.last};
}

train::Augmentation augmentation_of(const Words& words) {
  const std::string& how = words.at("augment");
  return {.how = how == "none"    ? train::Augment::none
                 : how == "shift" ? train::Augment::shift
                                  : train::Augment::deit,
          .shift = int(count(words, "shift")),
          .flip = number(words, "flip"),
          .area = number(words, "area"),
          .magnitude = number(words, "magnitude"),
          .erasing = number(words, "erasing"),
          .jitter = number(words, "jitter"),
          .mixup = number(words, "mixup"),
          .cutmix = number(words, "cutmix"),
          .smoothing = number(words, "label-smoothing"),
          .repeats = count(words, "repeats")};
}

train::Schedule schedule_of(const Words& words) {
  const std::string& course = words.at("schedule");
  return {.rate = number(words, "learning-rate"),
          .last = number(words, "last-rate"),
          .warmup = count(words, "warmup"),
          .start = number(words, "first-rate"),
          .steps = count(words, "steps"),
          .course = course == "cosine" ? train::Course::cosine
                    : course == "poly" ? train::Course::poly
                                       : train::Course::constant,
          .power = number(words, "power")};
}

train::OptimizerOptions optimizer_of(const Words& words) {
  const bool sgd = words.at("optimizer") == "sgd";
  return {.algorithm = sgd ? train::Algorithm::sgd : train::Algorithm::adamw,
          .weight_decay = number(words, "weight-decay"),
          .beta1 = number(words, "beta1"),
          .beta2 = number(words, "beta2"),
          .epsilon = number(words, "epsilon"),
          .momentum = number(words, "momentum")};
}

train::RunOptions run_of(const Words& words) {
  train::RunOptions run;
  run.seed = std::uint64_t(count(words, "seed"));
  run.accumulate = count(words, "accumulate");
  run.bf16 = words.at("precision") == "bf16";
  run.evaluate_every = count(words, "evaluate-every");
  run.save_every = count(words, "save-every");
  run.keep = int(count(words, "keep"));
  run.optimizer = optimizer_of(words);
  run.schedule = schedule_of(words);
  run.clip = number(words, "clip");
  run.ema = number(words, "ema");
  return run;
}

train::Place place_of(const Common& common) {
  return {.threads = common.threads, .device = common.cuda ? "cuda" : "cpu"};
}

train::TextModel text_model(const Words& words) {
  const Layers layers = layers_of(words);
  return {.name = words.at("model"),
          .context = count(words, "context"),
          .dim = count(words, "dim"),
          .depth = count(words, "depth"),
          .heads = count(words, "heads"),
          .kv_heads = count(words, "kv-heads"),
          .mlp_ratio = number(words, "mlp-ratio"),
          .dropout = number(words, "dropout"),
          .head_dropout = number(words, "head-dropout"),
          .positions = words.at("positions"),
          .mechanism = mechanism_in(words),
          .first_layer = layers.first,
          .last_layer = layers.last};
}

train::SequenceModel sequence_model(const Words& words) {
  const Layers layers = layers_of(words);
  return {.name = words.at("model"),
          .length = count(words, "length"),
          .dim = count(words, "dim"),
          .depth = count(words, "depth"),
          .heads = count(words, "heads"),
          .mlp_ratio = number(words, "mlp-ratio"),
          .dropout = number(words, "dropout"),
          .drop_path = number(words, "drop-path"),
          .mechanism = mechanism_in(words),
          .first_layer = layers.first,
          .last_layer = layers.last};
}

}  // namespace

train::ImageTraining image_training(const Words& words, const Common& common) {
  return {.model = image_model(words),
          .augmentation = augmentation_of(words),
          .input = {.batch = count(words, "batch"),
                    .crop_share = number(words, "crop-share"),
                    .workers = int(count(words, "workers")),
                    .place = place_of(common)},
          .epochs = count(words, "epochs"),
          .weights = words.at("weights"),
          .run = run_of(words)};
}

train::TextTraining text_training(const Words& words, const Common& common) {
  return {.model = text_model(words),
          .batch = count(words, "batch"),
          .stride = count(words, "stride"),
          .sample = count(words, "sample"),
          .epochs = count(words, "epochs"),
          .weights = words.at("weights"),
          .place = place_of(common),
          .run = run_of(words)};
}

train::SequenceTraining sequence_training(const Words& words, const Common& common) {
  return {.model = sequence_model(words),
          .batch = count(words, "batch"),
          .epochs = count(words, "epochs"),
          .weights = words.at("weights"),
          .place = place_of(common),
          .run = run_of(words)};
}

train::SegmentTraining segment_training(const Words& words, const Common& common) {
  return {.model = image_model(words),
          .change = {.least = number(words, "least-size"),
                     .most = number(words, "most-size"),
                     .flip = number(words, "flip")},
          .batch = count(words, "batch"),
          .shorter = count(words, "shorter"),
          .stride = count(words, "stride"),
          .workers = int(count(words, "workers")),
          .epochs = count(words, "epochs"),
          .weights = words.at("weights"),
          .place = place_of(common),
          .run = run_of(words)};
}

}  // namespace foci::cli
