// SPDX-License-Identifier: Apache-2.0
// A head's keys seen in two directions: the coordinates that a diagonal metric sees most of, or the
// leading eigenvectors of a full one, by Jacobi's rotations.
#include "report/axes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace foci::report {
namespace {

constexpr std::string_view head_picture = "a head";
using Vector = std::vector<double>;

void check(const Head& head) {
  const auto D = std::size_t(std::max<std::int64_t>(0, head.D));
  if (D == 0 || D > 1024)
    refuse(head_picture, head.name, fmt::format("{} coordinates; needs 1 to 1024", head.D));
  if (head.query.size() != D || head.keys.empty() || head.keys.size() % D != 0 ||
      head.weights.size() != head.keys.size() / D) {
    refuse(head_picture, head.name,
           fmt::format("a query of {}, keys of {} and {} weights are no ({}), (n,{}) and (n)",
                       head.query.size(), head.keys.size(), head.weights.size(), D, D));
  }
  for (const auto metric : {head.metric, head.axes}) {
    if (metric.empty() || metric.size() == D || metric.size() == D * D) continue;
    refuse(head_picture, head.name,
           fmt::format("a metric of {} numbers; needs none, {} or {}", metric.size(), D, D * D));
  }
  check_finite(head_picture, head.name, "the query", head.query);
  check_finite(head_picture, head.name, "the keys", head.keys);
  check_finite(head_picture, head.name, "the metric", head.metric);
  check_finite(head_picture, head.name, "the axes", head.axes);
}

/// One turn of the plane (p, q), after which a[p][q] is 0.
void rotate(Vector& a, Vector& v, std::size_t D, std::size_t p, std::size_t q) {
  const double apq = a[p * D + q];
  if (apq == 0) return;
  const double theta = (a[q * D + q] - a[p * D + p]) / (2 * apq);
  const double t = (theta < 0 ? -1 : 1) / (std::abs(theta) + std::sqrt(theta * theta + 1));
  const double c = 1 / std::sqrt(t * t + 1), s = t * c;
  for (std::size_t k = 0; k < D; ++k) {
    const double x = a[k * D + p], y = a[k * D + q];
    a[k * D + p] = c * x - s * y, a[k * D + q] = s * x + c * y;
  }
  for (std::size_t k = 0; k < D; ++k) {
    const double x = a[p * D + k], y = a[q * D + k];
    a[p * D + k] = c * x - s * y, a[q * D + k] = s * x + c * y;
    const double u = v[k * D + p], w = v[k * D + q];
    v[k * D + p] = c * u - s * w, v[k * D + q] = s * u + c * w;
  }
}

/// The eigenvectors of the two largest eigenvalues, (2,D); the largest part of each is positive.
Vector leading_of(std::span<const double> metric, std::size_t D) {
  Vector a(metric.begin(), metric.end()), v(D * D, 0.0);
  for (std::size_t i = 0; i < D; ++i) v[i * D + i] = 1;
  for (int sweep = 0; sweep < 30; ++sweep) {
    double off = 0, on = 0;
    for (std::size_t i = 0; i < D; ++i) {
      for (std::size_t j = 0; j < D; ++j) (i == j ? on : off) += a[i * D + j] * a[i * D + j];
    }
    if (off <= 1e-26 * on) break;
    for (std::size_t p = 0; p < D; ++p) {
      for (std::size_t q = p + 1; q < D; ++q) rotate(a, v, D, p, q);
    }
  }
  std::vector<std::size_t> order(D);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return a[i * D + i] > a[j * D + j]; });
  Vector axes(2 * D, 0.0);
  for (std::size_t i = 0; i < std::min<std::size_t>(2, D); ++i) {
    double largest = 0;
    for (std::size_t d = 0; d < D; ++d) {
      axes[i * D + d] = v[d * D + order[i]];
      if (std::abs(axes[i * D + d]) > std::abs(largest) + 1e-12) largest = axes[i * D + d];
    }
    for (std::size_t d = 0; largest < 0 && d < D; ++d) axes[i * D + d] = -axes[i * D + d];
  }
  return axes;
}

/// The coordinates with the largest m times the deviation of the keys, in the order of m and keys.
std::vector<std::size_t> widest_of(const Head& head, std::span<const double> m) {
  const auto D = std::size_t(head.D), n = head.weights.size();
  Vector spread(D);
  for (std::size_t d = 0; d < D; ++d) {
    double sum = 0, squares = 0;
    for (std::size_t j = 0; j < n; ++j) sum += head.keys[j * D + d] / double(n);
    for (std::size_t j = 0; j < n; ++j) {
      const double off = head.keys[j * D + d] - sum;
      squares += off * off / double(n);
    }
    spread[d] = (m.empty() ? 1 : m[d]) * squares;
  }
  std::vector<std::size_t> order(D);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t i, std::size_t j) { return spread[i] > spread[j]; });
  return order;
}

}  // namespace

Plane plane_of(const Head& head) {
  check(head);
  const auto D = std::size_t(head.D);
  const auto seen_by = head.axes.empty() ? head.metric : head.axes;
  Plane plane{.name = head.name, .form = head.form};
  Vector axes(2 * D, 0.0);  // (2,D)
  if (D > 1 && seen_by.size() == D * D) {
    axes = leading_of(seen_by, D);
    plane.x_name = "first axis of P", plane.y_name = "second axis of P";
  } else {
    const auto order = widest_of(head, seen_by);
    axes[order[0]] = 1;
    plane.x_name = fmt::format("coordinate {}", order[0]);
    if (D > 1) axes[D + order[1]] = 1, plane.y_name = fmt::format("coordinate {}", order[1]);
  }
  const auto along = [&](std::span<const double> x, std::size_t axis) {
    double sum = 0;
    for (std::size_t d = 0; d < D; ++d) sum += axes[axis * D + d] * x[d];
    return sum;
  };
  Vector row(D);
  for (std::size_t i = 0; i < 2; ++i) {  // scale times axes metric axes'
    for (std::size_t d = 0; d < D; ++d) {
      const auto& m = head.metric;
      row[d] = m.empty()       ? axes[i * D + d]
               : m.size() == D ? m[d] * axes[i * D + d]
                               : along(m.subspan(d * D, D), i);
    }
    for (std::size_t j = 0; j < 2; ++j) plane.metric[2 * i + j] = head.scale * along(row, j);
    plane.query[i] = along(head.query, i);
  }
  for (std::size_t j = 0; j < head.weights.size(); ++j) {
    for (std::size_t i = 0; i < 2; ++i) plane.keys.push_back(along(head.keys.subspan(j * D, D), i));
  }
  plane.weights.assign(head.weights.begin(), head.weights.end());
  return plane;
}

}  // namespace foci::report
