// SPDX-License-Identifier: Apache-2.0
// Training and judging language models, said in plain numbers and names: text to tokens and back,
// windows of a text to learn from, perplexity over another. No torch.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>
#include <foci/run.hpp>
#include <foci/settings.hpp>
#include <foci/text.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace foci::models {
class Language;
}

namespace foci::train {

/// Text to tokens and back: the words of a training text, GPT-2's byte pairs, llama2.c's pieces, or
/// bytes.
class FOCI_API Tokenizer {
 public:
  Tokenizer();  ///< bytes
  explicit Tokenizer(const data::WordVocabulary& words);
  /// Byte pairs from a folder's encoder.json and vocab.bpe, or vocab.json and merges.txt.
  static Tokenizer pairs(const std::string& folder);
  /// Pieces from llama2.c's tokenizer.bin.
  static Tokenizer pieces(const std::string& path);

  std::string_view kind() const;  ///< words, pairs, pieces, bytes
  std::int64_t size() const;
  data::Tokens encode(std::string_view text) const;
  std::string decode(std::span<const std::int32_t> tokens) const;
  /// vocabulary.txt with a word a line, encoder.json and vocab.bpe, or tokenizer.bin, into the
  /// folder of a run; bytes need none.
  void save(const std::string& folder) const;
  static Tokenizer load(std::string_view kind, const std::string& folder);
  bool operator==(const Tokenizer& other) const;

 private:
  struct Contents;
  std::shared_ptr<const Contents> contents_;
};

/// A split of a folder, as data::find_text has it, or of one file, whose first nine tenths are
/// train, the next twentieth valid and the last one test, cut at ends of lines.
FOCI_API std::string read_split(const std::string& path, data::Split split);

/// The tokens of a text. Throws FileError that names the text when there are fewer than two.
struct FOCI_API TokenText {
  TokenText(const Tokenizer& tokenizer, std::string_view text, std::string name);
  std::string name;
  data::Tokens tokens;
  std::int64_t bytes = 0;
  std::vector<std::uint8_t> left_out = {};  ///< models::perplexity's: tokens that are not judged
};

/// One that models::listed() names, changed where a number is not 0 or a name not empty.
struct TextModel {
  std::string name = "language_micro";
  std::int64_t context = 0;  ///< tokens of a window, in training too
  std::int64_t dim = 0, depth = 0, heads = 0, kv_heads = 0;
  double mlp_ratio = 0, dropout = 0, head_dropout = 0;
  std::string positions = {};  ///< learned, rotary
  Settings mechanism = {};     ///< models::Mechanism
  std::int64_t first_layer = 0, last_layer = -1;
};

/// What a file of weights says of its model: Hugging Face's GPT-2 (a folder or a file beside its
/// config.json), llama2.c's .bin or what foci convert made of it. The weights of a run of foci say
/// nothing: the model's name is empty then.
struct TextWeights {
  std::int64_t vocabulary = 0;
  TextModel model = {};
};
FOCI_API TextWeights text_weights(const std::string& path);

struct TextTraining {
  TextModel model = {};
  std::int64_t batch = 32;
  std::int64_t stride = 0;   ///< of the windows that are judged; 0: a window
  std::int64_t sample = 64;  ///< tokens of text where the model is judged; 0: none
  std::int64_t epochs = 10;
  std::string weights = {};  ///< to begin with, as text_weights() takes them
  Place place = {};
  RunOptions run = {};  ///< steps, save_every and evaluate_every of 0 follow from the epoch
};

/// An epoch cuts the training text into windows, from another place each time, and goes through
/// them in another order. Scores: perplexity, bits_per_byte, valid_loss.
FOCI_API Outcome train_text(const TextTraining& training, const Tokenizer& tokenizer,
                            const TokenText& train, const TokenText& valid, const Told& told = {});

/// The weights of a checkpoint over a whole text: the same scores, and count, of tokens.
FOCI_API Scores evaluate_text(const TextTraining& training, const std::string& weights,
                              const Tokenizer& tokenizer, const TokenText& text);

/// The model of a checkpoint; foci/language.hpp has what can be done with it.
FOCI_API models::Language open_language(const TextModel& model, std::int64_t vocabulary,
                                        const std::string& weights);

}  // namespace foci::train
