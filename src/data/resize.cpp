// SPDX-License-Identifier: Apache-2.0
// Resizing as PIL does it: for every output pixel the weights of a filter that widens with the
// reduction, rounded to 22 bits; rows first, rounded to bytes, then columns.
#include <foci/error.hpp>
#include <foci/image.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::data {
namespace {

constexpr int bits = 32 - 8 - 2;

double weight_of(Filter filter, double x) {
  if (filter == Filter::box) return x > -0.5 && x <= 0.5 ? 1 : 0;
  x = std::abs(x);
  if (filter == Filter::bilinear) return x < 1 ? 1 - x : 0;
  constexpr double a = -0.5;
  if (x < 1) return ((a + 2) * x - (a + 3)) * x * x + 1;
  if (x < 2) return (((x - 5) * x + 8) * x - 4) * a;
  return 0;
}

/// For each output position: where its inputs begin, and their weights.
struct Taps {
  std::vector<int> first, count;
  std::vector<std::int32_t> weights;  // (outputs, most)
  int most = 0;
};

Taps taps_of(int from, int to, Filter filter) {
  const double scale = double(from) / to, wide = std::max(scale, 1.0);
  const double reach = filter == Filter::box ? 0.5 : filter == Filter::bilinear ? 1.0 : 2.0;
  const double support = reach * wide;
  Taps taps;
  taps.most = int(std::ceil(support)) * 2 + 1;
  taps.weights.resize(std::size_t(to) * std::size_t(taps.most));
  std::vector<double> w(std::size_t(taps.most));
  for (int i = 0; i < to; ++i) {
    const double center = (i + 0.5) * scale;
    const int begin = std::max(int(std::trunc(center - support + 0.5)), 0);
    const int count = std::min(int(std::trunc(center + support + 0.5)), from) - begin;
    double sum = 0;
    for (int j = 0; j < count; ++j) {
      w[std::size_t(j)] = weight_of(filter, (j + begin - center + 0.5) * (1 / wide));
      sum += w[std::size_t(j)];
    }
    for (int j = 0; j < count; ++j) {
      const double share = sum != 0 ? w[std::size_t(j)] * (1 / sum) : w[std::size_t(j)];
      const double fixed = share * (1 << bits);
      taps.weights[std::size_t(i) * std::size_t(taps.most) + std::size_t(j)] =
          std::int32_t(share < 0 ? fixed - 0.5 : fixed + 0.5);
    }
    taps.first.push_back(begin);
    taps.count.push_back(count);
  }
  return taps;
}

std::uint8_t to_byte(std::int32_t sum) { return std::uint8_t(std::clamp(sum >> bits, 0, 255)); }

Image along_rows(const Image& image, int width, Filter filter) {
  const Taps taps = taps_of(image.width, width, filter);
  Image out(image.height, width, image.channels);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < width; ++x) {
      const std::int32_t* w = taps.weights.data() + std::size_t(x) * std::size_t(taps.most);
      const int first = taps.first[std::size_t(x)], count = taps.count[std::size_t(x)];
      for (int c = 0; c < image.channels; ++c) {
        std::int32_t sum = 1 << (bits - 1);
        const std::uint8_t* from = image.at(y, first) + c;
        for (int j = 0; j < count; ++j) sum += from[j * image.channels] * w[j];
        out.at(y, x)[c] = to_byte(sum);
      }
    }
  }
  return out;
}

Image along_columns(const Image& image, int height, Filter filter) {
  const Taps taps = taps_of(image.height, height, filter);
  Image out(height, image.width, image.channels);
  const std::size_t row = std::size_t(image.width) * std::size_t(image.channels);
  std::vector<std::int32_t> sums(row);
  for (int y = 0; y < height; ++y) {
    const std::int32_t* w = taps.weights.data() + std::size_t(y) * std::size_t(taps.most);
    std::fill(sums.begin(), sums.end(), 1 << (bits - 1));
    for (int j = 0; j < taps.count[std::size_t(y)]; ++j) {
      const std::uint8_t* from = image.at(taps.first[std::size_t(y)] + j, 0);
      for (std::size_t i = 0; i < row; ++i) sums[i] += from[i] * w[j];
    }
    std::uint8_t* to = out.at(y, 0);
    for (std::size_t i = 0; i < row; ++i) to[i] = to_byte(sums[i]);
  }
  return out;
}

Image nearest(const Image& image, int height, int width) {
  Image out(height, width, image.channels);
  const double down = double(image.height) / height, across = double(image.width) / width;
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const std::uint8_t* from = image.at(int((y + 0.5) * down), int((x + 0.5) * across));
      std::copy_n(from, image.channels, out.at(y, x));
    }
  }
  return out;
}

}  // namespace

Image resize(const Image& image, int height, int width, Filter filter) {
  if (height < 1 || width < 1 || image.pixels.empty()) {
    throw InvalidArgument(fmt::format("resize of {} x {} to {} x {}; it needs sizes of at least 1",
                                      image.height, image.width, height, width));
  }
  if (filter == Filter::nearest) return nearest(image, height, width);
  if (width == image.width) {
    return height == image.height ? image : along_columns(image, height, filter);
  }
  const Image rows = along_rows(image, width, filter);
  return height == image.height ? rows : along_columns(rows, height, filter);
}

Image resize_shorter(const Image& image, int side, Filter filter) {
  const auto scaled = [&](int longer, int shorter) {
    return int(std::int64_t(side) * longer / std::max(shorter, 1));
  };
  if (image.width <= image.height) {
    return resize(image, scaled(image.height, image.width), side, filter);
  }
  return resize(image, side, scaled(image.width, image.height), filter);
}

}  // namespace foci::data
