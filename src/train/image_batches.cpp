// SPDX-License-Identifier: Apache-2.0
// Batches of images. What is random in a sample hangs on seed, epoch and sample, what is random in
// a batch on seed, epoch and batch.
#include "train/image_batches.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace foci::train {
namespace {

using data::Image;
using data::Random;

constexpr std::uint64_t mix_stream = 0x313;

/// Moved down and to the right, black where nothing came.
Image shifted(const Image& image, int down, int right) {
  Image moved(image.height, image.width, image.channels);
  const int from = std::max(0, -right), to = std::min(image.width, image.width - right);
  for (int y = std::max(0, down); y < std::min(image.height, image.height + down); ++y) {
    std::memcpy(moved.at(y, from + right), image.at(y - down, from),
                std::size_t(to - from) * std::size_t(image.channels));
  }
  return moved;
}

data::ImagePlan plan_of(const ImageFacts& facts, std::int64_t side, double crop_share) {
  data::ImagePlan plan;
  plan.size = int(side);
  plan.crop_share = crop_share;
  plan.mean = facts.mean;
  plan.deviation = facts.deviation;
  return plan;
}

/// One image of a training batch into (C,S,S).
void prepare(float* to, const Image& image, const data::ImagePlan& plan, const Augmentation& a,
             Random& random) {
  if (a.how == Augment::deit) return data::prepare_training(to, image, plan, random);
  const Image whole = data::resize_shorter(image, plan.size, data::Filter::bicubic);
  Image out = data::center_crop(whole, plan.size, plan.size);
  if (a.how == Augment::shift) {
    const auto by = [&] { return int(random.between(-a.shift, a.shift)); };
    const int down = by(), right = by();
    if (down != 0 || right != 0) out = shifted(out, down, right);
    if (random.chance(a.flip)) out = data::flip(out);
  }
  data::normalize(to, out, plan.mean, plan.deviation);
}

Tensor room_for(std::size_t count, const ImageFacts& facts, std::int64_t side) {
  return Tensor(DType::f32, {std::int64_t(count), facts.channels, side, side});
}

/// A batch's rows that a share needs: its own, and those that mixing joins them with, which lie as
/// far from the other end.
std::vector<std::int64_t> rows_of(const Range& own, std::int64_t count, bool mixed) {
  std::vector<std::int64_t> rows;
  for (std::int64_t row = 0; row < count; ++row) {
    const std::int64_t other = count - 1 - row;
    const bool mine = own.first <= row && row < own.end;
    if (mine || (mixed && own.first <= other && other < own.end)) rows.push_back(row);
  }
  return rows;
}

/// Rows [first, end) alone.
Tensor cut(Tensor tensor, const Range& rows) {
  const View view = tensor.view();
  if (rows.count() == view.shape[0]) return tensor;
  Shape shape(view.sizes().begin(), view.sizes().end());
  const std::int64_t size = view.count() / shape[0];
  shape[0] = rows.count();
  Tensor part(DType::f32, shape);
  std::copy_n(tensor.data<float>() + rows.first * size, rows.count() * size, part.data<float>());
  return part;
}

}  // namespace

data::Image checked_image(const data::ImageSet& set, std::int64_t index, const ImageFacts& facts) {
  Image image = set.image(index);
  if (image.channels == facts.channels) return image;
  throw FileError(fmt::format("{}: has {} channels; the images before it have {}", set.name(index),
                              image.channels, facts.channels));
}

ImageFacts facts_of(const data::ImageSet& set) {
  const Image first = set.image(0);
  const auto channels = std::size_t(first.channels);
  const std::int64_t most = set.pixels() ? 10000 : 1000;
  const std::int64_t step = std::max<std::int64_t>(1, set.size() / most);
  ImageFacts facts{.channels = first.channels,
                   .classes = std::int64_t(set.classes().size()),
                   .side = std::min(first.height, first.width)};
  std::vector<double> sum(channels), squares(channels);
  double count = 0;
  for (std::int64_t i = 0; i < set.size(); i += step) {
    const Image image = checked_image(set, i, facts);
    for (std::size_t p = 0; p < image.pixels.size(); ++p) {
      const double x = image.pixels[p] / 255.0;
      sum[p % channels] += x;
      squares[p % channels] += x * x;
    }
    count += double(image.pixels.size() / channels);
  }
  for (std::size_t c = 0; c < channels; ++c) {
    const double mean = sum[c] / count, variance = squares[c] / count - mean * mean;
    facts.mean.push_back(float(mean));
    facts.deviation.push_back(float(std::sqrt(std::max(variance, 1e-6))));
  }
  return facts;
}

