// SPDX-License-Identifier: Apache-2.0
// Spatter: drops of water with a lit rim, or mud. The rim takes OpenCV's Canny, its distance
// transform over 5 x 5 and its equalisation, written out here in whole numbers where it has them.
#include "corrupt/operations.hpp"
#include "corrupt/planes.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>

namespace foci::corrupt {
namespace {

using data::Image;

struct Slopes {
  int dx = 0, dy = 0;
  int size() const { return std::abs(dx) + std::abs(dy); }
};

/// Sobel's, (height, width).
std::vector<Slopes> slopes_of(const Image& image) {
  std::vector<Slopes> slopes;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const auto at = [&](int dy, int dx) {
        return int(*image.at(inside(y + dy, image.height, Edge::nearest),
                             inside(x + dx, image.width, Edge::nearest)));
      };
      slopes.push_back(
          {at(-1, 1) + 2 * at(0, 1) + at(1, 1) - at(-1, -1) - 2 * at(0, -1) - at(1, -1),
           at(1, -1) + 2 * at(1, 0) + at(1, 1) - at(-1, -1) - 2 * at(-1, 0) - at(-1, 1)});
    }
  }
  return slopes;
}

/// Whether a slope is a ridge across its own direction; of equals the later one.
template <class Size>
bool is_ridge(const Slopes& slope, int y, int x, Size&& size) {
  const int m = slope.size();
  const double steep = std::abs(slope.dy), flat = std::abs(slope.dx);
  if (steep < flat * 0.4142135623730950) return m > size(y, x - 1) && m >= size(y, x + 1);
  if (steep > flat * 2.414213562373095) return m > size(y - 1, x) && m >= size(y + 1, x);
  const int s = (slope.dx ^ slope.dy) < 0 ? -1 : 1;
  return m > size(y - 1, x - s) && m > size(y + 1, x + s);
}

/// Canny's edges at 50 and 150, as ones.
std::vector<char> edges_of(const Image& image) {
  constexpr int low = 50, high = 150;
  const std::vector<Slopes> slopes = slopes_of(image);
  const auto place = [&](int y, int x) {
    return std::size_t(y) * std::size_t(image.width) + std::size_t(x);
  };
  const auto within = [&](int y, int x) {
    return y >= 0 && y < image.height && x >= 0 && x < image.width;
  };
  const auto size = [&](int y, int x) { return within(y, x) ? slopes[place(y, x)].size() : 0; };
  std::vector<char> weak(slopes.size()), edge(slopes.size());
  std::vector<std::array<int, 2>> open;
  for (int y = 0; y < image.height; ++y) {
    for (int x = 0; x < image.width; ++x) {
      const Slopes& slope = slopes[place(y, x)];
      if (slope.size() <= low || !is_ridge(slope, y, x, size)) continue;
      weak[place(y, x)] = 1;
      if (slope.size() > high) open.push_back({y, x});
    }
  }
  while (!open.empty()) {
    const auto [y, x] = open.back();
    open.pop_back();
    if (edge[place(y, x)] != 0) continue;
    edge[place(y, x)] = 1;
    for (int dy = -1; dy <= 1; ++dy) {
      for (int dx = -1; dx <= 1; ++dx) {
        if (within(y + dy, x + dx) && weak[place(y + dy, x + dx)] != 0)
          open.push_back({y + dy, x + dx});
      }
    }
  }
  return edge;
}

/// To the nearest edge, in steps of 1, 1.4 and 2.1969, 20 at most.
Planes distances_of(const Image& image) {
  struct Step {
    int dy, dx;
    float length;
  };
  static constexpr Step back[] = {{0, -1, 1},        {-1, 0, 1},        {-1, -1, 1.4f},
                                  {-1, 1, 1.4f},     {-1, -2, 2.1969f}, {-1, 2, 2.1969f},
                                  {-2, -1, 2.1969f}, {-2, 1, 2.1969f}};
  constexpr float most = 20;
  const std::vector<char> edge = edges_of(image);
  Planes far(image.height, image.width, 1);
  for (std::size_t i = 0; i < edge.size(); ++i) far.values[i] = edge[i] != 0 ? 0 : 1e6f;
  const auto pass = [&](int y, int x, int sign) {
    for (const Step& step : back) {
      const int from_y = y + sign * step.dy, from_x = x + sign * step.dx;
      if (from_y < 0 || from_y >= far.height || from_x < 0 || from_x >= far.width) continue;
      *far.at(y, x) = std::min(*far.at(y, x), *far.at(from_y, from_x) + step.length);
    }
  };
  for (int y = 0; y < far.height; ++y) {
    for (int x = 0; x < far.width; ++x) pass(y, x, 1);
  }
  for (int y = far.height - 1; y >= 0; --y) {
    for (int x = far.width - 1; x >= 0; --x) pass(y, x, -1);
  }
  for (float& value : far.values) value = std::min(value, most);
  return far;
}

