// SPDX-License-Identifier: Apache-2.0
// Draws docs/pictures/*.svg. Every curve, bar and disc comes from a call of foci::attend; only the
// clouds of keys and values are made up, from fixed seeds. Usage: draw_pictures FOLDER
#include "chart.hpp"

#include <cstdio>
#include <fstream>
#include <iostream>

namespace {

using namespace foci;
using namespace foci::tools;

constexpr double scale = 1.0;
constexpr std::array<double, 3> radii{0.8, 1.6, 2.4};  // of the circles that dot draws

double level(double radius) { return -0.5 * scale * radius * radius; }

/// n points around the origin, stretched by `along` and `across` a direction turned by `turn`.
Vector cloud(std::uint64_t seed, int n, double along, double across, double turn) {
  Lot lot(seed);
  Vector xy;
  for (int j = 0; j < n; ++j) {
    const double a = along * lot.normal(), b = across * lot.normal();
    xy.push_back(std::cos(turn) * a - std::sin(turn) * b);
    xy.push_back(std::sin(turn) * a + std::cos(turn) * b);
  }
  return xy;
}

/// Values of n tokens and those of the layer below, which differ by about change[d] in coordinate
/// d.
struct Values {
  Tensor now, before;
};
Values changing(std::uint64_t seed, std::int64_t n, const Vector& change) {
  Lot lot(seed);
  const auto D = std::int64_t(change.size());
  Values v{Tensor(DType::f64, {1, 1, n, D}), Tensor(DType::f64, {1, 1, n, D})};
  for (std::int64_t i = 0; i < n * D; ++i) {
    v.before.data<double>()[i] = lot.normal();
    v.now.data<double>()[i] =
        v.before.data<double>()[i] + change[std::size_t(i % D)] * lot.normal();
  }
  return v;
}

/// The metric that `metric` estimates from q = k = keys (n,D) and these values.
Vector estimate(const Metric& metric, const Tensor& keys, const Tensor& v, const Tensor& v_prev) {
  const Inputs from{.q = keys, .k = keys, .v = v, .v_prev = v_prev};
  const Options how{.metric = metric, .scale = scale, .backend = Backend::ref};
  Tensor o(DType::f64, v.view().sizes()), m(DType::f64, metric_shape(from, how));
  attend({.o = o, .metric = m}, from, how);
  return m.values();
}

Vector changed(const Metric& metric, const Values& v) {
  return estimate(metric, v.now, v.now, v.before);
}

std::string in_words(const Vector& m) { return fmt::format("m = ({:.2f}, {:.2f})", m[0], m[1]); }

/// Curves of equal score, and the keys with their weights, of one query in the plane.
void neighbourhood(const Plane& plane, const Geometry& geometry, const Vector& query,
                   const Vector& keys) {
  plane.keys(keys, weights(geometry.options(scale), geometry, query, keys));
  const Field field = score_field(geometry, query, {0, 1}, scale);
  for (double radius : radii) plane.curves(field, level(radius), solid_pen);
  plane.query(query[0], query[1]);
}

Svg ellipse() {
  Svg svg(680, 350, "From a circle to an ellipse",
          "Left: curves of equal score around a query are circles. Right: with the layer-change "
          "metric they are "
          "ellipses. Keys are dots; the area of a disc is the attention weight of its key.");
  const Vector keys = cloud(11, 36, 1.3, 1.3, 0), query{0.3, -0.1};
  const Geometry bent{.m = changed(LayerChange{}, changing(5, 40, {0.35, 1.0}))};
  const Plane left{svg, {45, 40}}, right{svg, {365, 40}};
  left.frame("dot: a circle", "m = (1, 1)");
  neighbourhood(left, {}, query, keys);
  right.frame("layer-change: an ellipse", in_words(bent.m));
  neighbourhood(right, bent, query, keys);
  return svg;
}

Svg dot() {
  Svg svg(
      680, 350, "dot",
      "Left: with form product, curves of equal score are straight lines across the query's "
      "direction. Right: with form distance they are circles around it. Discs: attention weights.");
  const Vector keys = cloud(11, 36, 1.3, 1.3, 0), query{1.0, 0.6};
  const Plane left{svg, {45, 40}}, right{svg, {365, 40}};
  left.frame("form product", "equal scores lie on lines");
  const Geometry product{.form = Form::product};
  left.keys(keys, weights(product.options(scale), product, query, keys));
  const Field field = score_field(product, query, {0, 1}, scale);
  for (double s : {-2.0, -1.0, 0.0, 1.0, 2.0}) left.curves(field, s, solid_pen);
  left.svg.arrow(left.at(0, 0), left.at(query[0], query[1]), {"#1f2328", 2.4, ""});
  right.frame("form distance", "equal scores lie on circles");
  neighbourhood(right, {}, query, keys);
  return svg;
}

/// m as bars, one a coordinate.
void bars(const Chart& chart, const Vector& m) {
  for (std::size_t d = 0; d < m.size(); ++d) {
    const Point top = chart.at(double(d) + 0.7, m[d]), foot = chart.at(double(d) + 1.3, 0);
    chart.svg.bar(top, foot.x - top.x, foot.y - top.y, "#b6d4fe", {"#0550ae", 1, ""});
  }
}

Svg layer_change() {
  Svg svg(
      720, 350, "layer-change",
      "Left: how far each token's value moved, in eight coordinates, as dots; the "
      "normalised mean m as bars. Right: the ellipse of equal score in two of the coordinates.");
  const Values v = changing(7, 14, {0.5, 1.0, 0.3, 0.15, 0.8, 0.4, 0.6, 0.25});
  const Vector raw = changed(LayerChange{.normalize = Normalize::none}, v);
  const Geometry bent{.m = changed(LayerChange{}, v)};
  const Chart chart{svg,
                    {55, 45},
                    310,
                    240,
                    {0.4, 8.6, {1, 2, 3, 4, 5, 6, 7, 8}, "coordinate d"},
                    {0, 3, {0, 1, 2, 3}, "change |v − v⁻|, in units of the largest mean"}};
  chart.frame("");
  bars(chart, bent.m);
  const double largest = *std::max_element(raw.begin(), raw.end());
  const Vector now = v.now.values(), before = v.before.values();
  for (std::size_t i = 0; i < now.size(); ++i) {
    const double change = std::abs(now[i] - before[i]) / largest;
    if (change < 3)
      svg.circle(chart.at(double(i % 8) + 1, change), 2.4, "none", {"#953800", 1.2, ""});
  }
  const Plane plane{svg, {415, 40}};
  plane.frame("equal scores, coordinates 2 and 3",
              fmt::format("m₂ = {:.2f}, m₃ = {:.2f}", bent.m[1], bent.m[2]));
  const Vector query(8, 0.0);
  for (double radius : radii) {
    plane.curves(score_field({}, query, {1, 2}, scale), level(radius), {"#8c959f", 1.2, "7 4"});
    plane.curves(score_field(bent, query, {1, 2}, scale), level(radius), solid_pen);
  }
  plane.query(0, 0);
  return svg;
}

Svg flat() {
  Svg svg(740, 350, "flat",
          "Left: the curve of one score for dot, layer-change and flat. flat is a circle again, "
          "larger than dot's. Right: layer-change's m as bars and flat's as a line at their mean.");
  const Values v = changing(5, 40, {0.35, 1.0});
  const Geometry bent{.m = changed(LayerChange{}, v)}, round{.m = changed(Flat{}, v)};
  const Plane plane{svg, {45, 40}};
  plane.frame("one score, three metrics", "the same score on every curve");
  const Vector query{0, 0};
  const Pen pens[] = {dotted_pen, dashed_pen, solid_pen};
  const Geometry metrics[] = {{}, bent, round};
  for (int i = 0; i < 3; ++i)
    plane.curves(score_field(metrics[i], query, {0, 1}, scale), level(1.4), pens[i]);
  plane.query(0, 0);
  const Chart chart{
      svg, {395, 45}, 170, 240, {0.4, 2.6, {1, 2}, "coordinate d"}, {0, 1, {0, 0.5, 1}, "m"}};
  chart.frame("");
  bars(chart, bent.m);
  chart.plot({0.4, 2.6}, {round.m[0], round.m[1]}, solid_pen);
  chart.legend({590, 120}, {{"dot", pens[0]}, {"layer-change", pens[1]}, {"flat", pens[2]}});
  return svg;
}

Svg jacobian() {
  Svg svg(680, 350, "jacobian",
          "Left: keys, each with its value as an arrow; values turn along the first axis and "
          "stay the same along the second. Right: the ellipse that follows, short along the first "
          "axis.");
  const Vector keys = cloud(23, 40, 1.2, 1.2, 0), query{0.2, 0.1};
  Vector values;
  for (std::size_t j = 0; j < keys.size(); j += 2) {
    values.push_back(std::cos(1.1 * keys[j]));
    values.push_back(std::sin(1.1 * keys[j]));
  }
  const Plane left{svg, {45, 40}}, right{svg, {365, 40}};
  left.frame("keys, and their values as arrows", "the value depends on the first coordinate only");
  for (std::size_t j = 0; j < keys.size(); j += 2) {
    const Point p = left.at(keys[j], keys[j + 1]);
    svg.arrow(p, {p.x + 16 * values[j], p.y - 16 * values[j + 1]}, {"#953800", 1.3, ""});
    svg.circle(p, 2.2, "#fff", {"#6e3200", 1.1, ""});
  }
  const Geometry bent{
      .m = estimate(Jacobian{}, tensor({1, 1, 40, 2}, keys), tensor({1, 1, 40, 2}, values), {})};
  right.frame("equal scores", in_words(bent.m));
  neighbourhood(right, bent, query, keys);
  return svg;
}

Svg key_covariance() {
  Svg svg(680, 350, "key-covariance",
          "A tilted cloud of keys. Left: Euclidean circles of equal score. Right: tilted "
          "ellipses with the shape of the cloud. Discs: attention weights.");
  const Vector keys = cloud(31, 48, 1.15, 0.4, 0.6), query{0.7, 0.2};
  const Tensor k = tensor({1, 1, 48, 2}, keys);
  const Geometry tilted{.P = estimate(KeyCovariance{.ridge = 1e-3}, k, k, {})};
  const Plane left{svg, {45, 40}}, right{svg, {365, 40}};
  left.frame("dot, form distance", "all directions alike");
  neighbourhood(left, {}, query, keys);
  right.frame("key-covariance", "in units of the keys' own scatter");
  neighbourhood(right, tilted, query, keys);
  return svg;
}

Svg random() {
  Svg svg(560, 350, "random",
          "Curves of one score around a query for four seeds: four ellipses along the axes.");
  const Plane plane{svg, {45, 40}};
  plane.frame("one score, four seeds", "floor 0.1");
  const Tensor k = tensor({1, 1, 1, 2}, Vector{0, 0});
  const Pen pens[] = {solid_pen, dashed_pen, dotted_pen, dash_dot_pen};
  const Chart legend{svg, {350, 60}, 1, 1, {}, {}};
  std::vector<std::pair<std::string, Pen>> entries;
  const std::uint64_t seeds[] = {0, 1, 2, 4};
  for (int i = 0; i < 4; ++i) {
    const Geometry drawn{.m = estimate(Random{.seed = seeds[i]}, k, k, {})};
    plane.curves(score_field(drawn, {0, 0}, {0, 1}, scale), level(1.3), pens[i]);
    entries.emplace_back(fmt::format("seed {}: {}", seeds[i], in_words(drawn.m)), pens[i]);
  }
  plane.query(0, 0);
  legend.legend({345, 120}, entries);
  return svg;
}

Svg given() {
  Svg svg(680, 350, "given",
          "Left: a given diagonal makes an ellipse along the axes. Right: a given full matrix "
          "makes a tilted one. Discs: attention weights.");
  const Vector keys = cloud(11, 36, 1.3, 1.3, 0), query{0.3, -0.1};
  const Plane left{svg, {45, 40}}, right{svg, {365, 40}};
  left.frame("a diagonal", "m = (1, 0.3)");
  neighbourhood(left, {.m = {1.0, 0.3}}, query, keys);
  right.frame("a full matrix", "P = (1, 0.7; 0.7, 1)");
  neighbourhood(right, {.P = {1.0, 0.7, 0.7, 1.0}}, query, keys);
  return svg;
}

/// One row of keys on a line: key j has score x_j at scale 1.
struct Line {
  Vector x;
  Line() {
    for (int j = 0; j <= 60; ++j) x.push_back(-4 + 8.0 * j / 60);
  }
  Vector weigh(const Weighting& weighting, double c = 1) const {
    return weights({.metric = Dot{}, .weighting = weighting, .scale = c}, {.form = Form::product},
                   {1}, x);
  }
};

Chart weight_chart(Svg& svg, Axis y, std::string_view x_name) {
  return {svg, {60, 45}, 400, 235, {-4, 4, {-4, -2, 0, 2, 4}, x_name}, std::move(y)};
}

Svg softmax() {
  Svg svg(680, 340, "softmax",
          "Weight of each of sixty-one keys against its score before scaling, at scales 0.5, 1 "
          "and 2: the larger the scale, the steeper the rise at the right end.");
  const Line line;
  const Chart chart =
      weight_chart(svg, {0, 0.25, {0, 0.05, 0.1, 0.15, 0.2, 0.25}, "weight"}, "q · k");
  chart.frame("");
  chart.plot(line.x, line.weigh(Softmax{}, 0.5), dotted_pen);
  chart.plot(line.x, line.weigh(Softmax{}, 1), solid_pen);
  chart.plot(line.x, line.weigh(Softmax{}, 2), dashed_pen);
  chart.legend({500, 110},
               {{"scale 0.5", dotted_pen}, {"scale 1", solid_pen}, {"scale 2", dashed_pen}});
  return svg;
}

Svg relu2() {
  Svg svg(
      680, 340, "relu2",
      "Weight of each of sixty-one keys against its score: zero below score 0, a parabola above. "
      "Dashed: softmax for the same row. Both rows sum to one.");
  const Line line;
  const Chart chart =
      weight_chart(svg, {0, 0.125, {0, 0.025, 0.05, 0.075, 0.1, 0.125}, "weight"}, "score");
  chart.frame("");
  chart.plot(line.x, line.weigh(Relu2{Rescale::l1}), solid_pen);
  chart.plot(line.x, line.weigh(Softmax{}), dashed_pen);
  chart.legend({490, 110}, {{"relu2, rescale l1", solid_pen}, {"softmax", dashed_pen}});
  return svg;
}

Svg identity() {
  Svg svg(700, 340, "identity",
          "Weight of each of sixty-one keys against its score: a straight line through zero, "
          "negative to the left. Dashed: softmax for the same row.");
  const Line line;
  const Chart chart = weight_chart(svg, {-0.075, 0.125, {-0.05, 0, 0.05, 0.1}, "weight"}, "score");
  chart.frame("");
  chart.plot(line.x, line.weigh(Identity{Rescale::length}), solid_pen);
  chart.plot(line.x, line.weigh(Softmax{}), dashed_pen);
  chart.legend({480, 110}, {{"identity, rescale length", solid_pen}, {"softmax", dashed_pen}});
  return svg;
}

Svg linear() {
  Svg svg(680, 340, "linear",
          "Weight of each of sixty-one keys against the key, for a query of 1 in one dimension: "
          "elu1 bends, relu is zero to the left, exp rises like softmax.");
  const Line line;
  const Chart chart =
      weight_chart(svg, {0, 0.125, {0, 0.025, 0.05, 0.075, 0.1, 0.125}, "weight"}, "key");
  chart.frame("");
  chart.plot(line.x, line.weigh(Linear{Feature::elu1}), solid_pen);
  chart.plot(line.x, line.weigh(Linear{Feature::relu}), dotted_pen);
  chart.plot(line.x, line.weigh(Linear{Feature::exp}), dashed_pen);
  chart.legend({500, 110}, {{"elu1", solid_pen}, {"relu", dotted_pen}, {"exp", dashed_pen}});
  return svg;
}

Svg decay() {
  Svg svg(
      680, 340, "decay",
      "Weight of a key against its age, forty-one keys, at rates 0.5, 0.9 and 0.98: the smaller "
      "the rate, the more weight on the newest key.");
  const Chart chart{svg,
                    {60, 45},
                    400,
                    235,
                    {0, 40, {0, 10, 20, 30, 40}, "age of the key, in tokens"},
                    {0, 0.5, {0, 0.1, 0.2, 0.3, 0.4, 0.5}, "weight"}};
  chart.frame("");
  const Vector keys(41, 0.0);
  Vector ages;
  for (int age = 0; age <= 40; ++age) ages.push_back(age);
  const Pen pens[] = {dashed_pen, solid_pen, dotted_pen};
  const double rates[] = {0.5, 0.9, 0.98};
  std::vector<std::pair<std::string, Pen>> entries;
  for (int i = 0; i < 3; ++i) {
    Vector row = weights({.metric = Dot{}, .weighting = Decay{.rate = rates[i]}, .causal = true},
                         {}, {1}, keys);
    std::reverse(row.begin(), row.end());
    chart.plot(ages, row, pens[i]);
    entries.emplace_back(fmt::format("rate {:g}", rates[i]), pens[i]);
  }
  chart.legend({500, 110}, entries);
  return svg;
}

struct Picture {
  const char* name;
  Svg (*draw)();
};
constexpr Picture pictures[] = {
    {"ellipse", ellipse}, {"dot", dot},           {"layer_change", layer_change},
    {"flat", flat},       {"jacobian", jacobian}, {"key_covariance", key_covariance},
    {"random", random},   {"given", given},       {"softmax", softmax},
    {"relu2", relu2},     {"identity", identity}, {"linear", linear},
    {"decay", decay}};

}  // namespace

int main(int count, char** arguments) {
  if (count != 2) {
    std::cerr << "usage: draw_pictures FOLDER\n";
    return 2;
  }
  for (const Picture& picture : pictures) {
    const std::string path = fmt::format("{}/{}.svg", arguments[1], picture.name);
    std::ofstream file(path, std::ios::binary);
    file << picture.draw().finished();
    if (!file.flush()) {
      std::cerr << "draw_pictures: cannot write " << path << "\n";
      return 1;
    }
  }
}
