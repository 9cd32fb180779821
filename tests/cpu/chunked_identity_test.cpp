// SPDX-License-Identifier: Apache-2.0
// Identity chunk by chunk: over many chunks (sweep_test has every shape), a bias per key, bits.
#include "cpu/by_chunks.hpp"

namespace foci {
namespace {

using namespace cases;

TEST(CpuChunkedIdentity, follows_ref_over_many_chunks) {
  for (const bool causal : {false, true}) {
    const Options how{.weighting = Identity{}, .causal = causal};
    for (const DType dtype : {DType::f32, DType::f16})
      expect_rule({{"long", 1, 2, 1, 700, 650, 5, 7, Masked::holes}, how, dtype}, "long");
    expect_rule({{"wide", 1, 1, 1, 150, 150, 130, 70}, how}, "wide");
  }
}

TEST(CpuChunkedIdentity, follows_ref_at_large_and_small_sizes) {
  for (const double size : {1e4, 1e-4}) {
    for (const bool causal : {false, true}) {
      expect_rule({{"sized", 1, 2, 2, 90, 90, 4, 4},
                   {.weighting = Identity{}, .causal = causal},
                   DType::f32,
                   size},
                  std::to_string(size));
    }
  }
}

template <int Heads>
void bias_keys(Made& made) {
  made.put("key_bias",
           Tensor::copy(made.normal("key_bias", {made.c.B, Heads, made.c.M}, 3), DType::f32));
}

TEST(CpuChunkedIdentity, takes_a_bias_per_key) {
  for (const bool causal : {false, true}) {
    for (const auto change : {bias_keys<4>, bias_keys<2>}) {
      for (const DType dtype : {DType::f32, DType::bf16}) {
        expect_rule({{"biased", 1, 4, 2, 300, 290, 15, 6, Masked::holes},
                     {.weighting = Identity{}, .causal = causal},
                     dtype,
                     1,
                     change},
                    "bias");
      }
    }
  }
}

TEST(CpuChunkedIdentity, bits_do_not_depend_on_threads) {
  for (const bool causal : {false, true}) expect_same_bits(Identity{}, causal);
}

TEST(CpuChunkedIdentity, is_causal_to_the_bit) {
  for (const float later : {1e3f, INFINITY, NAN}) expect_causal(Identity{}, later);
}

TEST(CpuChunkedIdentity, queries_that_see_nothing_stay_apart) {
  expect_unseeing_rows_apart(Identity{});
}

TEST(CpuChunkedIdentity, packed_sequences_equal_each_alone) { expect_packed_alike(Identity{}); }

}  // namespace
}  // namespace foci
