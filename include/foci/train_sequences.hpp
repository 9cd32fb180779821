// SPDX-License-Identifier: Apache-2.0
// Training and judging classifiers of sequences, said in plain numbers and names: labelled text,
// the pixels of images, time series. No torch.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>
#include <foci/run.hpp>
#include <foci/settings.hpp>
#include <foci/train_text.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace foci::train {

/// Tokens, or values (length, channels), with a class.
struct Sequence {
  std::int32_t label = 0;
  std::int64_t length = 0;
  data::Tokens tokens = {};
  std::vector<float> values = {};
};

struct SequenceSet {
  std::string name = {};  ///< for messages
  std::vector<Sequence> samples = {};
};

/// What a model must know of its data; of the training set.
struct SequenceFacts {
  std::vector<std::string> classes = {};
  std::int64_t vocabulary = 0, channels = 0;     ///< one of them is 0
  std::int64_t longest = 0;                      ///< tokens or steps
  std::vector<float> mean = {}, deviation = {};  ///< a channel of steps
  Tokenizer tokenizer = {};                      ///< of text
};

/// A folder with train.tsv, with NAME_TRAIN.ts, or with images whose grey pixels are the tokens.
/// `tokenizer` is words, whose vocabulary is that of the texts, or bytes. Throws FileError.
FOCI_API SequenceFacts sequence_facts(const std::string& folder, const std::string& tokenizer);
/// A split of it, with the classes, tokens and scale of the training set. Throws FileError.
FOCI_API SequenceSet open_sequences(const std::string& folder, data::Split split,
                                    const SequenceFacts& facts);

/// One that models::listed() names, changed where a number is not 0.
struct SequenceModel {
  std::string name = {};    ///< empty: lra_small, series_small
  std::int64_t length = 0;  ///< what is longer is cut; 0: the data's, of tokens at most the model's
  std::int64_t dim = 0, depth = 0, heads = 0;
  double mlp_ratio = 0, dropout = 0, drop_path = 0;
  Settings mechanism = {};  ///< models::Mechanism
  std::int64_t first_layer = 0, last_layer = -1;
};

struct SequenceTraining {
  SequenceModel model = {};
  std::int64_t batch = 32;
  std::int64_t epochs = 10;
  std::string weights = {};  ///< a plain checkpoint to begin with, models::load_plain
  Place place = {};
  RunOptions run = {};  ///< steps, save_every and evaluate_every of 0 follow from the epoch
};

/// Scores: accuracy, valid_loss.
FOCI_API Outcome train_sequences(const SequenceTraining& training, const SequenceFacts& facts,
                                 const SequenceSet& train, const SequenceSet& valid,
                                 const Told& told = {});

/// The weights of a checkpoint over a whole set: the same, and count.
FOCI_API Scores evaluate_sequences(const SequenceTraining& training, const std::string& weights,
                                   const SequenceFacts& facts, const SequenceSet& set);

}  // namespace foci::train
