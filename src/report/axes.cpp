// SPDX-License-Identifier: Apache-2.0
// Ticks, legends and titles, and the words for what cannot be drawn.
#include "report/axes.hpp"

#include <foci/error.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

struct Both {
  Ends low = Ends::round, high = Ends::round;
};

/// 1, 2 or 5 times a power of ten, at least `rough`.
double round_step(double rough) {
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * power >= rough * (1 - 1e-9)) return factor * power;
  }
  return 10 * power;
}

std::string power_name(int power) {
  constexpr std::string_view digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
  if (power >= -3 && power <= 4) return tick_name(std::pow(10.0, power), std::pow(10.0, power));
  std::string name = power < 0 ? "10⁻" : "10";
  for (const char c : std::to_string(std::abs(power))) name += digits[c - '0'];
  return name;
}

Ticks logarithmic(double from, double to, Both ends, int most) {
  if (from == to) from /= 2, to *= 2;
  int first = int(std::floor(std::log10(from) + 1e-9));
  int last = int(std::ceil(std::log10(to) - 1e-9));
  Ticks ticks{from, to, {}, {}};
  const int every = std::max(1, (last - first + most - 1) / most);
  const bool fine = to <= 200 * from;  // too few powers of ten: 2 and 5 times them too
  if (ends.low == Ends::round)         // 1/2 and 1/5 are such steps as well
    ticks.from = fine ? 1 / round_step(1 / from) : std::pow(10.0, first);
  if (ends.high == Ends::round) ticks.to = fine ? round_step(to) : std::pow(10.0, last);
  first = every * int(std::floor(double(first) / every));
  for (int power = first; power <= last; power += every) {
    for (const double factor : {1.0, 2.0, 5.0}) {
      const double tick = factor * std::pow(10.0, power);
      if ((factor > 1 && !fine) || tick < ticks.from * (1 - 1e-9) || tick > ticks.to * (1 + 1e-9))
        continue;
      ticks.at.push_back(tick);
      ticks.names.push_back(factor == 1           ? power_name(power)
                            : std::abs(power) < 4 ? tick_name(tick, std::pow(10.0, power))
                                                  : tick_name(factor, 1) + "·" + power_name(power));
    }
  }
  return ticks;
}

Ticks linear(double from, double to, Both ends, int most, double least_step) {
  if (from == to) {
    const double room = least_step > 0 ? 1 : from == 0 ? 1 : std::abs(from) / 10;
    from -= room, to += room;
  }
  const double step = std::max(least_step, round_step((to - from) / (most + 0.3)));
  Ticks ticks{from, to, {}, {}};
  const double first = std::floor(from / step + 1e-9), last = std::ceil(to / step - 1e-9);
  if (ends.low == Ends::round) ticks.from = first * step;
  if (ends.high == Ends::round) ticks.to = last * step;
  for (double i = first; i <= last; ++i) {
    const double tick = i * step, room = 1e-9 * (ticks.to - ticks.from);
    if (tick < ticks.from - room || tick > ticks.to + room) continue;
    ticks.at.push_back(tick);
    ticks.names.push_back(tick_name(tick, step));
  }
  return ticks;
}

}  // namespace

void refuse(std::string_view picture, std::string_view title, std::string_view fault) {
  throw InvalidArgument(fmt::format("{}, '{}': {}", picture, escaped(title), fault));
}

void check_finite(std::string_view picture, std::string_view title, std::string_view name,
                  std::span<const double> values) {
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (std::isfinite(values[i])) continue;
    refuse(picture, title,
           fmt::format("number {} of {} is {}, needs a finite one", i, escaped(name), values[i]));
  }
}

void check_band(std::string_view picture, std::string_view title, std::string_view name,
                std::span<const double> values, std::span<const double> low,
                std::span<const double> high) {
  check_finite(picture, title, name, values);
  if (low.empty() && high.empty()) return;
  if (low.size() != values.size() || high.size() != values.size()) {
    refuse(picture, title,
           fmt::format("{} has {} values, {} low and {} high ones; needs as many or none",
                       escaped(name), values.size(), low.size(), high.size()));
  }
  check_finite(picture, title, name, low);
  check_finite(picture, title, name, high);
  for (std::size_t i = 0; i < low.size(); ++i) {
    if (low[i] <= high[i]) continue;
    refuse(picture, title,
           fmt::format("band {} of {} goes from {} to {}", i, escaped(name), low[i], high[i]));
  }
}

std::string tick_name(double value, double step) {
  const std::string_view sign = value < 0 ? "−" : "";
  const double size = std::abs(value);
  if (size < step / 1e6) return "0";
  if (size >= 1e6 || step < 1e-5) return fmt::format("{}{:.6g}", sign, size);
  const int decimals = std::max(0, -int(std::floor(std::log10(step) + 1e-9)));
  return fmt::format("{}{:.{}f}", sign, size, decimals);
}

