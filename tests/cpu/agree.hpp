// SPDX-License-Identifier: Apache-2.0
// Holds the kernels of every instruction set to the tolerance rule, over awkward shapes:
//   max|ours - exact| <= 2 max|plain - exact| + eps max|exact|
// where exact and plain are loops in double and in float. The largest error of a handful of numbers
// says nothing: shapes are drawn several times, and those that differ in rows alone are judged
// together, each in units of its max|exact|.
#pragma once

#include "cpu/choose.hpp"
#include "cpu/packed.hpp"

#include <gtest/gtest.h>

#include <cfloat>
#include <map>
#include <string>

namespace foci::cpu::blocks {

/// One tensor.
struct Compared {
  double error = 0, naive = 0, largest = 0;
  Shape worst;

  double tolerance() const { return 2 * naive + double(FLT_EPSILON) * largest; }

  /// Another draw of the same shape.
  void add(const std::vector<float>& ours, const std::vector<float>& plain,
           const std::vector<double>& exact) {
    ASSERT_EQ(ours.size(), exact.size());
    for (std::size_t i = 0; i < exact.size(); ++i) {
      const double off = std::abs(double(ours[i]) - exact[i]);
      error = off <= error ? error : off;  // NaN stays
      naive = std::max(naive, std::abs(double(plain[i]) - exact[i]));
      largest = std::max(largest, std::abs(exact[i]));
    }
  }

  /// Another shape.
  void join(const Compared& other, const Shape& shape) {
    if (other.largest == 0) {
      EXPECT_EQ(other.error, 0);
      return;
    }
    largest = 1;
    naive = std::max(naive, other.naive / other.largest);
    if (other.error / other.largest <= error) return;
    error = other.error / other.largest;
    worst = shape;
  }
};

/// By instruction set and tensor.
using Comparison = std::map<std::string, Compared>;

inline std::string described(const How& how, const Shape& s) {
  const char* kinds[] = {"relu2", "identity", "faded"};
  const char* divisors[] = {"length", "l1", "l2", "none"};
  return std::string(kinds[int(how.kind)]) + " " + divisors[int(how.divisor)] + " rows " +
         std::to_string(s.rows) + " keys " + std::to_string(s.n) + " D " + std::to_string(s.D) +
         " E " + std::to_string(s.E) + (s.causal ? " causal" : "") + (s.biased ? " biased" : "") +
         (s.distances ? " distances" : "");
}

/// The largest weight's place: as good a one as there is, but for rounding.
inline void expect_places(const Answer<float>& ours, const Inputs& in,
                          const Answer<double>& exact) {
  for (std::size_t i = 0; i < in.sees.size(); ++i) {
    const std::int64_t at = ours.largest_at[i];
    if (in.sees[i] == 0) {
      EXPECT_EQ(at, -1);
      continue;
    }
    ASSERT_GE(at, 0);
    ASSERT_LT(at, in.sees[i]);
    EXPECT_GE(std::abs(exact.a[i][std::size_t(at)]), exact.largest[i] * (1 - 1e-5));
  }
}

/// One draw, both ways.
inline void compare(Comparison& to, const How& how, const Inputs& in) {
  const auto exact = loops<double>(how, in);
  const auto plain = loops<float>(how, in);
  for (const Kernels* isa : available()) {
    Answer<float> ours, other;
    const Packed packed(*isa, how, in);
    forward(ours, packed, true);
    forward(other, packed, false);
    backward(ours, packed);
    EXPECT_EQ(ours.o, other.o) << "statistics change the output";
    EXPECT_EQ(ours.by, other.by);
    const std::string name = std::string(isa->name) + " ";
    to[name + "o"].add(ours.o, plain.o, exact.o);
    to[name + "by"].add(ours.by, plain.by, exact.by);
    to[name + "concentration"].add(ours.concentration, plain.concentration, exact.concentration);
    to[name + "largest"].add(ours.largest, plain.largest, exact.largest);
    to[name + "dq"].add(ours.dq, plain.dq, exact.dq);
    to[name + "dk"].add(ours.dk, plain.dk, exact.dk);
    to[name + "dv"].add(ours.dv, plain.dv, exact.dv);
    to[name + "dbias"].add(ours.dbias, plain.dbias, exact.dbias);
    to[name + "dr"].add(ours.dr, plain.dr, exact.dr);
    expect_places(ours, in, exact);
  }
}

inline void expect_agreement(const How& how, const Comparison& found) {
  for (const auto& [name, of] : found) {
    EXPECT_LE(of.error, of.tolerance()) << name << " of " << described(how, of.worst);
  }
}

/// A shape drawn several times, the more often the fewer rows, keys or columns it has.
inline void draw(Comparison& to, const How& how, const Shape& shape, double size = 1) {
  const std::int64_t draws = 1 + std::max({64 / shape.rows, 64 / shape.n, 8 / shape.E});
  Comparison found;
  for (std::int64_t seed = 0; seed < draws; ++seed)
    compare(found, how, Inputs(shape, 100 + std::uint64_t(seed), size));
  for (const auto& [name, of] : found) to[name].join(of, shape);
}

/// Every count of keys and columns below with every count of rows, causal and not, one of the two
/// biased. No distances for relu2, which they never reach: they are below 0.
inline void sweep(const How& how) {
  struct Sizes {
    std::int64_t D, E;
  };
  const bool far = how.kind != Kind::relu2;
  int turn = 0;
  for (std::int64_t n : {1, 33, 96, 193, 400}) {
    for (const auto& [D, E] : {Sizes{1, 1}, {8, 11}, {16, 65}, {65, 1}}) {
      Comparison found;
      for (std::int64_t rows : {1, 5, 13, 96}) {
        const bool biased = ++turn % 2 == 0;
        draw(found, how, {rows, n, D, E, false, biased, far && turn % 3 == 0});
        draw(found, how, {rows, n, D, E, true, !biased, far && turn % 3 == 1});
      }
      expect_agreement(how, found);
    }
  }
}

}  // namespace foci::cpu::blocks
