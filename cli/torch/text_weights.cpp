// SPDX-License-Identifier: Apache-2.0
// Shape and tokenizer of the weights that a run over text begins with, as the flags of the run: so
// config.json has them, and nothing but the run's folder is needed later.
#include "cli/torch/text_weights.hpp"

#include "cli/misuse.hpp"
#include "cli/suggest.hpp"

#include <fmt/core.h>

#include <filesystem>

namespace foci::cli {
namespace {

namespace fs = std::filesystem;

/// Flags that are typed stay as they are.
class Followed {
 public:
  Followed(Words& words, const Words& typed) : words_(words), typed_(typed) {}
  bool is_typed(const char* flag) const { return typed_.count(flag) > 0; }
  void set(const char* flag, const std::string& text) {
    if (!is_typed(flag)) words_[flag] = text;
  }
  void set(const char* flag, std::int64_t count) { set(flag, std::to_string(count)); }

 private:
  Words& words_;
  const Words& typed_;
};

void follow_shape(Followed& words, const train::TextModel& model, std::int64_t context) {
  words.set("model", model.name);
  words.set("dim", model.dim);
  words.set("depth", model.depth);
  words.set("heads", model.heads);
  words.set("kv-heads", model.kv_heads);
  words.set("mlp-ratio", fmt::format("{}", model.mlp_ratio));
  words.set("positions", model.positions);
  if (context == 0 || context > model.context) words.set("context", model.context);
}

void follow_pieces(Followed& words, const std::string& weights, std::int64_t vocabulary) {
  words.set("tokenizer", "pieces");
  const std::string own = fmt::format("tok{}.bin", vocabulary);
  const std::string path =
      first_in(fs::path(weights).parent_path().string(), {"tokenizer.bin", own});
  if (path.empty() && !words.is_typed("pieces")) {
    throw Misuse(fmt::format("{}: neither tokenizer.bin nor {} is beside it", shown(weights), own),
                 "--pieces FILE names the tokenizer of these weights");
  }
  words.set("pieces", path);
}

void follow_pairs(Followed& words, const std::string& weights) {
  words.set("tokenizer", "pairs");
  const fs::path at = weights;
  const std::string folder = (fs::is_directory(at) ? at : at.parent_path()).string();
  const bool there = !first_in(folder, {"encoder.json", "vocab.json"}).empty() &&
                     !first_in(folder, {"vocab.bpe", "merges.txt"}).empty();
  if (!there && !words.is_typed("pairs")) {
    throw Misuse(fmt::format("{}: no encoder.json and vocab.bpe (nor vocab.json and merges.txt) "
                             "are with it",
                             shown(weights)),
                 "--pairs FOLDER names the tokenizer of these weights");
  }
  words.set("pairs", folder.empty() ? "." : folder);
}

}  // namespace

std::string first_in(const std::string& folder, std::initializer_list<std::string> names) {
  for (const std::string& name : names) {
    if (fs::exists(fs::path(folder) / name)) return (fs::path(folder) / name).string();
  }
  return {};
}

Words following_weights(Words words, const Words& typed) {
  const std::string weights = words.at("weights");
  if (weights.empty()) return words;
  const train::TextWeights found = train::text_weights(weights);
  if (found.model.name.empty()) return words;
  Followed followed(words, typed);
  follow_shape(followed, found.model, to_count(words.at("context")));
  if (followed.is_typed("tokenizer")) return words;
  if (found.model.positions == "rotary") {
    follow_pieces(followed, weights, found.vocabulary);
  } else {
    follow_pairs(followed, weights);
  }
  return words;
}

}  // namespace foci::cli
