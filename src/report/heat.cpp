// SPDX-License-Identifier: Apache-2.0
// One query's weights over the image it is a query of. The image turns grey under the colours; the
// query's patch has a frame. Between patches the smooth overlay is linear from middle to middle.
#include "report/heat.hpp"

#include "report/axes.hpp"
#include "report/glyphs.hpp"

#include <foci/image.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

constexpr std::string_view heat_picture = "heat-maps";
constexpr Colour black{31, 35, 40}, white{255, 255, 255};
constexpr double nearly_all = 0.95;  ///< of the patches, in effect: a map with little to tell

void check_row(const HeatSheet& sheet, const HeatRow& row) {
  const data::Image& image = row.image;
  if (image.height < 1 || image.width < 1 || (image.channels != 1 && image.channels != 3)) {
    refuse(heat_picture, sheet.title,
           fmt::format("an image of {} by {} with {} channels; needs pixels, of 1 or 3 channels",
                       image.height, image.width, image.channels));
  }
  if (row.heats.empty()) refuse(heat_picture, sheet.title, "a row without weights");
  for (const Heat& heat : row.heats) {
    if (heat.rows < 1 || heat.columns < 1 ||
        heat.weights.size() != std::size_t(heat.rows) * std::size_t(heat.columns)) {
      refuse(heat_picture, sheet.title,
             fmt::format("{} has {} weights for {} by {} patches", escaped(heat.name),
                         heat.weights.size(), heat.rows, heat.columns));
    }
    check_finite(heat_picture, sheet.title, heat.name, heat.weights);
    if (*std::min_element(heat.weights.begin(), heat.weights.end()) < 0)
      refuse(heat_picture, sheet.title, escaped(heat.name) + " has a weight below 0");
    if (row.query && (row.query->row < 0 || row.query->row >= heat.rows || row.query->column < 0 ||
                      row.query->column >= heat.columns)) {
      refuse(heat_picture, sheet.title,
             fmt::format("the query's patch ({}, {}) is none of {} by {}", row.query->row,
                         row.query->column, heat.rows, heat.columns));
    }
  }
}

double largest(const Heat& heat) {
  return *std::max_element(heat.weights.begin(), heat.weights.end());
}

data::Image three_channels(const data::Image& image, int side) {
  const double scale = double(side) / std::max(image.height, image.width);
  const int height = std::max(1, int(std::lround(image.height * scale)));
  const int width = std::max(1, int(std::lround(image.width * scale)));
  const auto filter = scale >= 2 ? data::Filter::nearest : data::Filter::bicubic;
  data::Image rgb(image.height, image.width, 3);
  for (std::size_t i = 0; i < rgb.pixels.size(); ++i)
    rgb.pixels[i] = image.pixels[image.channels == 3 ? i : i / 3];
  return data::resize(rgb, height, width, filter);
}

/// A weight at a place of the image, both from 0 to 1.
double weight_at(const Heat& heat, double y, double x, Overlay overlay) {
  const auto at = [&](int row, int column) {
    return heat.weights[std::size_t(row) * std::size_t(heat.columns) + std::size_t(column)];
  };
  if (overlay == Overlay::patches)
    return at(std::min(int(y * heat.rows), heat.rows - 1),
              std::min(int(x * heat.columns), heat.columns - 1));
  const double row = std::clamp(y * heat.rows - 0.5, 0.0, heat.rows - 1.0);
  const double column = std::clamp(x * heat.columns - 0.5, 0.0, heat.columns - 1.0);
  const int r = int(row), c = int(column);
  const int r1 = std::min(r + 1, heat.rows - 1), c1 = std::min(c + 1, heat.columns - 1);
  const double u = row - r, v = column - c;
  return (1 - u) * ((1 - v) * at(r, c) + v * at(r, c1)) +
         u * ((1 - v) * at(r1, c) + v * at(r1, c1));
}

