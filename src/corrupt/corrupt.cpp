// SPDX-License-Identifier: Apache-2.0
// The corruptions by name, and one image or a batch through one of them.
#include <foci/corrupt.hpp>

#include "corrupt/operations.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::corrupt {
namespace {

struct Entry {
  std::string_view name, group;
  data::Image (*apply)(const data::Image& image, const Job& job);
  bool random;
};

/// In the order of Corruption.
constexpr Entry entries[corruption_count] = {
    {"gaussian_noise", "noise", gaussian_noise, true},
    {"shot_noise", "noise", shot_noise, true},
    {"impulse_noise", "noise", impulse_noise, true},
    {"defocus_blur", "blur", defocus_blur, false},
    {"glass_blur", "blur", glass_blur, true},
    {"motion_blur", "blur", motion_blur, true},
    {"zoom_blur", "blur", zoom_blur, false},
    {"snow", "weather", snow, true},
    {"frost", "weather", frost, true},
    {"fog", "weather", fog, true},
    {"brightness", "weather", brightness, false},
    {"contrast", "digital", contrast, false},
    {"elastic_transform", "digital", elastic_transform, true},
    {"pixelate", "digital", pixelate, false},
    {"jpeg_compression", "digital", jpeg_compression, false},
    {"speckle_noise", "extra", speckle_noise, true},
    {"gaussian_blur", "extra", gaussian_blur, false},
    {"spatter", "extra", spatter, true},
    {"saturate", "extra", saturate, false},
};

const Entry& entry_of(Corruption corruption) { return entries[std::size_t(corruption)]; }

void check(const data::Image& image, const How& how) {
  if (how.severity < 1 || how.severity > most_severity) {
    throw InvalidArgument(
        fmt::format("severity {}; it must be 1 to {}", how.severity, most_severity));
  }
  if (image.channels != 1 && image.channels != 3) {
    throw InvalidArgument(
        fmt::format("an image of {} channels; a corruption needs 1 (grey) or 3", image.channels));
  }
  constexpr int least = 8;
  if (image.height < least || image.width < least) {
    throw InvalidArgument(fmt::format("an image of {} x {}; a corruption needs at least {} x {}",
                                      image.height, image.width, least, least));
  }
  for (const data::Image& picture : how.frost) {
    if (picture.channels == 3) continue;
    throw InvalidArgument(
        fmt::format("a picture of frost has {} channels; it must be RGB", picture.channels));
  }
}

}  // namespace

std::string_view name_of(Corruption corruption) { return entry_of(corruption).name; }
bool is_random(Corruption corruption) { return entry_of(corruption).random; }

std::vector<Corruption> corruptions_named(std::string_view name) {
  std::vector<Corruption> found;
  std::string names;
  for (int i = 0; i < corruption_count; ++i) {
    const Entry& entry = entries[i];
    const bool in_all = name == "all" && i < benchmark_count;
    if (entry.name == name || entry.group == name || in_all) found.push_back(Corruption(i));
    names += fmt::format("{}{}", i == 0 ? "" : ", ", entry.name);
  }
  if (!found.empty()) return found;
  throw InvalidArgument(fmt::format(
      "no corruption '{}'; it is one of {}, or noise, blur, weather, digital, all, extra", name,
      names));
}

Corruption corruption_named(std::string_view name) {
  const auto found = corruptions_named(name);
  if (found.size() == 1) return found[0];
  throw InvalidArgument(fmt::format("'{}' is a group of corruptions; it needs one of them", name));
}

Scale scale_for(const data::Image& image) {
  const int side = std::min(image.height, image.width);
  return side < 48 ? Scale::px32 : side < 128 ? Scale::px64 : Scale::px224;
}

data::Image corrupt(const data::Image& image, Corruption corruption, const How& how) {
  check(image, how);
  data::Random random(how.seed, std::uint64_t(corruption) * 8 + std::uint64_t(how.severity),
                      how.index);
  return entry_of(corruption).apply(image, {int(how.scale), how.severity - 1, random, how.frost});
}

void corrupt_values(const Tensor& images, Corruption corruption, const How& how) {
  const View view = images.view();
  if (view.rank != 4 || view.dtype != DType::f32)
    throw InvalidArgument("images to corrupt must be (B,C,H,W) f32");
  const auto channels = view.shape[1], height = view.shape[2], width = view.shape[3];
  const std::int64_t size = channels * height * width;
  for (std::int64_t b = 0; b < view.shape[0]; ++b) {
    auto* values = static_cast<float*>(view.data) + b * size;
    data::Image image{int(height), int(width), int(channels)};
    const auto place = [&](std::int64_t i) {  // (C,H,W) to (H,W,C)
      return std::size_t(i % (height * width) * channels + i / (height * width));
    };
    for (std::int64_t i = 0; i < size; ++i) {
      if (!(values[i] >= 0 && values[i] <= 1)) {
        throw InvalidArgument(fmt::format(
            "image {} has the value {}; images to corrupt lie in [0,1], before they are normalised",
            b, values[i]));
      }
      image.pixels[place(i)] = std::uint8_t(std::lround(values[i] * 255));
    }
    How own = how;
    own.index += std::uint64_t(b);
    image = corrupt(image, corruption, own);
    for (std::int64_t i = 0; i < size; ++i) values[i] = float(image.pixels[place(i)]) / 255;
  }
}

}  // namespace foci::corrupt
