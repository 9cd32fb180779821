// SPDX-License-Identifier: Apache-2.0
// One query block against one key block over bf16, backwards, by every kernel that this machine
// runs, against loops in double: no further off than twice the naive loop in float with weights
// and their gradients in bf16.
#include "cpu/blocks_bf16.hpp"

#include <gtest/gtest.h>

namespace foci::cpu {
namespace {

class SoftmaxBf16Backward : public testing::TestWithParam<const NarrowKernels*> {};

/// A block whose rows saw other keys before it.
struct Way : Problem {
  std::int64_t key = 0;
  std::vector<std::uint16_t> d_o;
  std::vector<float> low, minus_delta;

  explicit Way(const Case& c) : Problem(c) {
    std::mt19937 random(unsigned(c.n * 17 + c.rows) + c.head);
    std::normal_distribution<float> normal;
    key = c.causal ? 5 : 0;
    for (auto& seen : sees) seen += key;
    for (std::int64_t i = 0; i < c.rows * c.E; ++i) d_o.push_back(narrow(normal(random)));
    for (std::int64_t i = 0; i < c.rows; ++i) {
      double sum = 1;  // of keys elsewhere
      for (std::int64_t j = 0; j < std::min(sees[i] - key, c.n); ++j)
        sum += std::exp(score<double>(i, j));
      low.push_back(float(-std::log(sum)));
      minus_delta.push_back(normal(random));
    }
  }

  template <class T>
  T score(std::int64_t i, std::int64_t j) const {
    T s = 0;
    for (std::int64_t d = 0; d < size.D; ++d)
      s += T(q[i * size.D + d]) * T(widen(k[j * size.D + d]));
    return s * T(scale) + T(bias[j]);
  }
};

struct Sums {
  std::vector<double> dq, dk, dv, db, delta;

