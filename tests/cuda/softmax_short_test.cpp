// SPDX-License-Identifier: Apache-2.0
// Softmax of short sequences, whole calls as a training step makes them: o, m, lse for the way
// back, gradients, against ref in double by the tolerance rule. Sizes around its tiles, hidden
// keys, biases, strides, large and small values, layers that agree.
#include "cpu/three.hpp"
#include "cuda/gpu.hpp"

namespace foci {
namespace {

using namespace cases;

/// What a call adds to a case.
struct Setting {
  Case c;
  Options how = {};
  DType dtype = DType::bf16;
  double size = 1;
  std::int64_t bias_heads = 0;  // H or G
  float bias = 0;               // that all are near
  bool agree = false;           // both layers
};

std::string described(const Setting& set) {
  const Case& c = set.c;
  std::string text = std::string(name_of(set.dtype)) + " metric " +
                     std::to_string(set.how.metric.index()) + (set.how.causal ? " causal" : "");
  for (const std::int64_t x :
       {c.B, c.H, c.G, c.N, c.M, std::int64_t(c.masked), set.bias_heads, std::int64_t(set.agree)})
    text.append(" ").append(std::to_string(x));
  return text + " size " + std::to_string(set.size) + " bias " + std::to_string(set.bias);
}

bool is_dot(const Setting& set) { return std::holds_alternative<Dot>(set.how.metric); }

/// o, m, and all gradients but those that show every bit of m q.
void train(Made& made, const Setting& set, bool deterministic = true) {
  const Case& c = set.c;
  Options how = set.how;
  how.backend = made.dtype == DType::f64 ? Backend::ref : how.backend;
  const Inputs from = made.inputs();
  std::vector<std::byte> workspace(need(from, how, 1).workspace);
  const Call call{.workspace = workspace, .deterministic = deterministic, .lse_for_backward = true};
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  Outputs to;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  to.lse = made.fresh(is_dot(set) ? "lse" : "rough", {c.B, c.H, c.N}, wide);
  if (!is_dot(set) && !set.how.causal)
    to.metric = made.fresh("metric_used", {c.B, c.G, 1, c.D}, wide);
  attend(to, from, how, call);
  Gradients back{.d_o = made.find("d_o")};
  back.dq = made.fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  back.dk = made.fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  back.dv = made.fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  back.dv_prev = made.fresh("dv_prev", {c.B, c.G, c.M, c.E}, made.dtype);
  if (is_dot(set) && set.bias_heads > 0)
    back.dkey_bias = made.fresh("dkey_bias", {c.B, set.bias_heads, c.M}, wide);
  attend_backward(back, from, to, how, call);
}

Three drawn(const Setting& set, std::uint64_t seed) {
  Three three(set.c, set.dtype, set.size, seed);
  if (set.bias_heads > 0) {
    Tensor bias = Tensor::copy(three.ours.normal("key_bias", {set.c.B, set.bias_heads, set.c.M}, 2),
                               DType::f32);
    for (std::int64_t i = 0; i < bias.view().count(); ++i) bias.data<float>()[i] += set.bias;
    bias.data<float>()[2] = -INFINITY;
    three.ours.put("key_bias", std::move(bias));
  }
  if (set.agree) three.ours.put("v_prev", Tensor::copy(three.ours["v"], set.dtype));
  for (const char* name : {"q", "k", "v", "v_prev", "d_o", "key_mask", "key_bias"})
    three.share(name);
  return three;
}

void expect_rule(Setting set) {
  FOCI_WANT_GPU();
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 6 && (seed == 1 || !rule.holds()); ++seed) {
    Three three = drawn(set, seed);
    set.how.backend = Backend::cuda;
    train(three.ours, set);
    set.how.backend = Backend::ref;
    train(three.naive, set);
    train(three.exact, set);
    rule.add(three.ours, three.naive, three.exact);
  }
  rule.expect(described(set));
}

TEST(CudaSoftmaxShort, follows_ref_around_its_tiles) {
  int turn = 0;
  const std::pair<int, int> sizes[] = {{65, 65},  {197, 197}, {17, 129},
                                       {33, 209}, {256, 256}, {1, 70}};
  for (const auto& [N, M] : sizes) {
    const DType dtype = ++turn % 2 ? DType::bf16 : DType::f16;
    const Case c{"", 1, 1, 1, N, M, 64, 64};
    expect_rule({.c = c, .dtype = dtype});
    expect_rule({.c = c, .how = {.metric = LayerChange{}}, .dtype = dtype});
    if (turn % 2) expect_rule({.c = c, .how = {.causal = true}, .dtype = dtype});
  }
}

TEST(CudaSoftmaxShort, estimates_as_ref_does) {
  const Case c{"", 2, 2, 2, 30, 140, 64, 64, Masked::holes};
  for (const MetricGrad grad : {MetricGrad::detached, MetricGrad::through}) {
    for (const Normalize by : {Normalize::max, Normalize::mean, Normalize::none})
      expect_rule({.c = c, .how = {.metric = LayerChange{.normalize = by}, .metric_grad = grad}});
    expect_rule({.c = c, .how = {.metric = Flat{}, .metric_grad = grad}, .dtype = DType::f16});
  }
  expect_rule({.c = c, .how = {.metric = LayerChange{}}, .agree = true});
  expect_rule({.c = c, .how = {.metric = Flat{.normalize = Normalize::mean}}, .agree = true});
  expect_rule({.c = c, .how = {.metric = Random{}}});
  expect_rule({.c = c, .how = {.metric = LayerChange{.reduce = Reduce::median}}});
}

TEST(CudaSoftmaxShort, hides_keys_and_adds_biases) {
  for (const Masked masked : {Masked::tail, Masked::head, Masked::everything}) {
    const Case c{"", 2, 1, 1, 35, 100, 64, 64, masked};
    expect_rule({.c = c, .how = {.causal = true}});
    expect_rule({.c = c, .how = {.metric = LayerChange{}}, .bias_heads = 1});
  }
  for (const float bias : {0.0f, -120.0f}) {
    const Case c{"", 1, 2, 2, 35, 150, 64, 64};
    expect_rule({.c = c, .dtype = DType::f16, .bias_heads = 2, .bias = bias});
    expect_rule({.c = c, .how = {.metric = Flat{}}, .bias_heads = 2, .bias = bias});
  }
}

TEST(CudaSoftmaxShort, holds_at_large_and_small_values) {
  for (const std::int64_t M : {70, 150}) {
    const Case c{"", 1, 1, 1, 40, M, 64, 64};
    for (const double size : {2.0, 3.0, 20.0, 1e4, 1e-4}) {
      expect_rule({.c = c, .size = size});
      expect_rule({.c = c, .how = {.metric = LayerChange{}}, .size = size});
      if (size == 3)
        expect_rule({.c = c, .how = {.metric = Flat{}}, .dtype = DType::f16, .size = 3});
    }
  }
}

/// Blocks that have several query heads: only where there are many key heads.
TEST(CudaSoftmaxShort, shares_keys) {
  const Case few{"", 128, 2, 1, 5, 65, 64, 64}, more{"", 64, 4, 2, 33, 66, 64, 64, Masked::holes};
  expect_rule({.c = few, .how = {.metric = LayerChange{}}, .bias_heads = 2});
  expect_rule({.c = few, .how = {.causal = true}, .bias_heads = 1});
  expect_rule({.c = more, .how = {.metric = LayerChange{}, .metric_grad = MetricGrad::through}});
}

/// Numbers of a token's heads side by side, seen as (B,heads,tokens,64).
View lie_by_tokens(Made& made, const std::string& name) {
  const View from = made.find(name);
  made.put(name + "_lying", Tensor::copy(from.swapped(1, 2), from.dtype));
  return made.find(name + "_lying").swapped(1, 2);
}

/// Where tensors lie changes no bit, nor does whether any order of additions would do.
TEST(CudaSoftmaxShort, follows_strides_to_the_bit) {
  FOCI_WANT_GPU();
  const Setting set{.c = {"", 2, 3, 3, 70, 100, 64, 64},
                    .how = {.metric = LayerChange{}, .backend = Backend::cuda}};
  Made made(set.c, 9, set.dtype);
  train(made, set, false);
  const std::vector<std::string> written = {"o", "dq", "dk", "dv"};
  for (const std::string& name : written)
    made.put(name + "_before", Tensor::copy(made.find(name), set.dtype));
  Inputs from = made.inputs();
  from.q = lie_by_tokens(made, "q"), from.k = lie_by_tokens(made, "k");
  from.v = lie_by_tokens(made, "v"), from.v_prev = lie_by_tokens(made, "v_prev");
  std::vector<std::byte> workspace(need(from, set.how, 1).workspace);
  const Call call{.workspace = workspace, .lse_for_backward = true};
  Outputs to{.o = lie_by_tokens(made, "o"), .lse = made.find("rough")};
  attend(to, from, set.how, call);
  Gradients back{.d_o = lie_by_tokens(made, "d_o")};
  back.dq = lie_by_tokens(made, "dq"), back.dk = lie_by_tokens(made, "dk");
  back.dv = lie_by_tokens(made, "dv");
  attend_backward(back, from, to, set.how, call);
  for (const std::string& name : written) {
    const View lying = made.find(name + "_lying").swapped(1, 2);
    EXPECT_EQ(Tensor::copy(lying, DType::f64).values(), made[name + "_before"].values()) << name;
  }
}

}  // namespace
}  // namespace foci
