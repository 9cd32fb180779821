// SPDX-License-Identifier: Apache-2.0
// Softmax on tensor cores against ref in double by the tolerance rule: sizes around its tiles,
// grouped heads, hidden keys, biases, packed sequences, strides, large and small values.
#include "cuda/softmax_mma.cuh"

#include "../cpu/three.hpp"

namespace foci::cuda {
namespace {

using namespace cases;

/// What a call adds to a case.
struct Setting {
  Case c;
  DType dtype = DType::bf16;
  bool causal = false;
  int bias_heads = 0;  // H or G
  double size = 1;
  double scale = 0;  // 0: the standard one
};

Shape shape_of(const Setting& set) {
  const Case& c = set.c;
  Shape shape;
  shape.sequences = int(c.B);
  shape.H = int(c.H), shape.G = int(c.G), shape.D = int(c.D), shape.E = int(c.E);
  shape.N = shape.longest_n = int(c.N);
  shape.M = shape.longest_m = int(c.M);
  shape.causal = set.causal;
  return shape;
}

Folded folded_of(const Setting& set, const Made& made) {
  Folded folded;
  folded.scale = float(set.scale != 0 ? set.scale : 1 / std::sqrt(double(set.c.D)));
  folded.q = Field(made.find("q"));
  folded.k = Field(made.find("k"));
  folded.v = Field(made.find("v"));
  folded.key_bias = Field(made.find("key_bias"));
  folded.key_head_bias = set.bias_heads == set.c.G;
  folded.key_mask = Field(made.find("key_mask"));
  return folded;
}

Rows rows_of(const Outputs& to) {
  return {.o = Field(to.o),
          .lse = Field(to.lse),
          .concentration = Field(to.concentration),
          .effective_keys = Field(to.effective_keys),
          .entropy = Field(to.entropy),
          .largest = Field(to.largest),
          .largest_at = Field(to.largest_at)};
}

Options options_of(const Setting& set) {
  Options how{.causal = set.causal, .backend = Backend::ref};
  if (set.scale != 0) how.scale = set.scale;
  return how;
}

std::string described(const Setting& set) {
  const Case& c = set.c;
  return std::string(name_of(set.dtype)) + (set.causal ? " causal" : "") + " B" +
         std::to_string(c.B) + " H" + std::to_string(c.H) + " G" + std::to_string(c.G) + " N" +
         std::to_string(c.N) + " M" + std::to_string(c.M) + " D" + std::to_string(c.D) + " E" +
         std::to_string(c.E) + " bias " + std::to_string(set.bias_heads) + " masked " +
         std::to_string(int(c.masked)) + " size " + std::to_string(set.size);
}

Three drawn(const Setting& set, std::uint64_t seed) {
  Three three(set.c, set.dtype, set.size, seed);
  if (set.bias_heads > 0) {
    Tensor bias = Tensor::copy(three.ours.normal("key_bias", {set.c.B, set.bias_heads, set.c.M}, 3),
                               DType::f32);
    if (set.c.M > 3) bias.data<float>()[2] = -INFINITY;
    three.ours.put("key_bias", std::move(bias));
  }
  return three;
}

/// One setting on a few draws, with statistics and without.
void expect_rule(const Setting& set) {
  Rule rule;
  const Shape shape = shape_of(set);
  const Options how = options_of(set);
  for (std::uint64_t seed = 1; seed <= (set.c.N * set.c.M > 4000 ? 1 : 4); ++seed) {
    Three three = drawn(set, seed);
    three.answer(how);
    const Outputs to = all_outputs(three.ours, how);
    const Folded folded = folded_of(set, three.ours);
    ASSERT_TRUE(softmax_mma_serves(shape, folded, Field(to.o))) << described(set);
    softmax_mma_forward(shape, folded, rows_of(to), nullptr);
    for (const char* name : {"dq", "dk", "dv", "dv_prev", "dkey_bias"}) {
      if (three.exact.find(name))
        three.ours.put(name, Tensor::copy(three.naive[name], three.naive[name].view().dtype));
    }
    rule.add(three.ours, three.naive, three.exact);
    if (set.size >= 1) {  // below, weights are equal but for rounding
      EXPECT_EQ(three.ours["largest_at"].values(), three.naive["largest_at"].values())
          << described(set);
    }
    Made again(set.c, seed, set.dtype, set.size);
    const View o = again.fresh("o", {set.c.B, set.c.H, set.c.N, set.c.E}, set.dtype);
    softmax_mma_forward(shape, folded, {.o = Field(o)}, nullptr);
    three.ours.put("o", Tensor::copy(o, set.dtype));
    rule.add(three.ours, three.naive, three.exact);
  }
  rule.expect(described(set));
}

TEST(CudaSoftmaxMma, follows_ref_around_its_tiles) {
  int turn = 0;
  for (const std::int64_t D : {8, 16, 24, 64, 96, 128, 200, 256}) {
    for (const auto& [N, M] : {std::pair{1, 1}, {1, 70}, {33, 17}, {130, 65}, {20, 129}}) {
      Setting set{.c = {"", 1, 2, 1, N, M, D, D}};
      set.dtype = ++turn % 2 ? DType::bf16 : DType::f16;
      set.causal = turn / 2 % 2;
      if (turn % 3 == 0) set.bias_heads = 1 + turn / 3 % 2;
      expect_rule(set);
    }
  }
}

TEST(CudaSoftmaxMma, follows_ref_where_values_have_another_width) {
  for (const auto& [D, E] : {std::pair{8, 64}, {64, 40}, {16, 128}}) {
    expect_rule({.c = {"", 1, 2, 2, 40, 70, D, E}, .causal = true});
    expect_rule({.c = {"", 1, 2, 2, 40, 70, D, E}, .dtype = DType::f16, .bias_heads = 2});
  }
}

TEST(CudaSoftmaxMma, hides_masked_keys) {
  for (const Masked masked : {Masked::tail, Masked::head, Masked::holes, Masked::everything}) {
    for (const bool causal : {false, true}) {
      expect_rule({.c = {"", 2, 2, 1, 70, 70, 16, 16, masked}, .causal = causal});
      expect_rule({.c = {"", 2, 2, 1, 5, 90, 32, 32, masked}, .causal = causal, .bias_heads = 2});
    }
  }
}

TEST(CudaSoftmaxMma, holds_at_large_and_small_values) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const double size : {100.0, 1e4, 1e-4}) {
      if (dtype == DType::f16 && size == 1e-4) continue;  // below f16's normal numbers
      expect_rule({.c = {"", 1, 2, 2, 65, 65, 16, 16}, .dtype = dtype, .size = size});
      expect_rule(
          {.c = {"", 1, 2, 2, 65, 65, 16, 16}, .dtype = dtype, .bias_heads = 2, .size = size});
    }
  }
}

}  // namespace
}  // namespace foci::cuda
