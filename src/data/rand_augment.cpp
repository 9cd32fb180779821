// SPDX-License-Identifier: Apache-2.0
// RandAugment with timm's "increasing" operations: a larger magnitude is always a stronger change.
#include <foci/error.hpp>
#include <foci/image.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace foci::data {
namespace {

constexpr double most_magnitude = 10;

constexpr std::string_view names[] = {"auto-contrast", "equalize",    "invert",       "rotate",
                                      "posterize",     "solarize",    "solarize-add", "color",
                                      "contrast",      "brightness",  "sharpness",    "shear-x",
                                      "shear-y",       "translate-x", "translate-y"};

enum Operation {
  op_autocontrast,
  op_equalize,
  op_invert,
  op_rotate,
  op_posterize,
  op_solarize,
  op_solarize_add,
  op_color,
  op_contrast,
  op_brightness,
  op_sharpness,
  op_shear_x,
  op_shear_y,
  op_translate_x,
  op_translate_y
};

double either_way(double value, Random& random) { return random.chance(0.5) ? -value : value; }

/// Rotations, shears and shifts; `level` in [0, 1].
Image moved(const Image& image, int operation, double level, Filter filter, Random& random) {
  Affine how;
  how.filter = filter;
  switch (operation) {
    case op_rotate:
      how.matrix = rotation(image, either_way(level * 30, random));
      break;
    case op_shear_x:
      how.matrix[1] = either_way(level * 0.3, random);
      break;
    case op_shear_y:
      how.matrix[3] = either_way(level * 0.3, random);
      break;
    case op_translate_x:
      how.matrix[2] = either_way(level * 0.45, random) * image.width;
      break;
    default:
      how.matrix[5] = either_way(level * 0.45, random) * image.height;
  }
  return transform(image, how);
}

}  // namespace

std::span<const std::string_view> rand_augment_names() { return names; }

Image apply_operation(const Image& image, int operation, double magnitude, Filter filter,
                      Random& random) {
  if (operation < 0 || operation >= int(std::size(names))) {
    throw InvalidArgument(fmt::format("operation {} of {}", operation, std::size(names)));
  }
  const double level = std::clamp(magnitude, 0.0, most_magnitude) / most_magnitude;
  const auto factor = [&] { return std::max(0.1, 1 + either_way(level * 0.9, random)); };
  switch (operation) {
    case op_autocontrast:
      return autocontrast(image);
    case op_equalize:
      return equalize(image);
    case op_invert:
      return invert(image);
    case op_posterize:
      return posterize(image, 4 - int(level * 4));
    case op_solarize:
      return solarize(image, 256 - std::min(256, int(level * 256)));
    case op_solarize_add:
      return solarize_add(image, std::min(128, int(level * 110)));
    case op_color:
      return color(image, factor());
    case op_contrast:
      return contrast(image, factor());
    case op_brightness:
      return brightness(image, factor());
    case op_sharpness:
      return sharpness(image, factor());
    default:
      return moved(image, operation, level, filter, random);
  }
}

Image rand_augment(const Image& image, const RandAugment& how, Random& random) {
  Image out = image;
  for (int i = 0; i < how.operations; ++i) {
    const int operation = int(random.below(std::int64_t(std::size(names))));
    if (!random.chance(how.probability)) continue;
    const double magnitude = how.magnitude + how.deviation * random.normal();
    out = apply_operation(out, operation, magnitude, how.filter, random);
  }
  return out;
}

}  // namespace foci::data