void check_labels(const data::ImageSet& set, const ImageFacts& facts) {
  if (set.has_masks())
    throw InvalidArgument("the set has masks; a classifier needs a class for every image");
  for (std::int64_t i = 0; i < set.size(); ++i) {
    const int label = set.label(i);
    if (label >= 0 && label < facts.classes) continue;
    throw FileError(fmt::format("{}: has label {}; the training set has {} classes", set.name(i),
                                label, facts.classes));
  }
}

std::unique_ptr<data::Loader> training_batches(const data::ImageSet& set, const ImageFacts& facts,
                                               std::int64_t side, const ImageTraining& training,
                                               std::int64_t first, const Share& share) {
  const Augmentation a = training.augmentation;
  const std::uint64_t seed = training.run.seed;
  data::ImagePlan plan = plan_of(facts, side, 1);
  plan.range.least_area = a.area;
  plan.flip = a.flip;
  plan.jitter = a.jitter;
  plan.augment = a.magnitude > 0;
  plan.rand_augment.magnitude = a.magnitude;
  plan.erasing.probability = a.erasing;
  const data::Mixing mixing{.mixup = a.mixup,
                            .cutmix = a.cutmix,
                            .probability = a.mixup > 0 || a.cutmix > 0 ? 1.0 : 0.0,
                            .smoothing = a.smoothing};
  const auto fill = [=](data::Batch& batch) {
    const std::int64_t size = facts.channels * side * side;
    const auto epoch = std::uint64_t(batch.position.epoch);
    Random chance(seed + mix_stream, epoch, std::uint64_t(batch.position.batch));
    const data::Mix mix = data::draw_mix(mixing, int(side), int(side), chance);
    const Range own = share.of(std::int64_t(batch.samples.size()));
    const auto rows = rows_of(own, std::int64_t(batch.samples.size()), mix.share != 1);
    Tensor images = room_for(rows.size(), facts, side);
    std::vector<int> labels;
    for (const std::int64_t row : rows) {
      const std::int64_t sample = batch.samples[std::size_t(row)];
      const std::int64_t place = batch.position.batch * std::int64_t(batch.samples.size()) + row;
      Random random(seed, epoch + (std::uint64_t(place % a.repeats) << 32), std::uint64_t(sample));
      float* to = images.data<float>() + std::int64_t(labels.size()) * size;
      prepare(to, checked_image(set, sample, facts), plan, a, random);
      labels.push_back(set.label(sample));
    }
    data::apply_mix(images, mix);
    const std::int64_t before =
        std::lower_bound(rows.begin(), rows.end(), own.first) - rows.begin();
    const Range mine{before, before + own.count()};
    batch.inputs = cut(std::move(images), mine);
    batch.targets = cut(data::mixed_targets(labels, int(facts.classes), mixing, mix), mine);
  };
  const std::int64_t per_epoch = std::max<std::int64_t>(1, set.size() / training.input.batch);
  return std::make_unique<data::Loader>(
      set.size(), fill,
      data::LoaderOptions{.batch = training.input.batch,
                          .threads = training.input.workers,
                          .ahead = 2 * training.input.workers + 2,
                          .seed = seed,
                          .start = {first / per_epoch, first % per_epoch},
                          .repeats = a.repeats});
}

std::unique_ptr<data::Loader> judged_batches(const data::ImageSet& set, const ImageFacts& facts,
                                             std::int64_t side, const ImageInput& input,
                                             const Share& share) {
  const Range own = share.of(set.size());
  if (own.count() == 0) return nullptr;
  const data::ImagePlan plan = plan_of(facts, side, input.crop_share);
  const auto fill = [=](data::Batch& batch) {
    batch.inputs = room_for(batch.samples.size(), facts, side);
    batch.targets = Tensor(DType::i64, {std::int64_t(batch.samples.size())});
    for (std::size_t i = 0; i < batch.samples.size(); ++i) {
      const std::int64_t sample = own.first + batch.samples[i];
      float* to = batch.inputs.data<float>() + std::int64_t(i) * facts.channels * side * side;
      data::prepare_evaluation(to, checked_image(set, sample, facts), plan);
      batch.targets.data<std::int64_t>()[i] = set.label(sample);
    }
  };
  return std::make_unique<data::Loader>(own.count(), fill,
                                        data::LoaderOptions{.batch = input.batch,
                                                            .threads = input.workers,
                                                            .order = data::Order::as_it_is,
                                                            .last = data::Last::kept,
                                                            .start = {}});
}

}  // namespace foci::train
