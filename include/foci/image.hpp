// SPDX-License-Identifier: Apache-2.0
// Operations on images of bytes: resizing as PIL does it, bit for bit, and the operations and
// random augmentations of DeiT's recipe. Whatever is random takes its numbers from a Random that
// the caller seeds.
#pragma once

#include <foci/export.h>
#include <foci/data.hpp>
#include <foci/random.hpp>

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace foci::data {

enum class Filter { nearest, bilinear, bicubic, box };  ///< box: resize alone

/// PIL's Image.resize: all but nearest widen when they reduce (antialiased), in fixed point.
FOCI_API Image resize(const Image& image, int height, int width, Filter filter);
/// torchvision's Resize: the shorter side becomes `side`.
FOCI_API Image resize_shorter(const Image& image, int side, Filter filter);

struct FOCI_API Box {
  int top = 0, left = 0, height = 0, width = 0;
  bool operator==(const Box&) const = default;
};
FOCI_API Image crop(const Image& image, const Box& box);  ///< InvalidArgument when it sticks out
/// torchvision's CenterCrop; what sticks out is black.
FOCI_API Image center_crop(const Image& image, int height, int width);
FOCI_API Image flip(const Image& image);  ///< left and right exchanged

/// Pixels / 255, minus mean, over deviation, channel by channel, into `to` (channels, height,
/// width). A single mean stands for all channels.
FOCI_API void normalize(float* to, const Image& image, std::span<const float> mean,
                        std::span<const float> deviation);
inline constexpr std::array<float, 3> imagenet_mean = {0.485f, 0.456f, 0.406f};
inline constexpr std::array<float, 3> imagenet_deviation = {0.229f, 0.224f, 0.225f};

/// PIL's ImageOps and ImageEnhance. A factor of 1 changes nothing.
FOCI_API Image autocontrast(const Image& image);
FOCI_API Image equalize(const Image& image);
FOCI_API Image invert(const Image& image);
FOCI_API Image posterize(const Image& image, int bits);
FOCI_API Image solarize(const Image& image, int threshold);
FOCI_API Image solarize_add(const Image& image, int add);  ///< to pixels below 128
FOCI_API Image color(const Image& image, double factor);
FOCI_API Image contrast(const Image& image, double factor);
FOCI_API Image brightness(const Image& image, double factor);
FOCI_API Image sharpness(const Image& image, double factor);

/// Where a pixel's value comes from: x' = m[0] x + m[1] y + m[2], y' = m[3] x + m[4] y + m[5].
/// PIL's Image.transform(AFFINE); outside is `fill`.
struct FOCI_API Affine {
  std::array<double, 6> matrix = {1, 0, 0, 0, 1, 0};
  Filter filter = Filter::bilinear;
  std::array<std::uint8_t, 3> fill = {124, 116, 104};
};
FOCI_API Image transform(const Image& image, const Affine& how);
/// The matrix of PIL's Image.rotate: degrees against the clock, about the middle.
FOCI_API std::array<double, 6> rotation(const Image& image, double degrees);

/// torchvision's RandomResizedCrop: the box it draws.
struct FOCI_API CropRange {
  double least_area = 0.08, most_area = 1, least_ratio = 0.75, most_ratio = 4.0 / 3;
};
FOCI_API Box random_crop_box(const Image& image, const CropRange& range, Random& random);

/// torchvision's ColorJitter without hue: brightness, contrast, saturation in random order, each by
/// a factor from [1 - strength, 1 + strength].
FOCI_API Image color_jitter(const Image& image, double strength, Random& random);

/// RandAugment as timm's rand-m9-mstd0.5-inc1: two operations, each with probability 1/2.
struct FOCI_API RandAugment {
  int operations = 2;
  double magnitude = 9, deviation = 0.5, probability = 0.5;
  Filter filter = Filter::bicubic;
};
FOCI_API std::span<const std::string_view> rand_augment_names();
/// One of the operations by its place in rand_augment_names(), at a magnitude from 0 to 10.
FOCI_API Image apply_operation(const Image& image, int operation, double magnitude, Filter filter,
                               Random& random);
FOCI_API Image rand_augment(const Image& image, const RandAugment& how, Random& random);

/// timm's random erasing over normalised values (channels, height, width): a box of normal noise.
struct FOCI_API Erasing {
  double probability = 0.25, least_area = 0.02, most_area = 1.0 / 3, least_ratio = 0.3;
};
FOCI_API void random_erasing(float* values, const std::array<int, 3>& shape, const Erasing& how,
                             Random& random);

/// What DeiT does to a training image and what every evaluation does.
struct FOCI_API ImagePlan {
  int size = 224;
  CropRange range;
  double flip = 0.5;
  double jitter = 0;  ///< timm switches it off beside RandAugment
  bool augment = true;
  RandAugment rand_augment;
  Erasing erasing;
  double crop_share = 0.875;  ///< evaluation: the shorter side becomes size / crop_share
  std::vector<float> mean = {imagenet_mean.begin(), imagenet_mean.end()};
  std::vector<float> deviation = {imagenet_deviation.begin(), imagenet_deviation.end()};
};
/// Into (channels, size, size).
FOCI_API void prepare_training(float* to, const Image& image, const ImagePlan& plan,
                               Random& random);
FOCI_API void prepare_evaluation(float* to, const Image& image, const ImagePlan& plan);

/// timm's Mixup in batch mode: mixup or cutmix with the batch in reverse order.
struct FOCI_API Mixing {
  double mixup = 0.8, cutmix = 1.0, probability = 1, switch_probability = 0.5, smoothing = 0.1;
};
struct FOCI_API Mix {
  double share = 1;  ///< of the sample itself
  Box box;           ///< cutmix: what comes from the other; empty = mixup
};
FOCI_API Mix draw_mix(const Mixing& how, int height, int width, Random& random);
/// values (B,C,H,W) f32 in place.
FOCI_API void apply_mix(const Tensor& values, const Mix& mix);
/// (B, classes) f32: smoothed and mixed.
FOCI_API Tensor mixed_targets(std::span<const int> labels, int classes, const Mixing& how,
                              const Mix& mix);

}  // namespace foci::data
