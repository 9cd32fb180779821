// SPDX-License-Identifier: Apache-2.0
// Names beside and above a sheet of images.
#include "report/axes.hpp"
#include "report/glyphs.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace foci::report {
namespace {

constexpr std::string_view names_picture = "a sheet of images";
constexpr Colour name_colour{31, 35, 40};
constexpr int sheet_margin = 10, name_line = letters_height + 6, name_gap = 8;

int widest_name(const std::vector<std::string>& names) {
  int width = 0;
  for (const std::string& name : names) width = std::max(width, letters_width(name));
  return width;
}

/// In pixels, each as large as before or so many times.
data::Image enlarged(const data::Image& sheet, int times) {
  data::Image rgb(sheet.height * times, sheet.width * times, 3);
  for (int y = 0; y < rgb.height; ++y) {
    for (int x = 0; x < rgb.width; ++x) {
      const std::uint8_t* from = sheet.at(y / times, x / times);
      for (int c = 0; c < 3; ++c) rgb.at(y, x)[c] = from[sheet.channels == 3 ? c : 0];
    }
  }
  return rgb;
}

void check(const data::Image& sheet, const std::vector<std::string>& rows,
           const std::vector<std::string>& columns) {
  if (rows.empty() || columns.empty()) refuse(names_picture, "", "rows or columns have no names");
  if (sheet.height < int(rows.size()) || sheet.width < int(columns.size()) ||
      sheet.height % int(rows.size()) != 0 || sheet.width % int(columns.size()) != 0 ||
      (sheet.channels != 1 && sheet.channels != 3)) {
    refuse(names_picture, "",
           fmt::format("{} by {} pixels of {} channels are no {} rows and {} columns", sheet.height,
                       sheet.width, sheet.channels, rows.size(), columns.size()));
  }
}

}  // namespace

data::Image named_sheet(const data::Image& sheet, const std::vector<std::string>& rows,
                        const std::vector<std::string>& columns) {
  check(sheet, rows, columns);
  const int high = sheet.height / int(rows.size()), wide = sheet.width / int(columns.size());
  const int times = std::max(
      {1, (name_line + high - 1) / high, (widest_name(columns) + name_gap + wide - 1) / wide});
  const data::Image images = enlarged(sheet, times);
  const int left = sheet_margin + widest_name(rows) + name_gap, top = sheet_margin + name_line;
  data::Image page(top + images.height + sheet_margin, left + images.width + sheet_margin, 3);
  std::fill(page.pixels.begin(), page.pixels.end(), std::uint8_t(255));
  for (int y = 0; y < images.height; ++y)
    std::copy_n(images.at(y, 0), images.width * 3, page.at(top + y, left));
  for (int i = 0; i < int(columns.size()); ++i)
    write_letters(page, sheet_margin, left + i * wide * times, columns[std::size_t(i)],
                  name_colour);
  for (int i = 0; i < int(rows.size()); ++i) {
    const int middle = top + i * high * times + (high * times - letters_height) / 2;
    write_letters(page, middle, sheet_margin, rows[std::size_t(i)], name_colour);
  }
  return page;
}

}  // namespace foci::report
