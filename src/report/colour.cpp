// SPDX-License-Identifier: Apache-2.0
// The map of colours: a few anchors in OKLab, straight lines between them, walked at an even pace,
// so that equal steps of a number are equal steps to the eye. Lightness only grows along it, so
// neither colour blindness nor a printer in grey can reorder it.
#include <foci/pictures.hpp>

#include <algorithm>
#include <array>
#include <cmath>

namespace foci::report {
namespace {

struct Lab {
  double l = 0, a = 0, b = 0;
};

/// Violet, plum, red, orange, pale yellow.
constexpr Lab anchors[] = {{0.20, 0.030, -0.080},
                           {0.37, 0.115, -0.085},
                           {0.55, 0.165, 0.030},
                           {0.74, 0.085, 0.130},
                           {0.95, -0.020, 0.095}};
constexpr int legs = 4;

double length(const Lab& from, const Lab& to) {
  return std::hypot(to.l - from.l, to.a - from.a, to.b - from.b);
}

std::uint8_t encoded(double linear) {
  const double x = std::clamp(linear, 0.0, 1.0);
  const double curve = x <= 0.0031308 ? 12.92 * x : 1.055 * std::pow(x, 1 / 2.4) - 0.055;
  return std::uint8_t(std::lround(255 * curve));
}

/// Ottosson's OKLab to sRGB.
Colour colour_of(const Lab& lab) {
  const auto cubed = [&](double a, double b) {
    const double root = lab.l + a * lab.a + b * lab.b;
    return root * root * root;
  };
  const double l = cubed(0.3963377774, 0.2158037573), m = cubed(-0.1055613458, -0.0638541728),
               s = cubed(-0.0894841775, -1.2914855480);
  return {encoded(4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s),
          encoded(-1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s),
          encoded(-0.0041960863 * l - 0.7034186147 * m + 1.7076147010 * s)};
}

}  // namespace

Colour colour_at(double t) {
  double whole = 0;
  for (int i = 0; i < legs; ++i) whole += length(anchors[i], anchors[i + 1]);
  double left = std::clamp(t, 0.0, 1.0) * whole;
  for (int i = 0; i < legs; ++i) {
    const Lab &from = anchors[i], &to = anchors[i + 1];
    const double leg = length(from, to);
    if (left > leg && i + 1 < legs) {
      left -= leg;
      continue;
    }
    const double share = std::min(1.0, left / leg);
    return colour_of({from.l + share * (to.l - from.l), from.a + share * (to.a - from.a),
                      from.b + share * (to.b - from.b)});
  }
  return colour_of(anchors[legs]);
}

}  // namespace foci::report
