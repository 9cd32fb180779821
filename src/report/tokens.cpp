// SPDX-License-Identifier: Apache-2.0
// Weights between tokens: a map with every token's name, or a text tinted by one row of it. White
// space is made visible; long tokens lose their tails, and the whole of them shows on pointing.
#include "report/axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

constexpr std::string_view map_picture = "a map of tokens", text_picture = "a tinted text";
constexpr std::size_t most_tokens = 1024;

/// "·" for a space, "↵" for the end of a line, "→" for a tab, "∅" for nothing.
std::string visible(std::string_view token) {
  std::string text;
  for (const char c : token)
    text += c == ' ' ? "·" : c == '\n' ? "↵" : c == '\t' ? "→" : std::string(1, c);
  return text.empty() ? "∅" : text;
}

void check_weights(std::string_view picture, std::string_view title, std::string_view name,
                   const std::vector<double>& weights, std::size_t wanted) {
  if (weights.size() != wanted)
    refuse(picture, title,
           fmt::format("{} has {} weights, needs {}", escaped(name), weights.size(), wanted));
  check_finite(picture, title, name, weights);
  if (!weights.empty() && *std::min_element(weights.begin(), weights.end()) < 0)
    refuse(picture, title, escaped(name) + " has a weight below 0");
}

double largest_of(const std::vector<double>& weights) {
  return weights.empty() ? 0 : *std::max_element(weights.begin(), weights.end());
}

struct MapLayout {
  double cell = 0, letters = 0, left = 0, top = 0;
  bool named = true;  ///< cells are large enough for names of tokens
};

MapLayout map_layout(const TokenMap& map) {
  const double most = double(std::max(map.queries.size(), map.keys.size()));
  MapLayout layout;
  layout.cell = std::clamp(640 / most, 2.0, 26.0);
  layout.named = layout.cell >= 9;
  layout.letters = std::min(12.0, layout.cell - 1);
  const auto widest = [&](const std::vector<std::string>& tokens) {
    double width = 0;
    for (const std::string& token : tokens)
      width = std::max(width, text_width(visible(token), layout.letters));
    return layout.named ? std::min(width, 110.0) : 0;
  };
  layout.left = 34 + widest(map.queries) + 8;
  layout.top = (map.title.empty() ? 30 : 62) + 0.9 * widest(map.keys) + 8;
  return layout;
}

void draw_cells(Svg& svg, const TokenMap& map, const MapLayout& layout, double most) {
  data::Image cells(int(map.queries.size()), int(map.keys.size()), 3);
  for (std::size_t i = 0; i < map.weights.size(); ++i) {
    const Colour colour = colour_at(most > 0 ? map.weights[i] / most : 0);
    cells.pixels[3 * i] = colour.r, cells.pixels[3 * i + 1] = colour.g;
    cells.pixels[3 * i + 2] = colour.b;
  }
  svg.image({layout.left, layout.top}, layout.cell * double(map.keys.size()),
            layout.cell * double(map.queries.size()), cells);
  if (map.weights.size() > 1600) return;
  for (std::size_t r = 0; r < map.queries.size(); ++r) {
    for (std::size_t c = 0; c < map.keys.size(); ++c) {
      svg.note({layout.left + layout.cell * double(c), layout.top + layout.cell * double(r)},
               layout.cell, layout.cell,
               fmt::format("{} to {}: {}", visible(map.queries[r]), visible(map.keys[c]),
                           short_number(map.weights[r * map.keys.size() + c])));
    }
  }
}

void draw_names(Svg& svg, const TokenMap& map, const MapLayout& layout) {
  svg.text({16, layout.top - 10}, "query", {.size = 12});
  svg.text({layout.left, map.title.empty() ? 20.0 : 50.0}, "key", {.size = 12});
  const double size = layout.letters;
  for (std::size_t r = 0; layout.named && r < map.queries.size(); ++r) {
    svg.text({layout.left - 6, layout.top + layout.cell * (double(r) + 0.5) + size / 3},
             shortened(visible(map.queries[r]), 110, size), {.size = size, .anchor = Anchor::end});
  }
  for (std::size_t c = 0; layout.named && c < map.keys.size(); ++c) {
    const double x = layout.left + layout.cell * (double(c) + 0.5) + size / 3, y = layout.top - 6;
    const std::string turn = fmt::format(" transform=\"rotate(-65 {} {})\"", number(x), number(y));
    svg.text({x, y}, shortened(visible(map.keys[c]), 110, size), {.size = size, .more = turn});
  }
}

