// SPDX-License-Identifier: Apache-2.0
// What a camera's electronics and a program do: brightness, contrast, saturation, an elastic
// bending, coarse pixels, JPEG.
#include "corrupt/operations.hpp"
#include "corrupt/planes.hpp"

#include <foci/image.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace foci::corrupt {
namespace {

struct Hsv {
  double hue, saturation, value;  // all from 0 to 1
};

Hsv hsv_of(const float* rgb) {
  const double r = rgb[0], g = rgb[1], b = rgb[2];
  const double most = std::max({r, g, b}), range = most - std::min({r, g, b});
  if (range == 0) return {0, 0, most};
  double hue = 4 + (r - g) / range;
  if (g == most) hue = 2 + (b - r) / range;
  if (r == most) hue = (g - b) / range;
  hue /= 6;
  return {hue - std::floor(hue), range / most, most};
}

void rgb_of(float* rgb, const Hsv& hsv) {
  const double sixths = hsv.hue * 6, f = sixths - std::floor(sixths), v = hsv.value;
  const double p = v * (1 - hsv.saturation), q = v * (1 - f * hsv.saturation);
  const double t = v * (1 - (1 - f) * hsv.saturation);
  const std::array<std::array<double, 3>, 6> sectors = {
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  const auto& sector = sectors[std::size_t(sixths) % 6];
  std::copy(sector.begin(), sector.end(), rgb);
}

template <class Change>
data::Image recoloured(const data::Image& image, Change&& change) {
  Planes planes = planes_of(image);
  for (std::size_t i = 0; i < planes.values.size(); i += 3) {
    Hsv hsv = hsv_of(&planes.values[i]);
    change(hsv);
    rgb_of(&planes.values[i], hsv);
  }
  return image_of(planes);
}

using Matrix = std::array<double, 6>;  // x' = m0 x + m1 y + m2, y' = m3 x + m4 y + m5
using Point = std::array<double, 2>;   // x, y

/// The map that takes three points to three others.
Matrix affine_between(const std::array<Point, 3>& from, const std::array<Point, 3>& to) {
  const double ax = from[1][0] - from[0][0], ay = from[1][1] - from[0][1];
  const double bx = from[2][0] - from[0][0], by = from[2][1] - from[0][1];
  const double determinant = ax * by - ay * bx;
  Matrix m{};
  for (std::size_t i = 0; i < 2; ++i) {
    const double u = to[1][i] - to[0][i], v = to[2][i] - to[0][i];
    m[3 * i] = (u * by - v * ay) / determinant;
    m[3 * i + 1] = (v * ax - u * bx) / determinant;
    m[3 * i + 2] = to[0][i] - m[3 * i] * from[0][0] - m[3 * i + 1] * from[0][1];
  }
  return m;
}

/// (height, width): how far each pixel is looked for, in pixels.
Planes displacement(const data::Image& image, double strength, double sigma, data::Random& random) {
  Planes field(image.height, image.width, 1);
  for (float& value : field.values) value = float(random.uniform(-1, 1));
  field = blurred(field, {.sigma = sigma, .edge = Edge::reflect, .truncate = 3});
  for (float& value : field.values) value *= float(strength);
  return field;
}

}  // namespace

data::Image brightness(const data::Image& image, const Job& job) {
  static constexpr double added[3][5] = {
      {.05, .1, .15, .2, .3}, {.1, .2, .3, .4, .5}, {.1, .2, .3, .4, .5}};
  const double add = added[job.set][job.level];
  if (image.channels == 1) {
    Planes planes = planes_of(image);
    for (float& value : planes.values) value += float(add);
    return image_of(planes);
  }
  return recoloured(image, [&](Hsv& hsv) { hsv.value = std::min(hsv.value + add, 1.0); });
}

data::Image contrast(const data::Image& image, const Job& job) {
  static constexpr double shares[3][5] = {
      {.75, .5, .4, .3, .15}, {.4, .3, .2, .1, .05}, {.4, .3, .2, .1, .05}};
  const double share = shares[job.set][job.level];
  Planes planes = planes_of(image);
  const auto channels = std::size_t(planes.channels), pixels = planes.values.size() / channels;
  for (std::size_t c = 0; c < channels; ++c) {
    double mean = 0;
    for (std::size_t i = c; i < planes.values.size(); i += channels) mean += planes.values[i];
    mean /= double(pixels);
    for (std::size_t i = c; i < planes.values.size(); i += channels)
      planes.values[i] = float((planes.values[i] - mean) * share + mean);
  }
  return image_of(planes);
}

data::Image saturate(const data::Image& image, const Job& job) {
  struct Change {
    double times, plus;
  };
  static constexpr Change changes[3][5] = {{{.3, 0}, {.1, 0}, {1.5, 0}, {2, .1}, {2.5, .2}},
                                           {{.3, 0}, {.1, 0}, {2, 0}, {5, .1}, {30, .2}},
                                           {{.3, 0}, {.1, 0}, {2, 0}, {5, .1}, {20, .2}}};
  if (image.channels == 1) return image;
  const Change change = changes[job.set][job.level];
  return recoloured(image, [&](Hsv& hsv) {
    hsv.saturation = std::clamp(hsv.saturation * change.times + change.plus, 0.0, 1.0);
  });
}

data::Image elastic_transform(const data::Image& image, const Job& job) {
  struct Bend {
    double strength, sigma, affine;  // shares of the set's side
  };
  static constexpr Bend bends[3][5] = {
      {{0, 0, .08}, {.05, .2, .07}, {.08, .06, .06}, {.1, .04, .05}, {.1, .03, .03}},
      {{0, 0, .08}, {.05, .3, .06}, {.1, .08, .06}, {.1, .03, .03}, {.16, .03, .02}},
      {{2, .7, .1}, {2, .08, .2}, {.05, .01, .02}, {.07, .01, .02}, {.12, .01, .02}}};
  static constexpr double sides[3] = {32, 64, 244};  // the original's 244, for images of 224
  const Bend& bend = bends[job.set][job.level];
  const double side = sides[job.set];
  const double cx = image.width / 2, cy = image.height / 2;      // NOLINT: whole, as the original's
  const double third = std::min(image.height, image.width) / 3;  // NOLINT
  const std::array<Point, 3> before = {
      {{cx + third, cy + third}, {cx + third, cy - third}, {cx - third, cy - third}}};
  std::array<Point, 3> after = before;
  for (Point& point : after) {
    for (double& at : point) at += job.random.uniform(-bend.affine * side, bend.affine * side);
  }
  const Matrix back = affine_between(after, before);
  const Planes clear = planes_of(image);
  Planes turned(image.height, image.width, image.channels), bent = turned;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      sample(turned.at(y, x), clear, back[3] * x + back[4] * y + back[5],
             back[0] * x + back[1] * y + back[2], Edge::reflect_101);
    }
  }
  const Planes dx = displacement(image, bend.strength * side, bend.sigma * side, job.random);
  const Planes dy = displacement(image, bend.strength * side, bend.sigma * side, job.random);
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x)
      sample(bent.at(y, x), turned, y + *dy.at(y, x), x + *dx.at(y, x), Edge::reflect);
  }
  return image_of(bent);
}

data::Image pixelate(const data::Image& image, const Job& job) {
  static constexpr double shares[3][5] = {
      {.95, .9, .85, .75, .65}, {.9, .8, .7, .6, .5}, {.6, .5, .4, .3, .25}};
  const double share = shares[job.set][job.level];
  const data::Image small =
      data::resize(image, int(image.height * share), int(image.width * share), data::Filter::box);
  return data::resize(small, image.height, image.width, data::Filter::box);
}

data::Image jpeg_compression(const data::Image& image, const Job& job) {
  static constexpr int qualities[3][5] = {
      {80, 65, 58, 50, 40}, {65, 58, 50, 40, 25}, {25, 18, 15, 10, 7}};
  return through_jpeg(image, qualities[job.set][job.level]);
}

}  // namespace foci::corrupt
