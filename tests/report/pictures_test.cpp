// SPDX-License-Identifier: Apache-2.0
// Charts, colours and heat-maps hold every number they are given; what cannot be drawn is refused
// in one line.
#include "report/drawn.hpp"

#include <array>
#include <cmath>
#include <cstdio>
#include <set>

namespace foci::report {
namespace {

/// The first series' sign, and how bars begin to be written.
const std::string dot_sign = "m0-3.6a3.6 3.6 0 1 0 .01 0z", bar = "stroke-width=\"1.5\"";

/// Strokes of the first path that is drawn so.
std::size_t moves(const std::string& svg, const std::string& pen) {
  const std::size_t end = svg.find(pen), begin = svg.rfind("<path", end);
  return end == svg.npos ? 0 : count(svg.substr(begin, end - begin), "M");
}

LineChart line_chart() {
  return {.title = "collapse <by> layer",
          .about = "two & two",
          .x = {"layer"},
          .y = {"cosine"},
          .series = {{"dot", {0, 1, 2}, {0.1, 0.5, 0.9}, {0.05, 0.4, 0.8}, {0.15, 0.6, 1.0}},
                     {"flat", {0, 1, 2}, {0.2, 0.3, 0.4}}}};
}

TEST(WellFormed, FaultsAreFound) {
  EXPECT_EQ(xml_fault("<a b=\"1\"><c/>x &amp; y</a>"), "");
  for (const char* text : {"<a>", "<a></b>", "<a/><b/>", "<a b=1/>", "<a b=\"1\" b=\"2\"/>",
                           "<a>&nbsp;</a>", "<a>1 > 0</a>", "x<a/>", "<a>\x01</a>", ""})
    EXPECT_NE(xml_fault(text), "") << text;
}

TEST(LineCharts, DrawEveryPointBandAndName) {
  const std::string svg = drawn(line_chart());
  EXPECT_EQ(count(svg, "fill-opacity=\"0.2\""), 1u) << "one band";
  EXPECT_EQ(count(svg, dot_sign), 3u + 1) << "dot's points and its sign in the legend";
  EXPECT_NE(svg.find(">dot</text>"), svg.npos);
  EXPECT_NE(svg.find(">flat</text>"), svg.npos);
  EXPECT_NE(svg.find("collapse &lt;by&gt; layer"), svg.npos);
  EXPECT_NE(svg.find("stroke-dasharray=\"8 4\""), svg.npos) << "not by colour alone";
}

TEST(LineCharts, PointsHaveBars) {
  LineChart chart = line_chart();
  const std::size_t lines = count(draw(chart), "<line");
  EXPECT_EQ(count(draw(chart), bar), 0u);
  chart.series[0].mark = Mark::points;
  EXPECT_EQ(count(drawn(chart), "<line"), lines - 1) << "no line in the legend";
  EXPECT_EQ(count(drawn(chart), bar), 1u);
  EXPECT_EQ(moves(drawn(chart), bar), 9u) << "three bars with two caps each";
  chart.series[0].mark = Mark::joined;
  EXPECT_EQ(moves(drawn(chart), bar), 3u) << "no caps, a line joins them";
  EXPECT_EQ(count(drawn(chart), dot_sign), 3u + 1);
  EXPECT_EQ(count(drawn(chart), "stroke-width=\"2.2\" stroke=\"currentColor\" class=\"foci-0\""),
            2u)
      << "the line and its sign";
}

TEST(LineCharts, ACurveIsALineAlone) {
  LineChart chart = line_chart();
  for (Series& series : chart.series) series.low = series.high = {}, series.mark = Mark::curve;
  EXPECT_EQ(count(drawn(chart), dot_sign), 0u);
  EXPECT_EQ(count(drawn(chart), "stroke-dasharray=\"8 4\""), 2u) << "told by its dashes";
}

/// What a chart of the sheet measured, and the formula beside it.
ChartSheet chart_sheet() {
  ChartSheet sheet{.title = "two", .about = "of them", .charts = {line_chart(), line_chart()}};
  sheet.charts[0].series[1].mark = Mark::joined;
  sheet.charts[1].series = {{"flat", {0, 1}, {0.2, 0.3}, {}, {}, Mark::curve},
                            {"a bound", {0, 1}, {1, 1}, {}, {}, Mark::curve}};
  return sheet;
}

TEST(ChartSheets, OneNameHasOneLookAndOnePlaceInTheLegend) {
  const std::string svg = drawn(chart_sheet());
  for (const char* name : {">dot<", ">flat<", ">a bound<", ">in closed form<"})
    EXPECT_EQ(count(svg, name), 1u) << name;
  EXPECT_EQ(count(svg, ">cosine<"), 2u);
  EXPECT_EQ(count(svg, "stroke-dasharray=\"5 4\" stroke=\"currentColor\" class=\"foci-1\""), 1u)
      << "flat's formula, in flat's colour";
  EXPECT_EQ(count(svg, "class=\"foci-2\""), 2u) << "the bound and its sign";
  EXPECT_EQ(count(svg, ">a · "), 0u) << "no letters where the legend is of all";
}

TEST(ChartSheets, StrangersHaveLettersAndLegendsOfTheirOwn) {
  ChartSheet sheet = chart_sheet();
  sheet.charts.push_back(line_chart());
  for (Series& series : sheet.charts[2].series) series.name += " of another";
  const std::string svg = drawn(sheet);
  for (const char* name : {">ab<", ">c<", ">c · collapse &lt;by&gt; layer<", ">dot of another<"})
    EXPECT_EQ(count(svg, name), 1u) << name;
}

TEST(ChartSheets, TakeAnyNumberOfChartsAndRefuseNone) {
  for (const std::size_t charts : {1, 3, 4, 7}) {
    const ChartSheet sheet{.charts = std::vector<LineChart>(charts, line_chart())};
    EXPECT_EQ(count(drawn(sheet), ">cosine<"), charts);
  }
  EXPECT_EQ(refused(ChartSheet{.title = "t"}), "a sheet of charts, 't': no charts");
  EXPECT_EQ(refused(ChartSheet{.charts = {{.title = "inside"}}}),
            "a line chart, 'inside': no series");
}

TEST(LineCharts, ALargerNumberIsHigher) {
  const std::string svg =
      drawn(LineChart{.x = {"x"}, .y = {"y"}, .series = {{"", {0, 1}, {1, 2}}}});
  const auto first = svg.rfind("<path", svg.find("stroke-linejoin"));
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  ASSERT_EQ(std::sscanf(svg.c_str() + first, "<path d=\"M%lf %lfL%lf %lf", &x0, &y0, &x1, &y1), 4);
  EXPECT_LT(x0, x1);
  EXPECT_GT(y0, y1);
}

TEST(LineCharts, TakeWhatIsDegenerate) {
  drawn(LineChart{.series = {{"one", {3}, {0}}}});
  drawn(LineChart{.series = {{"constant", {0, 1, 2}, {5, 5, 5}}}});
  drawn(LineChart{.series = {{"tiny", {0, 1}, {1e-300, 2e-300}}}});
  drawn(LineChart{.series = {{"huge", {0, 1}, {-1e200, 1e200}}}});
  drawn(LineChart{.x = {"n", Steps::logarithmic},
                  .y = {"S", Steps::logarithmic},
                  .series = {{"over forty powers", {1, 10, 1000}, {1, 1e-7, 1e-40}}}});
  drawn(LineChart{.y = {"S", Steps::logarithmic}, .series = {{"one", {0, 1}, {0.3, 0.3}}}});
  LineChart many;
  for (int i = 0; i < 40; ++i)
    many.series.push_back({"s" + std::to_string(i), {0, 1}, {0, double(i)}});
  many.height = 900;
  drawn(many);
}

TEST(LineCharts, TicksDoNotOverlap) {
  LineChart chart = line_chart();
  for (double& x : chart.series[0].x) x = 1e6 + x * 1e5;
  chart.series.pop_back();
  chart.width = 300;
  const std::string svg = drawn(chart);
  EXPECT_GE(count(svg, "text-anchor=\"middle\""), 3u);
  EXPECT_LE(count(svg, "text-anchor=\"middle\""), 5u);
}

TEST(LineCharts, RefuseWhatIsNone) {
  EXPECT_EQ(refused(LineChart{.title = "t"}), "a line chart, 't': no series");
  EXPECT_EQ(refused(LineChart{.series = {{"a", {}, {}}}}),
            "a line chart, '': a has 0 x and 0 y; needs as many, at least one");
  EXPECT_EQ(refused(LineChart{.series = {{"a", {0, 1}, {1, nan}}}}),
            "a line chart, '': number 1 of a is nan, needs a finite one");
  EXPECT_EQ(refused(LineChart{.series = {{"a", {0}, {1}, {2}, {1}}}}),
            "a line chart, '': band 0 of a goes from 2 to 1");
  EXPECT_EQ(refused(LineChart{.series = {{"a", {0}, {1}, {0, 1}, {1}}}}),
            "a line chart, '': a has 1 values, 2 low and 1 high ones; needs as many or none");
  EXPECT_EQ(refused(LineChart{.y = {"S", Steps::logarithmic}, .series = {{"a", {0}, {0}}}}),
            "an axis, 'S': logarithms need numbers above 0, not 0");
  EXPECT_EQ(refused(LineChart{.y = {.name = "S", .from = 2, .to = 1}, .series = {{"a", {0}, {0}}}}),
            "an axis, 'S': cannot go from 2 to 1");
  EXPECT_EQ(refused(LineChart{.series = {{"a", {0}, {0}}}, .width = 80}),
            "a line chart, '': 80 by 400 is too small for it");
}

TEST(MeansOfRuns, HaveBands) {
  const Series mean = mean_of("dot", {0, 1}, {{1, 2}, {3, 2}});
  EXPECT_EQ(mean.y, (std::vector<double>{2, 2}));
  EXPECT_NEAR(mean.low[0], 2 - std::sqrt(2), 1e-12);
  EXPECT_NEAR(mean.high[0], 2 + std::sqrt(2), 1e-12);
  EXPECT_EQ(mean.low[1], 2);
  EXPECT_TRUE(mean_of("dot", {0}, {{1}}).low.empty());
  EXPECT_EQ(thrown<InvalidArgument>([] { mean_of("dot", {0}, {}); }), "a mean, 'dot': no runs");
  EXPECT_EQ(thrown<InvalidArgument>([] {
              mean_of("dot", {0}, {{1, 2}});
            }),
            "a mean, 'dot': 1 x and a run of 2 numbers");
}

TEST(BarCharts, DrawEveryBarAndWhisker) {
  BarChart chart{.title = "t",
                 .groups = {"a", "b", "c"},
                 .y = {"accuracy, %"},
                 .bars = {{"dot", {80, 70, -5}, {79, 69, -6}, {81, 71, -4}}, {"flat", {1, 2, 3}}}};
  const std::string svg = drawn(chart);
  EXPECT_EQ(count(svg, "<rect"), 1u + 2 + 6) << "paper, legend, bars";
  EXPECT_EQ(count(svg, "stroke-width=\"1.5\""), 9u) << "three whiskers of three lines";
  EXPECT_EQ(count(svg, "rotate"), 0u);
  chart.groups[1] = "a name that is longer than its place, by a long way, and longer still";
  EXPECT_EQ(count(drawn(chart), "rotate"), 3u);
  EXPECT_NE(draw(chart).find("…"), std::string::npos);
  drawn(BarChart{.groups = {"a"}, .bars = {{"nothing", {0}}}});
  EXPECT_EQ(refused(BarChart{.groups = {"a"}}), "a bar chart, '': no bars");
  EXPECT_EQ(refused(BarChart{.bars = {{"a", {}}}}), "a bar chart, '': no groups");
  EXPECT_EQ(refused(BarChart{.groups = {"a"}, .bars = {{"b", {1, 2}}}}),
            "a bar chart, '': b has 2 values for 1 groups");
  EXPECT_EQ(refused(BarChart{.groups = {"a"}, .bars = {{"b", {nan}}}}),
            "a bar chart, '': number 0 of b is nan, needs a finite one");
  EXPECT_EQ(
      refused(BarChart{.groups = {"a"}, .y = {"y", Steps::logarithmic}, .bars = {{"b", {1}}}}),
      "a bar chart, '': bars begin at 0, which has no logarithm");
}

double lightness(const Colour& c) {
  const auto part = [](std::uint8_t value) { return std::pow(value / 255.0, 2.2); };
  return 0.2126 * part(c.r) + 0.7152 * part(c.g) + 0.0722 * part(c.b);
}

/// A colour in OKLab.
std::array<double, 3> lab(const Colour& c) {
  const auto part = [](std::uint8_t value) {
    const double x = value / 255.0;
    return x <= 0.04045 ? x / 12.92 : std::pow((x + 0.055) / 1.055, 2.4);
  };
  const double r = part(c.r), g = part(c.g), b = part(c.b);
  const double l = std::cbrt(0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b),
               m = std::cbrt(0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b),
               s = std::cbrt(0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b);
  return {0.2104542553 * l + 0.7936177850 * m - 0.0040720468 * s,
          1.9779984951 * l - 2.4285922050 * m + 0.4505937099 * s,
          0.0259040371 * l + 0.7827717662 * m - 0.8086757660 * s};
}

TEST(Colours, GrowLighterInEvenSteps) {
  double least = 1, most = 0;
  for (int i = 0; i < 32; ++i) {
    const Colour from = colour_at(i / 32.0), to = colour_at((i + 1) / 32.0);
    EXPECT_GT(lightness(to), lightness(from)) << i;
    const auto a = lab(from), b = lab(to);
    EXPECT_GT(b[0], a[0] + 0.008) << i;
    const double step = std::hypot(b[0] - a[0], b[1] - a[1], b[2] - a[2]);
    least = std::min(least, step), most = std::max(most, step);
  }
  EXPECT_LT(most, 1.35 * least) << "rounded to bytes, and cut at the corners of the path";
  EXPECT_EQ(colour_at(-1), colour_at(0));
  EXPECT_EQ(colour_at(2), colour_at(1));
}

TEST(Colours, AreTheTextBooks) {
  EXPECT_NEAR(lab({255, 255, 255})[0], 1, 1e-6);
  EXPECT_NEAR(lab(colour_at(0))[0], 0.20, 0.01);
  EXPECT_NEAR(lab(colour_at(1))[0], 0.95, 0.01);
}

HeatSheet heat_sheet() {
  HeatRow row{.name = "a boot", .image = data::Image(4, 4, 1), .query = Cell{0, 1}};
  row.heats = {{"dot", 2, 2, {0.1, 0.2, 0.3, 0.4}}, {"flat", 2, 2, {0, 0, 0, 0.8}}};
  return {
      .title = "heat", .about = "of two", .rows = {row}, .overlay = Overlay::patches, .side = 32};
}

TEST(HeatMaps, HaveTheirColours) {
  HeatSheet sheet = heat_sheet();
  sheet.rows[0].query.reset();
  const auto seen = [&](const data::Image& page, const Colour& colour, double opacity) {
    std::size_t pixels = 0;  // black lies below
    const auto part = [&](std::uint8_t value) {
      return std::uint8_t(std::lround(opacity * value));
    };
    for (int y = 0; y < page.height; ++y) {
      for (int x = 0; x < page.width; ++x) {
        const std::uint8_t* p = page.at(y, x);
        pixels += p[0] == part(colour.r) && p[1] == part(colour.g) && p[2] == part(colour.b);
      }
    }
    return pixels;
  };
  const data::Image shared = paint(sheet);
  EXPECT_EQ(shared, paint(sheet));
  EXPECT_EQ(shared.channels, 3);
  for (const double share : {0.125, 0.25, 0.375, 0.5, 1.0})
    EXPECT_EQ(seen(shared, colour_at(share), 0.7), 256u) << share;
  EXPECT_EQ(seen(shared, colour_at(0), 0.7), 3 * 256u);
  sheet.range = Range::own;
  const data::Image own = paint(sheet);
  for (const double share : {0.25, 0.5, 0.75}) EXPECT_EQ(seen(own, colour_at(share), 0.7), 256u);
  EXPECT_EQ(seen(own, colour_at(1), 0.7), 2 * 256u);
}

TEST(HeatMaps, SmoothOnesMeetTheirValues) {
  HeatSheet sheet = heat_sheet();
  sheet.overlay = Overlay::smooth;
  EXPECT_NE(paint(sheet), paint(heat_sheet()));
  sheet.rows[0].heats = {{"even", 2, 2, {0.3, 0.3, 0.3, 0.3}}};
  HeatSheet patches = sheet;
  patches.overlay = Overlay::patches;
  EXPECT_EQ(paint(sheet), paint(patches)) << "constant weights have nothing between them";
}

TEST(HeatMaps, TheQueryIsMarked) {
  HeatSheet without = heat_sheet();
  without.rows[0].query.reset();
  const data::Image marked = paint(heat_sheet()), plain = paint(without);
  ASSERT_EQ(marked.width, plain.width);
  EXPECT_NE(marked, plain);
  EXPECT_NE(drawn(heat_sheet()).find("query: patch 0, 1"), std::string::npos);
  EXPECT_NE(drawn(without).find("query: no patch"), std::string::npos);
  without.rows[0].query_name = "class token";
  EXPECT_NE(drawn(without).find("query: class token"), std::string::npos);
}

TEST(HeatMaps, ThatAreNearlyUniformSaySo) {
  HeatSheet sheet = heat_sheet();
  EXPECT_EQ(drawn(sheet).find("nearly uniform"), std::string::npos);
  const int height = paint(sheet).height;
  sheet.rows[0].heats[0].weights = {0.24, 0.25, 0.25, 0.26};
  const std::string svg = drawn(sheet);
  EXPECT_EQ(count(svg, ">nearly uniform:</text>"), 1u);
  EXPECT_EQ(count(svg, ">4.0 of 4 patches</text>"), 1u);
  EXPECT_EQ(paint(sheet).height, height + 28) << "two lines";
  sheet.rows[0].heats[0].weights = {0, 0, 0, 0};
  EXPECT_EQ(drawn(sheet).find("nearly uniform"), std::string::npos);
}

/// Of the letters of a title: which pixels are dark.
std::string dark(const std::string& title) {
  HeatSheet sheet = heat_sheet();
  sheet.title = title;
  const data::Image page = paint(sheet);
  std::string bits;
  for (int y = 10; y < 28; ++y) {
    for (int x = 0; x < 300 && x < page.width; ++x) bits += page.at(y, x)[0] < 128 ? '#' : '.';
  }
  return bits;
}

TEST(HeatMaps, EveryLetterLooksLikeNoOther) {
  std::set<std::string> seen;
  for (char c = '!'; c <= '~'; ++c) {
    const std::string looks = dark(std::string(1, c));
    EXPECT_NE(looks.find('#'), looks.npos) << c;
    EXPECT_TRUE(seen.insert(looks).second) << c;
  }
  EXPECT_EQ(dark("\xc3\xa9"), dark("\xc3\xb6")) << "a box";
}

TEST(HeatMaps, SvgHasThePixelsInside) {
  const std::string svg = drawn(heat_sheet());
  EXPECT_EQ(count(svg, "data:image/png;base64,iVBORw0KGgo"), 3u + 2) << "panels and scales";
  EXPECT_EQ(count(svg, ">0.80</text>"), 2u) << "one scale for the row";
  HeatSheet own = heat_sheet();
  own.range = Range::own;
  EXPECT_EQ(count(drawn(own), ">0.40</text>"), 1u);
}

TEST(HeatMaps, TakeWhatIsDegenerate) {
  HeatSheet one{.rows = {{.image = data::Image(1, 1, 3), .heats = {{"w", 1, 1, {0}}}}}};
  drawn(one);
  EXPECT_GT(paint(one).width, 0);
  HeatSheet wide{.rows = {{.image = data::Image(3, 900, 1), .heats = {{"日本 ~", 1, 2, {1, 0}}}}}};
  drawn(wide);
  EXPECT_GT(paint(wide).width, 0);
}

TEST(HeatMaps, RefuseWhatIsNone) {
  const auto with = [](auto change) {
    HeatSheet sheet = heat_sheet();
    change(sheet);
    const std::string message = refused(sheet);
    EXPECT_EQ(message, thrown<InvalidArgument>([&] { paint(sheet); }));
    return message;
  };
  EXPECT_EQ(with([](auto& s) { s.rows.clear(); }), "heat-maps, 'heat': no images");
  EXPECT_EQ(with([](auto& s) { s.side = 1; }),
            "heat-maps, 'heat': a side of 1; needs 16 to 2048 pixels");
  EXPECT_EQ(
      with([](auto& s) { s.rows[0].image = {}; }),
      "heat-maps, 'heat': an image of 0 by 0 with 0 channels; needs pixels, of 1 or 3 channels");
  EXPECT_EQ(with([](auto& s) { s.rows[0].heats.clear(); }),
            "heat-maps, 'heat': a row without weights");
  EXPECT_EQ(with([](auto& s) { s.rows[0].heats[0].rows = 3; }),
            "heat-maps, 'heat': dot has 4 weights for 3 by 2 patches");
  EXPECT_EQ(with([](auto& s) { s.rows[0].heats[0].weights[2] = nan; }),
            "heat-maps, 'heat': number 2 of dot is nan, needs a finite one");
  EXPECT_EQ(with([](auto& s) { s.rows[0].heats[0].weights[2] = -1; }),
            "heat-maps, 'heat': dot has a weight below 0");
  EXPECT_EQ(with([](auto& s) {
              s.rows[0].query = Cell{2, 0};
            }),
            "heat-maps, 'heat': the query's patch (2, 0) is none of 2 by 2");
}

}  // namespace
}  // namespace foci::report
