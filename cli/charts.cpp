// SPDX-License-Identifier: Apache-2.0
// Scales, axes, lines, marks and the legend of line charts.
#include "cli/charts.hpp"

#include <foci/error.hpp>

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <utility>

namespace foci::cli {
namespace {

using experiments::Axis;
using experiments::Chart;
using experiments::Estimate;
using experiments::Kind;
using experiments::Series;
using experiments::Spacing;

constexpr double left = 58, right = 16, top = 50, bottom = 52, row_height = 22;

/// Okabe and Ito's, which the colour-blind tell apart, with grey and violet for their yellow and
/// black: one vanishes on white, the other at night.
constexpr std::array<const char*, 8> colours = {"#0072b2", "#e69f00", "#009e73", "#cc79a7",
                                                "#56b4e9", "#d55e00", "#8c8c8c", "#9467bd"};
constexpr std::array<const char*, 5> dashes = {"", "8 4", "2 3", "9 3 2 3", "14 4"};

struct Spot {
  double x = 0, y = 0;
};

/// From numbers to places along a line of the picture.
class Ruler {
 public:
  Ruler(const Axis& axis, const std::vector<double>& numbers, double begin, double end)
      : log_(axis.spacing == Spacing::logarithmic), begin_(begin), end_(end) {
    bool any = false;
    for (const double x : numbers) {
      if (!fits(x)) continue;
      low_ = any ? std::min(low_, inner(x)) : inner(x);
      high_ = any ? std::max(high_, inner(x)) : inner(x);
      any = true;
    }
    if (!log_ && low_ > 0 && low_ < 0.4 * high_) low_ = 0;
    if (high_ - low_ < 1e-9 * (1 + std::abs(high_))) {
      low_ -= 0.5;
      high_ += 0.5;
    }
    const double room = 0.04 * (high_ - low_);
    high_ += room;
    if (log_ || low_ != 0) low_ -= room;
  }

  bool fits(double x) const { return std::isfinite(x) && (!log_ || x > 0); }
  double at(double x) const {
    return begin_ + (inner(x) - low_) / (high_ - low_) * (end_ - begin_);
  }
  /// Kept inside: for ends of error bars.
  double clamped(double x) const {
    const double place = fits(x) ? at(x) : begin_;
    return std::clamp(place, std::min(begin_, end_), std::max(begin_, end_));
  }

  std::vector<double> ticks() const { return log_ ? log_ticks() : linear_ticks(); }

 private:
  double inner(double x) const { return log_ ? std::log10(x) : x; }

  std::vector<double> linear_ticks() const {
    double step = std::pow(10, std::floor(std::log10((high_ - low_) / 3)));
    for (const double more : {2.0, 2.5, 2.0}) {
      if ((high_ - low_) / step > 6) step *= more;
    }
    std::vector<double> made;
    for (double k = std::ceil(low_ / step); k * step <= high_; ++k)
      made.push_back(k == 0 ? 0 : k * step);
    return made;
  }
  /// Powers of ten, or where few fit also twice and five times them.
  std::vector<double> log_ticks() const {
    const double span = high_ - low_;
    const int skip = span > 7 ? int(std::ceil(span / 5)) : 1;
    std::vector<double> made;
    for (int power = int(std::floor(low_)); power <= int(std::ceil(high_)); ++power) {
      for (const double digit : {1.0, 2.0, 5.0}) {
        const double x = digit * std::pow(10, power);
        if (digit > 1 && span > 2) continue;
        if (power % skip != 0 || std::log10(x) < low_ || std::log10(x) > high_) continue;
        made.push_back(x);
      }
    }
    return made;
  }

