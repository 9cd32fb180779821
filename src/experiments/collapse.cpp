// SPDX-License-Identifier: Apache-2.0
// One block again and again on tokens x (N,D), rows of length sqrt(D): attention alone,
// x <- norm(o), or with a residual, x <- norm(x + o), o = attend(x Wq, x Wk, x W) and W a rotation.
// Collapsed is what is of rank one: |X - 1 mean(X)'| / |X| falls to 0 and cosines rise to 1.
#include "experiments/experiments.hpp"
#include "experiments/trial.hpp"

#include <algorithm>
#include <array>
#include <cmath>

namespace foci::experiments {
namespace {

enum class Block { alone, residual };

/// Attention alone: after these a double cannot tell tokens apart.
constexpr std::int64_t most_alone = 4;

constexpr std::array<const char*, 8> arms = {"dot",
                                             "flat",
                                             "random",
                                             "layer-change",
                                             "jacobian",
                                             "dot, form distance",
                                             "key-covariance",
                                             "key-covariance, scale auto"};
constexpr std::array<double, 8> scales = {0.25, 0.5, 0.7, 1, 1.4, 2, 4, 8};  // times dot's own

/// One geometry, or dot at a scale.
struct Arm {
  std::size_t geometry = 0;
  double scale = 1;
};

Options options(const Arm& arm, std::int64_t D, std::int64_t run, std::int64_t layer) {
  const double c = arm.scale / std::sqrt(double(D));
  const auto seed = std::uint64_t(run);
  if (arm.geometry == 2) return {.metric = foci::Random{.seed = seed}, .scale = c};
  if (arm.geometry == 4) return {.metric = Jacobian{}, .scale = c};
  if (arm.geometry == 5) return {.metric = Dot{Form::distance}, .scale = c};
  if (arm.geometry == 6) return {.metric = KeyCovariance{.prior = double(D)}, .scale = c};
  if (arm.geometry == 7) return {.metric = KeyCovariance{.prior = double(D)}, .scale = MatchDot{}};
  if (layer > 0 && arm.geometry == 1) return {.metric = Flat{}, .scale = c};  // the lowest is dot
  if (layer > 0 && arm.geometry == 3) return {.metric = LayerChange{}, .scale = c};
  return {.scale = c};
}

void normalise(Matrix& x) {
  for (std::int64_t i = 0; i < x.rows; ++i) {
    double square = 0;
    for (const double one : x.row(i)) square += one * one;
    for (std::int64_t d = 0; d < x.columns && square > 0; ++d)
      x(i, d) *= std::sqrt(double(x.columns) / square);
  }
}

/// |X - 1 mean'|^2 / |X|^2 and the mean cosine of two different rows: with rows of one length both
/// follow from |mean|^2.
struct Alike {
  double residual = 0, cosine = 0;
};
Alike alike(const Matrix& x) {
  Vector mean(std::size_t(x.columns));
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t d = 0; d < x.columns; ++d) mean[std::size_t(d)] += x(i, d) / double(x.rows);
  }
  double square = 0, apart = 0;
  for (const double one : mean) square += one * one;
  for (std::int64_t i = 0; i < x.rows; ++i) {
    for (std::int64_t d = 0; d < x.columns; ++d)
      apart += std::pow(x(i, d) - mean[std::size_t(d)], 2) / double(x.rows);
  }
  const double N = double(x.rows), D = double(x.columns);
  return {std::sqrt(apart / D), (N * square / D - 1) / (N - 1)};
}

/// By layer, the tokens that come in first.
struct Course {
  std::vector<Alike> alike;
  double entropy = 0;  ///< mean over layers, as a share of ln N
};

std::int64_t layers_of(const Collapse& of, Block block) {
  return block == Block::alone ? std::min(of.layers, most_alone) : of.layers;
}

Course follow(const Collapse& of, const Arm& arm, Block block, std::uint64_t seed,
              std::int64_t run) {
  const std::int64_t layers = layers_of(of, block);
  Normal normal = drawn_for(seed, run, 1);  // every arm starts from the same
  Matrix x = normals(normal, of.keys, of.dim);
  normalise(x);
  Matrix Wq = normals(normal, of.dim, of.dim), Wk = normals(normal, of.dim, of.dim);
  for (Matrix* W : {&Wq, &Wk}) {
    for (double& w : W->values) w /= std::sqrt(double(of.dim));
  }
  const Matrix W = rotation(normal, of.dim);
  Course course{{alike(x)}, 0};
  Matrix below;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    const Matrix q = product(x, Wq), k = product(x, Wk), v = product(x, W);
    Inputs from{.q = q.view(), .k = k.view(), .v = v.view()};
    const Options how = options(arm, of.dim, run, layer);
    if (layer > 0 && (arm.geometry == 1 || arm.geometry == 3)) from.v_prev = below.view();
    const Focus focus = focus_of(from, how);
    course.entropy += focus.entropy / std::log(double(of.keys)) / double(layers);
    for (std::size_t i = 0; i < focus.o.size(); ++i)
      x.values[i] = (block == Block::residual ? x.values[i] : 0) + focus.o[i];
    normalise(x);
    course.alike.push_back(alike(x));
    below = v;
  }
  return course;
}