void cover(data::Image& picture, const HeatPanel& panel, Overlay overlay) {
  for (int y = 0; y < picture.height; ++y) {
    for (int x = 0; x < picture.width; ++x) {
      const double weight =
          weight_at(*panel.heat, (y + 0.5) / picture.height, (x + 0.5) / picture.width, overlay);
      const Colour colour = colour_at(panel.most > 0 ? weight / panel.most : 0);
      std::uint8_t* pixel = picture.at(y, x);
      const double grey = 0.3 * pixel[0] + 0.59 * pixel[1] + 0.11 * pixel[2];
      const std::uint8_t parts[] = {colour.r, colour.g, colour.b};
      for (int c = 0; c < 3; ++c)
        pixel[c] = std::uint8_t(std::lround(heat_opacity * parts[c] + (1 - heat_opacity) * grey));
    }
  }
}

void put(data::Image& image, int y, int x, const Colour& colour) {
  if (y < 0 || x < 0 || y >= image.height || x >= image.width) return;
  std::uint8_t* pixel = image.at(y, x);
  pixel[0] = colour.r, pixel[1] = colour.g, pixel[2] = colour.b;
}

/// White within black, so that it shows on anything.
void mark_query(data::Image& picture, const Cell& query, const Heat& grid) {
  const int top = query.row * picture.height / grid.rows;
  const int left = query.column * picture.width / grid.columns;
  const int bottom = (query.row + 1) * picture.height / grid.rows - 1;
  const int right = (query.column + 1) * picture.width / grid.columns - 1;
  for (int ring = 0; ring < 3; ++ring) {
    const Colour colour = ring == 1 ? white : black;
    const int out = 1 - ring;
    for (int x = left - out; x <= right + out; ++x)
      put(picture, top - out, x, colour), put(picture, bottom + out, x, colour);
    for (int y = top - out; y <= bottom + out; ++y)
      put(picture, y, left - out, colour), put(picture, y, right + out, colour);
  }
}

/// What stands under an image: whose query it is.
std::string query_words(const HeatRow& row) {
  if (!row.query_name.empty()) return "query: " + row.query_name;
  if (!row.query) return "query: no patch";
  return fmt::format("query: patch {}, {}", row.query->row, row.query->column);
}

/// Lines under a map whose colours tell little because there is little to tell; else none.
std::vector<std::string> even_words(const Heat& heat) {
  double sum = 0, squares = 0;
  for (const double weight : heat.weights) sum += weight, squares += weight * weight;
  const auto n = double(heat.weights.size());
  const double effective = squares > 0 ? sum * sum / squares : n;
  if (n < 4 || sum == 0 || effective < nearly_all * n) return {};
  return {"nearly uniform:", fmt::format("{:.1f} of {:.0f} patches", effective, n)};
}

void add_row(HeatLayout& layout, const HeatSheet& sheet, const HeatRow& row) {
  constexpr int gap = 14, name_height = 20, bar_height = 34;
  int more = 0;  // below the scales
  if (!row.name.empty()) layout.height += 22;
  layout.row_tops.push_back(layout.height - 8);
  double most = 0;
  for (const Heat& heat : row.heats) most = std::max(most, largest(heat));
  const data::Image plain = three_channels(row.image, sheet.side);
  int x = heat_margin;
  for (std::size_t i = 0; i <= row.heats.size(); ++i) {
    const Heat* heat = i == 0 ? nullptr : &row.heats[i - 1];
    HeatPanel panel{x, layout.height + name_height, heat ? heat->name : "image", &row, heat};
    panel.pixels = plain;
    if (heat) panel.most = sheet.range == Range::row ? most : largest(*heat);
    if (heat) cover(panel.pixels, panel, sheet.overlay);
    if (row.query) mark_query(panel.pixels, *row.query, heat ? *heat : row.heats[0]);
    int words = std::max(letters_width(panel.name), heat ? 0 : letters_width(query_words(row)));
    if (heat) panel.notes = even_words(*heat);
    for (const std::string& note : panel.notes) words = std::max(words, letters_width(note));
    more = std::max(more, int(panel.notes.size()) * heat_line);
    layout.panels.push_back(std::move(panel));
    x += std::max({plain.width, 96, std::min(words, 3 * sheet.side)}) + gap;
  }
  layout.width = std::max(layout.width, x - gap + heat_margin);
  layout.height += name_height + plain.height + bar_height + more;
}

}  // namespace

