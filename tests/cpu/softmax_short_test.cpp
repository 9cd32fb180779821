// SPDX-License-Identifier: Apache-2.0
// Softmax over few keys whose lines are whole vectors on every instruction set, against ref in
// double by the tolerance rule: every number of rows and keys that a tile may have left over,
// masks, biases, causality, and what must not change a bit.
#include "three.hpp"

#include <algorithm>
#include <cmath>

namespace foci {
namespace {

using namespace cases;

struct Sizes {
  std::int64_t N, M, D, E;
};

/// Errors over all of `sizes` together, causal or not, with and without a bias.
void expect_rule(const std::vector<Sizes>& sizes, Masked masked, bool causal, bool biased,
                 const std::string& what) {
  const Options how{.causal = causal};
  std::vector<Three> all;
  for (const Sizes& z : sizes) {
    Three three({"short", 1, 2, 1, z.N, z.M, z.D, z.E, masked}, DType::f32, 1, 5 + all.size());
    if (biased) three.ours.normal("key_bias", {1, 2, z.M}, 2);
    three.answer(how);
    all.push_back(std::move(three));
  }
  on_every_isa([&] {
    Rule rule;
    for (Three& three : all) three.compare(how, rule);
    rule.expect(what);
  });
}

TEST(CpuShort, holds_for_every_rest_of_a_tile) {
  for (const bool causal : {false, true}) {
    std::vector<Sizes> sizes;
    for (std::int64_t x = 1; x <= 34; ++x) {
      sizes.push_back({x, x, 16, 32});
      sizes.push_back({x, 35 - x, 32, 16});
    }
    expect_rule(sizes, Masked::nothing, causal, false, causal ? "causal" : "plain");
    expect_rule(sizes, Masked::holes, causal, true, causal ? "causal, biased" : "biased");
  }
}

/// Each size on its own, drawn several times.
TEST(CpuShort, holds_however_many_keys_there_are) {
  for (const std::int64_t n : {2, 5, 16, 32, 33, 40, 48, 64, 96, 100}) {
    for (const bool causal : {false, true}) {
      const std::vector<Sizes> sizes(std::size_t(1 + 100 / n), Sizes{n, n, 16, 16});
      expect_rule(sizes, Masked::nothing, causal, false, std::to_string(n) + " keys");
    }
  }
}

TEST(CpuShort, holds_up_to_the_longest_and_beyond) {
  for (const bool causal : {false, true}) {
    const std::vector<Sizes> sizes = {{64, 64, 64, 64},   {97, 130, 48, 80}, {130, 95, 80, 48},
                                      {100, 256, 16, 16}, {33, 257, 16, 16}, {200, 255, 32, 64}};
    expect_rule(sizes, Masked::nothing, causal, false, causal ? "causal" : "plain");
    expect_rule(sizes, Masked::tail, causal, true, causal ? "causal, biased" : "biased");
  }
}

TEST(CpuShort, holds_at_large_and_small_values) {
  for (const double size : {0.01, 12.0}) {
    Three three({"short", 2, 2, 2, 40, 40, 16, 16}, DType::f32, size);
    three.answer({});
    on_every_isa([&] {
      Rule rule;
      three.compare({}, rule);
      rule.expect("size " + std::to_string(size));
    });
  }
}

TEST(CpuShort, rows_that_see_nothing_are_zero) {
  for (const Case& c :
       {Case{"none", 2, 2, 2, 20, 20, 16, 16, Masked::everything},
        Case{"few", 1, 2, 1, 40, 7, 16, 16}, Case{"no keys", 1, 2, 2, 9, 0, 16, 16}}) {
    on_every_isa([&] {
      Three three(c, DType::f32);
      three.compare({.causal = true}, c.name);
    });
  }
}

/// A forward pass of everything, or of o and lse alone.
void attend_to(Made& made, const Options& how, bool statistics) {
  Outputs to = all_outputs(made, how);
  if (!statistics) to = {.o = to.o, .lse = to.lse};
  attend(to, made.inputs(), how);
}

TEST(CpuShort, statistics_change_no_bit) {
  const Case c{"short", 2, 4, 2, 50, 50, 16, 48, Masked::holes};
  for (const bool causal : {false, true}) {
    on_every_isa([&] {
      Made with(c, 3, DType::f32), without(c, 3, DType::f32);
      const Options how{.causal = causal};
      attend_to(with, how, true);
      attend_to(without, how, false);
      for (const char* name : {"o", "lse"}) {
        EXPECT_EQ(std::memcmp(with[name].view().data, without[name].view().data,
                              std::size_t(with[name].view().count()) * sizeof(float)),
                  0)
            << name;
      }
    });
  }
}

TEST(CpuShort, infinities_to_come_change_no_bit) {
  const std::int64_t N = 45, D = 16, seen = 19;
  on_every_isa([&] {
    Made before({"short", 1, 1, 1, N, N, D, D}, 3, DType::f32);
    Made after({"short", 1, 1, 1, N, N, D, D}, 3, DType::f32);
    for (const char* name : {"k", "v"}) {
      for (std::int64_t i = seen * D; i < N * D; ++i)
        after[name].data<float>()[i] = i % 3 == 0 ? INFINITY : NAN;
    }
    attend_to(before, {.causal = true}, true);
    attend_to(after, {.causal = true}, true);
    for (std::int64_t i = 0; i < seen * D; ++i)
      ASSERT_EQ(before["o"].data<float>()[i], after["o"].data<float>()[i]) << i / D;
    for (std::int64_t i = 0; i < seen; ++i)
      ASSERT_EQ(before["lse"].data<float>()[i], after["lse"].data<float>()[i]) << i;
    EXPECT_TRUE(std::isnan(after["o"].data<float>()[N * D - 1]));
  });
}

TEST(CpuShort, gradients_keep_to_what_is_seen) {
  const std::int64_t N = 45, D = 16, seen = 19;
  const Options how{.causal = true};
  on_every_isa([&] {
    const Case c{"short", 1, 1, 1, N, N, D, D};
    Made plain(c, 3, DType::f32), before(c, 3, DType::f32), after(c, 3, DType::f32);
    for (const char* name : {"k", "v"})  // what the first rows do not see
      std::fill_n(after[name].data<float>() + seen * D, (N - seen) * D, INFINITY);
    for (const char* name : {"q", "d_o"})  // rows that do not see the last keys
      std::fill_n(before[name].data<float>(), seen * D, NAN);
    for (Made* made : {&plain, &before, &after}) run_on(*made, how, nullptr);
    for (std::int64_t i = 0; i < seen * D; ++i)
      ASSERT_EQ(plain["dq"].data<float>()[i], after["dq"].data<float>()[i]) << i / D;
    for (const char* name : {"dk", "dv"}) {
      for (std::int64_t i = seen * D; i < N * D; ++i)
        ASSERT_EQ(plain[name].data<float>()[i], before[name].data<float>()[i]) << name << i / D;
      EXPECT_TRUE(std::isnan(before[name].data<float>()[0]));
    }
  });
}

TEST(CpuShort, holds_with_a_metric_of_its_own) {
  for (const bool causal : {false, true}) {
    const Options how{.metric = LayerChange{}, .causal = causal};
    Three three({"short", 2, 4, 2, 37, 37, 32, 32, Masked::holes}, DType::f32);
    three.answer(how);
    on_every_isa([&] {
      Rule rule;
      three.compare(how, rule);
      rule.expect(causal ? "causal" : "plain");
    });
  }
}

TEST(CpuShort, takes_halves) {
  on_every_isa([] {
    for (const DType dtype : {DType::f16, DType::bf16}) {
      Three three({"short", 1, 4, 2, 60, 60, 32, 16, Masked::holes}, dtype);
      three.compare({}, "halves");
    }
  });
}

TEST(CpuShort, a_row_of_nan_stays_alone) {
  on_every_isa([] {
    Made made({"short", 1, 1, 1, 20, 20, 16, 16}, 3, DType::f32);
    made["q"].data<float>()[7 * 16 + 3] = NAN;
    attend_to(made, {}, true);
    for (std::int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(std::isnan(made["o"].data<float>()[i * 16]), i == 7) << i;
      EXPECT_EQ(std::isnan(made["lse"].data<float>()[i]), i == 7) << i;
    }
  });
}

TEST(CpuShort, threads_change_no_bit) {
  Executor three(3);
  for (const Case& c : {Case{"one head", 1, 1, 1, 300, 60, 16, 16},
                        Case{"two", 1, 2, 1, 100, 100, 16, 32, Masked::holes},
                        Case{"many", 5, 2, 2, 16, 16, 64, 64}}) {
    Made alone(c, 3, DType::f32), together(c, 3, DType::f32);
    run_on(alone, {}, nullptr);
    run_on(together, {}, &three);
    expect_same_bits(alone, together, c.name);
  }
}

}  // namespace
}  // namespace foci
