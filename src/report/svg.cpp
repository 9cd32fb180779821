// SPDX-License-Identifier: Apache-2.0
// The style of both schemes, shapes as elements, and text that no token can break.
#include "report/svg.hpp"

#include "data/decode.hpp"

#include <fmt/format.h>

#include <cmath>

namespace foci::report {
namespace {

/// Okabe and Ito's colours, those that stand out from white and those that do from black, and a
/// violet.
constexpr std::string_view light[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                      "#e69f00", "#56b4e9", "#1f2328", "#8250df"};
constexpr std::string_view dark[] = {"#56b4e9", "#e69f00", "#009e73", "#cc79a7",
                                     "#d55e00", "#f0e442", "#e6edf3", "#a371f7"};

std::string rules(std::string_view paper, std::string_view edge, std::string_view ink_colour,
                  std::string_view faint_colour, std::span<const std::string_view> series) {
  std::string text =
      fmt::format(".foci-paper{{fill:{};stroke:{}}}.foci-ink{{color:{}}}.foci-faint{{color:{}}}",
                  paper, edge, ink_colour, faint_colour);
  for (std::size_t i = 0; i < series.size(); ++i)
    text += fmt::format(".foci-{}{{color:{}}}", i, series[i]);
  return text;
}

/// The length of the character at `at`; 0 where no UTF-8 begins.
std::size_t length_of(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return i < text.size() ? (unsigned char)text[i] : 0u; };
  const unsigned first = byte(at);
  const std::size_t length = first < 0x80                    ? 1
                             : first >= 0xc2 && first < 0xe0 ? 2
                             : first >= 0xe0 && first < 0xf0 ? 3
                             : first >= 0xf0 && first < 0xf5 ? 4
                                                             : 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(at + i) & 0xc0) != 0x80) return 0;
  }
  const unsigned second = byte(at + 1);  // neither overlong, nor a surrogate, nor beyond the end
  if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
  if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
  const bool none = first == 0xef && second == 0xbf && byte(at + 2) >= 0xbe;  // U+FFFE, U+FFFF
  return none ? 0 : length;
}

unsigned code_point(std::string_view c) {
  unsigned code = (unsigned char)c[0];
  if (c.size() > 1) code &= 0xffu >> (c.size() + 1);
  for (std::size_t i = 1; i < c.size(); ++i) code = code << 6 | ((unsigned char)c[i] & 0x3f);
  return code;
}

/// In parts of the letter size.
double character_width(std::string_view c) {
  if (c.size() == 1) {
    if (std::string_view("iljI.,:;'|!").find(c[0]) != std::string_view::npos) return 0.36;
    if (std::string_view("frt()[]- ").find(c[0]) != std::string_view::npos) return 0.46;
    if (std::string_view("mwMW@%").find(c[0]) != std::string_view::npos) return 0.98;
    if (std::string_view("#<>+=~_&").find(c[0]) != std::string_view::npos) return 0.86;
    return c[0] >= 'A' && c[0] <= 'Z' ? 0.74 : 0.64;
  }
  const unsigned code = code_point(c);
  if (code >= 0x300 && code < 0x370) return 0;  // marks over what comes before
  return code >= 0x1100 ? 1.02 : 0.7;
}

std::string paint_of(std::string_view colour) {
  return colour.starts_with('#') ? fmt::format("=\"{}\"", colour)
                                 : fmt::format("=\"currentColor\" class=\"{}\"", colour);
}

std::string stroke_of(const Pen& pen) {
  return fmt::format("stroke-width=\"{}\"{} stroke{}", number(pen.width),
                     pen.dash.empty() ? "" : fmt::format(" stroke-dasharray=\"{}\"", pen.dash),
                     paint_of(pen.colour));
}

std::string steps_of(const std::vector<Point>& points) {
  std::string steps;
  for (std::size_t i = 0; i < points.size(); ++i)
    steps += fmt::format("{}{} {}", i == 0 ? "M" : "L", number(points[i].x), number(points[i].y));
  return steps;
}

