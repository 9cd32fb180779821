// SPDX-License-Identifier: Apache-2.0
// Asks the library what it thinks of a plane of keys: scores on a grid (the lse of a row with one
// key is its score), weights of real rows (values that are unit vectors give the weights back), and
// the curves of equal score.
#pragma once

#include "svg.hpp"

#include <foci/attention.hpp>

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <vector>

namespace foci::tools {

using Vector = std::vector<double>;

inline Tensor tensor(std::initializer_list<std::int64_t> shape, std::span<const double> values) {
  Tensor made(DType::f64, shape);
  std::copy(values.begin(), values.end(), made.data<double>());
  return made;
}

/// Numbers that look drawn by lot and are the same everywhere.
class Lot {
 public:
  explicit Lot(std::uint64_t seed) : state_(seed) {}
  double uniform() {
    std::uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return double((z ^ (z >> 31)) >> 11) * 0x1p-53;
  }
  double normal() {
    const double radius = std::sqrt(-2 * std::log(1 - uniform()));
    return radius * std::cos(2 * 3.14159265358979323846 * uniform());
  }

 private:
  std::uint64_t state_;
};

/// A metric as numbers: m (D), P (D,D), or nothing for dot.
struct Geometry {
  Form form = Form::distance;
  Vector m = {};
  Vector P = {};

  Options options(double scale) const {
    Options how;
    how.backend = Backend::ref;  // pictures are the same to the byte everywhere
    how.scale = scale;
    if (!P.empty()) {
      how.metric = Given{.extent = Extent::full};
    } else if (!m.empty()) {
      how.metric = Given{.form = form};
    } else {
      how.metric = Dot{form};
    }
    return how;
  }
  Tensor given(std::int64_t D) const {
    if (!P.empty()) return tensor({1, 1, D, D}, P);
    if (!m.empty()) return tensor({1, 1, 1, D}, m);
    return {};
  }
};

/// Scores of `keys` (n,D) for one query.
inline Vector scores(const Geometry& geometry, const Vector& query, const Vector& keys,
                     double scale) {
  const auto D = std::int64_t(query.size()), n = std::int64_t(keys.size()) / D;
  const Tensor metric = geometry.given(D), k = tensor({n, 1, 1, D}, keys),
               v(DType::f64, {n, 1, 1, 1});
  Tensor q(DType::f64, {n, 1, 1, D}), o(DType::f64, {n, 1, 1, 1}), lse(DType::f64, {n, 1, 1});
  for (std::int64_t i = 0; i < n * D; ++i) q.data<double>()[i] = query[std::size_t(i % D)];
  attend({.o = o, .lse = lse}, {.q = q, .k = k, .v = v, .metric = metric}, geometry.options(scale));
  return lse.values();
}

/// Weights of one query's row over `keys` (n,D).
inline Vector weights(Options how, const Geometry& geometry, const Vector& query,
                      const Vector& keys) {
  how.backend = Backend::ref;
  const auto D = std::int64_t(query.size()), n = std::int64_t(keys.size()) / D;
  const Tensor metric = geometry.given(D), q = tensor({1, 1, 1, D}, query),
               k = tensor({1, 1, n, D}, keys);
  Tensor v(DType::f64, {1, 1, n, n}), o(DType::f64, {1, 1, 1, n});
  for (std::int64_t j = 0; j < n; ++j) v.data<double>()[j * n + j] = 1;
  attend({.o = o}, {.q = q, .k = k, .v = v, .metric = metric}, how);
  return o.values();
}

/// A square grid over [-reach, reach]^2 and one number a node.
struct Field {
  double reach = 3;
  std::int64_t steps = 48;
  Vector value;  // (steps+1, steps+1), y outer

  double coordinate(std::int64_t i) const { return -reach + 2 * reach * double(i) / double(steps); }
  double at(std::int64_t i, std::int64_t j) const {
    return value[std::size_t(j * (steps + 1) + i)];
  }
};

/// Scores of keys that differ from the query in two coordinates only.
inline Field score_field(const Geometry& geometry, const Vector& query,
                         std::array<std::size_t, 2> axes, double scale) {
  Field field;
  Vector keys;
  for (std::int64_t j = 0; j <= field.steps; ++j) {
    for (std::int64_t i = 0; i <= field.steps; ++i) {
      Vector key = query;
      key[axes[0]] = field.coordinate(i);
      key[axes[1]] = field.coordinate(j);
      keys.insert(keys.end(), key.begin(), key.end());
    }
  }
  field.value = scores(geometry, query, keys, scale);
  return field;
}

/// The curves where the field equals `level`: where it crosses an edge of the grid, joined cell by
/// cell.
inline std::vector<std::vector<Point>> contours(const Field& field, double level) {
  using Edge = std::array<std::int64_t, 3>;  // i, j, 0 = to the right, 1 = upwards
  std::map<Edge, std::vector<Edge>> joined;
  const auto crossing = [&](const Edge& e) -> std::optional<Point> {
    const std::int64_t i = e[0] + (e[2] == 0), j = e[1] + (e[2] == 1);
    const double from = field.at(e[0], e[1]) - level, to = field.at(i, j) - level;
    if ((from < 0) == (to < 0)) return {};
    const double t = from / (from - to), step = 2 * field.reach / double(field.steps);
    return Point{field.coordinate(e[0]) + (e[2] == 0 ? t * step : 0),
                 field.coordinate(e[1]) + (e[2] == 1 ? t * step : 0)};
  };
  for (std::int64_t j = 0; j < field.steps; ++j) {
    for (std::int64_t i = 0; i < field.steps; ++i) {
      std::vector<Edge> crossed;
      for (const Edge& e : {Edge{i, j, 0}, Edge{i + 1, j, 1}, Edge{i, j + 1, 0}, Edge{i, j, 1}}) {
        if (crossing(e)) crossed.push_back(e);
      }
      for (std::size_t c = 0; c + 1 < crossed.size(); c += 2) {
        joined[crossed[c]].push_back(crossed[c + 1]);
        joined[crossed[c + 1]].push_back(crossed[c]);
      }
    }
  }
  std::vector<std::vector<Point>> curves;
  const auto follow = [&](Edge at) {
    std::vector<Point> curve{*crossing(at)};
    while (!joined[at].empty()) {
      const Edge next = joined[at].back();
      joined[at].pop_back();
      std::erase(joined[next], at);
      curve.push_back(*crossing(at = next));
    }
    curves.push_back(curve);
  };
  for (auto& [edge, others] : joined) {
    if (others.size() == 1) follow(edge);  // open curves first, from an end
  }
  for (auto& [edge, others] : joined) {
    if (!others.empty()) follow(edge);
  }
  return curves;
}

}  // namespace foci::tools
