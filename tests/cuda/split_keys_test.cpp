// SPDX-License-Identifier: Apache-2.0
// Few queries over many keys, split over blocks, against ref in double by the tolerance rule:
// grouped heads, sizes that fill no tile, hidden keys, biases, packed sequences; and gradients that
// take its lse.
#include "cuda/split_keys.cuh"

#include "attend/check.hpp"
#include "cpu/three.hpp"

namespace foci::cuda {
namespace {

using namespace cases;

struct Setting {
  Case c;
  DType dtype = DType::f32;
  bool causal = false;
  int bias_heads = 0;  // H or G
  Metric metric = Dot{};
  double size = 1;
};

std::string described(const Setting& set) {
  const Case& c = set.c;
  return std::string(name_of(set.dtype)) + (set.causal ? " causal" : "") + " H" +
         std::to_string(c.H) + " G" + std::to_string(c.G) + " N" + std::to_string(c.N) + " M" +
         std::to_string(c.M) + " D" + std::to_string(c.D) + " E" + std::to_string(c.E) + " bias " +
         std::to_string(set.bias_heads) + " masked " + std::to_string(int(c.masked));
}

/// Whether a call is one of those.
bool split(const Inputs& from, const Options& how) {
  const metric::Problem p = checks::check(from, how);
  Shape shape;
  shape.sequences = int(p.sequences);
  shape.H = int(p.size.H), shape.G = int(p.size.G);
  shape.longest_n = int(p.longest_n), shape.longest_m = int(p.longest_m);
  return SplitKeys::pays(p, shape);
}

Outputs outputs(Made& made) {
  const Case& c = made.c;
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  return {.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype),
          .lse = made.fresh("lse", {c.B, c.H, c.N}, wide)};
}

Three drawn(const Setting& set) {
  Three three(set.c, set.dtype, set.size);
  if (set.bias_heads > 0) {
    Tensor bias = Tensor::copy(three.ours.normal("key_bias", {set.c.B, set.bias_heads, set.c.M}, 3),
                               DType::f32);
    bias.data<float>()[2] = -INFINITY;
    three.ours.put("key_bias", std::move(bias));
  }
  for (const char* name : {"q", "k", "v", "v_prev", "d_o", "key_bias", "key_mask"})
    three.share(name);
  return three;
}

void compare(const Setting& set, bool back = false) {
  Three three = drawn(set);
  Options how{.metric = set.metric, .causal = set.causal, .backend = Backend::ref};
  Rule rule;
  ASSERT_TRUE(split(three.ours.inputs(), how)) << described(set);
  for (Made* made : {&three.naive, &three.exact, &three.ours}) {
    if (made == &three.ours) how.backend = Backend::cuda;
    const Outputs to = outputs(*made);
    attend(to, made->inputs(), how);
    if (back) attend_backward(all_gradients(*made, how), made->inputs(), to, how);
  }
  rule.add(three.ours, three.naive, three.exact);
  rule.expect(described(set));
}

TEST(CudaSplitKeys, holds_the_rule) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    compare({{"heads", 2, 8, 2, 1, 700, 64, 64}, dtype, true});
    compare({{"wide", 1, 3, 3, 1, 515, 128, 104}, dtype, false, 3});
    compare({{"many rows", 1, 8, 1, 3, 600, 16, 32, Masked::holes}, dtype, true, 1});
    compare({{"odd", 1, 2, 1, 2, 530, 19, 7, Masked::tail}, dtype, true, 2});
  }
  compare({{"widest", 1, 2, 1, 2, 513, 256, 200}, DType::bf16, true});
  compare({{"one row", 1, 1, 1, 1, 800, 256, 8, Masked::head}, DType::f32, true});
}

TEST(CudaSplitKeys, holds_the_rule_with_metrics) {
  for (const DType dtype : {DType::f32, DType::bf16}) {
    compare({{"changes", 2, 4, 2, 2, 520, 32, 32, Masked::holes}, dtype, true, 0, LayerChange{}});
    compare({{"drawn", 1, 4, 2, 1, 520, 32, 32}, dtype, false, 4, Random{.seed = 7}});
  }
}

TEST(CudaSplitKeys, holds_at_large_and_small_values) {
  for (const double size : {30.0, 1e-4})
    compare({{"sizes", 1, 4, 1, 1, 600, 32, 32}, DType::f32, true, 0, Dot{}, size});
}

TEST(CudaSplitKeys, gives_an_lse_that_the_way_back_can_use) {
  for (const DType dtype : {DType::f32, DType::bf16})
    compare({{"back", 1, 4, 2, 2, 560, 32, 32}, dtype, true, 4}, true);
}

/// Rows that see nothing, and masked keys that hold no numbers.
TEST(CudaSplitKeys, keeps_nothing_of_masked_keys) {
  Made made({"masked", 2, 2, 1, 1, 600, 8, 8, Masked::everything}, 3, DType::f32);
  for (const char* name : {"k", "v"}) {
    for (int i = 0; i < 600 * 8; ++i) made[name].data<float>()[i] = std::nanf("");
  }
  const Outputs to = outputs(made);
  attend(to, made.inputs(), {.backend = Backend::cuda});
  for (int e = 0; e < 16; ++e) EXPECT_EQ(made["o"].data<float>()[e], 0);
  EXPECT_EQ(made["lse"].data<float>()[0], -INFINITY);
  for (int e = 16; e < 32; ++e) EXPECT_TRUE(std::isfinite(made["o"].data<float>()[e]));
}

/// Sequences of different lengths, some of one key, one of none.
TEST(CudaSplitKeys, takes_packed_sequences) {
  Three three({"packed", 1, 4, 2, 5, 1300, 16, 16}, DType::f32);
  Tensor q(DType::i32, {6}), k(DType::i32, {6});
  const int q_at[] = {0, 1, 2, 3, 3, 5}, k_at[] = {0, 600, 601, 601, 700, 1300};
  for (int s = 0; s < 6; ++s) {
    q.data<std::int32_t>()[s] = q_at[s];
    k.data<std::int32_t>()[s] = k_at[s];
  }
  for (const char* name : {"q", "k", "v"}) three.share(name);
  Options how{.causal = true, .backend = Backend::ref};
  for (Made* made : {&three.naive, &three.exact, &three.ours}) {
    if (made == &three.ours) how.backend = Backend::cuda;
    Inputs from = made->inputs();
    from.q_offsets = q, from.k_offsets = k;
    ASSERT_TRUE(split(from, how));
    attend(outputs(*made), from, how);
  }
  Rule rule;
  rule.add(three.ours, three.naive, three.exact);
  rule.expect("packed");
}

}  // namespace
}  // namespace foci::cuda
