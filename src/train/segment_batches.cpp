// SPDX-License-Identifier: Apache-2.0
// What is random in a window hangs on seed, epoch and sample.
#include "train/segment_batches.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <mutex>
#include <vector>

namespace foci::train {
namespace {

using data::Image;
using data::Random;

struct Pair {
  Image image, mask;
};

Pair read_pair(const data::ImageSet& set, std::int64_t index, const ImageFacts& facts) {
  Pair pair{set.image(index), set.mask(index)};
  if (pair.image.channels != facts.channels) {
    throw FileError(fmt::format("{}: has {} channels; the images before it have {}",
                                set.name(index), pair.image.channels, facts.channels));
  }
  check_sizes(set, index, pair.image, pair.mask);
  return pair;
}

/// The pairs of a set. A small one stays in memory: decoding takes longer than a step.
class Pairs {
 public:
  Pairs(const data::ImageSet& set, const ImageFacts& facts) : set_(set), facts_(facts) {
    const Image first = set.image(0);
    const auto bytes = std::int64_t(first.pixels.size()) / first.channels * (first.channels + 1);
    if (set.size() * bytes > most_bytes) return;
    read_ = std::vector<std::once_flag>(std::size_t(set.size()));
    kept_.resize(read_.size());
  }
  Pair at(std::int64_t index) {
    if (kept_.empty()) return read_pair(set_, index, facts_);
    const auto i = std::size_t(index);
    std::call_once(read_[i], [&] { kept_[i] = read_pair(set_, index, facts_); });
    return kept_[i];
  }

 private:
  static constexpr std::int64_t most_bytes = std::int64_t(1) << 30;
  data::ImageSet set_;
  ImageFacts facts_;
  std::vector<std::once_flag> read_;
  std::vector<Pair> kept_;
};

/// Both by the same factor; classes are never mixed.
Pair resized(const Pair& pair, double factor) {
  const auto by = [&](int size) { return std::max(1, int(std::lround(size * factor))); };
  const int height = by(pair.image.height), width = by(pair.image.width);
  return {data::resize(pair.image, height, width, data::Filter::bilinear),
          data::resize(pair.mask, height, width, data::Filter::nearest)};
}

double factor_of(const Image& image, std::int64_t shorter) {
  return shorter == 0 ? 1.0 : double(shorter) / double(std::min(image.height, image.width));
}

/// A window anywhere into (C,S,S) and (S,S), both filled with what does not count.
void cut_window(float* to, std::int64_t* classes, const Pair& pair, const ImageFacts& facts,
                int side, Random& random) {
  const int height = std::min(side, pair.image.height), width = std::min(side, pair.image.width);
  const data::Box box{int(random.between(0, pair.image.height - height)),
                      int(random.between(0, pair.image.width - width)), height, width};
  const Image image = data::crop(pair.image, box), mask = data::crop(pair.mask, box);
  std::vector<float> values(image.pixels.size());
  data::normalize(values.data(), image, facts.mean, facts.deviation);
  for (int c = 0; c < image.channels; ++c) {
    for (int y = 0; y < height; ++y)
      std::copy_n(values.data() + (c * height + y) * width, width, to + (c * side + y) * side);
  }
  for (int y = 0; y < height; ++y) std::copy_n(mask.at(y, 0), width, classes + y * side);
}

}  // namespace

void check_sizes(const data::ImageSet& set, std::int64_t index, const Image& image,
                 const Image& mask) {
  if (image.height == mask.height && image.width == mask.width) return;
  throw FileError(
      fmt::format("{}: has {} x {} pixels and its mask {} x {}; both must have the same",
                  set.name(index), image.width, image.height, mask.width, mask.height));
}

void check_masks(const data::ImageSet& set, const ImageFacts& facts) {
  if (!set.has_masks()) {
    throw InvalidArgument(
        "the set has classes of images; segments needs a mask for every image, as in CamVid's or "
        "ADE20K's folders");
  }
  const auto classes = std::int64_t(set.classes().size());
  if (classes == facts.classes) return;
  throw InvalidArgument(
      fmt::format("masks of {} classes; the training set has {}", classes, facts.classes));
}

std::unique_ptr<data::Loader> window_batches(const data::ImageSet& set, const ImageFacts& facts,
                                             std::int64_t side, const SegmentTraining& training,
                                             std::int64_t first, const Share& share) {
  const PairChange change = training.change;
  if (!(change.least > 0 && change.least <= change.most)) {
    throw InvalidArgument(fmt::format("sizes from {:g} to {:g}; it must be 0 < least <= most",
                                      change.least, change.most));
  }
  const std::uint64_t seed = training.run.seed;
  const std::int64_t shorter = training.shorter;
  const auto pairs = std::make_shared<Pairs>(set, facts);
  const auto fill = [=](data::Batch& batch) {
    const Range own = share.of(std::int64_t(batch.samples.size()));
    const std::int64_t count = own.count();
    batch.inputs = Tensor(DType::f32, {count, facts.channels, side, side});
    batch.targets = Tensor(DType::i64, {count, side, side});
    std::fill_n(batch.inputs.data<float>(), count * facts.channels * side * side, 0.0f);
    std::fill_n(batch.targets.data<std::int64_t>(), count * side * side, data::ignored);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t sample = batch.samples[std::size_t(own.first + i)];
      Random random(seed, std::uint64_t(batch.position.epoch), std::uint64_t(sample));
      Pair pair = pairs->at(sample);
      const double size = random.uniform(change.least, change.most);
      pair = resized(pair, size * factor_of(pair.image, shorter));
      if (random.chance(change.flip)) pair = {data::flip(pair.image), data::flip(pair.mask)};
      cut_window(batch.inputs.data<float>() + i * facts.channels * side * side,
                 batch.targets.data<std::int64_t>() + i * side * side, pair, facts, int(side),
                 random);
    }
  };
  const std::int64_t per_epoch = std::max<std::int64_t>(1, set.size() / training.batch);
  return std::make_unique<data::Loader>(
      set.size(), fill,
      data::LoaderOptions{.batch = training.batch,
                          .threads = training.workers,
                          .ahead = 2 * training.workers + 2,
                          .seed = seed,
                          .start = {first / per_epoch, first % per_epoch}});
}

JudgedImage judged_image(Image image, const ImageFacts& facts, std::int64_t shorter) {
  if (shorter > 0) image = data::resize_shorter(image, int(shorter), data::Filter::bilinear);
  JudgedImage judged{image.height, image.width, std::vector<float>(image.pixels.size())};
  data::normalize(judged.values.data(), image, facts.mean, facts.deviation);
  return judged;
}

}  // namespace foci::train