  bool log_;
  double begin_, end_, low_ = 0, high_ = 1;
};

std::string tick_text(double x) {
  if (x > 0 && (x < 0.9e-3 || x >= 1e5)) {
    const double power = std::floor(std::log10(x) + 1e-9);
    const double digit = std::round(x / std::pow(10, power));
    std::string raised;
    constexpr std::array<const char*, 10> superscripts = {"⁰", "¹", "²", "³", "⁴",
                                                          "⁵", "⁶", "⁷", "⁸", "⁹"};
    for (const char c : fmt::format("{}", power)) raised += c == '-' ? "⁻" : superscripts[c - '0'];
    return digit == 1 ? "10" + raised : fmt::format("{}·10{}", digit, raised);
  }
  const std::string text = fmt::format("{:.6g}", std::abs(x));
  return x < 0 ? "−" + text : text;
}

std::string escaped(const std::string& text) {
  std::string made;
  for (const char c : text)
    made += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return made;
}

std::string text_at(Spot at, const char* more, const std::string& text) {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\"{}>{}</text>\n", at.x, at.y, more,
                     escaped(text));
}

/// One of six shapes around a point, as path commands.
std::string mark(std::size_t shape, Spot at) {
  switch (shape % 6) {
    case 0:
      return fmt::format("M{:.1f} {:.1f}h6v6h-6z", at.x - 3, at.y - 3);
    case 1:
      return fmt::format("M{:.1f} {:.1f}l4 7h-8z", at.x, at.y - 4);
    case 2:
      return fmt::format("M{:.1f} {:.1f}l4.2 4.2-4.2 4.2-4.2-4.2z", at.x, at.y - 4.2);
    case 3:
      return fmt::format("M{:.1f} {:.1f}a3.4 3.4 0 1 0 .01 0z", at.x, at.y - 3.4);
    case 4:
      return fmt::format("M{:.1f} {:.1f}l4-7h-8z", at.x, at.y + 4);
    default:
      return fmt::format("M{:.1f} {:.1f}h2.4v-2.4h2.4v2.4h2.4v2.4h-2.4v2.4h-2.4v-2.4h-2.4z",
                         at.x - 3.6, at.y - 1.2);
  }
}

/// How the series of one name look, everywhere in the picture.
struct Look {
  std::size_t number = 0;
  bool has_marks = false;  ///< measured or found; else a formula alone
  bool has_formula = false;

  const char* colour() const { return colours[number % colours.size()]; }
};
using Looks = std::vector<std::pair<std::string, Look>>;  // in the order of the legend

/// Charts that have names in common, and share looks and a legend.
struct Group {
  Looks looks;
  std::vector<std::size_t> charts;

  bool knows(const Chart& chart) const {
    return std::any_of(looks.begin(), looks.end(), [&](const auto& look) {
      return std::any_of(chart.series.begin(), chart.series.end(),
                         [&](const Series& series) { return series.name == look.first; });
    });
  }
  void add(std::size_t number, const Chart& chart) {
    charts.push_back(number);
    for (const Series& series : chart.series) {
      std::size_t at = 0;
      while (at < looks.size() && looks[at].first != series.name) ++at;
      if (at == looks.size()) looks.push_back({series.name, {at, false, false}});
      Look& look = looks[at].second;
      (series.kind == Kind::closed ? look.has_formula : look.has_marks) = true;
    }
  }
};

std::vector<Group> groups_of(const std::vector<Chart>& charts) {
  std::vector<Group> groups;
  for (std::size_t i = 0; i < charts.size(); ++i) {
    auto known = std::find_if(groups.begin(), groups.end(),
                              [&](const Group& group) { return group.knows(charts[i]); });
    if (known == groups.end()) known = groups.insert(groups.end(), Group());
    known->add(i, charts[i]);
  }
  return groups;
}

/// "a", "b" and so on.
std::string letter(std::size_t chart) { return std::string(1, char('a' + int(chart % 26))); }

std::string line_style(const Look& look, Kind kind) {
  const bool beside = kind == Kind::closed && look.has_marks;
  const char* dash = beside ? "5 4" : kind == Kind::closed ? dashes[look.number % 5] : "";
  return fmt::format(" fill=\"none\" stroke=\"{}\" stroke-width=\"{}\"{}", look.colour(),
                     beside ? 1.6 : 2.2,
                     *dash ? fmt::format(" stroke-dasharray=\"{}\"", dash) : std::string());
}

/// One chart with its corner at the origin of a group.
class Panel {
 public:
  Panel(const Chart& chart, std::string title, double width, double height)
      : chart_(chart),
        title_(std::move(title)),
        width_(width),
        height_(height),
        x_(chart.x, xs(), left, left + width),
        y_(chart.y, ys(), top + height, top) {}

