// SPDX-License-Identifier: Apache-2.0
// Streets for when nothing is there: sky, buildings, trees and cars as plain shapes over noise,
// with their masks in CamVid's layout and classes. Colours overlap, so that single pixels do not
// tell.
#include "data/bytes.hpp"
#include "data/folder.hpp"

#include <foci/error.hpp>
#include <foci/generate.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>

namespace foci::data {
namespace {

constexpr int height = 48, width = 64;
constexpr std::int64_t least_streets = 10, most_streets = 100'000;
/// CamVid's numbers for what is drawn.
enum Class : std::uint8_t {
  sky = 0,
  building = 1,
  pole = 2,
  road = 3,
  pavement = 4,
  tree = 5,
  car = 8
};
using Paint = std::array<int, 3>;

class Scene {
 public:
  explicit Scene(Random& random) : random_(random) {}

  /// Of both ends, cut off at the edges.
  void box(int top, int left, int bottom, int right, Class what, const Paint& paint) {
    for (int y = std::max(0, top); y <= std::min(height - 1, bottom); ++y) {
      for (int x = std::max(0, left); x <= std::min(width - 1, right); ++x) put(y, x, what, paint);
    }
  }
  void disc(int y0, int x0, int radius, Class what, const Paint& paint) {
    for (int y = std::max(0, y0 - radius); y <= std::min(height - 1, y0 + radius); ++y) {
      for (int x = std::max(0, x0 - radius); x <= std::min(width - 1, x0 + radius); ++x) {
        if ((y - y0) * (y - y0) + (x - x0) * (x - x0) <= radius * radius) put(y, x, what, paint);
      }
    }
  }
  int draw(int low, int high) { return int(random_.between(low, high)); }
  Paint near(const Paint& paint, int spread) {
    const int lighter = draw(-spread, spread);
    return {paint[0] + lighter, paint[1] + lighter, paint[2] + lighter};
  }
  MadeStreet finished() {
    for (std::uint8_t& value : made_.image.pixels)
      value = std::uint8_t(std::clamp(int(value) + draw(-25, 25), 0, 255));
    return std::move(made_);
  }

 private:
  void put(int y, int x, Class what, const Paint& paint) {
    for (int c = 0; c < 3; ++c)
      made_.image.at(y, x)[c] = std::uint8_t(std::clamp(paint[std::size_t(c)], 0, 255));
    *made_.mask.at(y, x) = what;
  }
  Random& random_;
  MadeStreet made_{Image(height, width, 3), Image(height, width, 1)};
};

void add_buildings(Scene& scene, int horizon) {
  for (int left = scene.draw(-10, 6); left < width;) {
    const int right = left + scene.draw(8, 18), top = horizon - scene.draw(5, horizon - 3);
    const Paint wall = scene.near({150, 125, 105}, 45);
    scene.box(top, left, horizon, right, building, wall);
    for (int y = top + 2; y < horizon - 1; y += 4) {
      for (int x = left + 2; x < right - 1; x += 4)
        scene.box(y, x, y + 1, x + 1, building, {wall[0] - 50, wall[1] - 30, wall[2] - 5});
    }
    left = right + 1 + (scene.draw(0, 2) == 0 ? scene.draw(2, 10) : 0);
  }
}

/// It widens towards the eye; its middle is anywhere.
void add_ground(Scene& scene, int horizon) {
  scene.box(horizon + 1, 0, height - 1, width - 1, pavement, scene.near({150, 145, 140}, 20));
  const int far = scene.draw(24, 40), close = scene.draw(24, 40);
  const Paint asphalt = scene.near({95, 95, 100}, 15);
  for (int y = horizon + 1; y < height; ++y) {
    const int down = y - horizon, all = height - horizon;
    const int middle = far + (close - far) * down / all, half = 4 + 26 * down / all;
    scene.box(y, middle - half, y, middle + half, road, asphalt);
  }
}

void add_things(Scene& scene, int horizon) {
  for (int i = scene.draw(0, 3); i > 0; --i) {
    const int x = scene.draw(0, width - 1), foot = horizon + scene.draw(1, 6);
    const int radius = scene.draw(3, 7);
    scene.box(foot - radius - 5, x, foot, x + 1, tree, {90, 65, 45});
    scene.disc(foot - radius - 5, x, radius, tree, scene.near({75, 110, 60}, 30));
  }
  for (int i = scene.draw(0, 2); i > 0; --i) {
    const int x = scene.draw(2, width - 3), foot = horizon + scene.draw(2, 8);
    scene.box(foot - scene.draw(14, 22), x, foot, x, pole, {110, 110, 115});
  }
  for (int i = scene.draw(0, 3); i > 0; --i) {
    const int foot = horizon + scene.draw(5, height - horizon - 4), size = 3 + (foot - horizon) / 3;
    const int x = scene.draw(0, width - 1);
    const Paint body = {scene.draw(40, 220), scene.draw(40, 160), scene.draw(40, 220)};
    scene.box(foot - size, x - size, foot, x + size, car, body);
    scene.box(foot - size - size / 2, x - size / 2, foot - size, x + size / 2, car, {60, 80, 95});
    for (const int wheel : {x - size / 2, x + size / 2})
      scene.disc(foot, wheel, std::max(1, size / 4), car, {25, 25, 25});
  }
}

void write_part(const std::string& folder, const std::string& part, std::int64_t count,
                std::uint64_t seed) {
  for (const std::string& name : {part, part + "annot"})
    std::filesystem::create_directories(joined(folder, name));
  for (std::int64_t i = 0; i < count; ++i) {
    const MadeStreet made = make_street(seed, i);
    const std::string file = fmt::format("{:05}.png", i);
    write_png(joined(joined(folder, part), file), made.image);
    write_png(joined(joined(folder, part + "annot"), file), made.mask);
  }
}

}  // namespace

MadeStreet make_street(std::uint64_t seed, std::int64_t index) {
  Random random(seed, 4, std::uint64_t(index));
  Scene scene(random);
  const int horizon = scene.draw(16, 26);
  scene.box(0, 0, horizon, width - 1, sky, scene.near({150, 180, 215}, 30));
  add_buildings(scene, horizon);
  add_ground(scene, horizon);
  add_things(scene, horizon);
  return scene.finished();
}

void write_made_streets(const std::string& folder, std::int64_t count, std::uint64_t seed) {
  if (count < least_streets || count > most_streets) {
    throw InvalidArgument(
        fmt::format("{} made streets; it needs {} to {}", count, least_streets, most_streets));
  }
  write_part(folder, "train", count, seed);
  write_part(folder, "val", count / 10, seed ^ 0xa11d);
  write_part(folder, "test", count / 5, seed ^ 0x5eed);
}

}  // namespace foci::data
