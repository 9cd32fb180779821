// SPDX-License-Identifier: Apache-2.0
// linear, identity and decay chunk by chunk against ref: awkward shapes, many chunks, sizes far
// from 1, masks, a bias per key, narrow types and strides.
#include "cuda/by_chunks.hpp"

namespace foci::cuda {
namespace {

using cases::Masked;

TEST(CudaChunked, follows_ref_over_awkward_shapes) {
  each_weighting([](const std::string& name, const Options& how) {
    for (const Case& c : cases::shapes()) {
      if (c.N < 100) expect_rule({c, how}, name + " " + c.name);
    }
  });
}

TEST(CudaChunked, follows_ref_over_many_chunks) {
  each_weighting([](const std::string& name, const Options& how) {
    expect_rule({{"long", 1, 2, 1, 200, 180, 5, 7, Masked::holes}, how}, name + " long");
  });
}

TEST(CudaChunked, follows_ref_where_rows_are_wide) {
  for (const Weighting& weighting : {Weighting{Linear{}}, Weighting{Decay{0.9, true}}}) {
    const Options how{.weighting = weighting, .causal = true};
    expect_rule({{"wide", 1, 1, 1, 70, 70, 66, 130}, how}, "wide");
    expect_rule({{"widest", 1, 1, 1, 3, 66, 256, 256}, how}, "widest");
  }
  expect_rule({{"wide", 1, 1, 1, 5, 130, 130, 66}, {.weighting = Linear{Feature::exp}}}, "wide");
}

TEST(CudaChunked, follows_ref_in_narrow_types) {
  int turn = 0;
  each_weighting([&](const std::string& name, const Options& how) {
    const DType dtype = ++turn % 2 == 0 ? DType::bf16 : DType::f16;
    expect_rule({{"narrow", 1, 2, 1, 75, 80, 12, 8, Masked::holes}, how, dtype}, name);
  });
}

/// exp at 1e4 is all but a hard choice, which sums over states keep to a rounding of what cancels.
TEST(CudaChunked, follows_ref_at_large_and_small_sizes) {
  each_weighting([](const std::string& name, const Options& how) {
    const auto* linear = std::get_if<Linear>(&how.weighting);
    for (const double size : {linear && linear->feature == Feature::exp ? 100.0 : 1e4, 1e-4})
      expect_rule({{"sized", 1, 1, 1, 90, 90, 4, 4}, how, DType::f32, size}, name);
  });
}

/// The metric's scale goes into the query before phi.
TEST(CudaChunked, takes_a_scale) {
  each_weighting([](const std::string& name, Options how) {
    how.scale = 0.3;
    expect_rule({{"scaled", 1, 1, 1, 70, 70, 3, 5}, how}, name);
  });
}

/// Keys outgrow one another by far, then level out.
void grow(Made& made) {
  const std::int64_t N = made.c.N, D = made.c.D;
  float *k = made["k"].data<float>(), *q = made["q"].data<float>();
  for (std::int64_t j = 0; j < N * D; ++j) k[j] += 7 * float(std::min(j / D, N / 2));
  for (std::int64_t i = 0; i < N * D; ++i) q[i] *= 5;
}

TEST(CudaChunked, exp_follows_keys_that_grow) {
  for (const bool causal : {false, true}) {
    expect_rule({{"growing", 1, 1, 1, 210, 210, 4, 4},
                 {.weighting = Linear{Feature::exp}, .causal = causal},
                 DType::f32,
                 1,
                 grow},
                "growing");
  }
}

template <int Heads>
void bias_keys(Made& made) {
  made.put("key_bias",
           Tensor::copy(made.normal("key_bias", {made.c.B, Heads, made.c.M}, 3), DType::f32));
}

TEST(CudaChunked, takes_a_bias_per_key) {
  for (const Options& how : {Options{.weighting = Identity{}},
                             {.weighting = Identity{Rescale::none}, .causal = true},
                             {.weighting = Decay{0.9, true}, .causal = true}}) {
    for (const auto change : {bias_keys<4>, bias_keys<2>}) {
      expect_rule({{"biased", 1, 4, 2, 100, 90, 15, 6, Masked::holes}, how, DType::f32, 1, change},
                  "bias");
      expect_rule({{"few", 1, 4, 2, 20, 9, 3, 2}, how, DType::f32, 1, change}, "few biased");
    }
  }
}

/// A stretch of masked keys so long that powers of the rate vanish on it.
void mask_middle(Made& made) {
  Tensor keep(DType::boolean, {1, made.c.M});
  for (std::int64_t j = 0; j < made.c.M; ++j)
    keep.data<std::uint8_t>()[j] = j < 20 || j > made.c.M - 10;
  made.put("key_mask", std::move(keep));
}

TEST(CudaChunked, far_keys_count_where_they_are_all_there_is) {
  for (const bool content : {false, true}) {
    expect_rule({{"far", 1, 1, 1, 400, 400, 3, 3},
                 {.weighting = Decay{0.5, content}, .causal = true},
                 DType::f32,
                 1,
                 mask_middle},
                "far");
  }
}

TEST(CudaChunked, rows_that_sum_to_zero_are_zero_and_pull_nothing) {
  for (const bool causal : {false, true}) {
    Made made({"zero", 1, 1, 1, 70, 70, 4, 4}, 3, DType::f32);
    for (int i = 0; i < 70 * 4; ++i)
      made["q"].data<float>()[i] = i < 20 * 4 || i > 65 * 4 ? -1.0f : 1.0f;
    run_chunked(made, made.inputs(), {.weighting = Linear{Feature::relu}, .causal = causal});
    for (int i = 0; i < 20 * 4; ++i) {
      EXPECT_EQ(made["o"].data<float>()[i], 0);
      EXPECT_EQ(made["dq"].data<float>()[i], 0);
    }
    EXPECT_EQ(made["concentration"].data<float>()[0], 0);
    for (const double x : made["dk"].values()) EXPECT_TRUE(std::isfinite(x));
  }
}

/// Tensors that do not lie row by row.
TEST(CudaChunked, strides_change_no_bit) {
  const Options how{.weighting = Linear{}, .causal = true};
  Made plain({"plain", 1, 2, 2, 70, 70, 6, 6}, 3, DType::f32);
  run_chunked(plain, plain.inputs(), how);
  Made turned({"turned", 1, 2, 2, 70, 70, 6, 6}, 3, DType::f32);
  Inputs from = turned.inputs();
  std::vector<Tensor> kept;
  for (View* view : {&from.q, &from.k, &from.v}) {
    kept.push_back(Tensor::copy(view->swapped(1, 3), DType::f32));
    *view = kept.back().view().swapped(1, 3);
  }
  run_chunked(turned, from, how);
  for (const std::string& name : cases::results(plain))
    EXPECT_EQ(plain[name].values(), turned[name].values()) << name;
}

}  // namespace
}  // namespace foci::cuda
