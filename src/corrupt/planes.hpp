// SPDX-License-Identifier: Apache-2.0
// An image in numbers, and the filters that several corruptions share, with the edges that the
// original's libraries have: SciPy's nearest and reflect, OpenCV's reflect_101.
#pragma once

#include <foci/data.hpp>

#include <vector>

namespace foci::corrupt {

/// Values in [0,1], (height, width, channels).
struct Planes {
  int height = 0, width = 0, channels = 0;
  std::vector<float> values;

  Planes(int height, int width, int channels)
      : height(height),
        width(width),
        channels(channels),
        values(std::size_t(height) * std::size_t(width) * std::size_t(channels)) {}
  float* at(int y, int x) {
    return values.data() + (std::size_t(y) * std::size_t(width) + std::size_t(x)) * channels;
  }
  const float* at(int y, int x) const {
    return values.data() + (std::size_t(y) * std::size_t(width) + std::size_t(x)) * channels;
  }
};

Planes planes_of(const data::Image& image);
/// Clipped, and cut to bytes as NumPy does it: 3.9 is 3.
data::Image image_of(const Planes& planes);
std::uint8_t byte_of(float value);

/// What stands beyond the edge of abc: nearest ccc, reflect cba, reflect_101 ba.
enum class Edge { nearest, reflect, reflect_101 };
int inside(int index, int size, Edge edge);

struct Gaussian {
  double sigma = 1;
  Edge edge = Edge::nearest;
  double truncate = 4;  ///< the kernel ends so many sigmas out
};
Planes blurred(const Planes& planes, const Gaussian& how);

/// Correlation with a kernel of one channel and odd sides.
Planes filtered(const Planes& planes, const Planes& kernel);

/// Between four pixels, `to` gets a value a channel.
void sample(float* to, const Planes& planes, double y, double x, Edge edge);

/// ImageMagick's motion blur: half a Gaussian along a line of 2 radius + 1 pixels.
struct Motion {
  double radius = 1, sigma = 1, degrees = 0;
};
Planes moved(const Planes& planes, const Motion& how);

/// The middle, enlarged by the factor to the same size; corners on corners.
Planes zoomed(const Planes& planes, double factor);

/// Of one channel or three.
float grey_of(const float* pixel, int channels);

}  // namespace foci::corrupt
