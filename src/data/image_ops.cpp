// SPDX-License-Identifier: Apache-2.0
// The operations of PIL's ImageOps and ImageEnhance on bytes, each as PIL rounds it, and crops,
// flips and normalising.
#include <foci/error.hpp>
#include <foci/image.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::data {
namespace {

using Table = std::array<std::uint8_t, 256>;

template <class F>
Table table_of(F&& f) {
  Table table{};
  for (int i = 0; i < 256; ++i) table[std::size_t(i)] = std::uint8_t(std::clamp(int(f(i)), 0, 255));
  return table;
}

Image through(const Image& image, const Table& table) {
  Image out = image;
  for (std::uint8_t& pixel : out.pixels) pixel = table[pixel];
  return out;
}

/// A table for each channel, made from that channel's histogram.
template <class F>
Image by_histogram(const Image& image, F&& make) {
  Image out = image;
  const auto channels = std::size_t(image.channels);
  for (std::size_t c = 0; c < channels; ++c) {
    std::array<std::int64_t, 256> counts{};
    for (std::size_t i = c; i < out.pixels.size(); i += channels) ++counts[out.pixels[i]];
    const Table table = make(counts);
    for (std::size_t i = c; i < out.pixels.size(); i += channels) {
      out.pixels[i] = table[out.pixels[i]];
    }
  }
  return out;
}

/// PIL's Image.blend: in single precision, cut off, clipped.
std::uint8_t blended(int from, int to, float share) {
  const float value = float(from) + share * float(to - from);
  return value <= 0 ? 0 : value >= 255 ? 255 : std::uint8_t(value);
}

int grey_of(const std::uint8_t* pixel, int channels) {
  if (channels < 3) return pixel[0];
  return (pixel[0] * 19595 + pixel[1] * 38470 + pixel[2] * 7471 + 0x8000) >> 16;
}

}  // namespace

Image autocontrast(const Image& image) {
  return by_histogram(image, [](const auto& counts) {
    int low = 0, high = 255;
    while (low < 255 && counts[std::size_t(low)] == 0) ++low;
    while (high > 0 && counts[std::size_t(high)] == 0) --high;
    if (high <= low) return table_of([](int i) { return i; });
    const double scale = 255.0 / (high - low), offset = -low * scale;
    return table_of([&](int i) { return i * scale + offset; });
  });
}

Image equalize(const Image& image) {
  return by_histogram(image, [](const auto& counts) {
    std::int64_t all = 0, last = 0, kinds = 0;
    for (const std::int64_t count : counts) {
      if (count == 0) continue;
      all += count;
      last = count;
      ++kinds;
    }
    const std::int64_t step = (all - last) / 255;
    if (kinds <= 1 || step == 0) return table_of([](int i) { return i; });
    std::int64_t sum = step / 2;
    return table_of([&](int i) {
      const std::int64_t level = sum / step;
      sum += counts[std::size_t(i)];
      return level;
    });
  });
}

Image invert(const Image& image) {
  return through(image, table_of([](int i) { return 255 - i; }));
}

Image posterize(const Image& image, int bits) {
  const int mask = ~((1 << (8 - std::clamp(bits, 0, 8))) - 1);
  return through(image, table_of([&](int i) { return i & mask; }));
}

Image solarize(const Image& image, int threshold) {
  return through(image, table_of([&](int i) { return i < threshold ? i : 255 - i; }));
}

Image solarize_add(const Image& image, int add) {
  return through(image, table_of([&](int i) { return i < 128 ? i + add : i; }));
}

Image color(const Image& image, double factor) {
  Image out = image;
  const auto channels = std::size_t(image.channels);
  for (std::size_t i = 0; i < out.pixels.size(); i += channels) {
    const int grey = grey_of(&image.pixels[i], image.channels);
    for (std::size_t c = 0; c < channels; ++c) {
      out.pixels[i + c] = blended(grey, image.pixels[i + c], float(factor));
    }
  }
  return out;
}

