// SPDX-License-Identifier: Apache-2.0
// One block of queries by hand: inputs from a seed, and the answers of plain loops in any number
// type.
#pragma once

#include "cpu/kernels.hpp"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace foci::cpu::blocks {

using Floats = std::vector<float>;

enum class Kind { relu2, identity, faded };

struct How {
  Kind kind = Kind::relu2;
  Divisor divisor = Divisor::none;
  float slope = 0;  // faded
};

struct Shape {
  std::int64_t rows = 1, n = 1, D = 1, E = 1;
  bool causal = false, biased = false;
  bool distances = false;  // s = sum_d m_d (q_d - k_d)^2 in place of q . k
};

struct Inputs {
  Shape shape;
  Floats q, k, v, d_o;       // (rows,D) (n,D) (n,E) (rows,E)
  Floats m;                  // (rows,D) with distances
  Floats r, bias, at, last;  // (rows) (n) (n) (rows)
  std::vector<std::int64_t> sees;

  Inputs(const Shape& of, std::uint64_t seed, double size = 1) : shape(of) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<double> size_of(0.5, 1.5);  // away from 0: no row stands out
    const auto draw = [&](std::int64_t count, double times) {
      Floats x(static_cast<std::size_t>(count));
      for (float& f : x) f = float((random() % 2 == 0 ? times : -times) * size_of(random));
      return x;
    };
    const auto& [rows, n, D, E, causal, biased, distances] = shape;
    q = draw(rows * D, size / std::sqrt(double(D)));
    k = draw(n * D, size);
    v = draw(n * E, size);
    d_o = draw(rows * E, 1);
    if (distances) m = draw(rows * D, 1 / std::sqrt(double(D)));
    r = draw(rows, size * size / 8);
    bias = draw(n, biased ? size * size : 0);
    for (std::int64_t j = 0; j < n; ++j) at.push_back(float(j + j / 3));  // some were left out
    for (std::int64_t i = 0; i < rows; ++i) {
      sees.push_back(causal ? std::clamp<std::int64_t>(i + 1 + n - rows, 0, n) : n);
      last.push_back(sees.back() > 0 ? at[std::size_t(sees.back() - 1)] : 0.0f);
    }
  }
};

/// Everything a pass gives, (rows,...) or (n,...) row-major.
template <class T>
struct Answer {
  std::vector<T> o, by, concentration, largest;
  std::vector<std::int64_t> largest_at;
  std::vector<std::vector<T>> a;  // of the loops alone
  std::vector<T> dq, dk, dv, dbias, dr;
};

/// One row: x, what it is divided by, weights.
template <class T>
struct Row {
  std::vector<T> s, slope, x, a;
  T by = 0;
};

template <class T>
T root_of_squares(const std::vector<T>& x) {
  T largest = 0, sum = 0;
  for (T one : x) largest = std::max(largest, std::abs(one));
  if (largest == T(0)) return 0;
  for (T one : x) sum += (one / largest) * (one / largest);
  return largest * std::sqrt(sum);
}

template <class T>
Row<T> row_of(const How& how, const Inputs& in, std::int64_t i) {
  const std::int64_t D = in.shape.D;
  Row<T> row;
  T powers = 0, sizes = 0;
  for (std::int64_t j = 0; j < in.sees[i]; ++j) {
    T s = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      const T x = T(in.q[i * D + d]), y = T(in.k[j * D + d]);
      s += in.shape.distances ? T(in.m[i * D + d]) * (x - y) * (x - y) : x * y;
    }
    s += T(in.bias[j]) + T(in.r[i]);
    const T positive = s < T(0) ? T(0) : s;
    const T power = std::exp(T(how.slope) * (T(in.last[i]) - T(in.at[j])));
    row.s.push_back(s);
    row.slope.push_back(how.kind == Kind::relu2      ? 2 * positive
                        : how.kind == Kind::identity ? T(1)
                                                     : power);
    row.x.push_back(how.kind == Kind::relu2      ? positive * positive
                    : how.kind == Kind::identity ? s
                                                 : s * power);
    powers += power;
    sizes += std::abs(row.x.back());
  }
  row.by = how.kind == Kind::faded          ? powers
           : how.divisor == Divisor::length ? T(in.sees[i])
           : how.divisor == Divisor::l1     ? sizes
           : how.divisor == Divisor::l2     ? root_of_squares(row.x)
           : in.sees[i] > 0                 ? T(1)
                                            : T(0);
  for (T x : row.x) row.a.push_back(row.by == T(0) ? T(0) : x / row.by);
  return row;
}

