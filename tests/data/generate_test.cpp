// SPDX-License-Identifier: Apache-2.0
// What a seed makes, held to its definition: ListOps' values, lengths and shares; Pathfinder's
// curves, turns, distances and discs.
#include "data/folder.hpp"

#include <foci/generate.hpp>

#include <cmath>
#include <set>
#include <sstream>

namespace foci::data {
namespace {

TEST(ListOpsText, Evaluates) {
  EXPECT_EQ(evaluate_listops("[MAX 2 9 [MIN 4 7 ] 0 ]"), 9);
  EXPECT_EQ(evaluate_listops("[SM 9 8 5 ]"), 2);
  EXPECT_EQ(evaluate_listops("[MED 1 9 4 ]"), 4);
  EXPECT_EQ(evaluate_listops("[MED 1 2 ]"), 1);
  EXPECT_EQ(evaluate_listops("7"), 7);
  const auto fault = [](const std::string& text) {
    return thrown<InvalidArgument>([&] { evaluate_listops(text); });
  };
  EXPECT_EQ(fault("[MAX 2 x ]"), "ListOps at character 7: 'x' is no digit, operator or ]");
  EXPECT_EQ(fault("[MAX ]"), "ListOps at character 5: nothing to close");
  EXPECT_EQ(fault("[MAX 2"), "ListOps at character 6: it ends early");
  EXPECT_EQ(fault("1 2"), "ListOps at character 2: more after the end");
}

TEST(ListOpsText, IsMadeByTheRules) {
  std::set<std::string> texts;
  std::vector<int> labels(10);
  for (int i = 0; i < 60; ++i) {
    const LabelledText made = make_listops(4, i);
    EXPECT_EQ(evaluate_listops(made.text), made.label);
    EXPECT_EQ(make_listops(4, i).text, made.text);
    ++labels[std::size_t(made.label)];
    texts.insert(made.text);
    std::istringstream words(made.text);
    int length = 0, depth = 0, deepest = 0;
    std::vector<int> arguments(1);
    for (std::string word; words >> word; ++length) {
      if (word == "]") {
        EXPECT_GE(arguments.back(), 2);
        EXPECT_LE(arguments.back(), 10);
        arguments.pop_back();
        --depth;
        continue;
      }
      ++arguments.back();
      if (word[0] != '[') continue;
      arguments.push_back(0);
      deepest = std::max(deepest, ++depth);
    }
    EXPECT_GT(length, 500);
    EXPECT_LT(length, 2000);
    EXPECT_LE(deepest, 9);
  }
  EXPECT_EQ(texts.size(), 60u);
  EXPECT_NE(make_listops(5, 0).text, make_listops(4, 0).text);
  const ListOps tight{.least_length = 10, .most_length = 11};
  EXPECT_EQ(thrown<InvalidArgument>([&] { make_listops(0, 0, tight); }),
            "ListOps of lengths between 10 and 11, 10 arguments, depth 10");
}

/// Without bounds on the length, the tree's own law shows: a node is an operator in a quarter.
TEST(ListOpsText, OperatorsHaveTheirShare) {
  const ListOps any{.least_length = 0, .most_length = 1 << 20};
  int roots = 0;
  for (int i = 0; i < 2000; ++i) roots += make_listops(1, i, any).text[0] == '[';
  EXPECT_NEAR(roots, 500, 80);
}

double distance(Point a, Point b) { return std::hypot(a.x - b.x, a.y - b.y); }

void check_curve(const std::vector<Dash>& curve, const Pathfinder& how) {
  for (std::size_t i = 0; i < curve.size(); ++i) {
    EXPECT_NEAR(distance(curve[i].begin, curve[i].end), how.dash, 1e-9);
    for (const Point& p : {curve[i].begin, curve[i].end}) {
      EXPECT_GE(std::min(p.x, p.y), how.padding);
      EXPECT_LE(std::max(p.x, p.y), how.size - how.padding);
    }
    if (i == 0) continue;
    EXPECT_LE(std::abs(curve[i].angle - curve[i - 1].angle), 1.5708);
    EXPECT_LE(distance(curve[i - 1].end, curve[i].begin), 2 * how.margin + 1e-9);
  }
}

TEST(PathfinderImage, IsMadeByTheRules) {
  const Pathfinder how;
  int connected = 0;
  for (int i = 0; i < 24; ++i) {
    const PathfinderSample made = make_pathfinder(2, i);
    ASSERT_GE(made.curves.size(), 2u);
    EXPECT_LE(made.curves.size(), 7u);
    for (std::size_t c = 0; c < made.curves.size(); ++c) {
      EXPECT_EQ(made.curves[c].size(), c < 2 ? 14u : 4u);
      check_curve(made.curves[c], how);
    }
    EXPECT_NEAR(distance(made.curves[0][0].begin, made.curves[1][0].begin), 7, 1e-9);
    const bool same = distance(made.markers[1], made.curves[0].back().end) < 1e-9;
    const bool other = distance(made.markers[1], made.curves[1].back().end) < 1e-9;
    EXPECT_NEAR(distance(made.markers[0], made.curves[0].front().begin), 0, 1e-9);
    EXPECT_EQ(made.label, same ? 1 : 0);
    EXPECT_NE(same, other);
    connected += made.label;
    for (const Point& marker : made.markers) {
      EXPECT_EQ(*made.image.at(int(marker.y), int(marker.x)), 255);
    }
    EXPECT_EQ(make_pathfinder(2, i).image, made.image);
  }
  EXPECT_GT(connected, 4);
  EXPECT_LT(connected, 20);
  EXPECT_EQ(thrown<InvalidArgument>([&] { make_pathfinder(0, 0, {.size = 20}); }),
            "Pathfinder of size 20, length 14, seeds 7 apart");
}

class Written : public InFolder {};

TEST(Streets, AreWhatTheirMasksSay) {
  std::vector<int> pixels(256), scenes(256);
  for (int i = 0; i < 40; ++i) {
    const MadeStreet made = make_street(3, i);
    EXPECT_EQ(make_street(3, i).image, made.image);
    EXPECT_EQ(make_street(3, i).mask, made.mask);
    std::set<int> seen;
    for (const std::uint8_t what : made.mask.pixels) ++pixels[what], seen.insert(what);
    for (const int what : seen) ++scenes[std::size_t(what)];
    EXPECT_TRUE(seen.contains(0) && seen.contains(1) && seen.contains(3)) << i;
    EXPECT_NE(make_street(4, i).image, made.image);
  }
  for (std::size_t what = 0; what < pixels.size(); ++what) {
    const bool drawn = what < 6 || what == 8;
    EXPECT_EQ(pixels[what] > 0, drawn) << what;
    if (drawn) {
      EXPECT_GT(scenes[what], 10) << what;
    }
  }
}

TEST_F(Written, StreetsCanBeRead) {
  write_made_streets(folder_, 10, 0);
  const ImageSet train = open_images(folder_, Split::train);
  EXPECT_EQ(train.size(), 10);
  EXPECT_TRUE(train.has_masks());
  EXPECT_EQ(train.image(3), make_street(0, 3).image);
  EXPECT_EQ(train.mask(3), make_street(0, 3).mask);
  EXPECT_EQ(open_images(folder_, Split::valid).size(), 1);
  EXPECT_EQ(open_images(folder_, Split::test).mask(1), make_street(0 ^ 0x5eed, 1).mask);
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_made_streets(folder_, 9, 0); }),
            "9 made streets; it needs 10 to 100000");
}

TEST_F(Written, SetsCanBeRead) {
  write_listops(folder_, 3, 0);
  EXPECT_EQ(read_tsv(at("train.tsv")).samples.size(), 3u);
  EXPECT_EQ(read_tsv(at("test.tsv")).samples.size(), 1u);
  write_pathfinder(folder_, 10, 0);
  const ImageSet paths = open_images(folder_, Split::train);
  EXPECT_EQ(paths.size(), 10);
  EXPECT_EQ(paths.classes(), (std::vector<std::string>{"apart", "connected"}));
  EXPECT_EQ(paths.image(3), make_pathfinder(0, 3).image);
  write_made_images(folder_, 10, 0);
  EXPECT_EQ(open_images(folder_, Split::test).image(1), make_image(0 ^ 0x5eed, 1).image);
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_listops(folder_, 0, 0); }),
            "0 samples of ListOps; it needs 1 to 10000000");
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_pathfinder(folder_, 9, 0); }),
            "9 images of Pathfinder; it needs 10 to 10000000");
  EXPECT_EQ(thrown<InvalidArgument>([&] { write_made_images(folder_, 4, 0); }),
            "4 made images; it needs 5 to 10000000");
}

}  // namespace
}  // namespace foci::data
