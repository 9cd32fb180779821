// SPDX-License-Identifier: Apache-2.0
// Line charts side by side: who looks like whom, which charts share a legend, and where each lies.
#include "report/line_plot.hpp"

#include <algorithm>
#include <utility>

namespace foci::report {
namespace {

constexpr std::string_view sheet_picture = "a sheet of charts";
constexpr double margin = 16, letter_room = 34;

/// Charts that have names in common. What has the same name has the same look, everywhere.
struct Kin {
  std::vector<Entry> entries = {};  ///< in the order of the legend; `series` counts looks
  std::vector<std::size_t> charts = {};
  bool asides = false;

  const Entry* find(const std::string& name) const {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [&](const Entry& entry) { return entry.name == name; });
    return found == entries.end() ? nullptr : &*found;
  }
  bool knows(const LineChart& chart) const {
    return std::any_of(chart.series.begin(), chart.series.end(),
                       [&](const Series& series) { return find(series.name) != nullptr; });
  }
  /// What has points anywhere shows them in the legend.
  void add(std::size_t number, const LineChart& chart) {
    charts.push_back(number);
    for (const Series& series : chart.series) {
      const Sign sign = sign_of(series);
      if (const Entry* known = find(series.name)) {
        Entry& entry = entries[std::size_t(known - entries.data())];
        asides = asides || (entry.sign == Sign::curve) != (sign == Sign::curve);
        if (entry.sign == Sign::curve || sign == Sign::joined) entry.sign = sign;
      } else {
        entries.push_back({series.name, entries.size(), sign});
      }
    }
  }
  std::vector<Look> looks(const LineChart& chart) const {
    std::vector<Look> all;
    for (const Series& series : chart.series) {
      const Entry& entry = *find(series.name);
      const bool aside = series.mark == Mark::curve && entry.sign != Sign::curve;
      all.push_back({entry.series, aside ? Role::aside : Role::own});
    }
    return all;
  }
};

std::vector<Kin> kin_of(const std::vector<LineChart>& charts) {
  std::vector<Kin> all;
  for (std::size_t i = 0; i < charts.size(); ++i) {
    auto known =
        std::find_if(all.begin(), all.end(), [&](const Kin& kin) { return kin.knows(charts[i]); });
    if (known == all.end()) known = all.insert(all.end(), Kin());
    known->add(i, charts[i]);
  }
  return all;
}

/// "a", "b" and so on.
std::string letter_of(std::size_t chart) { return std::string(1, char('a' + int(chart % 26))); }

/// Of all kin, below one another; gives back where it ends.
double draw_legends(Svg* svg, const std::vector<Kin>& all, const ChartSheet& sheet, double right,
                    double top) {
  for (const Kin& kin : all) {
    std::vector<Entry> entries = kin.entries;
    if (kin.asides) entries.push_back({sheet.asides, 0, Sign::aside});
    std::string letters;
    for (const std::size_t i : kin.charts) letters += letter_of(i);
    const bool lettered = all.size() > 1;
    const double left =
        lettered ? margin + std::max(letter_room, text_width(letters, 14) + 8) : margin;
    if (svg != nullptr && lettered)
      svg->text({margin, top}, letters, {.more = " font-weight=\"600\""});
    top += draw_legend(svg, entries, left, right, top);
  }
  return top;
}

struct Panels {
  std::size_t columns = 1;
  double width = 640, height = 350;
};

Panels panels_of(std::size_t count) {
  if (count == 1) return {};
  if (count == 2 || count == 4) return {2, 420, 290};
  return {3, 330, 260};
}

}  // namespace

std::string draw(const ChartSheet& sheet) {
  if (sheet.charts.empty()) refuse(sheet_picture, sheet.title, "no charts");
  for (const LineChart& chart : sheet.charts) check(chart);
  const std::vector<Kin> all = kin_of(sheet.charts);
  const Panels panels = panels_of(sheet.charts.size());
  const std::size_t rows = (sheet.charts.size() + panels.columns - 1) / panels.columns;
  const double width = panels.width * double(panels.columns), right = width - 20;
  const double begin = sheet.title.empty() ? 26 : 54;
  const double top = draw_legends(nullptr, all, sheet, right, begin) - 12;
  Svg svg(width, top + panels.height * double(rows), sheet.title, sheet.about);
  draw_title(svg, sheet.title, width);
  draw_legends(&svg, all, sheet, right, begin);
  for (const Kin& kin : all) {
    for (const std::size_t i : kin.charts) {
      LineChart chart = sheet.charts[i];
      chart.width = panels.width, chart.height = panels.height;
      if (all.size() > 1)
        chart.title = letter_of(i) + (chart.title.empty() ? "" : " · ") + chart.title;
      const double titled = chart.title.empty() ? 0 : 20;
      const Frame frame = frame_of(chart, 42 + titled);
      const auto row = i / panels.columns, column = i % panels.columns;
      svg.inside({panels.width * double(column), top + panels.height * double(row)}, panels.width,
                 panels.height);
      draw_title(svg, chart.title, chart.width, 13);
      draw_plot(svg, chart, frame, kin.looks(sheet.charts[i]));
      svg.close();
    }
  }
  return svg.finished();
}

}  // namespace foci::report