std::string opacity_of(double opacity) {
  return opacity >= 1 ? "" : fmt::format(" fill-opacity=\"{}\"", number(opacity));
}

}  // namespace

std::string number(double x) {
  const long long hundredths = std::llround(x * 100);
  std::string text = fmt::format("{}{}.{:02}", hundredths < 0 ? "-" : "",
                                 std::llabs(hundredths) / 100, std::llabs(hundredths) % 100);
  while (text.back() == '0') text.pop_back();
  if (text.back() == '.') text.pop_back();
  return text;
}

std::vector<std::string_view> characters(std::string_view text) {
  std::vector<std::string_view> found;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t length = std::max<std::size_t>(1, length_of(text, at));
    found.push_back(text.substr(at, length));
    at += length;
  }
  return found;
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const std::string_view c : characters(text)) {
    const auto byte = (unsigned char)c[0];
    if (c.size() > 1) {
      safe += c;
    } else if (byte >= 0x7f) {
      safe += "\xef\xbf\xbd";  // U+FFFD
    } else if (byte < 0x20) {
      safe += fmt::format("\xe2\x90{}", char(0x80 + byte));  // the signs that name them
    } else {
      safe += c == "&" ? "&amp;" : c == "<" ? "&lt;" : c == ">" ? "&gt;" : c == "\"" ? "&quot;" : c;
    }
  }
  return safe;
}

double text_width(std::string_view text, double size) {
  double width = 0;
  for (const std::string_view c : characters(text)) width += character_width(c) * size;
  return width;
}

std::string shortened(std::string_view text, double width, double size) {
  if (text_width(text, size) <= width) return std::string(text);
  std::string kept;
  double used = character_width("…") * size;
  for (const std::string_view c : characters(text)) {
    used += character_width(c) * size;
    if (used > width) break;
    kept += c;
  }
  return kept + "…";
}

std::string hex(const Colour& colour) {
  return fmt::format("#{:02x}{:02x}{:02x}", colour.r, colour.g, colour.b);
}

std::string base64(std::span<const std::byte> bytes) {
  constexpr std::string_view letters =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    unsigned three = 0;
    for (std::size_t j = 0; j < 3; ++j)
      three = three << 8 | (i + j < bytes.size() ? unsigned(bytes[i + j]) : 0u);
    for (std::size_t j = 0; j < 4; ++j)
      text += i + j > bytes.size() ? '=' : letters[three >> (18 - 6 * j) & 63];
  }
  return text;
}

std::string colour_class(std::size_t series) {
  return fmt::format("foci-{}", series % series_colours);
}

Svg::Svg(double width, double height, std::string_view title, std::string_view about) {
  body_ = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" width=\"{0}\" "
      "height=\"{1}\" role=\"img\" class=\"foci-ink\" fill=\"currentColor\" "
      "font-family=\"system-ui, 'DejaVu Sans', sans-serif\" "
      "font-size=\"13\">\n<title>{2}</title>\n<desc>{3}</desc>\n",
      number(width), number(height), escaped(title), escaped(about));
  body_ += fmt::format("<style>{}@media(prefers-color-scheme:dark){{{}}}</style>\n",
                       rules("#fff", "#d0d7de", "#1f2328", "#8c959f", light),
                       rules("#0d1117", "#30363d", "#e6edf3", "#6e7681", dark));
  body_ += fmt::format(
      "<rect class=\"foci-paper\" x=\".5\" y=\".5\" width=\"{}\" height=\"{}\" rx=\"8\"/>\n",
      number(width - 1), number(height - 1));
}

void Svg::line(Point a, Point b, const Pen& pen) {
  body_ += fmt::format("<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" {}/>\n", number(a.x),
                       number(a.y), number(b.x), number(b.y), stroke_of(pen));
}

