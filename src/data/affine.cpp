// SPDX-License-Identifier: Apache-2.0
// PIL's Image.transform(AFFINE) and the matrix of Image.rotate. Every output pixel's middle is
// looked up in the input; neighbours beyond the border repeat it, beyond the image is fill.
#include <foci/image.hpp>

#include <algorithm>
#include <cmath>

namespace foci::data {
namespace {

double bilinear(double a, double b, double d) { return a + (b - a) * d; }

double bicubic(double v1, double v2, double v3, double v4, double d) {
  const double p1 = v2, p2 = -v1 + v3, p3 = 2 * (v1 - v2) + v3 - v4, p4 = -v1 + v2 - v3 + v4;
  return p1 + d * (p2 + d * (p3 + d * p4));
}

std::uint8_t clipped(double value) {
  return value <= 0 ? 0 : value >= 255 ? 255 : std::uint8_t(value);
}

/// The pixel that lies at (x, y), its middle at half numbers.
void look_up(std::uint8_t* to, const Image& image, double x, double y, Filter filter) {
  if (filter == Filter::nearest) {
    std::copy_n(image.at(int(y), int(x)), image.channels, to);
    return;
  }
  x -= 0.5;
  y -= 0.5;
  const int x0 = int(std::floor(x)), y0 = int(std::floor(y));
  const double dx = x - x0, dy = y - y0;
  const auto at = [&](int row, int column, int c) {
    return double(
        image.at(std::clamp(row, 0, image.height - 1), std::clamp(column, 0, image.width - 1))[c]);
  };
  for (int c = 0; c < image.channels; ++c) {
    if (filter == Filter::bilinear) {
      const auto row = [&](int r) { return bilinear(at(r, x0, c), at(r, x0 + 1, c), dx); };
      const double first = row(y0);
      to[c] =
          clipped(bilinear(first, y0 + 1 < image.height && y0 + 1 >= 0 ? row(y0 + 1) : first, dy));
      continue;
    }
    const auto row = [&](int r) {
      return bicubic(at(r, x0 - 1, c), at(r, x0, c), at(r, x0 + 1, c), at(r, x0 + 2, c), dx);
    };
    // A row that is not there repeats the value before it, as PIL has it.
    double v[4];
    v[0] = row(y0 - 1);
    for (int i = 1; i < 4; ++i) {
      const int r = y0 - 1 + i;
      v[i] = r >= 0 && r < image.height ? row(r) : v[i - 1];
    }
    to[c] = clipped(bicubic(v[0], v[1], v[2], v[3], dy));
  }
}

}  // namespace

Image transform(const Image& image, const Affine& how) {
  Image out(image.height, image.width, image.channels);
  const auto& m = how.matrix;
  for (int y = 0; y < out.height; ++y) {
    for (int x = 0; x < out.width; ++x) {
      const double from_x = m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2];
      const double from_y = m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5];
      const bool inside =
          from_x >= 0 && from_x < image.width && from_y >= 0 && from_y < image.height;
      if (inside) {
        look_up(out.at(y, x), image, from_x, from_y, how.filter);
      } else {
        for (int c = 0; c < image.channels; ++c) out.at(y, x)[c] = how.fill[std::size_t(c) % 3];
      }
    }
  }
  return out;
}

std::array<double, 6> rotation(const Image& image, double degrees) {
  const double angle = -degrees * 3.141592653589793 / 180;
  // PIL rounds to 15 digits, so that right angles are exact.
  const auto rounded = [](double x) { return std::round(x * 1e15) / 1e15; };
  const double c = rounded(std::cos(angle)), s = rounded(std::sin(angle));
  const double x0 = image.width / 2.0, y0 = image.height / 2.0;
  return {c, s, x0 - (c * x0 + s * y0), -s, c, y0 - (-s * x0 + c * y0)};
}

}  // namespace foci::data
