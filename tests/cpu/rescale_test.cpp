// SPDX-License-Identifier: Apache-2.0
// Blocks of relu2, identity and decay with content at the edges: tokens that are not seen, numbers
// far from 1, equal weights, NaN, rows of zeros.
#include "cpu/agree.hpp"

namespace foci::cpu::blocks {
namespace {

std::vector<How> all_hows() {
  std::vector<How> hows = {{Kind::faded, Divisor::none, std::log(0.9f)}};
  for (const Kind kind : {Kind::relu2, Kind::identity}) {
    for (const Divisor by : {Divisor::length, Divisor::l1, Divisor::l2, Divisor::none})
      hows.push_back({kind, by});
  }
  return hows;
}

/// f(how, isa) for every pair.
template <class F>
void on_all(F&& f) {
  for (const How& how : all_hows()) {
    for (const Kernels* isa : available()) {
      SCOPED_TRACE(std::string(isa->name) + " " + described(how, {}));
      f(how, *isa);
    }
  }
}

Answer<float> both_ways(const Kernels& isa, const How& how, const Inputs& in) {
  Answer<float> to;
  const Packed packed(isa, how, in);
  forward(to, packed, true);
  backward(to, packed);
  return to;
}

/// Numbers [from, to) of two tensors, bit by bit but for the sign of 0.
void expect_same(const Floats& a, const Floats& b, std::int64_t from, std::int64_t to) {
  for (std::int64_t i = from; i < to; ++i) EXPECT_EQ(a[std::size_t(i)], b[std::size_t(i)]) << i;
}

TEST(Rescale, KeysNotSeenLeaveNoTrace) {
  const Shape shape{13, 40, 9, 35, true, true};
  const std::int64_t before = shape.rows - 1;  // rows that do not see the last key
  const Inputs clean(shape, 3);
  for (const float poison : {std::nanf(""), INFINITY}) {
    Inputs poisoned = clean;
    std::fill(poisoned.k.end() - shape.D, poisoned.k.end(), poison);
    std::fill(poisoned.v.end() - shape.E, poisoned.v.end(), poison);
    poisoned.bias.back() = poison;
    on_all([&](const How& how, const Kernels& isa) {
      const auto a = both_ways(isa, how, clean), b = both_ways(isa, how, poisoned);
      expect_same(a.o, b.o, 0, before * shape.E);
      expect_same(a.by, b.by, 0, before);
      expect_same(a.concentration, b.concentration, 0, before);
      expect_same(a.largest, b.largest, 0, before);
      expect_same(a.dq, b.dq, 0, before * shape.D);
      expect_same(a.dr, b.dr, 0, before);
    });
  }
}

TEST(Rescale, QueriesThatDoNotSeeAKeyLeaveNoTrace) {
  const Shape shape{13, 40, 9, 35, true, true};
  const Inputs clean(shape, 3);
  Inputs poisoned = clean;
  std::fill_n(poisoned.q.begin(), shape.D, INFINITY);
  std::fill_n(poisoned.d_o.begin(), shape.E, std::nanf(""));
  const std::int64_t seen = clean.sees[0];
  on_all([&](const How& how, const Kernels& isa) {
    const auto a = both_ways(isa, how, clean), b = both_ways(isa, how, poisoned);
    expect_same(a.dk, b.dk, seen * shape.D, shape.n * shape.D);
    expect_same(a.dv, b.dv, seen * shape.E, shape.n * shape.E);
    expect_same(a.dbias, b.dbias, seen, shape.n);
    expect_same(a.dq, b.dq, shape.D, shape.rows * shape.D);
  });
}

TEST(Rescale, FarFromOne) {
  for (const How& how : all_hows()) {
    const bool by_sum = how.divisor == Divisor::l1 || how.divisor == Divisor::l2;
    for (const double size : {1e-8, 1e-4, 1e4, 1e8}) {
      if (!by_sum && (size < 1e-4 || size > 1e4)) continue;  // the answers leave the range
      SCOPED_TRACE(size);
      Comparison found;
      draw(found, how, {13, 33, 8, 8, false, true}, size);
      draw(found, how, {13, 250, 8, 8, true, false}, size);
      expect_agreement(how, found);
    }
  }
}

/// Keys from 1e-10 to 1e10, the small ones first or last: sums of squares leave the range.
TEST(Rescale, RowsThatGrowAndShrink) {
  for (const How& how : all_hows()) {
    if (how.kind == Kind::faded) continue;
    for (const bool growing : {true, false}) {
      Comparison found;
      for (std::uint64_t seed = 1; seed <= 8; ++seed) {
        Inputs in({13, 500, 8, 8, false, false}, seed);
        for (std::int64_t j = 0; j < 500; ++j) {
          const double times = std::pow(10.0, double(growing ? j - 250 : 250 - j) / 25);
          for (std::int64_t d = 0; d < 8; ++d) in.k[j * 8 + d] *= float(times);
        }
        compare(found, how, in);
      }
      expect_agreement(how, found);
    }
  }
}

/// Keys along one axis, so that scores are what they are called.
Inputs scored(const std::vector<float>& scores) {
  Inputs in({1, std::int64_t(scores.size()), 1, 3}, 1);
  in.q = {1};
  in.r = {0};
  in.k = scores;
  return in;
}

TEST(Rescale, TheLowestOfEqualWeights) {
  std::vector<float> scores(77, 1.0f);
  scores[17] = scores[18] = scores[50] = 5;
  on_all([&](const How& how, const Kernels& isa) {
    if (how.kind == Kind::faded) return;
    EXPECT_EQ(both_ways(isa, how, scored(scores)).largest_at[0], 17);
    EXPECT_EQ(both_ways(isa, how, scored(std::vector<float>(77, 2.0f))).largest_at[0], 0);
    if (how.kind != Kind::identity) return;
    auto signs = scores;
    signs[9] = -5;
    EXPECT_EQ(both_ways(isa, how, scored(signs)).largest_at[0], 9);
    signs[70] = -6;
    EXPECT_EQ(both_ways(isa, how, scored(signs)).largest_at[0], 70);
  });
}

TEST(Rescale, NaNIsSeen) {
  std::vector<float> scores(300, 1.0f);
  scores[20] = scores[250] = std::nanf("");
  on_all([&](const How& how, const Kernels& isa) {
    const auto to = both_ways(isa, how, scored(scores));
    const bool by_sum = how.divisor == Divisor::l1 || how.divisor == Divisor::l2;
    for (float o : to.o) EXPECT_TRUE(std::isnan(o));
    EXPECT_TRUE(std::isnan(to.concentration[0]));
    EXPECT_TRUE(std::isnan(to.largest[0]));
    EXPECT_EQ(to.largest_at[0], by_sum ? 0 : 20);
  });
}

TEST(Rescale, RowsWithoutKeysOrWeight) {
  on_all([&](const How& how, const Kernels& isa) {
    const Inputs late({12, 5, 4, 7, true, true}, 2);
    const auto to = both_ways(isa, how, late);
    expect_same(to.o, Floats(7 * 7, 0.0f), 0, 7 * 7);
    expect_same(to.concentration, Floats(7, 0.0f), 0, 7);
    expect_same(to.largest, Floats(7, 0.0f), 0, 7);
    expect_same(to.dq, Floats(7 * 4, 0.0f), 0, 7 * 4);
    for (std::size_t i = 0; i < 7; ++i) EXPECT_EQ(to.largest_at[i], -1);
    const std::vector<float> none(40, how.kind == Kind::relu2 ? -1.0f : 0.0f);
    const auto zero = both_ways(isa, how, scored(none));
    EXPECT_EQ(zero.o, Floats(3, 0.0f));
    EXPECT_EQ(zero.concentration, Floats(1, 0.0f));
    EXPECT_EQ(zero.largest, Floats(1, 0.0f));
    EXPECT_EQ(zero.largest_at[0], 0);
    EXPECT_EQ(zero.dv, Floats(40 * 3, 0.0f));
    if (how.kind == Kind::relu2 || how.divisor == Divisor::l1 || how.divisor == Divisor::l2) {
      EXPECT_EQ(zero.dk, Floats(40, 0.0f));
    }
  });
}

}  // namespace
}  // namespace foci::cpu::blocks
