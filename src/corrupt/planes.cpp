// SPDX-License-Identifier: Apache-2.0
// Filters over images in numbers.
#include "corrupt/planes.hpp"

#include <algorithm>
#include <cmath>

namespace foci::corrupt {
namespace {

/// A kernel along one axis: value = sum of weights[i] * line[at + first + i].
struct Taps {
  int first = 0;
  std::vector<float> weights;
};

/// SciPy's kernel. One that is longer than a reflected line's period is folded into it.
Taps gaussian_taps(const Gaussian& how, int size) {
  const int reach = int(std::lround(how.truncate * how.sigma));
  std::vector<double> kernel;
  double sum = 0;
  for (int i = -reach; i <= reach; ++i) {
    kernel.push_back(std::exp(-0.5 * i * i / (how.sigma * how.sigma)));
    sum += kernel.back();
  }
  Taps taps{-reach, {}};
  const int period = 2 * size;
  if (how.edge == Edge::reflect && 2 * reach + 1 > period) {
    std::vector<double> folded(std::size_t(period), 0.0);
    for (std::size_t k = 0; k < kernel.size(); ++k) {
      const int at = ((int(k) - reach) % period + period) % period;
      folded[std::size_t(at)] += kernel[k];
    }
    kernel = folded;
    taps.first = 0;
  }
  for (const double weight : kernel) taps.weights.push_back(float(weight / sum));
  return taps;
}

/// Lines of `size` values that stand `stride` apart.
struct Line {
  int size = 0;
  std::ptrdiff_t stride = 1;
};
void filter_line(float* values, const Line& line, const Taps& taps, Edge edge) {
  std::vector<float> wide(std::size_t(line.size) + taps.weights.size() - 1);
  for (std::size_t i = 0; i < wide.size(); ++i)
    wide[i] = values[inside(int(i) + taps.first, line.size, edge) * line.stride];
  for (int i = 0; i < line.size; ++i) {
    float sum = 0;
    for (std::size_t t = 0; t < taps.weights.size(); ++t)
      sum += taps.weights[t] * wide[std::size_t(i) + t];
    values[i * line.stride] = sum;
  }
}

}  // namespace

Planes planes_of(const data::Image& image) {
  Planes planes(image.height, image.width, image.channels);
  std::transform(image.pixels.begin(), image.pixels.end(), planes.values.begin(),
                 [](std::uint8_t pixel) { return float(pixel) / 255; });
  return planes;
}

std::uint8_t byte_of(float value) {
  // The little that is added keeps a byte that was divided by 255 what it was.
  return std::uint8_t(std::clamp(value, 0.0f, 1.0f) * 255 + 1e-3f);
}

data::Image image_of(const Planes& planes) {
  data::Image image(planes.height, planes.width, planes.channels);
  std::transform(planes.values.begin(), planes.values.end(), image.pixels.begin(), byte_of);
  return image;
}

int inside(int index, int size, Edge edge) {
  if (index >= 0 && index < size) return index;
  if (edge == Edge::nearest || size == 1) return std::clamp(index, 0, size - 1);
  const int period = edge == Edge::reflect ? 2 * size : 2 * size - 2;
  const int at = ((index % period) + period) % period;
  return at < size ? at : (edge == Edge::reflect ? period - 1 - at : period - at);
}

Planes blurred(const Planes& planes, const Gaussian& how) {
  Planes to = planes;
  if (how.sigma <= 0) return to;
  const Taps across = gaussian_taps(how, planes.width), down = gaussian_taps(how, planes.height);
  const std::ptrdiff_t channels = planes.channels;
  for (int c = 0; c < planes.channels; ++c) {
    for (int x = 0; x < planes.width; ++x)
      filter_line(to.at(0, x) + c, {planes.height, channels * planes.width}, down, how.edge);
    for (int y = 0; y < planes.height; ++y)
      filter_line(to.at(y, 0) + c, {planes.width, channels}, across, how.edge);
  }
  return to;
}

Planes filtered(const Planes& planes, const Planes& kernel) {
  Planes to(planes.height, planes.width, planes.channels);
  for (int ky = 0; ky < kernel.height; ++ky) {
    for (int kx = 0; kx < kernel.width; ++kx) {
      const float weight = *kernel.at(ky, kx);
      if (weight == 0) continue;
      for (int y = 0; y < planes.height; ++y) {
        const int from_y = inside(y + ky - kernel.height / 2, planes.height, Edge::reflect_101);
        for (int x = 0; x < planes.width; ++x) {
          const float* from =
              planes.at(from_y, inside(x + kx - kernel.width / 2, planes.width, Edge::reflect_101));
          for (int c = 0; c < planes.channels; ++c) to.at(y, x)[c] += weight * from[c];
        }
      }
    }
  }
  return to;
}

void sample(float* to, const Planes& planes, double y, double x, Edge edge) {
  const double y0 = std::floor(y), x0 = std::floor(x);
  const auto fy = float(y - y0), fx = float(x - x0);
  const int top = inside(int(y0), planes.height, edge);
  const int bottom = inside(int(y0) + 1, planes.height, edge);
  const int left = inside(int(x0), planes.width, edge);
  const int right = inside(int(x0) + 1, planes.width, edge);
  for (int c = 0; c < planes.channels; ++c) {
    const float above = (1 - fx) * planes.at(top, left)[c] + fx * planes.at(top, right)[c];
    const float below = (1 - fx) * planes.at(bottom, left)[c] + fx * planes.at(bottom, right)[c];
    to[c] = (1 - fy) * above + fy * below;
  }
}

Planes moved(const Planes& planes, const Motion& how) {
  const int width = 2 * int(std::ceil(how.radius)) + 1;
  const double angle = how.degrees * 3.141592653589793 / 180;
  std::vector<double> weights;
  double sum = 0;
  for (int i = 0; i < width; ++i) {
    weights.push_back(std::exp(-i * i / (2 * how.sigma * how.sigma)));
    sum += weights.back();
  }
  Planes to(planes.height, planes.width, planes.channels);
  for (int i = 0; i < width; ++i) {
    const auto weight = float(weights[std::size_t(i)] / sum);
    const int dx = int(std::ceil(i * std::cos(angle) - 0.5));
    const int dy = int(std::ceil(i * std::sin(angle) - 0.5));
    for (int y = 0; y < planes.height; ++y) {
      const int from_y = inside(y + dy, planes.height, Edge::nearest);
      for (int x = 0; x < planes.width; ++x) {
        const float* from = planes.at(from_y, inside(x + dx, planes.width, Edge::nearest));
        for (int c = 0; c < planes.channels; ++c) to.at(y, x)[c] += weight * from[c];
      }
    }
  }
  return to;
}

Planes zoomed(const Planes& planes, double factor) {
  struct Axis {
    double first, step;
  };
  const auto axis = [&](int size) {
    const int part = int(std::ceil(size / factor));
    const int large = int(std::nearbyint(part * factor));  // halves to even, as Python rounds
    const double step = large > 1 ? double(part - 1) / (large - 1) : 0;
    const int before = (size - part) / 2, trimmed = (large - size) / 2;
    return Axis{before + trimmed * step, step};
  };
  const Axis down = axis(planes.height), across = axis(planes.width);
  Planes to(planes.height, planes.width, planes.channels);
  for (int y = 0; y < to.height; ++y) {
    for (int x = 0; x < to.width; ++x) {
      sample(to.at(y, x), planes, down.first + y * down.step, across.first + x * across.step,
             Edge::nearest);
    }
  }
  return to;
}

float grey_of(const float* pixel, int channels) {
  return channels == 1 ? pixel[0] : 0.299f * pixel[0] + 0.587f * pixel[1] + 0.114f * pixel[2];
}

}  // namespace foci::corrupt
