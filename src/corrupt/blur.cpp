// SPDX-License-Identifier: Apache-2.0
// Blur: Gaussian, out of focus, frosted glass, a moving camera, a zooming one.
#include "corrupt/operations.hpp"
#include "corrupt/planes.hpp"

#include <algorithm>
#include <cmath>

namespace foci::corrupt {
namespace {

/// A disk, its edge softened by OpenCV's Gaussian of 3 or 5 taps.
Planes disk(double radius, double soft) {
  const int reach = radius <= 8 ? 8 : int(radius), taps = radius <= 8 ? 1 : 2;
  Planes kernel(2 * reach + 1, 2 * reach + 1, 1);
  double sum = 0;
  for (int y = -reach; y <= reach; ++y) {
    for (int x = -reach; x <= reach; ++x) {
      const bool in = y * y + x * x <= radius * radius;
      *kernel.at(y + reach, x + reach) = float(in);
      sum += in;
    }
  }
  Planes softener(2 * taps + 1, 2 * taps + 1, 1);
  double weights = 0;
  for (int y = -taps; y <= taps; ++y) {
    for (int x = -taps; x <= taps; ++x) {
      const double weight = std::exp(-(y * y + x * x) / (2 * soft * soft));
      *softener.at(y + taps, x + taps) = float(weight);
      weights += weight;
    }
  }
  for (float& value : kernel.values) value = float(value / sum);
  for (float& value : softener.values) value = float(value / weights);
  return filtered(kernel, softener);
}

}  // namespace

data::Image gaussian_blur(const data::Image& image, const Job& job) {
  static constexpr double sigmas[3][5] = {
      {.4, .6, .7, .8, 1}, {.5, .75, 1, 1.25, 1.5}, {1, 2, 3, 4, 6}};
  return image_of(blurred(planes_of(image), {.sigma = sigmas[job.set][job.level]}));
}

data::Image defocus_blur(const data::Image& image, const Job& job) {
  struct Lens {
    double radius, soft;
  };
  static constexpr Lens lenses[3][5] = {{{.3, .4}, {.4, .5}, {.5, .6}, {1, .2}, {1.5, .1}},
                                        {{.5, .6}, {1, .1}, {1.5, .1}, {2.5, .01}, {3, .1}},
                                        {{3, .1}, {4, .5}, {6, .5}, {8, .5}, {10, .5}}};
  const Lens lens = lenses[job.set][job.level];
  return image_of(filtered(planes_of(image), disk(lens.radius, lens.soft)));
}

data::Image glass_blur(const data::Image& image, const Job& job) {
  struct Glass {
    double sigma;
    int reach, times;
  };
  static constexpr Glass glasses[3][5] = {
      {{.05, 1, 1}, {.25, 1, 1}, {.4, 1, 1}, {.25, 1, 2}, {.4, 1, 2}},
      {{.1, 1, 1}, {.5, 1, 1}, {.6, 1, 2}, {.7, 2, 1}, {.9, 2, 2}},
      {{.7, 1, 2}, {.9, 2, 1}, {1, 2, 3}, {1.1, 3, 2}, {1.5, 4, 2}}};
  const Glass glass = glasses[job.set][job.level];
  const int reach = glass.reach;
  data::Image soft = image_of(blurred(planes_of(image), {.sigma = glass.sigma}));
  for (int time = 0; time < glass.times; ++time) {
    for (int y = image.height - reach; y > reach; --y) {
      for (int x = image.width - reach; x > reach; --x) {
        // The original means to exchange two pixels; its views of one array make it a copy.
        const int dx = int(job.random.between(-reach, reach - 1));
        const int dy = int(job.random.between(-reach, reach - 1));
        std::copy_n(soft.at(y + dy, x + dx), image.channels, soft.at(y, x));
      }
    }
  }
  return image_of(blurred(planes_of(soft), {.sigma = glass.sigma}));
}

data::Image motion_blur(const data::Image& image, const Job& job) {
  struct Path {
    double radius, sigma;
  };
  static constexpr Path paths[3][5] = {{{6, 1}, {6, 1.5}, {6, 2}, {8, 2}, {9, 2.5}},
                                       {{10, 1}, {10, 1.5}, {10, 2}, {10, 2.5}, {12, 3}},
                                       {{10, 3}, {15, 5}, {15, 8}, {15, 12}, {20, 15}}};
  const Path path = paths[job.set][job.level];
  return image_of(moved(planes_of(image), {path.radius, path.sigma, job.random.uniform(-45, 45)}));
}

data::Image zoom_blur(const data::Image& image, const Job& job) {
  struct Range {
    double stop, step;
  };
  static constexpr Range small[5] = {
      {1.06, .01}, {1.11, .01}, {1.16, .01}, {1.21, .01}, {1.26, .01}};
  static constexpr Range large[5] = {
      {1.11, .01}, {1.16, .01}, {1.21, .02}, {1.26, .02}, {1.31, .03}};
  const Range range = (job.set == 2 ? large : small)[job.level];
  // As numpy.arange counts: rounding may let the stop itself in.
  const int count = int(std::ceil((range.stop - 1) / range.step));
  const double step = (1 + range.step) - 1;
  const Planes clear = planes_of(image);
  Planes sum = clear;
  for (int i = 0; i < count; ++i) {
    const Planes nearer = zoomed(clear, 1 + i * step);
    for (std::size_t at = 0; at < sum.values.size(); ++at) sum.values[at] += nearer.values[at];
  }
  for (float& value : sum.values) value /= float(count + 1);
  return image_of(sum);
}

}  // namespace foci::corrupt