template <class T>
void measure(Answer<T>& to, const Row<T>& row) {
  T largest = 0, sum = 0, squares = 0;
  std::int64_t at = row.a.empty() ? -1 : 0;
  for (std::size_t j = 0; j < row.a.size(); ++j) {
    if (std::abs(row.a[j]) > largest) {
      largest = std::abs(row.a[j]);
      at = std::int64_t(j);
    }
  }
  for (std::size_t j = 0; j < row.a.size() && largest > T(0); ++j) {
    sum += std::abs(row.a[j]) / largest;
    squares += (row.a[j] / largest) * (row.a[j] / largest);
  }
  to.concentration.push_back(largest > T(0) ? sum / std::sqrt(T(row.a.size()) * squares) : T(0));
  to.largest.push_back(largest);
  to.largest_at.push_back(at);
}

/// ds of a row, and its share of every gradient.
template <class T>
void differentiate(Answer<T>& to, const How& how, const Inputs& in, std::int64_t i,
                   const Row<T>& row) {
  const auto& [rows, n, D, E, causal, biased, distances] = in.shape;
  std::vector<T> da(row.a.size(), T(0));
  T along = 0, dr = 0;
  for (std::size_t j = 0; j < da.size(); ++j) {
    for (std::int64_t e = 0; e < E; ++e) {
      da[j] += T(in.d_o[i * E + e]) * T(in.v[std::int64_t(j) * E + e]);
      to.dv[std::int64_t(j) * E + e] += row.a[j] * T(in.d_o[i * E + e]);
    }
    along += row.a[j] * da[j];
  }
  for (std::size_t j = 0; j < da.size(); ++j) {
    const T a = row.a[j];
    T through = 0;
    if (how.kind != Kind::faded && how.divisor == Divisor::l1)
      through = a > T(0) ? along : a < T(0) ? -along : T(0);
    if (how.kind != Kind::faded && how.divisor == Divisor::l2) through = a * along;
    const T ds = row.by == T(0) ? T(0) : (da[j] - through) / row.by * row.slope[j];
    for (std::int64_t d = 0; d < D; ++d) {
      to.dq[i * D + d] += ds * T(in.k[std::int64_t(j) * D + d]);
      to.dk[std::int64_t(j) * D + d] += ds * T(in.q[i * D + d]);
    }
    to.dbias[j] += ds;
    dr += ds;
  }
  to.dr.push_back(dr);
}

template <class T>
Answer<T> loops(const How& how, const Inputs& in) {
  const auto& [rows, n, D, E, causal, biased, distances] = in.shape;
  Answer<T> to;
  to.dq.resize(std::size_t(rows * D));
  to.dk.resize(std::size_t(n * D));
  to.dv.resize(std::size_t(n * E));
  to.dbias.resize(std::size_t(n));
  for (std::int64_t i = 0; i < rows; ++i) {
    const Row<T> row = row_of<T>(how, in, i);
    to.by.push_back(row.by);
    for (std::int64_t e = 0; e < E; ++e) {
      T o = 0;
      for (std::size_t j = 0; j < row.a.size(); ++j)
        o += row.a[j] * T(in.v[std::int64_t(j) * E + e]);
      to.o.push_back(o);
    }
    to.a.push_back(row.a);
    measure(to, row);
    differentiate(to, how, in, i, row);
  }
  return to;
}

}  // namespace foci::cpu::blocks