  std::string drawn(const Looks& looks) const {
    std::string svg = axes();
    for (const Series& series : chart_.series) {
      for (const auto& [name, look] : looks) {
        if (name == series.name) svg += line(series, look);
      }
    }
    return svg;
  }

 private:
  std::vector<double> xs() const {
    std::vector<double> all;
    for (const Series& series : chart_.series)
      all.insert(all.end(), series.x.begin(), series.x.end());
    return all;
  }
  std::vector<double> ys() const {
    std::vector<double> all;
    for (const Series& series : chart_.series) {
      for (const Estimate& y : series.y) all.push_back(y.value);
    }
    return all;
  }

  std::string axes() const {
    std::string grid, svg;
    for (const double tick : y_.ticks()) {
      grid += fmt::format("M{} {:.1f}h{}", left, y_.at(tick), width_);
      svg += text_at({left - 7, y_.at(tick) + 4}, " text-anchor=\"end\"", tick_text(tick));
    }
    double taken = -100;
    for (const double tick : x_.ticks()) {
      grid += fmt::format("M{:.1f} {}v5", x_.at(tick), top + height_);
      if (x_.at(tick) - taken < 26) continue;
      taken = x_.at(tick);
      svg += text_at({taken, top + height_ + 18}, " text-anchor=\"middle\"", tick_text(tick));
    }
    grid += fmt::format("M{} {}h{}", left, top + height_, width_);
    svg = fmt::format("<path d=\"{}\" class=\"g\"/>\n", grid) + svg;
    svg += text_at({left, 18}, " font-weight=\"600\"", title_);
    svg += text_at({left, 38}, "", "↑ " + chart_.y.name);
    return svg + text_at({left + width_, top + height_ + 38}, " text-anchor=\"end\"",
                         chart_.x.name + " →");
  }

  std::string line(const Series& series, const Look& look) const {
    std::string path, bars, marks;
    for (std::size_t i = 0; i < series.x.size(); ++i) {
      const Estimate& y = series.y[i];
      if (!x_.fits(series.x[i]) || !y_.fits(y.value)) continue;
      const Spot at{x_.at(series.x[i]), y_.at(y.value)};
      path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : "L", at.x, at.y);
      marks += mark(look.number, at);
      const double low = y_.clamped(y.value - y.standard_error),
                   high = y_.clamped(y.value + y.standard_error);
      if (low - high > 1.5) bars += fmt::format("M{:.1f} {:.1f}V{:.1f}", at.x, low, high);
    }
    std::string svg;
    if (!bars.empty()) svg += fmt::format("<path d=\"{}\" stroke=\"{}\"/>\n", bars, look.colour());
    if (series.kind != Kind::extreme && series.x.size() > 1)
      svg += fmt::format("<path d=\"{}\"{}/>\n", path, line_style(look, series.kind));
    if (series.kind != Kind::closed)
      svg += fmt::format("<path d=\"{}\" fill=\"{}\"/>\n", marks, look.colour());
    return svg;
  }

  const Chart& chart_;
  std::string title_;
  double width_, height_;
  Ruler x_, y_;
};

/// Rows of signs and names below the charts.
class Legend {
 public:
  Legend(double y, double width) : y_(y), width_(width) {}

