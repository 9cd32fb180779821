// SPDX-License-Identifier: Apache-2.0
// A trained model going over samples of its data, for whoever looks inside it meanwhile. No torch.
#pragma once

#include <foci/classify.hpp>
#include <foci/train_segments.hpp>
#include <foci/train_sequences.hpp>
#include <foci/train_text.hpp>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace foci::train {

/// Where a layer's tokens stand: `leading` ones nowhere, then height x width patches, then others
/// nowhere. height 0: all in a line.
struct Standing {
  std::int64_t leading = 0, height = 0, width = 0;
};

struct Passes {
  std::int64_t samples = 0;  ///< that there are
  /// These samples, once, in evaluation mode and without gradients. Heads for classes or words are
  /// left out where they can be.
  std::function<void(std::span<const std::int64_t> which)> run = {};
  std::vector<Standing> standing = {};  ///< a layer; the last one is for those above too
};

/// The weights of a checkpoint over a set, which must outlive the passes. Samples are images; of a
/// segmenter each one's middle, as large as a window; sequences; windows of a text side by side.
FOCI_API Passes passes_of(const ImageModel& model, const std::string& weights,
                          const ImageFacts& facts, const data::ImageSet& set,
                          const ImageInput& input);
FOCI_API Passes passes_of(const SegmentTraining& training, const std::string& weights,
                          const ImageFacts& facts, const data::ImageSet& set);
FOCI_API Passes passes_of(const SequenceTraining& training, const std::string& weights,
                          const SequenceFacts& facts, const SequenceSet& set);
FOCI_API Passes passes_of(const TextTraining& training, const std::string& weights,
                          const Tokenizer& tokenizer, const TokenText& text);
/// A sample as a segmenter's passes see it: the middle of image and mask, as large as a window.
/// Where the window is larger, the mean colour and `data::ignored` fill it.
struct SeenWindow {
  data::Image image, mask;
};
FOCI_API SeenWindow seen_window(const SegmentTraining& training, const ImageFacts& facts,
                                const data::ImageSet& set, std::int64_t sample);
/// Any language model over a text's tokens, as many at once as its context holds.
FOCI_API Passes passes_of(std::shared_ptr<models::Language> model,
                          std::span<const std::int32_t> tokens);

}  // namespace foci::train
