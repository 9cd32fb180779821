// SPDX-License-Identifier: Apache-2.0
// nn::attend: the core's bits and gradients, torch's autograd around them, and what is refused.
// Every metric x weighting in double is gradchecked in tests/python.
#include <foci/nn.hpp>

#include "thrown.hpp"

#include <foci/attention.hpp>
#include <foci/device.hpp>
#include <foci/error.hpp>

#include <ATen/ATen.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

namespace foci::nn {
namespace {

struct Made {
  at::Tensor q, k, v, v_prev, d_o;
  explicit Made(at::ScalarType type = at::kFloat) {
    at::manual_seed(1);
    const auto like = at::TensorOptions().dtype(type);
    q = at::randn({2, 4, 9, 8}, like);
    k = at::randn({2, 2, 11, 8}, like);
    v = at::randn({2, 2, 11, 8}, like);
    v_prev = at::randn({2, 2, 11, 8}, like);
    d_o = at::randn({2, 4, 9, 8}, like);
  }
};

View f32(const at::Tensor& x) {
  return View(x.data_ptr(), DType::f32, std::span(x.sizes().data(), x.sizes().size()));
}

TEST(Attend, GivesTheCoresBitsAndGradients) {
  const Made m;
  const Options how{.metric = LayerChange{}, .causal = true, .metric_grad = MetricGrad::through};
  std::vector<at::Tensor> leaves{m.q.clone(), m.k.clone(), m.v.clone(), m.v_prev.clone()};
  for (auto& leaf : leaves) leaf.requires_grad_();
  const at::Tensor o = attend(leaves[0], leaves[1], leaves[2], {.v_prev = leaves[3]}, how);
  const auto gradients = torch::autograd::grad({o}, leaves, {m.d_o});

  const Inputs in{.q = f32(m.q), .k = f32(m.k), .v = f32(m.v), .v_prev = f32(m.v_prev)};
  const at::Tensor plain = at::empty_like(o), lse = at::empty({2, 4, 9});
  foci::attend({.o = f32(plain), .lse = f32(lse)}, in, how);
  EXPECT_TRUE(o.equal(plain));
  std::vector<at::Tensor> expected;
  for (const auto& leaf : leaves) expected.push_back(at::empty_like(leaf));
  attend_backward({.d_o = f32(m.d_o),
                   .dq = f32(expected[0]),
                   .dk = f32(expected[1]),
                   .dv = f32(expected[2]),
                   .dv_prev = f32(expected[3])},
                  in, {.o = f32(plain), .lse = f32(lse)}, how);
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    EXPECT_TRUE(gradients[i].equal(expected[i])) << i;
    EXPECT_GT(gradients[i].abs().max().item<float>(), 0) << i;
  }
}

TEST(Attend, TakesStridedTensorsWithoutACopy) {
  const Made m;
  const auto turned = [](const at::Tensor& x) {  // (B,N,H,D) in memory
    return x.transpose(1, 2).contiguous().transpose(1, 2);
  };
  const at::Tensor o = attend(m.q, m.k, m.v);
  EXPECT_TRUE(attend(turned(m.q), turned(m.k), turned(m.v)).equal(o));
}

TEST(Attend, GivesOnlyTheGradientsAskedFor) {
  const Made m;
  const at::Tensor v = m.v.clone().requires_grad_();
  const at::Tensor o = attend(m.q, m.k, v);
  EXPECT_EQ(torch::autograd::grad({o}, {v}, {m.d_o}).size(), 1U);
  EXPECT_FALSE(attend(m.q, m.k, m.v).requires_grad());
}

TEST(Attend, KeyBiasAndAGivenMetricHaveGradients) {
  const Made m(at::kDouble);
  const at::Tensor bias = at::randn({2, 2, 11}, at::kDouble).requires_grad_();
  const at::Tensor metric = at::rand({1, 2, 1, 8}, at::kDouble).requires_grad_();
  const Options how{.metric = Given{}};
  const auto value = [&](const at::Tensor& b, const at::Tensor& w) {
    return (attend(m.q, m.k, m.v, {.key_bias = b, .metric = w}, how) * m.d_o).sum();
  };
  const auto gradients = torch::autograd::grad({value(bias, metric)}, {bias, metric});
  const at::NoGradGuard without;
  const double step = 1e-6;
  for (std::int64_t i : {0, 7, 15}) {
    at::Tensor up = metric.clone(), down = metric.clone();
    up.view({-1})[i] += step;
    down.view({-1})[i] -= step;
    EXPECT_NEAR(gradients[1].view({-1})[i].item<double>(),
                (value(bias, up) - value(bias, down)).item<double>() / (2 * step), 1e-7);
    up = bias.clone(), down = bias.clone();
    up.view({-1})[i] += step;
    down.view({-1})[i] -= step;
    EXPECT_NEAR(gradients[0].view({-1})[i].item<double>(),
                (value(up, metric) - value(down, metric)).item<double>() / (2 * step), 1e-7);
  }
}

TEST(Attend, SameBitsForAnyNumberOfTorchsThreads) {
  const Made m;
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor one = attend(m.q, m.k, m.v, {.v_prev = m.v_prev}, {.metric = LayerChange{}});
  at::set_num_threads(3);
  EXPECT_TRUE(attend(m.q, m.k, m.v, {.v_prev = m.v_prev}, {.metric = LayerChange{}}).equal(one));
  at::set_num_threads(before);
}

/// A thread remembers its last options and the room of its last call.
TEST(Attend, CallsOfOtherOptionsAndSizesLeaveNothingBehind) {
  const Made m;
  const at::Tensor longer = at::randn({1, 1, 700, 8});
  const std::vector<Options> ways{{},
                                  {.metric = LayerChange{}},
                                  {.metric = LayerChange{.normalize = Normalize::mean}},
                                  {.metric = LayerChange{}, .scale = 0.5},
                                  {.metric = KeyCovariance{.ridge = 0.1}}};
  const Inputs in{.q = f32(m.q), .k = f32(m.k), .v = f32(m.v), .v_prev = f32(m.v_prev)};
  for (int turn = 0; turn < 2; ++turn) {
    for (const Options& how : ways) {
      const at::Tensor expected = at::empty_like(m.q);
      foci::attend({.o = f32(expected)}, in, how);
      EXPECT_TRUE(attend(m.q, m.k, m.v, {.v_prev = m.v_prev}, how).equal(expected));
      attend(longer, longer, longer, {}, {});
      EXPECT_TRUE(attend(m.q, m.k, m.v, {.v_prev = m.v_prev}, how).equal(expected));
    }
  }
}

TEST(Attend, ASecondDerivativeIsRefusedWhenAskedFor) {
  const Made m;
  const at::Tensor q = m.q.clone().requires_grad_();
  const auto first = torch::autograd::grad({attend(q, m.k, m.v)}, {q}, {m.d_o}, true, true);
  EXPECT_TRUE(first[0].defined());
  try {
    torch::autograd::grad({first[0].sum()}, {q});
    ADD_FAILURE() << "nothing was thrown";
  } catch (const c10::NotImplementedError& error) {
    EXPECT_NE(std::string(error.what()).find("no second derivative"), std::string::npos);
  }
}

TEST(Attend, RefusesInFocisOwnErrors) {
  const Made m;
  EXPECT_EQ(thrown<InvalidArgument>([&] { attend(m.q, m.k, {}); }), "v is missing");
  EXPECT_EQ(thrown<InvalidArgument>([&] { attend(m.q.to(at::kInt), m.k, m.v); }),
            "q has type i32; it must be f64, f32, bf16 or f16");
  EXPECT_EQ(thrown<InvalidArgument>([&] { attend(m.q.to(at::kComplexFloat), m.k, m.v); }),
            "q has type ComplexFloat; it must be float64, float32, bfloat16 or float16");
  EXPECT_EQ(thrown<InvalidArgument>([&] { attend(m.q, m.k.to(at::kMeta), m.v); }),
            "k is on meta and q on cpu; move it with k.to(q.device)");
  EXPECT_EQ(thrown<InvalidArgument>([&] { attend(m.q, m.k, m.v.to_sparse()); }),
            "v is a sparse tensor; it must be dense: v.to_dense()");
  EXPECT_EQ(thrown<InvalidArgument>([&] { attend(m.q, m.k, m.v, {}, {.metric = Flat{}}); }),
            "metric flat compares values with those of the layer below: v_prev is missing (the "
            "lowest layer has none: use dot)");
  if (!has_cuda()) {
    EXPECT_EQ(thrown<Unsupported>([&] { attend(m.q, m.k, m.v, {}, {.backend = Backend::cuda}); }),
              "backend cuda is not in this build; it has: cpu, ref");
  }
}

TEST(Measure, GivesTheCoresStatistics) {
  const Made m;
  const Statistics s = measure(m.q, m.k, m.v, {}, {.causal = true});
  const at::Tensor weights =
      at::softmax((at::matmul(m.q, m.k.repeat_interleave(2, 1).transpose(2, 3)) / std::sqrt(8.0))
                      .masked_fill(at::ones({9, 11}, at::kBool).triu(3), -INFINITY),
                  -1);
  EXPECT_TRUE(at::allclose(s.largest, weights.amax({-1}), 1e-5));
  EXPECT_TRUE(s.largest_at.equal(weights.argmax(-1)));
  EXPECT_TRUE(at::allclose(s.effective_keys, weights.pow(2).sum(-1).reciprocal(), 1e-4));
  EXPECT_FALSE(s.metric.defined());
  EXPECT_EQ(measure(m.q, m.k, m.v, {}, {.weighting = Relu2{}}).entropy.defined(), false);
}

}  // namespace
}  // namespace foci::nn