  /// `of` says for which charts; empty: for all.
  void add(const Looks& looks, const std::string& of) {
    x_ = left;
    y_ += row_height;
    if (!of.empty()) svg_ += text_at({left - 40, y_}, " font-weight=\"600\"", of);
    bool beside = false;
    for (const auto& [name, look] : looks) {
      beside = beside || (look.has_marks && look.has_formula);
      place(name, [&look = look](Spot at) { return sign(look, at); });
    }
    if (!beside) return;
    place("closed form", [](Spot at) {
      return fmt::format("<path d=\"M{:.1f} {:.1f}h24\" class=\"c\"/>\n", at.x, at.y);
    });
  }
  const std::string& svg() const { return svg_; }
  double end() const { return y_ + 14; }

 private:
  static std::string sign(const Look& look, Spot at) {
    const Kind kind = look.has_marks ? Kind::measured : Kind::closed;
    std::string svg =
        fmt::format("<path d=\"M{:.1f} {:.1f}h24\"{}/>\n", at.x, at.y, line_style(look, kind));
    if (look.has_marks) {
      svg += fmt::format("<path d=\"{}\" fill=\"{}\"/>\n", mark(look.number, {at.x + 12, at.y}),
                         look.colour());
    }
    return svg;
  }

  template <class Sign>
  void place(const std::string& text, const Sign& sign) {
    std::size_t letters = 0;
    for (const char c : text) letters += (c & 0xc0) != 0x80;
    const double wide = 48 + 7.2 * double(letters);
    if (x_ + wide > width_ && x_ > left) {
      x_ = left;
      y_ += row_height;
    }
    svg_ += sign({x_, y_ - 4}) + text_at({x_ + 30, y_}, "", text);
    x_ += wide;
  }

  std::string svg_;
  double x_ = left, y_, width_;
};

}  // namespace

std::string svg_of(const Picture& picture) {
  const std::size_t count = picture.charts.size();
  const std::size_t columns = count == 4 ? 2 : std::min<std::size_t>(count, 3);
  const std::size_t rows = (count + columns - 1) / columns;
  const double width = columns == 1   ? 460
                       : columns == 2 ? 340
                                      : 240,
               height = columns == 1   ? 300
                        : columns == 2 ? 230
                                       : 190;
  const double cell = left + width + right, tall = top + height + bottom;
  const double wide = cell * double(columns);
  const std::vector<Group> groups = groups_of(picture.charts);
  std::string panels;
  Legend legend(tall * double(rows) - 4, wide);
  for (const Group& group : groups) {
    std::string letters;
    for (const std::size_t i : group.charts) {
      if (groups.size() > 1) letters += letter(i);
      const std::size_t row = i / columns, column = i % columns;
      const std::string title = groups.size() > 1 ? letter(i) + "  " : "";
      panels += fmt::format("<g transform=\"translate({:.0f} {:.0f})\">\n{}</g>\n",
                            cell * double(column), tall * double(row),
                            Panel(picture.charts[i], title + picture.charts[i].title, width, height)
                                .drawn(group.looks));
    }
    legend.add(group.looks, letters);
  }
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" width=\"{0:.0f}\" "
      "height=\"{1:.0f}\" role=\"img\" aria-labelledby=\"title description\" font-size=\"13\" "
      "font-family=\"system-ui, 'DejaVu Sans', sans-serif\">\n<title id=\"title\">{2}</title>\n"
      "<desc id=\"description\">{3}</desc>\n",
      wide, legend.end(), escaped(picture.title), escaped(picture.description));
  svg +=
      "<style>svg{fill:#222}.b{fill:#fff}.g{stroke:#888;stroke-opacity:.4}"
      ".c{stroke:#888;stroke-width:1.6;stroke-dasharray:5 4}"
      "@media(prefers-color-scheme:dark){svg{fill:#ddd}.b{fill:#1b1b1b}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" class=\"b\"/>\n";
  return svg + panels + legend.svg() + "</svg>\n";
}

void write_svg(const std::string& path, const Picture& picture) {
  std::ofstream file(path, std::ios::binary);
  file << svg_of(picture);
  file.close();
  if (!file) throw FileError(fmt::format("{}: cannot be written", path));
}

}  // namespace foci::cli