struct Courses {
  Samples residual, cosine, entropy;
  Courses(std::int64_t layers, std::int64_t runs)
      : residual(std::size_t(layers + 1), runs),
        cosine(std::size_t(layers + 1), runs),
        entropy(1, runs) {}
};

Courses courses(const Collapse& of, const Arm& arm, Block block, const Setting& in) {
  Courses made(layers_of(of, block), of.runs);
  each_run(of.runs, in.threads, [&](std::int64_t run) {
    const Course course = follow(of, arm, block, in.seed, run);
    for (std::size_t l = 0; l < course.alike.size(); ++l) {
      made.residual(l, run) = course.alike[l].residual;
      made.cosine(l, run) = course.alike[l].cosine;
    }
    made.entropy(0, run) = course.entropy;
  });
  return made;
}

/// The rank-1 residual of an arm over that of dot at the scale where its entropy is the same, run
/// by run: 1 when entropy tells all. `dots` come with falling entropy.
Estimate beside_dot(const Courses& arm, const std::vector<Courses>& dots, std::int64_t runs) {
  const std::size_t last = arm.residual.size() - 1;
  Vector ratios;
  for (std::size_t run = 0; run < std::size_t(runs); ++run) {
    const auto entropy = [&](std::size_t i) { return dots[i].entropy.at(0)[run]; };
    const auto residual = [&](std::size_t i) { return std::log(dots[i].residual.at(last)[run]); };
    const double here = arm.entropy.at(0)[run];
    std::size_t i = 0;
    while (i + 2 < dots.size() && entropy(i + 1) > here) ++i;
    const double apart = entropy(i + 1) - entropy(i);
    const double t = apart == 0 ? 0 : (here - entropy(i)) / apart;
    const double same = residual(i) + t * (residual(i + 1) - residual(i));
    ratios.push_back(arm.residual.at(last)[run] / std::exp(same));
  }
  return mean_of(ratios);
}

Vector numbered(std::int64_t layers) {
  Vector made;
  for (std::int64_t l = 0; l <= layers; ++l) made.push_back(double(l));
  return made;
}

}  // namespace

Result run(const Collapse& of, const Setting& in) {
  const Axis layer = linear("layer");
  const Axis residual = logarithmic("rank-1 residual (0: collapsed)");
  Chart alone{"attention alone", layer, residual}, block{"with residual", layer, residual};
  Chart cosines{"with residual", layer, linear("mean cosine of two tokens")};
  Chart against{"last layer, dot at eight scales", linear("mean entropy of the weights / ln N"),
                residual};
  std::vector<Courses> dots;
  Series hotter{arms[0]};  // at every scale
  for (const double scale : scales) {
    dots.push_back(courses(of, {0, scale}, Block::residual, in));
    hotter.x.push_back(dots.back().entropy.means()[0].value);
    hotter.y.push_back(dots.back().residual.means().back());
  }
  against.series.push_back(hotter);
  Result result{
      {},
      {"metric", {"entropy / ln N", "rank-1 residual at the end", "over dot's at that entropy"}}};
  for (std::size_t g = 0; g < arms.size(); ++g) {
    const Courses bare = courses(of, {g}, Block::alone, in);
    const Courses full = courses(of, {g}, Block::residual, in);
    alone.series.push_back(
        {arms[g], Kind::measured, numbered(layers_of(of, Block::alone)), bare.residual.means()});
    block.series.push_back({arms[g], Kind::measured, numbered(of.layers), full.residual.means()});
    cosines.series.push_back({arms[g], Kind::measured, numbered(of.layers), full.cosine.means()});
    const Estimate entropy = full.entropy.means()[0], last = full.residual.means().back();
    if (g > 0) against.series.push_back({arms[g], Kind::measured, {entropy.value}, {last}});
    const Estimate beside = g == 0 ? Estimate{1, 0} : beside_dot(full, dots, of.runs);
    result.table.rows.push_back({arms[g], {entropy, last, beside}});
  }
  result.charts = {alone, block, cosines, against};
  return result;
}

}  // namespace foci::experiments
