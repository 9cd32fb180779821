// SPDX-License-Identifier: Apache-2.0
// Linear attention chunk by chunk: the rule over many chunks; exp that neither
// overflows nor loses a row; rows whose weights sum to 0; bits.
#include "cpu/by_chunks.hpp"

namespace foci {
namespace {

using namespace cases;

const std::vector<Weighting> features = {Linear{}, Linear{Feature::relu}, Linear{Feature::exp}};

TEST(CpuLinear, follows_ref_over_many_chunks) {
  for (const Weighting& weighting : features) {
    for (const bool causal : {false, true}) {
      const Options how{.weighting = weighting, .causal = causal};
      for (const DType dtype : {DType::f32, DType::bf16})
        expect_rule({{"long", 1, 2, 1, 700, 650, 5, 7}, how, dtype}, "long");
      expect_rule({{"wide", 1, 1, 1, 150, 150, 64, 40}, how}, "wide");
    }
  }
}

/// At 1e4 every row of exp has one weight of 1, which plain sums over all pairs cancel exactly and
/// sums over states only to a rounding of what cancels.
TEST(CpuLinear, follows_ref_at_large_and_small_sizes) {
  for (const Weighting& weighting : features) {
    const bool exp = std::get<Linear>(weighting).feature == Feature::exp;
    for (const double size : {exp ? 100.0 : 1e4, 30.0, 1e-4}) {
      for (const bool causal : {false, true}) {
        expect_rule({{"sized", 1, 2, 2, 90, 90, 4, 4},
                     {.weighting = weighting, .causal = causal},
                     DType::f32,
                     size},
                    std::to_string(size));
      }
    }
  }
}

/// Keys outgrow one another by far, so that the peaks rise every few tokens, then level out.
void grow(Made& made) {
  const std::int64_t N = made.c.N, D = made.c.D;
  float *k = made["k"].data<float>(), *q = made["q"].data<float>();
  for (std::int64_t j = 0; j < N * D; ++j) k[j] += 7 * float(std::min(j / D, N / 2));
  for (std::int64_t i = 0; i < N * D; ++i) q[i] *= 5;
}

TEST(CpuLinear, exp_follows_keys_that_grow) {
  for (const bool causal : {false, true}) {
    expect_rule({{"growing", 1, 1, 1, 600, 600, 4, 4},
                 {.weighting = Linear{Feature::exp}, .causal = causal},
                 DType::f32,
                 1,
                 grow},
                "growing");
  }
}

TEST(CpuLinear, rows_that_sum_to_zero_are_zero_and_pull_nothing) {
  for (const bool causal : {false, true}) {
    on_every_isa([&] {
      Made made({"zero", 1, 1, 1, 50, 50, 4, 4}, 3, DType::f32);
      for (int i = 0; i < 50 * 4; ++i) made["q"].data<float>()[i] = i < 20 * 4 ? -1.0f : 1.0f;
      const Options how{
          .weighting = Linear{Feature::relu}, .causal = causal, .backend = Backend::cpu};
      run_on(made, how, nullptr);
      for (int i = 0; i < 20 * 4; ++i) {
        EXPECT_EQ(made["o"].data<float>()[i], 0);
        EXPECT_EQ(made["dq"].data<float>()[i], 0);
      }
      EXPECT_EQ(made["concentration"].data<float>()[0], 0);
      for (const double x : made["dk"].values()) EXPECT_TRUE(std::isfinite(x));
    });
  }
}

TEST(CpuLinear, finds_the_largest_weight_where_ref_finds_it) {
  for (const bool causal : {false, true}) {
    Made ref(shape("vit"), 3, DType::f32);
    Options how{.weighting = Linear{}, .causal = causal, .backend = Backend::ref};
    run_on(ref, how, nullptr);
    how.backend = Backend::cpu;
    on_every_isa([&] {
      Made ours(shape("vit"), 3, DType::f32);
      run_on(ours, how, nullptr);
      EXPECT_EQ(ours["largest_at"].values(), ref["largest_at"].values());
    });
  }
}

TEST(CpuLinear, bits_do_not_depend_on_threads) {
  for (const Weighting& weighting : features) {
    for (const bool causal : {false, true}) expect_same_bits(weighting, causal);
  }
}

TEST(CpuLinear, is_causal_to_the_bit) {
  for (const Weighting& weighting : features) {
    for (const float later : {1e3f, INFINITY, -INFINITY, NAN}) expect_causal(weighting, later);
  }
}

TEST(CpuLinear, queries_that_see_nothing_stay_apart) {
  for (const Weighting& weighting : features) expect_unseeing_rows_apart(weighting);
}

TEST(CpuLinear, packed_sequences_equal_each_alone) {
  for (const Weighting& weighting : features) expect_packed_alike(weighting);
}

}  // namespace
}  // namespace foci
