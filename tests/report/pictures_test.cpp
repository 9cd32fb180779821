// SPDX-License-Identifier: Apache-2.0
// Pictures hold every number they are given, are well-formed and the same each time; what cannot be
// drawn is refused in one line.
#include "report/svg.hpp"
#include "report/well_formed.hpp"
#include "thrown.hpp"

#include <foci/error.hpp>
#include <foci/pictures.hpp>

#include <cmath>
#include <limits>

namespace foci::report {
namespace {

constexpr double nan = std::numeric_limits<double>::quiet_NaN();

std::size_t count(const std::string& text, const std::string& part) {
  std::size_t found = 0;
  for (std::size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}

/// Well-formed, with words for those who cannot see it, in both schemes, of numbers alone, and the
/// same again.
template <class Picture>
std::string drawn(const Picture& picture) {
  const std::string svg = draw(picture);
  EXPECT_EQ(xml_fault(svg), "");
  EXPECT_EQ(svg, draw(picture));
  for (const char* part : {"<title>", "<desc>", "prefers-color-scheme:dark", "viewBox"})
    EXPECT_NE(svg.find(part), svg.npos) << part;
  for (const char* part : {"\"nan", "\"inf", "\"-inf", " nan", ">nan", ">inf"})
    EXPECT_EQ(svg.find(part), svg.npos) << part;
  return svg;
}

std::string refused(const auto& picture) {
  return thrown<InvalidArgument>([&] { draw(picture); });
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
  EXPECT_EQ(count(svg, "<circle"), 3u + 1) << "dot's points and its sign in the legend";
  EXPECT_NE(svg.find(">dot</text>"), svg.npos);
  EXPECT_NE(svg.find(">flat</text>"), svg.npos);
  EXPECT_NE(svg.find("collapse &lt;by&gt; layer"), svg.npos);
  EXPECT_NE(svg.find("stroke-dasharray=\"8 4\""), svg.npos) << "not by colour alone";
}

TEST(LineCharts, PointsHaveBars) {
  LineChart chart = line_chart();
  const std::size_t lines = count(draw(chart), "<line");
  chart.series[0].mark = Mark::points;
  EXPECT_EQ(count(drawn(chart), "<line"), lines - 1 + 9) << "no sign in the legend, three bars";
}

TEST(LineCharts, ALargerNumberIsHigher) {
  const std::string svg =
      drawn(LineChart{.x = {"x"}, .y = {"y"}, .series = {{"", {0, 1}, {1, 2}}}});
  const auto first = svg.find("<path d=\"M");
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
  EXPECT_NE(drawn(heat_sheet()).find("query: 0, 1"), std::string::npos);
  EXPECT_NE(drawn(without).find("query: no patch"), std::string::npos);
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

TEST(Grids, WriteEveryNumber) {
  GridSheet sheet{.title = "g",
                  .grids = {{"S", {"0", "1"}, {"0", "1", "2"}, {0.1, 0.2, 0.3, 0.44, 55, 1234}}}};
  std::string svg = drawn(sheet);
  for (const char* number : {"0.10", "0.20", "0.30", "0.44", "55.0", "1234"})
    EXPECT_NE(svg.find(">" + std::string(number) + "</text>"), svg.npos) << number;
  EXPECT_EQ(count(svg, "<rect"), 1u + 6);
  for (int i = 0; i < 6; ++i) sheet.grids.push_back(sheet.grids[0]);
  EXPECT_EQ(count(drawn(sheet), "<rect"), 1u + 42);
  drawn(GridSheet{.grids = {{"one layer", {"0"}, {"0"}, {1}}}});
  drawn(GridSheet{.grids = {{"constant", {"0", "1"}, {"a head with a long name"}, {1, 1}}}});
  EXPECT_EQ(refused(GridSheet{}), "grids, '': no grid");
  EXPECT_EQ(refused(GridSheet{.grids = {{"a", {"0"}, {"0"}, {}}}}),
            "grids, '': a has 0 values for 1 rows and 1 columns");
  EXPECT_EQ(refused(GridSheet{.grids = {{"a", {"0"}, {"0"}, {nan}}}}),
            "grids, '': number 0 of a is nan, needs a finite one");
  EXPECT_EQ(refused(GridSheet{.grids = {{"a", {"0"}, {"0"}, {1}, 2, 1}}}),
            "grids, '': colours of a from 2 to 1");
}

TEST(Tokens, AreNamedWhateverTheyAre) {
  TokenMap map{.title = "m",
               .keys = {" the", "\n", "", "<b>&", "\xff", "日本", std::string(300, 'x')}};
  map.queries = map.keys;
  map.weights.assign(49, 1.0 / 7);
  const std::string svg = drawn(map);
  for (const char* name : {">·the</text>", ">↵</text>", ">∅</text>", ">&lt;b&gt;&amp;</text>",
                           ">\xef\xbf\xbd</text>", ">日本</text>"})
    EXPECT_EQ(count(svg, name), 2u) << name;
  EXPECT_EQ(count(svg, "…</text>"), 2u);
  EXPECT_EQ(count(svg, "<title>"), 1u + 49) << "each weight shows when one points at it";
}

TEST(Tokens, MapsTakeAnySize) {
  drawn(TokenMap{.queries = {"a"}, .keys = {"b"}, .weights = {0}});
  TokenMap large{.queries = std::vector<std::string>(3, "q"),
                 .keys = std::vector<std::string>(900, "k")};
  large.weights.assign(2700, 0.5);
  EXPECT_LT(drawn(large).size(), 20'000u);
  EXPECT_EQ(refused(TokenMap{.keys = {"a"}}), "a map of tokens, '': no queries");
  EXPECT_EQ(refused(TokenMap{.queries = {"a"}}), "a map of tokens, '': no keys");
  EXPECT_EQ(refused(TokenMap{.queries = {"a"}, .keys = {"b"}}),
            "a map of tokens, '': the map has 0 weights, needs 1");
  EXPECT_EQ(refused(TokenMap{.queries = {"a"}, .keys = {"b"}, .weights = {-1}}),
            "a map of tokens, '': the map has a weight below 0");
  large.keys.resize(1025);
  EXPECT_EQ(refused(large), "a map of tokens, '': 3 queries and 1025 keys; 1024 at most");
}

TEST(Texts, AreTintedByWeight) {
  TextSheet sheet{.title = "t",
                  .texts = {{"dot", {"a", " b", "\n", "c"}, {0.5, 0.25, 0, 0.25}, 1}}};
  std::string svg = drawn(sheet);
  EXPECT_EQ(count(svg, "fill-opacity=\"0.85\""), 1u);
  EXPECT_EQ(count(svg, "fill-opacity=\"0.43\""), 2u);
  EXPECT_EQ(count(svg, "fill=\"none\""), 1u) << "the query's frame";
  sheet.texts.push_back({"flat", {"a"}, {1}});
  EXPECT_EQ(count(drawn(sheet), "fill-opacity=\"0.85\""), 1u) << "one scale";
  sheet.range = Range::own;
  EXPECT_EQ(count(drawn(sheet), "fill-opacity=\"0.85\""), 2u);
  drawn(TextSheet{.texts = {{"zeros", {"a", std::string(500, 'y')}, {0, 0}}}, .width = 200});
  EXPECT_EQ(refused(TextSheet{}), "a tinted text, '': no text");
  EXPECT_EQ(refused(TextSheet{.texts = {{"a", {}, {}}}}), "a tinted text, '': a: no tokens");
  EXPECT_EQ(refused(TextSheet{.texts = {{"a", {"b"}, {1}, 1}}}),
            "a tinted text, '': query 1 of 1 tokens");
  EXPECT_EQ(refused(TextSheet{.texts = {{"a", {"b"}, {nan}}}}),
            "a tinted text, '': number 0 of a is nan, needs a finite one");
  EXPECT_EQ(refused(TextSheet{.texts = {{"a", {"b"}, {1}}}, .width = 10}),
            "a tinted text, '': 10 is too narrow for it");
}

Plane plane() {
  return {.name = "dot",
          .x_name = "a",
          .y_name = "b",
          .keys = {0.2, 0, 1, 0, 0, 2, -1, -1},
          .weights = {0.4, 0.3, 0.2, 0.1},
          .query = {0.5, 0.5},
          .metric = {1, 0, 0, 4}};
}

TEST(Planes, HaveDiscsWhoseAreaIsTheWeight) {
  const std::string svg = drawn(PlaneSheet{.title = "p", .planes = {plane()}});
  EXPECT_EQ(count(svg, "<circle"), 8u) << "a disc and a dot for each key";
  for (const double weight : {0.4, 0.3, 0.2, 0.1})
    EXPECT_EQ(count(svg, "r=\"" + number(20 * std::sqrt(weight / 0.4)) + "\""), 1u) << weight;
  EXPECT_EQ(count(svg, "fill=\"none\" stroke-linejoin"), 3u) << "quartiles";
}

TEST(Planes, CurvesAreThoseOfTheMetric) {
  Plane of = plane();
  of.form = Form::product;  // straight lines at right angles to the query times the metric
  const std::string svg = drawn(PlaneSheet{.planes = {of}});
  double x0 = 0, y0 = 0, x1 = 0, y1 = 0;
  const auto at = svg.find("<path d=\"M");
  ASSERT_EQ(std::sscanf(svg.c_str() + at, "<path d=\"M%lf %lfL%lf %lf", &x0, &y0, &x1, &y1), 4);
  EXPECT_NEAR((y1 - y0) / (x1 - x0), 0.25, 1e-3) << "m q = (0.5, 2), and y grows downwards";
}

TEST(Planes, TakeWhatIsDegenerate) {
  Plane one{.name = "one key", .keys = {1, 1}, .weights = {1}, .query = {1, 1}};
  drawn(PlaneSheet{.planes = {one}});
  one.metric = {0, 0, 0, 0};
  one.weights = {0};
  drawn(PlaneSheet{.planes = {one, plane()}});
  Plane line = plane();
  line.metric = {1, 1, 1, 1};  // sees one direction alone
  drawn(PlaneSheet{.planes = {line}});
}

TEST(Planes, RefuseWhatIsNone) {
  EXPECT_EQ(refused(PlaneSheet{}), "a plane of keys, '': no plane");
  EXPECT_EQ(refused(PlaneSheet{.planes = {{"a"}}}), "a plane of keys, '': a has no keys");
  const auto with = [](auto change) {
    Plane changed = plane();
    change(changed);
    return refused(PlaneSheet{.planes = {changed}});
  };
  EXPECT_EQ(with([](Plane& p) { p.keys.pop_back(); }),
            "a plane of keys, '': dot has 4 weights and 7 coordinates of keys, needs two each");
  EXPECT_EQ(with([](Plane& p) { p.weights[0] = -1; }),
            "a plane of keys, '': dot has a weight below 0");
  EXPECT_EQ(with([](Plane& p) { p.query[1] = nan; }),
            "a plane of keys, '': number 1 of dot is nan, needs a finite one");
  EXPECT_EQ(with([](Plane& p) {
              p.metric = {1, 2, 2, 1};
            }),
            "a plane of keys, '': (1, 2; 2, 1) is no metric");
}

TEST(Heads, ShowTheWidestCoordinates) {
  const std::vector<double> query = {1, 2, 3}, keys = {0, 0, 0, 1, 5, 2, 2, -5, 4},
                            m = {1, 0.01, 1}, weights = {0.2, 0.3, 0.5};
  const Plane seen = plane_of(
      {.D = 3, .query = query, .keys = keys, .weights = weights, .metric = m, .scale = 0.5});
  EXPECT_EQ(seen.x_name, "coordinate 2") << "5 is far, and m does not see it";
  EXPECT_EQ(seen.y_name, "coordinate 0");
  EXPECT_EQ(seen.keys, (std::vector<double>{0, 0, 2, 1, 4, 2}));
  EXPECT_EQ(seen.query, (std::array<double, 2>{3, 1}));
  EXPECT_EQ(seen.metric, (std::array<double, 4>{0.5, 0, 0, 0.5}));
  const Plane dot = plane_of({.D = 3, .query = query, .keys = keys, .weights = weights});
  EXPECT_EQ(dot.x_name, "coordinate 1");
  const Plane beside =
      plane_of({.D = 3, .query = query, .keys = keys, .weights = weights, .axes = m});
  EXPECT_EQ(beside.keys, seen.keys);
}

TEST(Heads, ShowTheLeadingEigenvectors) {
  // P = 5 a a' + 2 b b' + c c', a = (1,1,0)/sqrt 2, b = (0,0,1), c = (1,-1,0)/sqrt 2
  const std::vector<double> P = {3, 2, 0, 2, 3, 0, 0, 0, 2}, query = {1, 1, 1}, keys = {1, -1, 2},
                            weights = {1};
  const Plane seen = plane_of({.D = 3,
                               .query = query,
                               .keys = keys,
                               .weights = weights,
                               .metric = P,
                               .form = Form::distance});
  EXPECT_NEAR(seen.query[0], std::sqrt(2), 1e-9);
  EXPECT_NEAR(seen.query[1], 1, 1e-9);
  EXPECT_NEAR(seen.keys[0], 0, 1e-9);
  EXPECT_NEAR(seen.keys[1], 2, 1e-9);
  EXPECT_NEAR(seen.metric[0], 5, 1e-9);
  EXPECT_NEAR(seen.metric[3], 2, 1e-9);
  EXPECT_NEAR(seen.metric[1], 0, 1e-9);
  const std::vector<double> one = {2};
  const Plane line = plane_of({.D = 1, .query = one, .keys = one, .weights = one, .metric = one});
  EXPECT_EQ(line.metric, (std::array<double, 4>{2, 0, 0, 0}));
  drawn(PlaneSheet{.planes = {line}});
}

TEST(Heads, RefuseWhatDoesNotFit) {
  const std::vector<double> two = {1, 2}, three = {1, 2, 3}, one = {1}, bad = {1, nan};
  const auto message = [](const Head& head) {
    return thrown<InvalidArgument>([&] { plane_of(head); });
  };
  EXPECT_EQ(message({.name = "h"}), "a head, 'h': 0 coordinates; needs 1 to 1024");
  EXPECT_EQ(message({.D = 2, .query = two, .keys = {}, .weights = {}}),
            "a head, '': a query of 2, keys of 0 and 0 weights are no (2), (n,2) and (n)");
  EXPECT_EQ(message({.D = 2, .query = two, .keys = two, .weights = one, .metric = three}),
            "a head, '': a metric of 3 numbers; needs none, 2 or 4");
  EXPECT_EQ(message({.D = 2, .query = bad, .keys = two, .weights = one}),
            "a head, '': number 1 of the query is nan, needs a finite one");
}

}  // namespace
}  // namespace foci::report
