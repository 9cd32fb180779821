// SPDX-License-Identifier: Apache-2.0
// scale auto: the c of a full metric at which the mean concentration over queries equals dot
// attention's on the same queries and keys. By bisection on log c; the key bias is left out; c gets
// no gradient.
#pragma once

#include "metric/match_dot.hpp"
#include "ref/full.hpp"
#include "ref/softmax.hpp"
#include "ref/statistics.hpp"

#include <cmath>

namespace foci::ref {

/// Mean concentration over the rows that see a key; score(row, q, i) fills row.s of query i.
template <class T, class Score>
double mean_concentration(const Group<T>& group, Row<T> row, Score&& score) {
  double sum = 0;
  std::int64_t rows = 0;
  for (std::int64_t r = 0; r < group.R; ++r) {
    for (std::int64_t i = 0; i < group.N; ++i) {
      row.n = group.sees[i];
      if (row.n == 0) continue;
      score(row, group.query(r, i), i);
      forward(Softmax{}, row);
      const double concentration = double(statistics(row).concentration);
      if (std::isnan(concentration)) continue;  // a NaN stays in its own row
      sum += concentration;
      ++rows;
    }
  }
  return rows == 0 ? 1.0 : sum / double(rows);
}

/// place(i) places `full` as query i sees it: under prefix each has the metric of its chunk.
/// `buffers` lends s and a.
template <class T, class Place>
double match_dot(Full<T>& full, const Row<T>& buffers, Place&& place) {
  const Group<T>& group = *full.group;
  const T dot_scale = T(1 / std::sqrt(double(group.D)));
  const double target = mean_concentration(group, buffers, [&](Row<T>& row, const T* q, auto) {
    for (std::int64_t j = 0; j < row.n; ++j)
      row.s[j] = dot_scale * dot(q, row.k + j * group.D, group.D);
  });
  const auto excess = [&](double log_c) {
    full.c = T(std::exp(log_c));
    const auto score = [&](Row<T>& row, const T* q, std::int64_t i) {
      place(i);
      full.score(row, q);
    };
    return mean_concentration(group, buffers, score) - target;
  };
  return metric::match_dot(excess);
}

}  // namespace foci::ref
