// SPDX-License-Identifier: Apache-2.0
// Softmax on tensor cores against ref in double by the tolerance rule: sizes around its tiles,
// grouped heads, hidden keys, biases, packed sequences, strides, large and small values; queries
// that a metric folds.
#include "cuda/softmax_mma.cuh"

#include "../cpu/three.hpp"

namespace foci::cuda {
namespace {

using namespace cases;

/// How queries times m come: not at all, m beside them, or as floats.
enum class Lines { none, beside, floats };

/// What a call adds to a case.
struct Setting {
  Case c;
  DType dtype = DType::bf16;
  bool causal = false;
  int bias_heads = 0;  // H or G
  double size = 1;
  double scale = 0;  // 0: the standard one
  Lines lines = Lines::none;
  std::int64_t m_heads = 1, m_rows = 1;  // of m
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
  if (set.lines == Lines::beside) {
    folded.m = Field(made.find("metric"));
    folded.key_head_m = set.m_heads == set.c.G;
  }
  if (set.lines == Lines::floats) {
    folded.q = Field(made.find("lines"));
    folded.row_bias = Field(made.find("row_bias"));
  }
  return folded;
}

Rows rows_of(const Outputs& to) {
  Rows rows;
  rows.o = Field(to.o);
  rows.lse = Field(to.lse);
  rows.concentration = Field(to.concentration);
  rows.effective_keys = Field(to.effective_keys);
  rows.entropy = Field(to.entropy);
  rows.largest = Field(to.largest);
  rows.largest_at = Field(to.largest_at);
  return rows;
}

Options options_of(const Setting& set) {
  Options how{.causal = set.causal, .backend = Backend::ref};
  if (set.scale != 0) how.scale = set.scale;
  if (set.lines != Lines::none) how.metric = Given{};
  return how;
}

std::string described(const Setting& set) {
  const Case& c = set.c;
  return std::string(name_of(set.dtype)) + (set.causal ? " causal" : "") + " B" +
         std::to_string(c.B) + " H" + std::to_string(c.H) + " G" + std::to_string(c.G) + " N" +
         std::to_string(c.N) + " M" + std::to_string(c.M) + " D" + std::to_string(c.D) + " E" +
         std::to_string(c.E) + " bias " + std::to_string(set.bias_heads) + " masked " +
         std::to_string(int(c.masked)) + " size " + std::to_string(set.size) + " lines " +
         std::to_string(int(set.lines)) + " of " + std::to_string(set.m_heads) + "x" +
         std::to_string(set.m_rows);
}

/// m q of every query, or dq' of every query times m where `back`.
void fold(Made& made, const Setting& set, const std::string& from, const std::string& to,
          DType dtype) {
  const Case& c = set.c;
  const Field m(made.find("metric")), x(made.find(from)),
      y(made.fresh(to, {c.B, c.H, c.N, c.D}, dtype));
  for (int b = 0; b < c.B; ++b) {
    for (int h = 0; h < c.H; ++h) {
      const int head = set.m_heads == c.H ? h : int(h / (c.H / c.G));
      for (int i = 0; i < c.N; ++i) {
        for (int d = 0; d < c.D; ++d)
          y.store(x.load(b, h, i, d) * m.load(b, head, i, d), b, h, i, d);
      }
    }
  }
}

/// An uneven m; queries times it; and what lse has besides.
void put_metric(Made& made, const Setting& set) {
  const Case& c = set.c;
  Tensor m =
      Tensor::copy(made.normal("metric", {c.B, set.m_heads, set.m_rows, c.D}, 1), DType::f32);
  for (std::int64_t i = 0; i < m.view().count(); ++i)
    m.data<float>()[i] = std::abs(m.data<float>()[i]) / 4 + float(i % 5) / 5;
  made.put("metric", std::move(m));
  fold(made, set, "q", "lines", DType::f32);
  made.put("row_bias", Tensor::copy(made.normal("row_bias", {c.B, c.H, c.N}, 3), DType::f32));
}

Three drawn(const Setting& set, std::uint64_t seed) {
  Three three(set.c, set.dtype, set.size, seed);
  if (set.bias_heads > 0) {
    Tensor bias = Tensor::copy(three.ours.normal("key_bias", {set.c.B, set.bias_heads, set.c.M}, 3),
                               DType::f32);
    if (set.c.M > 3) bias.data<float>()[2] = -INFINITY;
    three.ours.put("key_bias", std::move(bias));
  }
  if (set.lines != Lines::none) put_metric(three.ours, set);
  return three;
}

/// Gradients by way of o and lse of the forward pass, which are there.
void run_backward(const Setting& set, const Folded& folded, Made& made, const Outputs& saved,
                  Order order) {
  const Shape shape = shape_of(set);
  const Gradients to = all_gradients(made, options_of(set));
  std::vector<float> delta(std::size_t(set.c.B * set.c.H * set.c.N), NAN);
  Arena counted;
  SoftmaxMmaScratch(counted, shape, order, 2);
  std::vector<std::byte> memory(counted.used() + Arena::alignment, std::byte(0xff));
  Arena arena(memory);
  const SoftmaxMmaScratch scratch(arena, shape, order, 2);
  Saved from;
  from.d_o = Field(to.d_o);
  from.o = Field(saved.o);
  from.lse = Field(saved.lse);
  from.delta = delta.data();
  ASSERT_TRUE(softmax_mma_serves(shape, folded, from)) << described(set);
  Sinks sinks;
  sinks.dq = Field(to.dq);
  sinks.dk = Field(to.dk);
  sinks.dv = Field(to.dv);
  sinks.dkey_bias = Field(to.dkey_bias);
  sinks.dq_of_q = set.lines == Lines::beside;
  if (set.lines == Lines::floats)
    sinks.dq = Field(made.fresh("dlines", {set.c.B, set.c.H, set.c.N, set.c.D}, DType::f32));
  softmax_mma_backward(shape, folded, from, sinks, scratch, nullptr);
  if (set.lines == Lines::floats) fold(made, set, "dlines", "dq", set.dtype);
}

/// What the pass does not write, or not with all the bits of floats.
void take_rest(Three& three, const Setting& set) {
  for (const char* name : {"dv_prev", "metric_used", "dmetric", "dkey_bias"}) {
    const bool is_bias = std::string(name) == "dkey_bias";
    if (!three.naive.find(name) || (is_bias && set.lines == Lines::none)) continue;
    three.ours.put(name, Tensor::copy(three.naive[name], three.naive[name].view().dtype));
  }
}

/// One draw: with statistics and without, dq in any order and in one.
void draw(Rule& rule, const Setting& set, std::uint64_t seed) {
  const Shape shape = shape_of(set);
  const Options how = options_of(set);
  Three three = drawn(set, seed);
  three.answer(how);
  const Outputs to = all_outputs(three.ours, how);
  Field row_bias;  // none at first
  Folded folded = folded_of(set, three.ours);
  ASSERT_TRUE(softmax_mma_serves(shape, folded, Field(to.o))) << described(set);
  std::swap(folded.row_bias, row_bias);
  softmax_mma_forward(shape, folded, rows_of(to), nullptr);
  run_backward(set, folded, three.ours, to, Order::any);
  take_rest(three, set);
  rule.add(three.ours, three.naive, three.exact);
  if (set.size >= 1) {  // below, weights are equal but for rounding
    EXPECT_EQ(three.ours["largest_at"].values(), three.naive["largest_at"].values())
        << described(set);
  }
  const Outputs again{.o = three.ours.fresh("o", {set.c.B, set.c.H, set.c.N, set.c.E}, set.dtype),
                      .lse = three.ours.fresh("rough", {set.c.B, set.c.H, set.c.N}, DType::f32)};
  std::swap(folded.row_bias, row_bias);
  Rows alone;
  alone.o = Field(again.o);
  alone.lse = Field(again.lse);
  alone.rough_lse = 1;
  softmax_mma_forward(shape, folded, alone, nullptr);
  run_backward(set, folded, three.ours, again, Order::repeatable);
  take_rest(three, set);
  rule.add(three.ours, three.naive, three.exact);
}

/// Where few draws do not decide, many do: in a few numbers the naive formula may be right by luck.
void expect_rule(const Setting& set) {
  const std::uint64_t few = set.c.N * set.c.M * set.c.D > 40000 ? 1 : 2;
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 12 * few && (seed <= few || !rule.holds()); ++seed)
    draw(rule, set, seed);
  rule.expect(described(set));
}

TEST(CudaSoftmaxMma, follows_ref_around_its_tiles) {
  const std::pair<int, int> sizes[] = {{1, 2}, {130, 65}, {1, 70}, {33, 17}, {20, 129}};
  int turn = 0;
  for (const std::int64_t D : {8, 24, 64, 96, 128, 256}) {
    for (int i = 0; i < (D > 96 ? 2 : 3); ++i) {
      const auto [N, M] = sizes[turn % 5];
      Setting set{.c = {"", 1, 2, 1, N, M, D, D}};
      set.dtype = ++turn % 2 ? DType::bf16 : DType::f16;
      set.causal = turn / 2 % 2;
      if (turn % 3 == 0) set.bias_heads = 1 + turn / 3 % 2;
      expect_rule(set);
    }
  }
}

TEST(CudaSoftmaxMma, follows_ref_where_values_have_another_width) {
  for (const auto& [D, E] : {std::pair{8, 64}, {64, 40}, {24, 96}}) {
    expect_rule({.c = {"", 1, 2, 2, 40, 70, D, E}, .causal = true});
    expect_rule({.c = {"", 1, 2, 2, 40, 70, D, E}, .dtype = DType::f16, .bias_heads = 2});
  }
}

TEST(CudaSoftmaxMma, folds_queries) {
  for (const Lines lines : {Lines::beside, Lines::floats}) {
    for (const DType dtype : {DType::bf16, DType::f16}) {
      const bool causal = dtype == DType::f16;
      expect_rule({.c = {"", 2, 4, 2, 70, 40, 16, 16},
                   .dtype = dtype,
                   .causal = causal,
                   .lines = lines,
                   .m_heads = 2});
      expect_rule({.c = {"", 1, 2, 1, 20, 150, 64, 64},
                   .dtype = dtype,
                   .causal = causal,
                   .lines = lines,
                   .m_heads = 2,
                   .m_rows = 20});
      expect_rule({.c = {"", 1, 2, 1, 20, 150, 128, 128},
                   .dtype = dtype,
                   .bias_heads = 2,
                   .lines = lines,
                   .m_heads = 1});
      expect_rule({.c = {"", 1, 1, 1, 9, 2, 24, 40}, .dtype = dtype, .lines = lines});
    }
    for (const double size : {2.0, 3.0, 20.0})
      expect_rule({.c = {"", 1, 2, 2, 65, 150, 32, 32, Masked::holes},
                   .size = size,
                   .lines = lines,
                   .m_heads = 2});
  }
}

/// Heads whose flag is 0 are left as they are, both ways.
TEST(CudaSoftmaxMma, leaves_heads_to_others) {
  const Setting set{.c = {"", 1, 2, 2, 20, 30, 16, 16}};
  Made made(set.c, 3, set.dtype);
  const Shape shape = shape_of(set);
  const int flags[] = {0, 1};
  Folded folded = folded_of(set, made);
  folded.by_mma = flags;
  Outputs to{.o = made.fresh("o", {1, 2, 20, 16}, set.dtype),
             .lse = made.fresh("lse", {1, 2, 20}, DType::f32)};
  softmax_mma_forward(shape, folded, rows_of(to), nullptr);
  run_backward(set, folded, made, to, Order::any);
  for (const char* name : {"o", "dq", "dk", "dv"}) {
    const std::vector<double> all = made[name].values();
    const auto written = [&](std::size_t head) {
      const std::size_t half = all.size() / 2;
      return std::count_if(all.begin() + std::ptrdiff_t(head * half),
                           all.begin() + std::ptrdiff_t((head + 1) * half),
                           [](double x) { return x == x; });
    };
    EXPECT_EQ(written(0), 0) << name;
    EXPECT_EQ(written(1), std::ptrdiff_t(all.size() / 2)) << name;
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

/// (1, N, heads, D) seen as (1, heads, N, D), from token `first` on.
Field lined(const Made& made, const std::string& name, std::int64_t heads, int first) {
  View view = made.find(name);
  view.strides[1] = made.c.D;
  view.strides[2] = heads * made.c.D;
  Field field(view);
  field.data = static_cast<std::uint16_t*>(field.data) + first * field.strides[2];
  return field;
}

/// Both passes over tokens first.. into tensors whose names end in `to`.
void run_lined(Made& made, const Shape& shape, int first, const std::string& to) {
  const std::int64_t H = made.c.H, G = made.c.G;
  std::vector<float> lse(std::size_t(H) * shape.N), delta(lse.size(), NAN);
  Folded folded;
  folded.scale = 0.25f;
  folded.q = lined(made, "q", H, first);
  folded.k = lined(made, "k", G, first);
  folded.v = lined(made, "v", G, first);
  Rows rows;
  rows.o = lined(made, "o" + to, H, first);
  rows.lse = Field::of(lse.data(), {1, H, shape.N});
  softmax_mma_forward(shape, folded, rows, nullptr);
  Saved saved;
  saved.d_o = lined(made, "d_o", H, first);
  saved.o = rows.o;
  saved.lse = rows.lse;
  saved.delta = delta.data();
  Sinks sinks;
  sinks.dq = lined(made, "dq" + to, H, first);
  sinks.dk = lined(made, "dk" + to, G, first);
  sinks.dv = lined(made, "dv" + to, G, first);
  Arena counted;
  const SoftmaxMmaScratch none(counted, shape, Order::repeatable);
  softmax_mma_backward(shape, folded, saved, sinks, none, nullptr);
}

/// Sequences one after another give what each gives alone, to the bit, in tensors whose heads lie
/// side by side in a token.
TEST(CudaSoftmaxMma, packs_sequences_and_follows_strides) {
  const int offsets[] = {0, 3, 73, 74, 107};
  for (const bool causal : {false, true}) {
    const Setting set{.c = {"", 1, 4, 2, 107, 107, 16, 16}, .causal = causal};
    Made made(set.c, 7, set.dtype);
    for (const std::string to : {"", "_alone"}) {
      for (const char* name : {"o", "dq"}) made.fresh(name + to, {1, 4, 107, 16}, set.dtype);
      for (const char* name : {"dk", "dv"}) made.fresh(name + to, {1, 2, 107, 16}, set.dtype);
    }
    Shape packed = shape_of(set);
    packed.sequences = 4;
    packed.longest_n = packed.longest_m = 70;
    packed.q_offsets = packed.k_offsets = offsets;
    run_lined(made, packed, 0, "");
    for (int s = 0; s < 4; ++s) {
      Shape alone = shape_of(set);
      alone.N = alone.M = alone.longest_n = alone.longest_m = offsets[s + 1] - offsets[s];
      run_lined(made, alone, offsets[s], "_alone");
    }
    for (const std::string name : {"o", "dq", "dk", "dv"})
      EXPECT_EQ(made[name].values(), made[name + "_alone"].values()) << name;
  }
}

}  // namespace
}  // namespace foci::cuda
