// SPDX-License-Identifier: Apache-2.0
// The ellipse itself: a query, keys as discs whose area is their weight, and the curves on which
// the metric gives one score, through the quartiles of the keys. Both axes have one scale.
#include "report/axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

constexpr std::string_view plane_picture = "a plane of keys";
constexpr double side = 280, largest_disc = 20;
constexpr double most_covered = 0.12;  ///< of a panel, by discs that do not overlap

void check(const PlaneSheet& sheet, const Plane& plane) {
  const std::size_t n = plane.weights.size();
  if (n == 0) refuse(plane_picture, sheet.title, escaped(plane.name) + " has no keys");
  if (plane.keys.size() != 2 * n)
    refuse(plane_picture, sheet.title,
           fmt::format("{} has {} weights and {} coordinates of keys, needs two each",
                       escaped(plane.name), n, plane.keys.size()));
  check_finite(plane_picture, sheet.title, plane.name, plane.keys);
  check_finite(plane_picture, sheet.title, plane.name, plane.weights);
  check_finite(plane_picture, sheet.title, plane.name, plane.query);
  check_finite(plane_picture, sheet.title, plane.name, plane.metric);
  if (*std::min_element(plane.weights.begin(), plane.weights.end()) < 0)
    refuse(plane_picture, sheet.title, escaped(plane.name) + " has a weight below 0");
  const auto [a, b, c, d] = plane.metric;
  const double size = std::max({std::abs(a), std::abs(b), std::abs(d)});
  if (std::abs(b - c) > 1e-9 * size || a < -1e-9 * size || d < -1e-9 * size ||
      a * d - b * b < -1e-9 * size * size)
    refuse(plane_picture, sheet.title, fmt::format("({}, {}; {}, {}) is no metric", a, b, c, d));
}

/// What is seen of a plane: a square around keys and query.
struct Window {
  Point middle, corner;
  double reach = 1;

  Point at(double x, double y) const {
    return {corner.x + (x - middle.x + reach) / (2 * reach) * side,
            corner.y + (middle.y + reach - y) / (2 * reach) * side};
  }
};

Window window_of(const Plane& plane, Point corner) {
  double left = plane.query[0], right = left, low = plane.query[1], high = low;
  for (std::size_t j = 0; j < plane.weights.size(); ++j) {
    left = std::min(left, plane.keys[2 * j]), right = std::max(right, plane.keys[2 * j]);
    low = std::min(low, plane.keys[2 * j + 1]), high = std::max(high, plane.keys[2 * j + 1]);
  }
  const double reach = std::max(right - left, high - low) / 2;
  return {{(left + right) / 2, (low + high) / 2}, corner, reach > 0 ? 1.22 * reach : 1};
}

double score_of(const Plane& plane, double x, double y) {
  const auto& m = plane.metric;
  const auto& q = plane.query;
  if (plane.form == Form::product)
    return x * (m[0] * q[0] + m[1] * q[1]) + y * (m[2] * q[0] + m[3] * q[1]);
  const double u = x - q[0], v = y - q[1];
  return -0.5 * (m[0] * u * u + 2 * m[1] * u * v + m[3] * v * v);
}

/// Where a product has this score: a straight line, beyond the window at both ends.
std::vector<Point> straight(const Plane& plane, const Window& window, double score) {
  const auto& m = plane.metric;
  const double gx = m[0] * plane.query[0] + m[1] * plane.query[1];
  const double gy = m[2] * plane.query[0] + m[3] * plane.query[1];
  const double square = gx * gx + gy * gy;
  if (square == 0) return {};
  const double here = gx * window.middle.x + gy * window.middle.y;
  const double x = window.middle.x + gx * (score - here) / square;
  const double y = window.middle.y + gy * (score - here) / square;
  const double far = 4 * window.reach / std::sqrt(square);
  return {window.at(x - far * gy, y + far * gx), window.at(x + far * gy, y - far * gx)};
}

/// Where half the squared distance is -score: an ellipse, as long as the window allows.
std::vector<Point> round(const Plane& plane, const Window& window, double score) {
  const auto& m = plane.metric;
  const double turn = 0.5 * std::atan2(2 * m[1], m[0] - m[3]);
  const double c = std::cos(turn), s = std::sin(turn);
  const double first = m[0] * c * c + 2 * m[1] * c * s + m[3] * s * s;
  const double second = m[0] * s * s - 2 * m[1] * c * s + m[3] * c * c;
  const double longest = 40 * window.reach;
  const auto radius = [&](double value) {
    return value * longest * longest <= -2 * score ? longest : std::sqrt(-2 * score / value);
  };
  const double a = radius(first), b = radius(second);
  if (score >= 0 || (a == longest && b == longest)) return {};
  std::vector<Point> points;
  for (int i = 0; i <= 120; ++i) {
    const double angle = 2 * 3.14159265358979 * i / 120;
    const double u = a * std::cos(angle), v = b * std::sin(angle);
    points.push_back(window.at(plane.query[0] + c * u - s * v, plane.query[1] + s * u + c * v));
  }
  return points;
}