/// Bytes whose histogram is flat, as far as bytes can be.
void equalize(std::vector<int>& bytes) {
  std::array<std::size_t, 256> counts{};
  for (const int byte : bytes) ++counts[std::size_t(byte)];
  std::size_t first = 0;
  while (counts[first] == 0) ++first;
  if (counts[first] == bytes.size()) return;
  const double scale = 255.0 / double(bytes.size() - counts[first]);
  std::array<int, 256> to{};
  double sum = 0;
  for (std::size_t i = first + 1; i < counts.size(); ++i) {
    sum += double(counts[i]);
    to[i] = int(std::nearbyint(sum * scale));
  }
  for (int& byte : bytes) byte = to[std::size_t(byte)];
}

Planes kernel_of(const std::array<float, 9>& weights) {
  Planes kernel(3, 3, 1);
  kernel.values.assign(weights.begin(), weights.end());
  return kernel;
}

/// How much light a drop throws, (height, width, 1) from 0 to 1. `liquid` in bytes.
Planes light_of(const Image& liquid) {
  static const Planes box = kernel_of({1, 1, 1, 1, 1, 1, 1, 1, 1});
  static const Planes relief = kernel_of({-2, -1, 0, -1, 1, 1, 0, 1, 2});
  Planes far = filtered(distances_of(liquid), box);
  std::vector<int> bytes;
  for (const float value : far.values) bytes.push_back(int(value / 9 + 1e-4f));
  equalize(bytes);
  for (std::size_t i = 0; i < bytes.size(); ++i) far.values[i] = float(bytes[i]);
  far = filtered(far, relief);
  for (float& value : far.values) value = std::clamp(value, 0.0f, 255.0f);
  far = filtered(far, box);
  float most = 0;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    far.values[i] = std::nearbyint(far.values[i] / 9) * float(liquid.pixels[i]);
    most = std::max(most, far.values[i]);
  }
  for (float& value : far.values) value = most > 0 ? value / most : 0;
  return far;
}

}  // namespace

Image spatter(const Image& image, const Job& job) {
  struct Splash {
    double mean, deviation, sigma, least, strength;
    bool mud;
  };
  static constexpr Splash all[3][5] = {{{.62, .1, .7, .7, .5, false},
                                        {.65, .1, .8, .7, .5, false},
                                        {.65, .3, 1, .69, .5, false},
                                        {.65, .1, .7, .69, .6, true},
                                        {.65, .1, .5, .68, .6, true}},
                                       {{.62, .1, .7, .7, .6, false},
                                        {.65, .1, .8, .7, .6, false},
                                        {.65, .3, 1, .69, .6, false},
                                        {.65, .1, .7, .68, .6, true},
                                        {.65, .1, .5, .67, .6, true}},
                                       {{.65, .3, 4, .69, .6, false},
                                        {.65, .3, 3, .68, .6, false},
                                        {.65, .3, 2, .68, .5, false},
                                        {.65, .3, 1, .65, 1.5, true},
                                        {.67, .4, 1, .65, 1.5, true}}};
  static constexpr float water[3] = {175 / 255.0f, 238 / 255.0f, 238 / 255.0f};
  static constexpr float brown[3] = {63 / 255.0f, 42 / 255.0f, 20 / 255.0f};
  const Splash& splash = all[job.set][job.level];
  Planes liquid(image.height, image.width, 1);
  for (float& value : liquid.values)
    value = float(splash.mean + splash.deviation * job.random.normal());
  liquid = blurred(liquid, {.sigma = splash.sigma});
  for (float& value : liquid.values) {
    const bool wet = value >= float(splash.least);
    value = splash.mud ? float(wet) : (wet ? value : 0);
  }
  const Planes cover =
      splash.mud ? blurred(liquid, {.sigma = splash.strength}) : light_of(image_of(liquid));
  Planes planes = planes_of(image);
  for (int y = 0; y < planes.height; ++y) {
    for (int x = 0; x < planes.width; ++x) {
      float share = *cover.at(y, x);
      if (splash.mud && share < 0.8f) share = 0;
      if (!splash.mud) share *= float(splash.strength);
      for (int c = 0; c < planes.channels; ++c) {
        const float* colour = splash.mud ? brown : water;
        const float add = planes.channels == 3 ? colour[c] : grey_of(colour, 3);
        float& value = planes.at(y, x)[c];
        value = (splash.mud ? 1 - share : 1) * value + share * add;
      }
    }
  }
  return image_of(planes);
}

}  // namespace foci::corrupt