HeatLayout heat_layout(const HeatSheet& sheet, int title_height) {
  if (sheet.rows.empty()) refuse(heat_picture, sheet.title, "no images");
  if (sheet.side < 16 || sheet.side > 2048)
    refuse(heat_picture, sheet.title,
           fmt::format("a side of {}; needs 16 to 2048 pixels", sheet.side));
  HeatLayout layout;
  layout.height = title_height;
  for (const HeatRow& row : sheet.rows) {
    check_row(sheet, row);
    add_row(layout, sheet, row);
  }
  layout.height += 8;
  return layout;
}

data::Image paint(const HeatSheet& sheet) {
  const HeatLayout layout = heat_layout(sheet, sheet.title.empty() ? 6 : 32);
  data::Image page(layout.height,
                   std::max(layout.width, 2 * heat_margin + letters_width(sheet.title)), 3);
  std::fill(page.pixels.begin(), page.pixels.end(), std::uint8_t(255));
  write_letters(page, 14, heat_margin, sheet.title, black);
  for (std::size_t r = 0; r < sheet.rows.size(); ++r)
    write_letters(page, layout.row_tops[r] - 10, heat_margin, sheet.rows[r].name, black);
  for (const HeatPanel& panel : layout.panels) {
    const data::Image& pixels = panel.pixels;
    for (int y = 0; y < pixels.height; ++y)
      std::copy_n(pixels.at(y, 0), pixels.width * 3, page.at(panel.y + y, panel.x));
    write_letters(page, panel.y - 15, panel.x, fitting_letters(panel.name, 3 * sheet.side), black);
    const int below = panel.y + pixels.height + 6;
    if (panel.heat == nullptr) {
      write_letters(page, below, panel.x, query_words(*panel.row), black);
      continue;
    }
    const int bar = std::max(pixels.width, 96);
    for (int x = 0; x < bar; ++x) {
      for (int y = 0; y < heat_bar; ++y)
        put(page, below + y, panel.x + x, colour_at(x / (bar - 1.0)));
    }
    const std::string most = short_number(panel.most);
    for (std::size_t i = 0; i < panel.notes.size(); ++i)
      write_letters(page, below + heat_bar + 4 + heat_line * (int(i) + 1), panel.x, panel.notes[i],
                    black);
    write_letters(page, below + heat_bar + 4, panel.x, "0", black);
    write_letters(page, below + heat_bar + 4, panel.x + bar - letters_width(most), most, black);
  }
  return page;
}

std::string draw(const HeatSheet& sheet) {
  const HeatLayout layout = heat_layout(sheet, sheet.title.empty() ? 8 : 44);
  Svg svg(layout.width, layout.height, sheet.title, sheet.about);
  draw_title(svg, sheet.title, layout.width);
  for (std::size_t r = 0; r < sheet.rows.size(); ++r)
    svg.text({double(heat_margin), double(layout.row_tops[r])},
             shortened(sheet.rows[r].name, layout.width - 2 * heat_margin, 13));
  data::Image scale(1, 64, 3);
  for (int x = 0; x < 64; ++x) put(scale, 0, x, colour_at(x / 63.0));
  for (const HeatPanel& panel : layout.panels) {
    const double x = panel.x, y = panel.y, width = panel.pixels.width;
    const double below = y + panel.pixels.height + 6, bar = std::max(width, 96.0);
    svg.image({x, y}, width, panel.pixels.height, panel.pixels);
    svg.text({x, y - 6}, shortened(panel.name, std::max(bar, 3.0 * sheet.side), 12), {.size = 12});
    if (panel.heat == nullptr) {
      svg.text({x, below + 10}, query_words(*panel.row), {.size = 12});
      continue;
    }
    svg.image({x, below}, bar, heat_bar, scale);
    for (std::size_t i = 0; i < panel.notes.size(); ++i)
      svg.text({x, below + heat_bar + 13 + heat_line * (double(i) + 1)}, panel.notes[i],
               {.size = 11});
    svg.text({x, below + heat_bar + 13}, "0", {.size = 12});
    svg.text({x + bar, below + heat_bar + 13}, short_number(panel.most),
             {.size = 12, .anchor = Anchor::end});
  }
  return svg.finished();
}

}  // namespace foci::report