void draw_scale(Svg& svg, Point corner, double width, double most) {
  data::Image scale(1, 64, 3);
  for (int x = 0; x < 64; ++x) {
    const Colour colour = colour_at(x / 63.0);
    std::uint8_t* pixel = scale.at(0, x);
    pixel[0] = colour.r, pixel[1] = colour.g, pixel[2] = colour.b;
  }
  svg.image(corner, width, 10, scale);
  svg.text({corner.x, corner.y + 24}, "0", {.size = 12});
  svg.text({corner.x + width, corner.y + 24}, short_number(most),
           {.size = 12, .anchor = Anchor::end});
}

/// Where each token of a text goes.
struct Placed {
  std::string text;
  double x = 0, y = 0, width = 0;
};

std::vector<Placed> placed(const TokenText& text, double width, double top) {
  constexpr double size = 14, row = 30, margin = 16;
  std::vector<Placed> places;
  double x = margin, y = top;
  for (const std::string& token : text.tokens) {
    const std::string shown = shortened(visible(token), std::min(280.0, width - 2 * margin), size);
    const double wide = text_width(shown, size) + 6;
    if (x > margin && x + wide > width - margin) x = margin, y += row;
    places.push_back({shown, x, y, wide});
    x += wide + 2;
    if (!token.empty() && token.back() == '\n') x = margin, y += row;
  }
  return places;
}

void draw_text(Svg& svg, const TokenText& text, const std::vector<Placed>& places, double most) {
  for (std::size_t i = 0; i < places.size(); ++i) {
    const Placed& place = places[i];
    const double share = most > 0 ? text.weights[i] / most : 0;
    if (share >= 0.005) svg.bar({place.x, place.y - 16}, place.width, 22, "foci-4", 0.85 * share);
    if (text.query == i) svg.frame({place.x, place.y - 16}, place.width, 22, {ink, 2});
    svg.text({place.x + 3, place.y}, place.text, {.size = 14});
    svg.note({place.x, place.y - 16}, place.width, 22,
             visible(text.tokens[i]) + ": " + short_number(text.weights[i]));
  }
}

}  // namespace

std::string draw(const TokenMap& map) {
  if (map.queries.empty() || map.keys.empty())
    refuse(map_picture, map.title, map.queries.empty() ? "no queries" : "no keys");
  if (std::max(map.queries.size(), map.keys.size()) > most_tokens)
    refuse(map_picture, map.title,
           fmt::format("{} queries and {} keys; {} at most", map.queries.size(), map.keys.size(),
                       most_tokens));
  check_weights(map_picture, map.title, "the map", map.weights,
                map.queries.size() * map.keys.size());
  const MapLayout layout = map_layout(map);
  const double cells = layout.cell * double(map.keys.size());
  const double bottom = layout.top + layout.cell * double(map.queries.size());
  const double tail = layout.named ? 56 : 16;  // names of keys lean over the right edge
  const double width = std::max(layout.left + cells + tail, text_width(map.title, 15.5) + 32);
  Svg svg(std::max(width, layout.left + 140), bottom + 48, map.title, map.about);
  draw_title(svg, map.title, width);
  const double most = largest_of(map.weights);
  draw_cells(svg, map, layout, most);
  draw_names(svg, map, layout);
  draw_scale(svg, {layout.left, bottom + 12}, std::min(std::max(cells, 90.0), 200.0), most);
  return svg.finished();
}

std::string draw(const TextSheet& sheet) {
  if (sheet.texts.empty()) refuse(text_picture, sheet.title, "no text");
  if (sheet.width < 120)
    refuse(text_picture, sheet.title, fmt::format("{:g} is too narrow for it", sheet.width));
  double most = 0, y = sheet.title.empty() ? 24 : 54;
  std::vector<std::vector<Placed>> texts;
  std::vector<double> tops;
  for (const TokenText& text : sheet.texts) {
    if (text.tokens.empty()) refuse(text_picture, sheet.title, escaped(text.name) + ": no tokens");
    check_weights(text_picture, sheet.title, text.name, text.weights, text.tokens.size());
    if (text.query && *text.query >= text.tokens.size())
      refuse(text_picture, sheet.title,
             fmt::format("query {} of {} tokens", *text.query, text.tokens.size()));
    most = std::max(most, largest_of(text.weights));
    tops.push_back(y);
    texts.push_back(placed(text, sheet.width, y + 30));
    y = texts.back().back().y + 40;
  }
  Svg svg(sheet.width, y - 6, sheet.title, sheet.about);
  draw_title(svg, sheet.title, sheet.width);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const TokenText& text = sheet.texts[i];
    const double top = sheet.range == Range::row ? most : largest_of(text.weights);
    svg.text({16, tops[i]},
             shortened(fmt::format("{} (strongest: {})", text.name, short_number(top)),
                       sheet.width - 32, 13),
             {.more = " font-weight=\"600\""});
    draw_text(svg, text, texts[i], top);
  }
  return svg.finished();
}

}  // namespace foci::report