std::string short_number(double value) {
  const std::string_view sign = value < 0 ? "−" : "";
  const double size = std::abs(value);
  if (size == 0) return "0";
  if (size < 0.0005) return fmt::format("{}{:.0e}", sign, size);
  if (size < 0.0995) return fmt::format("{}{:.3f}", sign, size);
  if (size < 9.995) return fmt::format("{}{:.2f}", sign, size);
  if (size < 99.95) return fmt::format("{}{:.1f}", sign, size);
  return size < 1e5 ? fmt::format("{}{:.0f}", sign, size) : fmt::format("{}{:.0e}", sign, size);
}

Ticks ticks_of(const Axis& axis, std::span<const double> values, Ends ends, int most) {
  double from = HUGE_VAL, to = -HUGE_VAL;
  bool whole = true;
  for (const double value : values) {
    from = std::min(from, value), to = std::max(to, value);
    whole = whole && value == std::floor(value) && std::abs(value) < 1e6;
  }
  from = axis.from.value_or(from), to = axis.to.value_or(to);
  const bool logarithmic_axis = axis.steps == Steps::logarithmic;
  if (!std::isfinite(from) || !std::isfinite(to) || from > to ||
      (from == to && axis.from && axis.to))
    refuse("an axis", axis.name, fmt::format("cannot go from {} to {}", from, to));
  if (logarithmic_axis && from <= 0)
    refuse("an axis", axis.name, fmt::format("logarithms need numbers above 0, not {}", from));
  const Both both{axis.from ? Ends::tight : ends, axis.to ? Ends::tight : ends};
  return logarithmic_axis ? logarithmic(from, to, both, most)
                          : linear(from, to, both, most, whole ? 1 : 0);
}

Point Frame::at(double px, double py) const {
  const auto share = [](double value, const Ticks& ticks, Steps steps) {
    return steps == Steps::linear ? (value - ticks.from) / (ticks.to - ticks.from)
                                  : std::log(value / ticks.from) / std::log(ticks.to / ticks.from);
  };
  return {corner.x + share(px, x, x_steps) * width,
          corner.y + (1 - share(py, y, y_steps)) * height};
}

std::string_view dash_of(std::size_t series) {
  constexpr std::string_view dashes[] = {"", "8 4", "2 3", "10 3 2 3", "16 5", "5 2"};
  return dashes[(series + series / series_colours) % 6];
}

void draw_marks(Svg& svg, const std::vector<Point>& at, std::size_t series) {
  constexpr std::string_view outlines[] = {
      "m0-3.6a3.6 3.6 0 1 0 .01 0z", "m-3.4-3.4h6.8v6.8h-6.8z",
      "m0-5l4.3 7.5h-8.6z",          "m0-5l5 5-5 5-5-5z",
      "m0 5l4.3-7.5h-8.6z",          "m0-4.6l4.4 3.2-1.7 5.1h-5.4l-1.7-5.1z"};
  svg.signs(at, outlines[(series + series / series_colours) % 6], colour_class(series));
}

namespace {

void draw_sign(Svg& svg, Point at, const Entry& entry) {
  const std::string colour = colour_class(entry.series);
  const Point end{at.x + 28, at.y};
  switch (entry.sign) {
    case Sign::box:
      return svg.bar({at.x + 8, at.y - 7}, 14, 13, colour);
    case Sign::aside:
      return svg.line(at, end, {faint, 1.6, aside_dash});
    case Sign::curve:
      return svg.line(at, end, {colour, 2.2, dash_of(entry.series)});
    case Sign::line:
      svg.line(at, end, {colour, 2.2, dash_of(entry.series)});
      break;
    case Sign::joined:
      svg.line(at, end, {colour, 2.2});
      break;
    case Sign::point:
      break;
  }
  draw_marks(svg, {{at.x + 14, at.y}}, entry.series);
}

}  // namespace

double draw_legend(Svg* svg, const std::vector<Entry>& entries, double left, double right,
                   double top) {
  constexpr double row = 20, sign = 36, gap = 18;
  double x = left, y = top;
  for (const Entry& entry : entries) {
    const std::string name = shortened(entry.name, right - left - sign, 13);
    const double width = sign + text_width(name, 13);
    if (x > left && x + width > right) x = left, y += row;
    if (svg != nullptr) {
      draw_sign(*svg, {x, y - 4}, entry);
      svg->text({x + sign, y}, name);
    }
    x += width + gap;
  }
  return entries.empty() ? 0 : y - top + row;
}

void draw_title(Svg& svg, std::string_view title, double width, double size) {
  svg.text({16, 27}, shortened(title, width - 32, size + 0.5),
           {.size = size, .more = " font-weight=\"600\""});
}

void draw_y_axis(Svg& svg, const Frame& frame, std::string_view name) {
  std::vector<Point> lefts, rights;
  for (std::size_t i = 0; i < frame.y.at.size(); ++i) {
    const Point p = frame.at(frame.x.from, frame.y.at[i]);
    lefts.push_back(p), rights.push_back({p.x + frame.width, p.y});
    svg.text({p.x - 8, p.y + 4.5}, frame.y.names[i], {.anchor = Anchor::end});
  }
  svg.segments(lefts, rights, {faint, 0.5});
  svg.text({16, frame.corner.y - 14}, shortened(name, frame.corner.x + frame.width - 16, 13));
}

}  // namespace foci::report
