// SPDX-License-Identifier: Apache-2.0
// Weather: snow that falls aslant, frost from pictures of it, fog from a fractal.
#include "corrupt/operations.hpp"
#include "corrupt/planes.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::corrupt {
namespace {

/// Diamond-square on a torus: (size, size) from 0 to 1, size a power of two.
class Plasma {
 public:
  Plasma(int size, double decay, data::Random& random)
      : size_(size), random_(random), heights_(std::size_t(size) * std::size_t(size)) {
    for (int step = size; step >= 2; step /= 2, wibble_ /= decay) {
      const int half = step / 2;
      fill(step, half, half, [&](int y, int x) {
        return at(y - half, x - half) + at(y + half, x - half) + at(y - half, x + half) +
               at(y + half, x + half);
      });
      const auto diamond = [&](int y, int x) {
        return at(y - half, x) + at(y + half, x) + at(y, x - half) + at(y, x + half);
      };
      fill(step, 0, half, diamond);
      fill(step, half, 0, diamond);
    }
    const auto [low, high] = std::minmax_element(heights_.begin(), heights_.end());
    const double least = *low, range = *high - least;
    for (double& height : heights_) height = (height - least) / range;
  }
  double& at(int y, int x) {
    const auto wrap = [&](int i) { return std::size_t((i + size_) % size_); };
    return heights_[wrap(y) * std::size_t(size_) + wrap(x)];
  }

 private:
  template <class Sum>
  void fill(int step, int top, int left, Sum&& sum) {
    for (int y = top; y < size_; y += step) {
      for (int x = left; x < size_; x += step)
        at(y, x) = sum(y, x) / 4 + wibble_ * random_.uniform(-wibble_, wibble_);
    }
  }

  int size_;
  double wibble_ = 100;
  data::Random& random_;
  std::vector<double> heights_;
};

/// A layer of flakes, moved by the wind.
struct Flakes {
  double mean, deviation, zoom, least, radius, sigma, clear;
};
Planes fallen(const data::Image& image, const Flakes& flakes, data::Random& random) {
  Planes layer(image.height, image.width, 1);
  for (float& value : layer.values) value = float(flakes.mean + flakes.deviation * random.normal());
  layer = zoomed(layer, flakes.zoom);
  for (float& value : layer.values) value = value < float(flakes.least) ? 0 : value;
  return planes_of(image_of(
      moved(planes_of(image_of(layer)), {flakes.radius, flakes.sigma, random.uniform(-135, -45)})));
}

}  // namespace

data::Image snow(const data::Image& image, const Job& job) {
  static constexpr Flakes all[3][5] = {{{.1, .2, 1, .6, 8, 3, .95},
                                        {.1, .2, 1, .5, 10, 4, .9},
                                        {.15, .3, 1.75, .55, 10, 4, .9},
                                        {.25, .3, 2.25, .6, 12, 6, .85},
                                        {.3, .3, 1.25, .65, 14, 12, .8}},
                                       {{.1, .2, 1, .6, 8, 3, .8},
                                        {.1, .2, 1, .5, 10, 4, .8},
                                        {.15, .3, 1.75, .55, 10, 4, .7},
                                        {.25, .3, 2.25, .6, 12, 6, .65},
                                        {.3, .3, 1.25, .65, 14, 12, .6}},
                                       {{.1, .3, 3, .5, 10, 4, .8},
                                        {.2, .3, 2, .5, 12, 4, .7},
                                        {.55, .3, 4, .9, 12, 8, .7},
                                        {.55, .3, 4.5, .85, 12, 8, .65},
                                        {.55, .3, 2.5, .85, 12, 12, .55}}};
  const Flakes& flakes = all[job.set][job.level];
  const Planes layer = fallen(image, flakes, job.random);
  Planes planes = planes_of(image);
  const auto clear = float(flakes.clear);
  for (int y = 0; y < planes.height; ++y) {
    for (int x = 0; x < planes.width; ++x) {
      float* pixel = planes.at(y, x);
      const float pale = grey_of(pixel, planes.channels) * 1.5f + 0.5f;
      const float fell = *layer.at(y, x) + *layer.at(planes.height - 1 - y, planes.width - 1 - x);
      for (int c = 0; c < planes.channels; ++c)
        pixel[c] = clear * pixel[c] + (1 - clear) * std::max(pixel[c], pale) + fell;
    }
  }
  return image_of(planes);
}

data::Image frost(const data::Image& image, const Job& job) {
  struct Blend {
    double image, frost;
  };
  static constexpr Blend blends[3][5] = {{{1, .2}, {1, .3}, {.9, .4}, {.85, .4}, {.75, .45}},
                                         {{1, .3}, {.9, .4}, {.8, .45}, {.75, .5}, {.7, .55}},
                                         {{1, .4}, {.8, .6}, {.7, .7}, {.65, .7}, {.6, .75}}};
  static constexpr double sizes[3] = {.2, .3, 1};  // of the pictures
  if (job.frost.empty())
    throw InvalidArgument("frost has no pictures; it needs a folder of them (--frost FOLDER)");
  const data::Image& picture = job.frost[std::size_t(job.random.below(int(job.frost.size())))];
  const double size = sizes[job.set];
  const int height = int(std::nearbyint(picture.height * size)) - image.height;
  const int width = int(std::nearbyint(picture.width * size)) - image.width;
  if (height < 0 || width < 0) {
    throw InvalidArgument(fmt::format(
        "a picture of frost is {} x {}; an image of {} x {} needs one of {:.0f} x {:.0f}",
        picture.height, picture.width, image.height, image.width, std::ceil(image.height / size),
        std::ceil(image.width / size)));
  }
  const int top = int(job.random.between(0, height)), left = int(job.random.between(0, width));
  const Planes ice = planes_of(picture);
  Planes planes = planes_of(image);
  const Blend blend = blends[job.set][job.level];
  for (int y = 0; y < planes.height; ++y) {
    for (int x = 0; x < planes.width; ++x) {
      float cold[3];
      sample(cold, ice, (top + y + 0.5) / size - 0.5, (left + x + 0.5) / size - 0.5, Edge::nearest);
      for (int c = 0; c < planes.channels; ++c) {
        const float add = planes.channels == 3 ? cold[c] : grey_of(cold, 3);
        float& value = planes.at(y, x)[c];
        value = float(blend.image) * value + float(blend.frost) * add;
      }
    }
  }
  return image_of(planes);
}

data::Image fog(const data::Image& image, const Job& job) {
  struct Bank {
    double strength, decay;
  };
  static constexpr Bank banks[3][5] = {{{.2, 3}, {.5, 3}, {.75, 2.5}, {1, 2}, {1.5, 1.75}},
                                       {{.4, 3}, {.7, 3}, {1, 2.5}, {1.5, 2}, {2, 1.75}},
                                       {{1.5, 2}, {2, 2}, {2.5, 1.7}, {2.5, 1.5}, {3, 1.4}}};
  const Bank bank = banks[job.set][job.level];
  int size = 1;
  while (size < std::max(image.height, image.width)) size *= 2;
  Plasma plasma(size, bank.decay, job.random);
  Planes planes = planes_of(image);
  const double most = *std::max_element(planes.values.begin(), planes.values.end());
  const double scale = most / (most + bank.strength);
  for (int y = 0; y < planes.height; ++y) {
    for (int x = 0; x < planes.width; ++x) {
      const double add = bank.strength * plasma.at(y, x);
      for (int c = 0; c < planes.channels; ++c)
        planes.at(y, x)[c] = float((planes.at(y, x)[c] + add) * scale);
    }
  }
  return image_of(planes);
}

}  // namespace foci::corrupt