void Svg::path(const std::vector<Point>& points, const Pen& pen) {
  body_ += fmt::format("<path d=\"{}\" fill=\"none\" stroke-linejoin=\"round\" {}/>\n",
                       steps_of(points), stroke_of(pen));
}

void Svg::signs(const std::vector<Point>& at, std::string_view outline, std::string_view colour) {
  std::string steps;
  for (const Point& p : at) steps += fmt::format("M{} {}{}", number(p.x), number(p.y), outline);
  body_ += fmt::format("<path d=\"{}\" fill{}/>\n", steps, paint_of(colour));
}

void Svg::segments(const std::vector<Point>& from, const std::vector<Point>& to, const Pen& pen) {
  std::string steps;
  for (std::size_t i = 0; i < from.size(); ++i) {
    const Point &a = from[i], &b = to[i];
    steps += fmt::format("M{} {}", number(a.x), number(a.y));
    steps += a.x == b.x   ? "V" + number(b.y)
             : a.y == b.y ? "H" + number(b.x)
                          : fmt::format("L{} {}", number(b.x), number(b.y));
  }
  if (!from.empty()) body_ += fmt::format("<path d=\"{}\" {}/>\n", steps, stroke_of(pen));
}

void Svg::area(const std::vector<Point>& points, std::string_view colour, double opacity) {
  body_ += fmt::format("<path d=\"{}Z\"{} fill{}/>\n", steps_of(points), opacity_of(opacity),
                       paint_of(colour));
}

void Svg::bar(Point corner, double width, double height, std::string_view colour, double opacity) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"{} fill{}/>\n",
                       number(corner.x), number(corner.y), number(width), number(height),
                       opacity_of(opacity), paint_of(colour));
}

void Svg::frame(Point corner, double width, double height, const Pen& pen) {
  body_ += fmt::format("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"none\" {}/>\n",
                       number(corner.x), number(corner.y), number(width), number(height),
                       stroke_of(pen));
}

void Svg::circle(Point at, double radius, std::string_view colour, double opacity, double rim) {
  const std::string edge =
      rim > 0 ? fmt::format(" stroke=\"currentColor\" stroke-width=\"{}\"", number(rim)) : "";
  body_ += fmt::format("<circle cx=\"{}\" cy=\"{}\" r=\"{}\"{}{} fill{}/>\n", number(at.x),
                       number(at.y), number(radius), opacity_of(opacity), edge, paint_of(colour));
}

void Svg::text(Point at, std::string_view words, const Lettering& how) {
  constexpr std::string_view anchors[] = {"", " text-anchor=\"middle\"", " text-anchor=\"end\""};
  body_ += fmt::format("<text x=\"{}\" y=\"{}\"{}{}{}{}>{}</text>\n", number(at.x), number(at.y),
                       anchors[int(how.anchor)],
                       how.size == 13 ? "" : fmt::format(" font-size=\"{}\"", number(how.size)),
                       how.more, how.colour == ink ? "" : " fill" + paint_of(how.colour),
                       escaped(words));
}

void Svg::note(Point corner, double width, double height, std::string_view words) {
  body_ += fmt::format(
      "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill-opacity=\"0\">"
      "<title>{}</title></rect>\n",
      number(corner.x), number(corner.y), number(width), number(height), escaped(words));
}

void Svg::image(Point corner, double width, double height, const data::Image& pixels) {
  body_ += fmt::format(
      "<image x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" preserveAspectRatio=\"none\" "
      "style=\"image-rendering:pixelated\" href=\"data:image/png;base64,{}\"/>\n",
      number(corner.x), number(corner.y), number(width), number(height),
      base64(data::encode_png(pixels, "a picture")));
}

void Svg::inside(Point corner, double width, double height) {
  body_ += fmt::format("<svg x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" overflow=\"hidden\">\n",
                       number(corner.x), number(corner.y), number(width), number(height));
}

}  // namespace foci::report
