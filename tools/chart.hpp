// SPDX-License-Identifier: Apache-2.0
// Two frames to draw in: a square piece of plane with a query, keys and curves of equal score, and
// a chart with axes, lines and a legend.
#pragma once

#include "plane.hpp"

#include <string>
#include <utility>

namespace foci::tools {

/// A piece of plane, centred on the origin.
struct Plane {
  Svg& svg;
  Point corner;
  double side = 270, reach = 3;

  Point at(double x, double y) const {
    return {corner.x + (x + reach) / (2 * reach) * side,
            corner.y + (reach - y) / (2 * reach) * side};
  }
  void frame(std::string_view heading, std::string_view below) const {
    svg.bar(corner, side, side, "#f6f8fa", thin_pen);
    svg.text({corner.x + side / 2, corner.y - 12}, heading, Anchor::middle, bold);
    svg.text({corner.x + side / 2, corner.y + side + 20}, below, Anchor::middle);
  }
  void query(double x, double y) const {
    const Point p = at(x, y);
    const Pen pen{"#1f2328", 2.4, ""};
    svg.line({p.x - 6, p.y - 6}, {p.x + 6, p.y + 6}, pen);
    svg.line({p.x - 6, p.y + 6}, {p.x + 6, p.y - 6}, pen);
  }
  /// Every key a small ring; its weight the area of a disc.
  void keys(const Vector& xy, const Vector& weight) const {
    for (std::size_t j = 0; j < weight.size(); ++j) {
      const Point p = at(xy[2 * j], xy[2 * j + 1]);
      svg.circle(p, 42 * std::sqrt(weight[j]), "#fb8f44", {"#bc4c00", 0.8, ""});
      svg.circle(p, 2.2, "#fff", {"#6e3200", 1.1, ""});
    }
  }
  void curves(const Field& field, double level, const Pen& pen) const {
    for (const auto& curve : contours(field, level)) {
      std::vector<Point> points;
      for (const Point& p : curve) points.push_back(at(p.x, p.y));
      svg.path(points, pen);
    }
  }
};

/// With a real minus sign.
inline std::string tick_name(double tick) {
  return fmt::format("{}{:g}", tick < 0 ? "−" : "", std::abs(tick));
}

struct Axis {
  double from = 0, to = 1;
  std::vector<double> ticks;
  std::string_view name;
};

struct Chart {
  Svg& svg;
  Point corner;
  double width, height;
  Axis x, y;

  Point at(double px, double py) const {
    return {corner.x + (px - x.from) / (x.to - x.from) * width,
            corner.y + (y.to - py) / (y.to - y.from) * height};
  }
  void frame(std::string_view heading) const {
    svg.text({corner.x + width / 2, corner.y - 12}, heading, Anchor::middle, bold);
    for (double tick : x.ticks) {
      svg.line(at(tick, y.from), {at(tick, y.from).x, corner.y + height + 5}, thin_pen);
      svg.text({at(tick, y.from).x, corner.y + height + 19}, tick_name(tick), Anchor::middle);
    }
    for (double tick : y.ticks) {
      svg.line(at(x.from, tick), at(x.to, tick), {"#d0d7de", 1, ""});
      svg.text({corner.x - 7, at(x.from, tick).y + 4}, tick_name(tick), Anchor::end);
    }
    svg.line(at(x.from, y.from), at(x.to, y.from), thin_pen);
    svg.text({corner.x + width / 2, corner.y + height + 38}, x.name, Anchor::middle);
    svg.text({corner.x - 4, corner.y - 10}, y.name, Anchor::start);
  }
  void plot(const Vector& xs, const Vector& ys, const Pen& pen) const {
    std::vector<Point> points;
    for (std::size_t i = 0; i < xs.size(); ++i) points.push_back(at(xs[i], ys[i]));
    svg.path(points, pen);
  }
  void legend(Point first, const std::vector<std::pair<std::string, Pen>>& entries) const {
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const double height = first.y + 20 * double(i);
      svg.line({first.x, height - 4}, {first.x + 34, height - 4}, entries[i].second);
      svg.text({first.x + 42, height}, entries[i].first);
    }
  }
};

}  // namespace foci::tools