Image contrast(const Image& image, double factor) {
  const auto channels = std::size_t(image.channels);
  double sum = 0;
  for (std::size_t i = 0; i < image.pixels.size(); i += channels) {
    sum += grey_of(&image.pixels[i], image.channels);
  }
  const int mean = int(std::floor(sum / (double(image.height) * image.width) + 0.5));
  return through(image, table_of([&](int i) { return blended(mean, i, float(factor)); }));
}

Image brightness(const Image& image, double factor) {
  return through(image, table_of([&](int i) { return blended(0, i, float(factor)); }));
}

Image sharpness(const Image& image, double factor) {
  Image out = image;
  const int n = image.channels;
  constexpr float side = 1.0f / 13, middle = 5.0f / 13;
  for (int y = 1; y + 1 < image.height; ++y) {
    for (int x = 1; x + 1 < image.width; ++x) {
      for (int c = 0; c < n; ++c) {
        float sum = 0.5f;
        for (int dy = 1; dy >= -1; --dy) {
          const std::uint8_t* row = image.at(y + dy, x) + c;
          sum += float(row[-n]) * side + float(row[0]) * (dy == 0 ? middle : side) +
                 float(row[n]) * side;
        }
        const int smooth = sum <= 0 ? 0 : sum >= 255 ? 255 : int(sum);
        out.at(y, x)[c] = blended(smooth, image.at(y, x)[c], float(factor));
      }
    }
  }
  return out;
}

Image crop(const Image& image, const Box& box) {
  if (box.top < 0 || box.left < 0 || box.height < 1 || box.width < 1 ||
      box.top > image.height - box.height || box.left > image.width - box.width) {
    throw InvalidArgument(fmt::format("a crop of {} x {} at {}, {} of an image of {} x {}",
                                      box.height, box.width, box.top, box.left, image.height,
                                      image.width));
  }
  Image out(box.height, box.width, image.channels);
  for (int y = 0; y < box.height; ++y) {
    std::copy_n(image.at(box.top + y, box.left),
                std::size_t(box.width) * std::size_t(image.channels), out.at(y, 0));
  }
  return out;
}

Image center_crop(const Image& image, int height, int width) {
  Image out(height, width, image.channels);
  // Halves to the even side, as Python rounds; what is too small is put in the middle.
  const auto begin = [](int have, int want) {
    return have >= want ? int(std::nearbyint((have - want) / 2.0)) : -((want - have) / 2);
  };
  const int top = begin(image.height, height), left = begin(image.width, width);
  for (int y = std::max(0, -top); y < std::min(height, image.height - top); ++y) {
    for (int x = std::max(0, -left); x < std::min(width, image.width - left); ++x) {
      std::copy_n(image.at(top + y, left + x), image.channels, out.at(y, x));
    }
  }
  return out;
}

Image flip(const Image& image) {
  Image out = image;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      std::copy_n(image.at(y, image.width - 1 - x), image.channels, out.at(y, x));
    }
  }
  return out;
}

void normalize(float* to, const Image& image, std::span<const float> mean,
               std::span<const float> deviation) {
  const auto channels = std::size_t(image.channels);
  if (mean.empty() || mean.size() != deviation.size() ||
      (mean.size() != 1 && mean.size() != channels)) {
    throw InvalidArgument(fmt::format("{} means and {} deviations for {} channels", mean.size(),
                                      deviation.size(), channels));
  }
  const std::size_t pixels = std::size_t(image.height) * std::size_t(image.width);
  for (std::size_t c = 0; c < channels; ++c) {
    const float m = mean[c % mean.size()], d = deviation[c % mean.size()];
    for (std::size_t i = 0; i < pixels; ++i) {
      to[c * pixels + i] = (float(image.pixels[i * channels + c]) / 255.0f - m) / d;
    }
  }
}

}  // namespace foci::data
