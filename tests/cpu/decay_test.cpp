// SPDX-License-Identifier: Apache-2.0
// Decay with and without content chunk by chunk: the rule over many chunks; masked
// keys that leave gaps; rates from nearly nothing to 1; a bias per key; bits.
#include "cpu/by_chunks.hpp"

namespace foci {
namespace {

using namespace cases;

const std::vector<Weighting> decays = {Decay{}, Decay{0.8, true}, Decay{1, true}};

TEST(CpuDecay, follows_ref_over_many_chunks_at_every_rate) {
  for (const double rate : {1e-3, 0.5, 0.9, 0.999, 1.0}) {
    for (const bool content : {false, true}) {
      for (const Masked masked : {Masked::nothing, Masked::holes}) {
        expect_rule({{"long", 1, 2, 1, 700, 650, 5, 7, masked},
                     {.weighting = Decay{rate, content}, .causal = true}},
                    std::to_string(rate) + (content ? " content" : ""));
      }
    }
  }
}

void mask_most(Made& made) {
  Tensor keep(DType::boolean, {made.c.B, made.c.M});
  for (std::int64_t j = 0; j < made.c.M; ++j) keep.data<std::uint8_t>()[j] = j % 200 < 3;
  made.put("key_mask", std::move(keep));
}

/// The powers of the rate leave float between two keys.
TEST(CpuDecay, follows_ref_across_wide_gaps) {
  for (const bool content : {false, true}) {
    for (const double rate : {0.7, 0.2}) {
      expect_rule({{"gaps", 1, 1, 1, 1500, 1500, 4, 4},
                   {.weighting = Decay{rate, content}, .causal = true},
                   DType::f32,
                   1,
                   mask_most},
                  "gaps");
    }
  }
}

template <int Heads>
void bias_keys(Made& made) {
  made.put("key_bias",
           Tensor::copy(made.normal("key_bias", {made.c.B, Heads, made.c.M}, 3), DType::f32));
}

TEST(CpuDecay, takes_a_bias_per_key) {
  for (const auto change : {bias_keys<4>, bias_keys<2>}) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      expect_rule({{"biased", 1, 4, 2, 300, 300, 4, 6, Masked::holes},
                   {.weighting = Decay{0.9, true}, .causal = true},
                   dtype,
                   1,
                   change},
                  "bias");
    }
  }
}

TEST(CpuDecay, the_largest_weight_is_the_last_key_or_the_first_of_equals) {
  on_every_isa([] {
    for (const double rate : {0.9, 1.0}) {
      Made ours(shape("holes"), 3, DType::f32), ref(shape("holes"), 3, DType::f32);
      Options how{.weighting = Decay{rate}, .causal = true, .backend = Backend::cpu};
      run_on(ours, how, nullptr);
      how.backend = Backend::ref;
      run_on(ref, how, nullptr);
      EXPECT_EQ(ours["largest_at"].values(), ref["largest_at"].values());
    }
  });
}

TEST(CpuDecay, bits_do_not_depend_on_threads) {
  for (const Weighting& weighting : decays) expect_same_bits(weighting, true);
  on_every_isa([] {
    const Options how{.weighting = Decay{0.999}, .causal = true, .backend = Backend::cpu};
    Made one({"long", 1, 1, 1, 4000, 4000, 4, 4}, 3, DType::f32);
    Made many({"long", 1, 1, 1, 4000, 4000, 4, 4}, 3, DType::f32);
    Executor threads(3);
    run_on(one, how, nullptr);
    run_on(many, how, &threads);
    for (const std::string& name : results(one))
      EXPECT_EQ(one[name].values(), many[name].values()) << name;
  });
}

TEST(CpuDecay, is_causal_to_the_bit) {
  for (const Weighting& weighting : decays) {
    for (const float later : {1e3f, INFINITY, NAN}) expect_causal(weighting, later);
  }
}

TEST(CpuDecay, queries_that_see_nothing_stay_apart) {
  for (const Weighting& weighting : decays) expect_unseeing_rows_apart(weighting);
}

TEST(CpuDecay, packed_sequences_equal_each_alone) {
  for (const Weighting& weighting : decays) expect_packed_alike(weighting);
}

}  // namespace
}  // namespace foci
