// SPDX-License-Identifier: Apache-2.0
// Grids, maps of tokens, tinted texts and planes of keys hold every number they are given; what
// cannot be drawn is refused in one line.
#include "report/drawn.hpp"
#include "report/svg.hpp"

#include <array>
#include <cmath>
#include <cstdio>

namespace foci::report {
namespace {

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

/// The colours of cells, by their numbers.
std::vector<int> lightness_of(const std::vector<double>& values, std::optional<double> from = {},
                              std::optional<double> to = {}) {
  GridSheet sheet{.grids = {{.name = "S", .rows = {"0"}, .values = values}}};
  for (std::size_t i = 0; i < values.size(); ++i)
    sheet.grids[0].columns.push_back(std::to_string(i));
  sheet.grids[0].from = from, sheet.grids[0].to = to;
  const std::string svg = drawn(sheet), mark = "\" fill=\"#";
  std::vector<int> light;
  for (std::size_t at = svg.find(mark, svg.find("<rect", svg.find("<rect") + 1)); at != svg.npos;
       at = svg.find(mark, at + 1)) {
    if (svg.rfind('<', at) != svg.rfind("<rect", at)) continue;  // letters
    light.push_back(std::stoi(svg.substr(at + mark.size() + 2, 2), nullptr, 16));
  }
  EXPECT_EQ(light.size(), values.size());
  return light;
}

TEST(Grids, ColoursOfNearlyOneNumberAreNearlyOne) {
  const auto wide = lightness_of({1, 2, 3}), narrow = lightness_of({64.98, 64.99, 65.00});
  EXPECT_GT(std::abs(wide[2] - wide[0]), 150);
  EXPECT_LT(std::abs(narrow[2] - narrow[0]), 10);
  const auto top = lightness_of({64, 65}, 0, 65), alone = lightness_of({4.17, 4.17}, 0);
  EXPECT_LT(std::abs(top[1] - top[0]), 10);
  EXPECT_GT(alone[0], 200) << "the most there is";
}

TEST(Grids, SayWhichColourIsWhichNumber) {
  const std::string svg = drawn(GridSheet{.grids = {{"S", {"0"}, {"0"}, {3}, 0, 17}}});
  EXPECT_EQ(count(svg, "<image"), 1u);
  EXPECT_NE(svg.find(">0</text>"), svg.npos) << svg;
  EXPECT_NE(svg.find(">17.0</text>"), svg.npos) << svg;
  EXPECT_EQ(count(drawn(GridSheet{.grids = {{"S", {"0"}, {"0"}, {3}}, {"T", {"0"}, {"0"}, {3}}}}),
                  "<image"),
            2u);
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

TEST(Planes, DiscsLeaveMostOfThePanelFree) {
  Plane many = plane();
  many.keys.clear(), many.weights.assign(65, 1.0 / 65);
  for (int i = 0; i < 65; ++i) many.keys.insert(many.keys.end(), {double(i % 8), double(i / 8)});
  const std::string svg = drawn(PlaneSheet{.planes = {many}});
  const double radius = 280 * std::sqrt(0.12 / std::acos(-1.0));  // of a weight of 1
  EXPECT_EQ(count(svg, "r=\"" + number(radius / std::sqrt(65)) + "\""), 65u);
  const std::string two = drawn(PlaneSheet{.planes = {many, plane()}});
  EXPECT_EQ(count(two, "r=\"" + number(20 * std::sqrt(0.4 / 0.4)) + "\""), 1u);
  EXPECT_EQ(count(two, "r=\"" + number(20 / std::sqrt(0.4 * 65)) + "\""), 65u) << "one scale";
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

TEST(Planes, ManyTakeSeveralLines) {
  const auto size_of = [](std::size_t count) {
    const std::string svg = drawn(PlaneSheet{.planes = std::vector<Plane>(count, plane())});
    double width = 0, height = 0;
    EXPECT_EQ(
        std::sscanf(svg.c_str() + svg.find("viewBox"), "viewBox=\"0 0 %lf %lf", &width, &height),
        2);
    return std::array<double, 2>{width, height};
  };
  EXPECT_EQ(size_of(6)[0], size_of(3)[0]);
  EXPECT_EQ(size_of(4)[1], size_of(3)[1]);
  EXPECT_GT(size_of(6)[1], size_of(3)[1] + 300);
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

TEST(Sheets, HaveNamesBesideAndAbove) {
  data::Image sheet(2 * 30, 3 * 30, 1);  // two rows, three columns, each its own grey
  for (int y = 0; y < sheet.height; ++y) {
    for (int x = 0; x < sheet.width; ++x)
      *sheet.at(y, x) = std::uint8_t(100 + 10 * (y / 30) + x / 30);
  }
  const auto pixels = [](const data::Image& page, int grey) {
    std::size_t found = 0;
    for (int y = 0; y < page.height; ++y) {
      for (int x = 0; x < page.width; ++x)
        found += page.at(y, x)[0] == grey && page.at(y, x)[1] == grey;
    }
    return found;
  };
  const data::Image page = named_sheet(sheet, {"fog", "blur"}, {"a", "b", "c"});
  EXPECT_EQ(page.channels, 3);
  for (const int grey : {100, 101, 102, 110, 111, 112}) EXPECT_EQ(pixels(page, grey), 900u) << grey;
  EXPECT_NE(page, named_sheet(sheet, {"fog", "noise"}, {"a", "b", "c"}));
  EXPECT_NE(page, named_sheet(sheet, {"fog", "blur"}, {"a", "b", "d"}));
  const data::Image large = named_sheet(sheet, {"fog", "blur"}, {"severity 1", "b", "c"});
  EXPECT_EQ(pixels(large, 111), 9 * 900u) << "larger, for the name above";
  const auto refused_sheet = [&](const std::vector<std::string>& rows) {
    return thrown<InvalidArgument>([&] { named_sheet(sheet, rows, {"a", "b", "c"}); });
  };
  EXPECT_EQ(refused_sheet({}), "a sheet of images, '': rows or columns have no names");
  EXPECT_EQ(refused_sheet(std::vector<std::string>(7)),
            "a sheet of images, '': 60 by 90 pixels of 1 channels are no 7 rows and 3 columns");
}

}  // namespace
}  // namespace foci::report
