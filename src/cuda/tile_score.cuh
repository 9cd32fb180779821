// SPDX-License-Identifier: Apache-2.0
// The scores of a tile: products, differences, weighted differences of the lines of its rows and
// columns. Where it says fmaf it fuses, and nowhere else: both ways a score has the same bits.
#pragma once

#include "cuda/tile.cuh"

namespace foci::cuda::tile {

/// s += what a coordinate says: x y, (x - y)^2, m (x - y)^2.
template <Score form>
FOCI_DEVICE void meet(float& s, float x, float y, float m) {
  const float apart = x - y;
  if constexpr (form == Score::product) s = fmaf(x, y, s);
  if constexpr (form == Score::difference) s = fmaf(apart, apart, s);
  if constexpr (form == Score::weighted) s = fmaf(m * apart, apart, s);
}

/// Whose line m belongs to.
enum class MetricOf { rows, columns };

/// Adds to s what the rows x and the columns y have to do with each other.
template <class T, Score form, MetricOf whose = MetricOf::rows>
FOCI_DEVICE void score(float (&s)[T::each_row][T::each_column], const float* x, const float* y,
                       const float* m, int width) {
  constexpr int R = T::each_row, C = T::each_column;
  constexpr bool rows = form == Score::weighted && whose == MetricOf::rows;
  constexpr bool columns = form == Score::weighted && whose == MetricOf::columns;
  x += ty() * T::pitch, y += tx() * T::pitch;
  m += (rows ? ty() : tx()) * T::pitch;
  for (int d = 0; d < width; d += 4) {
    float4 a[R], b, by[rows ? R : 1];
    by[0] = make_float4(1, 1, 1, 1);
    FOCI_UNROLL
    for (int r = 0; r < R; ++r) {
      a[r] = load4(x + r * T::down * T::pitch + d);
      if constexpr (rows) by[r] = load4(m + r * T::down * T::pitch + d);
    }
    FOCI_UNROLL
    for (int c = 0; c < C; ++c) {
      b = load4(y + c * across * T::pitch + d);
      if constexpr (columns) by[0] = load4(m + c * across * T::pitch + d);
      FOCI_UNROLL
      for (int r = 0; r < R; ++r) {
        const float4 w = by[rows ? r : 0];
        meet<form>(s[r][c], a[r].x, b.x, w.x);
        meet<form>(s[r][c], a[r].y, b.y, w.y);
        meet<form>(s[r][c], a[r].z, b.z, w.z);
        meet<form>(s[r][c], a[r].w, b.w, w.w);
      }
    }
  }
}

/// s[r][c] = x; r not known when compiled, and s shall stay in registers.
template <int R, int C>
FOCI_DEVICE void put_row(float (&s)[R][C], int r, int c, float x) {
  FOCI_UNROLL
  for (int i = 0; i < R; ++i) s[i][c] = i == r ? x : s[i][c];
}

/// Sequences of no more keys than this average nothing out: what they lose to rounding shows.
inline constexpr int few = 64;

/// The same for differences among few keys: summed up in double, rounded once.
FOCI_DEVICE void meet_exactly(double& s, float x, float y) {
  const double apart = double(x) - double(y);
  s = fma(apart, apart, s);
}
template <class T>
FOCI_DEVICE void score_exactly(float (&s)[T::each_row][T::each_column], const float* x,
                               const float* y, int width) {
  x += ty() * T::pitch, y += tx() * T::pitch;
  FOCI_ROLLED
  for (int r = 0; r < T::each_row; ++r) {
    double sums[T::each_column] = {};
    FOCI_ROLLED
    for (int d = 0; d < width; ++d) {
      FOCI_UNROLL
      for (int c = 0; c < T::each_column; ++c)
        meet_exactly(sums[c], x[r * T::down * T::pitch + d], y[c * across * T::pitch + d]);
    }
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) put_row(s, r, c, float(sums[c]));
  }
}

/// score() or score_exactly().
template <class T, Score form, MetricOf whose = MetricOf::rows>
FOCI_DEVICE void score_lines(float (&s)[T::each_row][T::each_column], const float* x,
                             const float* y, const float* m, const Shape& shape) {
  if (form == Score::difference && shape.longest_m <= few) {
    score_exactly<T>(s, x, y, shape.D);
  } else {
    score<T, form, whose>(s, x, y, m, shape.D);
  }
}

}  // namespace foci::cuda::tile
