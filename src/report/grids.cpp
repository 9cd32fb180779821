// SPDX-License-Identifier: Apache-2.0
// Tables of numbers as colours, each number written into its cell: layers down, heads across.
#include "report/axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace foci::report {
namespace {

constexpr std::string_view grid_picture = "grids";
constexpr double cell_width = 46, cell_height = 26, cell_gap = 36;
constexpr double bar_width = 110, bar_height = 10, bar_room = 44;
constexpr double least_share = 0.1;  ///< of the numbers, that their colours span

void check(const GridSheet& sheet) {
  if (sheet.grids.empty()) refuse(grid_picture, sheet.title, "no grid");
  for (const Grid& grid : sheet.grids) {
    if (grid.rows.empty() || grid.columns.empty() ||
        grid.values.size() != grid.rows.size() * grid.columns.size()) {
      refuse(grid_picture, sheet.title,
             fmt::format("{} has {} values for {} rows and {} columns", escaped(grid.name),
                         grid.values.size(), grid.rows.size(), grid.columns.size()));
    }
    check_finite(grid_picture, sheet.title, grid.name, grid.values);
    if (grid.from && grid.to && !(*grid.from < *grid.to))
      refuse(grid_picture, sheet.title,
             fmt::format("colours of {} from {} to {}", escaped(grid.name), *grid.from, *grid.to));
  }
}

double names_width(const GridSheet& sheet, const Grid& grid) {
  double widest = text_width(sheet.row_name, 12);
  for (const std::string& name : grid.rows) widest = std::max(widest, text_width(name, 12));
  return std::min(widest, 120.0) + 8;
}

struct Box {
  double left = 0, top = 0, width = 0, height = 0;
};

double box_width(const GridSheet& sheet, const Grid& grid) {
  const double cells = cell_width * double(grid.columns.size());
  const double names = names_width(sheet, grid);
  return std::max({names + cells, text_width(grid.name, 14), names + bar_width});
}

/// As many beside one another as fit into 900, as evenly as they go.
std::vector<Box> boxes_of(const GridSheet& sheet, double top) {
  double widest = 0, highest = 0;
  for (const Grid& grid : sheet.grids) {
    widest = std::max(widest, box_width(sheet, grid));
    highest = std::max(highest, 84 + bar_room + cell_height * double(grid.rows.size()));
  }
  const std::size_t count = sheet.grids.size();
  const auto fit = std::size_t(std::max(1.0, (868 + cell_gap) / (widest + cell_gap)));
  const std::size_t lines = (count + fit - 1) / fit, across = (count + lines - 1) / lines;
  std::vector<Box> boxes;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t line = i / across;
    boxes.push_back({16 + (widest + cell_gap) * double(i % across), top + highest * double(line),
                     box_width(sheet, sheet.grids[i]), highest});
  }
  return boxes;
}

/// Black or white, whichever stands out more.
std::string_view letters_on(const Colour& colour) {
  const auto part = [](std::uint8_t value) { return std::pow(value / 255.0, 2.2); };
  const double light = 0.2126 * part(colour.r) + 0.7152 * part(colour.g) + 0.0722 * part(colour.b);
  return light > 0.18 ? "#000000" : "#ffffff";
}

struct Span {
  double from = 0, to = 1;
};

/// That of the numbers where nothing is said; numbers that are nearly one have nearly one colour.
Span span_of(const Grid& grid) {
  const double least = *std::min_element(grid.values.begin(), grid.values.end());
  const double most = *std::max_element(grid.values.begin(), grid.values.end());
  Span span{grid.from.value_or(least), grid.to.value_or(most)};
  const double needed = least_share * std::max({std::abs(least), std::abs(most), 1e-300});
  const double room = (needed - (span.to - span.from)) / 2;
  if (room <= 0) return span;
  const double share = grid.from || grid.to ? 2 : 1;  // an end that is set stays
  if (!grid.from) span.from -= share * room;
  if (!grid.to) span.to += share * room;
  return span;
}

/// Which colour is which number.
void draw_scale(Svg& svg, const Span& span, Point corner) {
  data::Image colours(1, 64, 3);
  for (int x = 0; x < 64; ++x) {
    const Colour colour = colour_at(x / 63.0);
    std::uint8_t* pixel = colours.at(0, x);
    pixel[0] = colour.r, pixel[1] = colour.g, pixel[2] = colour.b;
  }
  svg.image(corner, bar_width, bar_height, colours);
  svg.text({corner.x, corner.y + bar_height + 14}, short_number(span.from), {.size = 12});
  svg.text({corner.x + bar_width, corner.y + bar_height + 14}, short_number(span.to),
           {.size = 12, .anchor = Anchor::end});
}

void draw_grid(Svg& svg, const GridSheet& sheet, const Grid& grid, const Box& box) {
  const Span span = span_of(grid);
  const double left = box.left + names_width(sheet, grid), top = box.top + 58;
  const auto middle = left + cell_width * double(grid.columns.size()) / 2;
  svg.text({box.left, box.top + 16}, grid.name, {.more = " font-weight=\"600\""});
  svg.text({middle, box.top + 36}, sheet.column_name, {.size = 12, .anchor = Anchor::middle});
  svg.text({box.left, box.top + 52}, sheet.row_name, {.size = 12});
  for (std::size_t c = 0; c < grid.columns.size(); ++c) {
    svg.text({left + cell_width * (double(c) + 0.5), box.top + 52},
             shortened(grid.columns[c], cell_width - 2, 12),
             {.size = 12, .anchor = Anchor::middle});
  }
  for (std::size_t r = 0; r < grid.rows.size(); ++r) {
    const double y = top + cell_height * double(r);
    svg.text({left - 8, y + 17}, shortened(grid.rows[r], 120, 12),
             {.size = 12, .anchor = Anchor::end});
    for (std::size_t c = 0; c < grid.columns.size(); ++c) {
      const double x = left + cell_width * double(c),
                   value = grid.values[r * grid.columns.size() + c];
      const Colour colour =
          colour_at(span.to > span.from ? (value - span.from) / (span.to - span.from) : 0.5);
      svg.bar({x, y}, cell_width - 1, cell_height - 1, hex(colour));
      svg.text({x + cell_width / 2 - 0.5, y + 17}, short_number(value),
               {.size = 12, .anchor = Anchor::middle, .colour = letters_on(colour)});
    }
  }
  draw_scale(svg, span, {left, top + cell_height * double(grid.rows.size()) + 8});
}

}  // namespace

std::string draw(const GridSheet& sheet) {
  check(sheet);
  const std::vector<Box> boxes = boxes_of(sheet, sheet.title.empty() ? 10 : 42);
  double width = text_width(sheet.title, 15.5) + 32, height = 0;
  for (const Box& box : boxes) {
    width = std::max(width, box.left + box.width + 16);
    height = std::max(height, box.top + box.height - 12);
  }
  Svg svg(width, height, sheet.title, sheet.about);
  draw_title(svg, sheet.title, width);
  for (std::size_t i = 0; i < boxes.size(); ++i) draw_grid(svg, sheet, sheet.grids[i], boxes[i]);
  return svg.finished();
}

}  // namespace foci::report