void draw_curves(Svg& svg, const Plane& plane, const Window& window) {
  std::vector<double> scores;
  for (std::size_t j = 0; j < plane.weights.size(); ++j)
    scores.push_back(score_of(plane, plane.keys[2 * j], plane.keys[2 * j + 1]));
  std::sort(scores.begin(), scores.end(), std::greater<>());
  double before = HUGE_VAL;
  for (const std::size_t quarter : {1, 2, 3}) {
    const double score = scores[(scores.size() - 1) * quarter / 4];
    if (score == before) continue;
    before = score;
    const auto points =
        plane.form == Form::product ? straight(plane, window, score) : round(plane, window, score);
    if (!points.empty()) svg.path(points, {"foci-0", 1.6, quarter == 2 ? "" : "6 3"});
  }
}

/// Pixels of area for a weight of 1, the same in all panels: the largest disc is no larger than
/// largest_disc, and all discs of a panel leave most of it free.
double disc_area(const PlaneSheet& sheet, double most) {
  constexpr double pi = 3.14159265358979;
  if (!(most > 0)) return 0;
  double area = pi * largest_disc * largest_disc / most;
  for (const Plane& plane : sheet.planes) {
    double sum = 0;
    for (const double weight : plane.weights) sum += weight;
    if (sum > 0) area = std::min(area, most_covered * side * side / sum);
  }
  return area / pi;
}

void draw_plane(Svg& svg, const Plane& plane, Point corner, double area) {
  svg.text({corner.x, corner.y - 28}, shortened(plane.name, side, 13),
           {.more = " font-weight=\"600\""});
  svg.text({corner.x, corner.y - 9}, shortened(plane.y_name, side, 12), {.size = 12});
  svg.text({corner.x + side, corner.y + side + 18}, shortened(plane.x_name, side, 12),
           {.size = 12, .anchor = Anchor::end});
  svg.inside(corner, side, side);
  const Window window = window_of(plane, {});
  draw_curves(svg, plane, window);
  for (std::size_t j = 0; j < plane.weights.size(); ++j) {
    const Point p = window.at(plane.keys[2 * j], plane.keys[2 * j + 1]);
    const double radius = std::sqrt(area * plane.weights[j]);
    if (radius >= 0.3) svg.circle(p, radius, "foci-1", 0.18, 0.8);
    svg.circle(p, std::min(1.5, std::max(0.8, radius / 3)), ink, 1);
  }
  const Point q = window.at(plane.query[0], plane.query[1]);
  svg.line({q.x - 7, q.y - 7}, {q.x + 7, q.y + 7}, {ink, 2.6});
  svg.line({q.x - 7, q.y + 7}, {q.x + 7, q.y - 7}, {ink, 2.6});
  svg.close();
  svg.frame(corner, side, side, {faint, 1});
}

/// What the signs mean, in lines that fit.
std::vector<std::string> caption_of(double width, double most) {
  std::vector<std::string> lines = {"cross: query"};
  for (const std::string& part :
       {std::string("dot: key"),
        fmt::format("area of a disc: weight, the largest {}", short_number(most)),
        std::string("curves: one score, through the keys' quartiles")}) {
    const std::string longer = lines.back() + "; " + part;
    if (text_width(longer, 11) <= width) {
      lines.back() = longer;
    } else {
      lines.push_back(part);
    }
  }
  return lines;
}

}  // namespace

std::string draw(const PlaneSheet& sheet) {
  if (sheet.planes.empty()) refuse(plane_picture, sheet.title, "no plane");
  double most = 0;
  for (const Plane& plane : sheet.planes) {
    check(sheet, plane);
    most = std::max(most, *std::max_element(plane.weights.begin(), plane.weights.end()));
  }
  // At most four beside one another, as evenly as they go.
  const std::size_t count = sheet.planes.size(), lines = (count + 3) / 4;
  const std::size_t across = (count + lines - 1) / lines;
  const double top = (sheet.title.empty() ? 8 : 40) + 42, step = side + 26, line = side + 78;
  const double bottom = top + line * double(lines - 1) + side, wide = step * double(across) - 26;
  const std::vector<std::string> below = caption_of(wide, most);
  const double area = disc_area(sheet, most);
  const double width = std::max(32 + wide, text_width(sheet.title, 15.5) + 32);
  Svg svg(width, bottom + 40 + 16 * double(below.size()), sheet.title, sheet.about);
  draw_title(svg, sheet.title, width);
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t row = i / across, column = i % across;
    draw_plane(svg, sheet.planes[i], {16 + step * double(column), top + line * double(row)}, area);
  }
  for (std::size_t i = 0; i < below.size(); ++i)
    svg.text({16, bottom + 42 + 16 * double(i)}, below[i], {.size = 11});
  return svg.finished();
}

}  // namespace foci::report
