// SPDX-License-Identifier: Apache-2.0
// What DeiT does to a training image, in its order: a random crop, a flip, RandAugment (or colour
// jitter), normalising, random erasing; and what every evaluation does.
#include <foci/error.hpp>
#include <foci/image.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::data {

Box random_crop_box(const Image& image, const CropRange& range, Random& random) {
  constexpr int tries = 10;
  const double area = double(image.height) * image.width;
  const double low = std::log(range.least_ratio), high = std::log(range.most_ratio);
  for (int i = 0; i < tries; ++i) {
    const double target = area * random.uniform(range.least_area, range.most_area);
    const double ratio = std::exp(random.uniform(low, high));
    const int width = int(std::nearbyint(std::sqrt(target * ratio)));
    const int height = int(std::nearbyint(std::sqrt(target / ratio)));
    if (width < 1 || height < 1 || width > image.width || height > image.height) continue;
    const int top = int(random.between(0, image.height - height));
    const int left = int(random.between(0, image.width - width));
    return {top, left, height, width};
  }
  // The whole image, as far as the ratio allows.
  const double ratio = double(image.width) / image.height;
  int height = image.height, width = image.width;
  if (ratio < range.least_ratio) height = int(std::nearbyint(width / range.least_ratio));
  if (ratio > range.most_ratio) width = int(std::nearbyint(height * range.most_ratio));
  return {(image.height - height) / 2, (image.width - width) / 2, height, width};
}

Image color_jitter(const Image& image, double strength, Random& random) {
  std::vector<int> order = {0, 1, 2};
  random.shuffle(order);
  Image out = image;
  for (const int operation : order) {
    const double factor = random.uniform(std::max(0.0, 1 - strength), 1 + strength);
    out = operation == 0   ? brightness(out, factor)
          : operation == 1 ? contrast(out, factor)
                           : color(out, factor);
  }
  return out;
}

void random_erasing(float* values, const std::array<int, 3>& shape, const Erasing& how,
                    Random& random) {
  constexpr int tries = 10;
  const auto [channels, height, width] = shape;
  if (!random.chance(how.probability)) return;
  const double area = double(height) * width, low = std::log(how.least_ratio);
  for (int i = 0; i < tries; ++i) {
    const double target = area * random.uniform(how.least_area, how.most_area);
    const double ratio = std::exp(random.uniform(low, -low));
    const int h = int(std::nearbyint(std::sqrt(target * ratio)));
    const int w = int(std::nearbyint(std::sqrt(target / ratio)));
    if (h >= height || w >= width) continue;
    const std::int64_t top = random.between(0, height - h), left = random.between(0, width - w);
    for (int c = 0; c < channels; ++c) {
      for (int y = 0; y < h; ++y) {
        float* row = values + (std::int64_t(c) * height + top + y) * width + left;
        for (int x = 0; x < w; ++x) row[x] = float(random.normal());
      }
    }
    return;
  }
}

void prepare_training(float* to, const Image& image, const ImagePlan& plan, Random& random) {
  Image out = resize(crop(image, random_crop_box(image, plan.range, random)), plan.size, plan.size,
                     Filter::bicubic);
  if (random.chance(plan.flip)) out = flip(out);
  if (plan.jitter > 0) out = color_jitter(out, plan.jitter, random);
  if (plan.augment) out = rand_augment(out, plan.rand_augment, random);
  normalize(to, out, plan.mean, plan.deviation);
  random_erasing(to, {out.channels, plan.size, plan.size}, plan.erasing, random);
}

void prepare_evaluation(float* to, const Image& image, const ImagePlan& plan) {
  if (plan.crop_share <= 0 || plan.crop_share > 1) {
    throw InvalidArgument(fmt::format("crop_share {}; it needs (0, 1]", plan.crop_share));
  }
  const Image whole = resize_shorter(image, int(plan.size / plan.crop_share), Filter::bicubic);
  normalize(to, center_crop(whole, plan.size, plan.size), plan.mean, plan.deviation);
}

}  // namespace foci::data
