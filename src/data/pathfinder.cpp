// SPDX-License-Identifier: Apache-2.0
// Pathfinder of the Long Range Arena: two dashed curves that start near one another, discs on two
// of their ends, shorter curves around them; are the discs on the same curve? Lengths, distances
// and the law of the turns are the published ones; the drawing is our own.
#include "data/bytes.hpp"
#include "data/folder.hpp"

#include <foci/error.hpp>
#include <foci/generate.hpp>
#include <foci/random.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

namespace foci::data {
namespace {

constexpr double pi = 3.141592653589793;
constexpr std::int64_t most_images = 10'000'000;

double squared_distance(Point p, const Dash& dash) {
  const double x = dash.end.x - dash.begin.x, y = dash.end.y - dash.begin.y;
  const double along = std::clamp(
      ((p.x - dash.begin.x) * x + (p.y - dash.begin.y) * y) / std::max(x * x + y * y, 1e-12), 0.0,
      1.0);
  const double dx = p.x - dash.begin.x - along * x, dy = p.y - dash.begin.y - along * y;
  return dx * dx + dy * dy;
}

bool cross(const Dash& a, const Dash& b) {
  const auto side = [](const Dash& d, Point p) {
    return (d.end.x - d.begin.x) * (p.y - d.begin.y) - (d.end.y - d.begin.y) * (p.x - d.begin.x);
  };
  return side(a, b.begin) * side(a, b.end) < 0 && side(b, a.begin) * side(b, a.end) < 0;
}

bool too_near(const Dash& a, const Dash& b, double least) {
  if (cross(a, b)) return true;
  const double near = std::min({squared_distance(a.begin, b), squared_distance(a.end, b),
                                squared_distance(b.begin, a), squared_distance(b.end, a)});
  return near < least * least;
}

class Drawing {
 public:
  Drawing(const Pathfinder& how, Random& random) : how_(how), random_(random) {}

  /// Two curves that grow in turns, a dash each; false when one has no way out.
  bool start() {
    curves.assign(2, {});
    const double low = 2.0 * how_.seed_distance, high = how_.size - low;
    const Point first{random_.uniform(low, high), random_.uniform(low, high)};
    const double angle = random_.uniform(-pi, pi);
    const Point second{first.x + how_.seed_distance * std::cos(angle),
                       first.y + how_.seed_distance * std::sin(angle)};
    for (int i = 0; i < how_.length; ++i) {
      for (std::size_t c = 0; c < 2; ++c) {
        const bool well = i == 0 ? seed(curves[c], c == 0 ? first : second) : extend(curves[c]);
        if (!well) return false;
      }
    }
    return true;
  }

  /// A short curve somewhere; left out when there is no room.
  void add_distractor() {
    curves.emplace_back();
    for (int i = 0; i < how_.retries; ++i) {
      curves.back().clear();
      const Point at{random_.uniform(0, how_.size), random_.uniform(0, how_.size)};
      bool well = seed(curves.back(), at);
      for (int n = 1; well && n < how_.distractor_length; ++n) well = extend(curves.back());
      if (well) return;
    }
    curves.pop_back();
  }

  std::vector<std::vector<Dash>> curves;

 private:
  Dash dash_from(Point from, double angle) const {
    return {
        from, {from.x + how_.dash * std::cos(angle), from.y + how_.dash * std::sin(angle)}, angle};
  }

  bool fits(const Dash& dash, const Dash* before) const {
    for (const Point& p : {dash.begin, dash.end}) {
      const double low = how_.padding, high = how_.size - how_.padding;
      if (p.x < low || p.x > high || p.y < low || p.y > high) return false;
    }
    for (const auto& curve : curves) {
      for (const Dash& other : curve) {
        // Dashes that follow one another are a gap apart, which a turn may shorten.
        const double least = (&other == before ? 1.0 : 2.0) * how_.margin;
        if (too_near(dash, other, least)) return false;
      }
    }
    return true;
  }

  bool seed(std::vector<Dash>& curve, Point at) {
    for (int i = 0; i < how_.retries; ++i) {
      const Dash dash = dash_from(at, random_.uniform(-pi, pi));
      if (!fits(dash, nullptr)) continue;
      curve.push_back(dash);
      return true;
    }
    return false;
  }

  /// A turn by delta has weight cos^2(continuity delta), up to a right angle.
  double turn() {
    while (true) {
      const double delta = random_.uniform(-pi / 2, pi / 2);
      const double weight = std::cos(std::min(std::abs(delta) * how_.continuity, pi / 2));
      if (random_.uniform() < weight * weight) return delta;
    }
  }

