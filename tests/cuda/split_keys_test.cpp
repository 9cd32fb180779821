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

/// One tile of rows not full, full, and several; widths that are one, and not.
TEST(CudaSplitKeys, holds_the_rule_with_any_number_of_rows) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    compare({{"4 rows", 1, 8, 2, 1, 1037, 128, 128}, dtype});
    compare({{"8 rows", 2, 8, 1, 1, 517, 64, 64, Masked::holes}, dtype, false, 8});
    compare({{"16 rows", 1, 8, 1, 2, 613, 96, 40}, dtype, true, 1});
    compare({{"20 rows", 1, 4, 1, 5, 549, 24, 128, Masked::holes}, dtype, true, 4});
    compare({{"48 rows", 1, 6, 2, 16, 530, 32, 32, Masked::tail}, dtype, true, 2});
    compare({{"one row", 1, 2, 2, 1, 705, 256, 200, Masked::head}, dtype, true, 2});
  }
}

/// So many heads that a block has more keys than are on their way at once.
TEST(CudaSplitKeys, goes_round_its_ring_of_copies) {
  compare({{"narrow", 1, 132, 132, 1, 901, 16, 16, Masked::holes}, DType::bf16});
  compare({{"wide", 1, 66, 66, 1, 905, 80, 72}, DType::f16, false, 66});
  compare({{"widest", 1, 44, 44, 1, 800, 136, 8, Masked::tail}, DType::bf16});
  compare({{"folded", 3, 44, 22, 2, 900, 72, 72}, DType::bf16, true, 0, LayerChange{}});
}

TEST(CudaSplitKeys, holds_the_rule_with_metrics) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    compare({{"wide", 1, 8, 2, 2, 530, 128, 128, Masked::tail}, dtype, true, 2, LayerChange{}});
    compare(
        {{"flat", 1, 4, 1, 3, 520, 64, 64}, dtype, true, 0, Flat{.normalize = Normalize::none}});
    compare({{"changes", 2, 4, 2, 2, 520, 32, 32, Masked::holes}, dtype, true, 0, LayerChange{}});
    compare({{"drawn", 1, 4, 2, 1, 520, 32, 32}, dtype, false, 4, Random{.seed = 7}});
  }
}

TEST(CudaSplitKeys, holds_at_large_and_small_values) {
  for (const double size : {30.0, 1e-4})
    compare({{"sizes", 1, 4, 1, 1, 600, 32, 32}, DType::f32, true, 0, Dot{}, size});
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const double size : {30.0, 0.02}) {
      for (const Metric& metric : {Metric(Dot{}), Metric(LayerChange{})})
        compare({{"sizes", 1, 4, 1, 1, 600, 32, 32}, dtype, true, 0, metric, size});
    }
  }
}

/// m q beyond the largest number of f16 and far below 1.
TEST(CudaSplitKeys, takes_any_metric_times_queries) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const float m : {1e-7f, 1e7f}) {
      Three three({"given", 1, 4, 1, 2, 550, 32, 32}, dtype, 0.01);
      Tensor metric(DType::f32, {1, 4, 1, 32});
      for (int d = 0; d < 4 * 32; ++d) metric.data<float>()[d] = m * float(1 + d % 7);
      three.ours.put("metric", std::move(metric));
      for (const char* name : {"q", "k", "v", "metric"}) three.share(name);
      Options how{.metric = Given{Form::product, Extent::diagonal}, .backend = Backend::ref};
      Rule rule;
      for (Made* made : {&three.naive, &three.exact, &three.ours}) {
        if (made == &three.ours) how.backend = Backend::cuda;
        ASSERT_TRUE(split(made->inputs(), how));
        attend(outputs(*made), made->inputs(), how);
      }
      rule.add(three.ours, three.naive, three.exact);
      rule.expect(std::string(name_of(dtype)) + " " + std::to_string(m));
    }
  }
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

/// The same where a tile has some that count.
TEST(CudaSplitKeys, keeps_nothing_of_single_masked_keys) {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    const Case c{"holes", 2, 4, 1, 1, 600, 24, 24, Masked::holes};
    Made clean(c, 3, dtype), dirty(c, 3, dtype);
    const auto* keep = dirty["key_mask"].data<std::uint8_t>();
    for (const char* name : {"k", "v"}) {
      auto* bits = reinterpret_cast<std::uint16_t*>(dirty[name].view().data);
      for (int i = 0; i < 2 * 600 * 24; ++i) bits[i] = keep[i / 24] ? bits[i] : 0x7fff;
    }
    for (Made* made : {&clean, &dirty})
      attend(outputs(*made), made->inputs(), {.backend = Backend::cuda});
    for (const char* name : {"o", "lse"})
      EXPECT_EQ(clean[name].values(), dirty[name].values()) << name;
  }
}

/// Sequences of different lengths, some of one key, one of none.
void compare_packed(DType dtype) {
  Three three({"packed", 1, 4, 2, 5, 1300, 16, 16}, dtype);
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

TEST(CudaSplitKeys, takes_packed_sequences) {
  for (const DType dtype : {DType::f32, DType::bf16}) compare_packed(dtype);
}

}  // namespace
}  // namespace foci::cuda
