// SPDX-License-Identifier: Apache-2.0
// Weights to begin with, from whichever file: Hugging Face's GPT-2, llama2.c's model as it is or
// converted, foci's own. All but the last say what shape their model has.
#include "train/text_weights.hpp"

#include <foci/safetensors.hpp>
#include <foci/train_text.hpp>

#include <cmath>
#include <filesystem>
#include <limits>

namespace foci::train {
namespace {

/// foci's names without the heads, which a run's config.json has.
bool is_of_a_run(const std::string& path) {
  if (path.ends_with(".bin") || std::filesystem::is_directory(path)) return false;
  const Safetensors file(path);
  return file.contains("embed.weight") && !file.metadata().contains("heads");
}

models::Language read_any(const std::string& path) {
  if (path.ends_with(".bin")) return models::language_of(data::read_llama2c(path));
  return models::read_language(path);
}

/// The ratio of which a model makes so many hidden numbers.
double ratio_of(std::int64_t hidden, std::int64_t dim) {
  double ratio = double(hidden) / double(dim);
  while (std::int64_t(double(dim) * ratio) < hidden)
    ratio = std::nextafter(ratio, std::numeric_limits<double>::infinity());
  return ratio;
}

}  // namespace

TextWeights text_weights(const std::string& path) {
  if (is_of_a_run(path)) return {.vocabulary = 0, .model = {.name = ""}};
  const models::LanguageOptions o = read_any(path)->options();
  const bool rotary = o.positions == models::Positions::rotary;
  const std::int64_t hidden = o.hidden == 0 ? 4 * o.dim : o.hidden;
  return {.vocabulary = o.vocabulary,
          .model = {.name = rotary ? "stories260k" : "gpt2",
                    .context = o.context,
                    .dim = o.dim,
                    .depth = o.depth,
                    .heads = o.heads,
                    .kv_heads = o.kv_heads == 0 ? o.heads : o.kv_heads,
                    .mlp_ratio = ratio_of(hidden, o.dim),
                    .positions = rotary ? "rotary" : "learned"}};
}

void load_text_weights(models::Language& model, const std::string& path) {
  if (is_of_a_run(path)) return models::load_plain(*model, path);
  models::Language read = read_any(path);
  models::begin_with(model, read, path);
}

}  // namespace foci::train