  bool extend(std::vector<Dash>& curve) {
    const Dash last = curve.back();
    const Point pivot{last.end.x + how_.margin * std::cos(last.angle),
                      last.end.y + how_.margin * std::sin(last.angle)};
    for (int i = 0; i < how_.retries; ++i) {
      const double angle = last.angle + turn();
      const Point from{pivot.x + how_.margin * std::cos(angle),
                       pivot.y + how_.margin * std::sin(angle)};
      const Dash dash = dash_from(from, angle);
      if (!fits(dash, &curve.back())) continue;
      curve.push_back(dash);
      return true;
    }
    return false;
  }

  const Pathfinder& how_;
  Random& random_;
};

/// Points on a grid four times as fine as the pixels; a pixel is the share of its points covered.
class Canvas {
 public:
  explicit Canvas(int size)
      : size_(size), side_(size * fine), points_(std::size_t(side_) * std::size_t(side_)) {}

  /// All points of a square about `middle` for which covers(point) holds.
  template <class Covers>
  void cover(Point middle, double reach, Covers&& covers) {
    const auto low = [&](double at) { return std::max(0, int((at - reach) * fine)); };
    const auto high = [&](double at) { return std::min(side_ - 1, int((at + reach) * fine)); };
    for (int y = low(middle.y); y <= high(middle.y); ++y) {
      for (int x = low(middle.x); x <= high(middle.x); ++x) {
        if (covers(Point{(x + 0.5) / fine, (y + 0.5) / fine})) {
          points_[std::size_t(y) * std::size_t(side_) + std::size_t(x)] = 1;
        }
      }
    }
  }

  Image image() const {
    std::vector<int> counts(std::size_t(size_) * std::size_t(size_));
    for (int y = 0; y < side_; ++y) {
      for (int x = 0; x < side_; ++x) {
        counts[std::size_t(y / fine) * std::size_t(size_) + std::size_t(x / fine)] +=
            points_[std::size_t(y) * std::size_t(side_) + std::size_t(x)];
      }
    }
    Image image(size_, size_, 1);
    for (std::size_t i = 0; i < counts.size(); ++i) {
      image.pixels[i] = std::uint8_t(counts[i] * 255 / (fine * fine));
    }
    return image;
  }

 private:
  static constexpr int fine = 4;
  int size_, side_;
  std::vector<std::uint8_t> points_;
};

Image rendered(const PathfinderSample& sample, const Pathfinder& how) {
  Canvas canvas(how.size);
  for (const Point& marker : sample.markers) {
    canvas.cover(marker, how.marker_radius, [&](Point p) {
      return std::hypot(p.x - marker.x, p.y - marker.y) <= how.marker_radius;
    });
  }
  for (const auto& curve : sample.curves) {
    for (const Dash& dash : curve) {
      canvas.cover(dash.begin, how.dash + how.thickness, [&](Point p) {
        return squared_distance(p, dash) <= how.thickness * how.thickness;
      });
    }
  }
  return canvas.image();
}

void write_paths(const std::string& folder, const std::string& part, std::int64_t count,
                 std::uint64_t seed) {
  IdxWriter images, labels;
  images.begin({count, Pathfinder{}.size, Pathfinder{}.size});
  labels.begin({count});
  for (std::int64_t i = 0; i < count; ++i) {
    const PathfinderSample made = make_pathfinder(seed, i);
    images.add(made.image.pixels);
    labels.add(std::vector<std::uint8_t>{std::uint8_t(made.label)});
  }
  write_file(joined(folder, part + "-images-idx3-ubyte"), images.bytes);
  write_file(joined(folder, part + "-labels-idx1-ubyte"), labels.bytes);
}

}  // namespace

PathfinderSample make_pathfinder(std::uint64_t seed, std::int64_t index, const Pathfinder& how) {
  if (how.length < 1 || how.seed_distance * 4 >= how.size || how.distractor_length < 1) {
    throw InvalidArgument(fmt::format("Pathfinder of size {}, length {}, seeds {} apart", how.size,
                                      how.length, how.seed_distance));
  }
  Random random(seed, 3, std::uint64_t(index));
  PathfinderSample sample;
  sample.label = int(random.below(2));
  Drawing drawing(how, random);
  while (!drawing.start()) {
  }
  for (int i = 0; i < how.distractors; ++i) drawing.add_distractor();
  sample.curves = std::move(drawing.curves);
  const auto& other = sample.curves[sample.label == 1 ? 0 : 1];
  sample.markers = {sample.curves[0].front().begin, other.back().end};
  sample.image = rendered(sample, how);
  return sample;
}

void write_pathfinder(const std::string& folder, std::int64_t count, std::uint64_t seed) {
  if (count < 10 || count > most_images) {
    throw InvalidArgument(
        fmt::format("{} images of Pathfinder; it needs 10 to {}", count, most_images));
  }
  write_paths(folder, "train", count, seed);
  write_paths(folder, "t10k", count / 10, seed + 0x2000000000u);
  const std::string names = "apart\nconnected\n";
  write_file(joined(folder, "classes.txt"), std::as_bytes(std::span(names)));
}

}  // namespace foci::data
