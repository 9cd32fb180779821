// SPDX-License-Identifier: Apache-2.0
// Mixup and cutmix over a batch, each sample with its mirror image in the batch's order, and the
// targets that go with it.
#include <foci/error.hpp>
#include <foci/image.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::data {
namespace {

/// Marsaglia and Tsang; shapes below 1 by a power of a uniform number.
double gamma(double shape, Random& random) {
  if (shape < 1) return gamma(shape + 1, random) * std::pow(1 - random.uniform(), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = random.normal(), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - random.uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) {
      return d * v;
    }
  }
}

double beta(double shape, Random& random) {
  const double a = gamma(shape, random), b = gamma(shape, random);
  return a + b > 0 ? a / (a + b) : 0.5;
}

Box cut_box(double share, int height, int width, Random& random) {
  const double side = std::sqrt(1 - share);
  const int h = int(height * side), w = int(width * side);
  const int y = int(random.below(height)), x = int(random.below(width));
  const int top = std::clamp(y - h / 2, 0, height), bottom = std::clamp(y + h / 2, 0, height);
  const int left = std::clamp(x - w / 2, 0, width), right = std::clamp(x + w / 2, 0, width);
  return {top, left, bottom - top, right - left};
}

}  // namespace

Mix draw_mix(const Mixing& how, int height, int width, Random& random) {
  Mix mix;
  const bool mixes = how.mixup > 0 || how.cutmix > 0;
  if (!mixes || !random.chance(how.probability)) return mix;
  const bool cut = how.cutmix > 0 && (how.mixup <= 0 || random.chance(how.switch_probability));
  mix.share = beta(cut ? how.cutmix : how.mixup, random);
  if (!cut) return mix;
  mix.box = cut_box(mix.share, height, width, random);
  mix.share = 1 - double(mix.box.height) * mix.box.width / (double(height) * width);
  return mix;
}

void apply_mix(const Tensor& values, const Mix& mix) {
  const View& view = values.view();
  if (view.rank != 4 || view.dtype != DType::f32) {
    throw InvalidArgument(fmt::format("apply_mix of {} {}; it needs (B, C, H, W) f32",
                                      name_of(view.dtype), to_string(view.sizes())));
  }
  if (mix.share == 1) return;
  const std::int64_t count = view.shape[0], size = count == 0 ? 0 : view.count() / count;
  const std::int64_t width = view.shape[3], plane = view.shape[2] * width;
  const bool cut = mix.box.height > 0 && mix.box.width > 0;
  const auto share = float(mix.share);
  for (std::int64_t i = 0; i < (count + 1) / 2; ++i) {
    float* a = values.data<float>() + i * size;
    float* b = values.data<float>() + (count - 1 - i) * size;
    for (std::int64_t p = 0; p < size; ++p) {
      const float of_a = a[p], of_b = b[p];
      if (!cut) {
        a[p] = of_a * share + of_b * (1 - share);
        b[p] = of_b * share + of_a * (1 - share);
        continue;
      }
      const std::int64_t y = p % plane / width - mix.box.top, x = p % width - mix.box.left;
      if (y < 0 || y >= mix.box.height || x < 0 || x >= mix.box.width) continue;
      a[p] = of_b;
      b[p] = of_a;
    }
  }
}

Tensor mixed_targets(std::span<const int> labels, int classes, const Mixing& how, const Mix& mix) {
  Tensor targets(DType::f32, {std::int64_t(labels.size()), classes});
  const double off = how.smoothing / classes, on = 1 - how.smoothing + off;
  for (std::size_t i = 0; i < labels.size(); ++i) {
    float* row = targets.data<float>() + i * std::size_t(classes);
    const int own = labels[i], other = labels[labels.size() - 1 - i];
    for (const int label : {own, other}) {
      if (label >= 0 && label < classes) continue;
      throw InvalidArgument(fmt::format("label {} of {} classes", label, classes));
    }
    for (int c = 0; c < classes; ++c) {
      row[c] = float((c == own ? on : off) * mix.share + (c == other ? on : off) * (1 - mix.share));
    }
  }
  return targets;
}

}  // namespace foci::data