  void append(const Sums& more) {
    cpu::append(dq, more.dq);
    cpu::append(dk, more.dk);
    cpu::append(dv, more.dv);
    cpu::append(db, more.db);
    cpu::append(delta, more.delta);
  }
};

template <class T>
Sums loops(const Way& of) {
  const Case& c = of.size;
  const auto rounded = [](T x) {
    return std::is_same_v<T, float> ? T(widen(narrow(float(x)))) : x;
  };
  std::vector<T> dq(c.rows * c.D), dk(c.n * c.D), dv(c.n * c.E), db(c.n), delta(c.rows);
  for (std::int64_t i = 0; i < c.rows; ++i) {
    for (std::int64_t j = 0; j < std::min(of.sees[i] - of.key, c.n); ++j) {
      const T p = std::exp(of.score<T>(i, j) + T(of.low[i]));
      T pull = 0;
      for (std::int64_t e = 0; e < c.E; ++e)
        pull += T(widen(of.d_o[i * c.E + e])) * T(widen(of.v[j * c.E + e]));
      const T ds = p * (pull + T(of.minus_delta[i]));
      delta[i] += p * pull;
      db[j] += ds;
      for (std::int64_t e = 0; e < c.E; ++e)
        dv[j * c.E + e] += rounded(p) * T(widen(of.d_o[i * c.E + e]));
      for (std::int64_t d = 0; d < c.D; ++d) {
        dq[i * c.D + d] += rounded(ds) * T(widen(of.k[j * c.D + d]));
        dk[j * c.D + d] += rounded(ds) * T(of.scale) * T(of.q[i * c.D + d]);
      }
    }
  }
  return {{dq.begin(), dq.end()},
          {dk.begin(), dk.end()},
          {dv.begin(), dv.end()},
          {db.begin(), db.end()},
          {delta.begin(), delta.end()}};
}

/// Column panels of `rows` rows that begin at 1, taken apart, less 1.
std::vector<double> lines_of(const std::vector<float>& panels, std::int64_t rows,
                             std::int64_t count, std::int64_t width) {
  std::vector<double> to;
  for (std::int64_t i = 0; i < count; ++i) {
    for (std::int64_t d = 0; d < width; ++d)
      to.push_back(double(panels[(d / 32 * rows + i) * 32 + d % 32]) - 1);
  }
  return to;
}

Sums go(const NarrowKernels& kernels, const Way& of) {
  const Case& c = of.size;
  const std::int64_t D = (c.D + 31) / 32 * 32, E = (c.E + 31) / 32 * 32;
  std::vector<float> queries(kernels.gradient_queries_room(c.D, c.E), NAN);
  std::vector<float> keys(kernels.gradient_keys_room(c.D, c.E), NAN);
  std::vector<float> scratch(kernels.gradient_scratch(), NAN);
  std::vector<float> dq(block_rows * D, 1), dk(gradient_keys * D, 1), dv(gradient_keys * E, 1);
  std::vector<float> db(c.n, 1), delta(c.rows, 1);
  std::vector<std::uint16_t> q;
  for (const float x : of.q) q.push_back(narrow(x));
  NarrowBackward block{};
  block.parts =
      kernels.pack_gradient_queries(queries.data(), {.q = {q.data(), c.D, c.rows, c.D},
                                                     .wide = c.split ? of.q.data() : nullptr,
                                                     .d_o = {of.d_o.data(), c.E, c.rows, c.E}});
  kernels.pack_gradient_keys(keys.data(), {of.k.data(), c.D, c.n, c.D},
                             {of.v.data(), c.E, c.n, c.E});
  block.queries = queries.data();
  block.keys = keys.data();
  block.bias = of.bias.data();
  block.low = of.low.data();
  block.minus_delta = of.minus_delta.data();
  block.sees = of.sees.data();
  block.causal = c.causal;
  block.scale = of.scale;
  block.rows = c.rows;
  block.key = of.key;
  block.n = c.n;
  block.D = c.D;
  block.E = c.E;
  block.scratch = scratch.data();
  block.dq = dq.data();
  block.dk = dk.data();
  block.dv = dv.data();
  block.dbias = c.biased ? db.data() : nullptr;
  kernels.softmax_backward(block);
  std::fill(queries.begin(), queries.end(), NAN);
  kernels.pack_gradient_queries(queries.data(), {.q = {q.data(), c.D, c.rows, c.D},
                                                 .wide = c.split ? of.q.data() : nullptr,
                                                 .d_o = {of.d_o.data(), c.E, c.rows, c.E},
                                                 .sums = false});
  block.delta = delta.data();
  block.minus_delta = nullptr;
  block.dq = block.dk = block.dv = block.dbias = nullptr;
  kernels.softmax_deltas(block);
  Sums to;
  to.dq = lines_of(dq, block_rows, c.rows, c.D);
  to.dk = lines_of(dk, gradient_keys, c.n, c.D);
  to.dv = lines_of(dv, gradient_keys, c.n, c.E);
  for (std::int64_t j = 0; j < c.n; ++j) to.db.push_back(double(db[j]) - 1);
  for (std::int64_t i = 0; i < c.rows; ++i) to.delta.push_back(double(delta[i]) - 1);
  return to;
}

void expect_close(const Case& c, const char* name, const std::vector<double>& exact,
                  const std::vector<double>& naive, const std::vector<double>& ours, double eps) {
  double naive_error = 0, error = 0, most = 1;  // what the sums began at
  for (std::size_t i = 0; i < ours.size(); ++i) {
    most = std::max(most, std::abs(exact[i]));
    naive_error = std::max(naive_error, std::abs(naive[i] - exact[i]));
    if (!(std::abs(ours[i] - exact[i]) <= error)) error = std::abs(ours[i] - exact[i]);
  }
  EXPECT_LE(error, 2 * naive_error + eps * most) << name << " " << c;
}

/// Four heads of a case: over few numbers the naive loop may be right by chance.
void expect_close(const NarrowKernels& kernels, Case c) {
  Sums exact, naive, ours;
  for (c.head = 0; c.head < 4; ++c.head) {
    const Way way(c);
    exact.append(loops<double>(way));
    naive.append(loops<float>(way));
    ours.append(go(kernels, way));
  }
  expect_close(c, "dq", exact.dq, naive.dq, ours.dq, 0x1p-9);
  expect_close(c, "dk", exact.dk, naive.dk, ours.dk, c.split ? 0x1p-8 : 0x1p-9);
  expect_close(c, "dv", exact.dv, naive.dv, ours.dv, 0x1p-9);
  expect_close(c, "delta", exact.delta, naive.delta, ours.delta, 0x1p-20);
  if (c.biased) expect_close(c, "db", exact.db, naive.db, ours.db, 0x1p-20);
}

const std::int64_t widths[] = {1, 8, 16, 31, 64, 65};

TEST_P(SoftmaxBf16Backward, EverySizeIsCloseToDouble) {
  int at = 0;
  for (const std::int64_t rows : {1, 5, 16, 17, 33, 96}) {
    for (const std::int64_t n : {1, 2, 3, 31, 33, 95, 96}) {
      for (int i = 0; i < 6; ++i, ++at) {
        Case c{.rows = rows, .n = n, .D = widths[i], .E = widths[(i + at / 6) % 6]};
        c.causal = at % 2;
        c.biased = at / 2 % 2;
        c.split = at % 3 == 0;
        expect_close(*GetParam(), c);
      }
    }
  }
}

TEST_P(SoftmaxBf16Backward, EveryOptionIsCloseToDouble) {
  for (int bits = 0; bits < 8; ++bits) {
    Case c{.rows = 96, .n = 96, .D = 64, .E = 64};
    c.causal = bits & 1;
    c.biased = bits & 2;
    c.split = bits & 4;
    expect_close(*GetParam(), c);
  }
}

TEST_P(SoftmaxBf16Backward, PartsOfZeroChangeNothing) {
  Way way({.rows = 20, .n = 77, .D = 40, .E = 24, .biased = true});
  const Sums without = go(*GetParam(), way);
  way.size.split = true;
  const Sums with = go(*GetParam(), way);
  EXPECT_EQ(with.dq, without.dq);
  EXPECT_EQ(with.dk, without.dk);
  EXPECT_EQ(with.db, without.db);
  EXPECT_EQ(with.delta, without.delta);
}

TEST_P(SoftmaxBf16Backward, QueriesDoNotKnowKeysTheyDoNotSee) {
  const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
  for (int at = 0; at < 20; ++at) {
    Way way({.rows = 60, .n = 96, .D = 33, .E = 48, .causal = true, .first_sees = at % 4 * 9});
    const Sums clean = go(*GetParam(), way);
    const std::int64_t last = at * 3;
    for (std::int64_t j = way.sees[last] - way.key; j < way.size.n; ++j) {
      for (std::int64_t d = 0; d < 33; ++d) way.k[j * 33 + d] = narrow(bad[(j + d) % 4]);
      for (std::int64_t e = 0; e < 48; ++e) way.v[j * 48 + e] = narrow(bad[(j + e) % 4]);
    }
    const Sums dirty = go(*GetParam(), way);
    for (std::int64_t i = 0; i < (last + 1) * 33; ++i) ASSERT_EQ(dirty.dq[i], clean.dq[i]) << i;
    for (std::int64_t i = 0; i <= last; ++i) ASSERT_EQ(dirty.delta[i], clean.delta[i]) << i;
  }
}

TEST_P(SoftmaxBf16Backward, KeysDoNotKnowQueriesThatDoNotSeeThem) {
  const float bad[] = {NAN, INFINITY, -INFINITY, 3e38f};
  for (int at = 0; at < 20; ++at) {
    Way way({.rows = 80,
             .n = 96,
             .D = 33,
             .E = 48,
             .causal = true,
             .biased = true,
             .first_sees = at % 4 * 9});
    const Sums clean = go(*GetParam(), way);
    const std::int64_t last = at * 4;  // rows up to it are spoilt
    for (std::int64_t i = 0; i <= last; ++i) {
      for (std::int64_t d = 0; d < 33; ++d) way.q[i * 33 + d] = bad[(i + d) % 4];
      for (std::int64_t e = 0; e < 48; ++e) way.d_o[i * 48 + e] = narrow(bad[(i + e) % 4]);
      way.low[i] = way.minus_delta[i] = NAN;
    }
    const Sums dirty = go(*GetParam(), way);
    for (std::int64_t j = way.sees[last] - way.key; j < 96; ++j) {
      for (std::int64_t d = 0; d < 33; ++d) ASSERT_EQ(dirty.dk[j * 33 + d], clean.dk[j * 33 + d]);
      for (std::int64_t e = 0; e < 48; ++e) ASSERT_EQ(dirty.dv[j * 48 + e], clean.dv[j * 48 + e]);
      ASSERT_EQ(dirty.db[j], clean.db[j]) << j;
    }
  }
}

TEST_P(SoftmaxBf16Backward, ARowThatSeesNothingGivesNothing) {
  Way way({.rows = 4, .n = 40, .D = 16, .E = 16});
  const Sums with = go(*GetParam(), way);
  way.low[2] = INFINITY;
  const Sums without = go(*GetParam(), way);
  for (std::int64_t d = 0; d < 16; ++d) {
    EXPECT_EQ(without.dq[2 * 16 + d], 0);
    EXPECT_EQ(without.dq[3 * 16 + d], with.dq[3 * 16 + d]);
    EXPECT_TRUE(std::isfinite(without.dk[d]));
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, SoftmaxBf16Backward, testing::ValuesIn(narrow_tables()),
                         [](const auto& info) { return std::string(info.param->name); });
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(SoftmaxBf16Backward);

}  // namespace
}  // namespace foci::cpu
