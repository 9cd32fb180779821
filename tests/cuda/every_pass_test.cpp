// SPDX-License-Identifier: Apache-2.0
// Every pass of the CUDA backend once, both ways, on the smallest shapes that it serves: what
// compute-sanitizer looks at, under which larger tests would take hours.
#include "cuda/train_step.hpp"

namespace foci {
namespace {

using namespace cases;

constexpr DType bf16 = DType::bf16, f16 = DType::f16, f32 = DType::f32;

TEST(CudaEveryPass, wide_heads_of_hopper) {
  for (const std::int64_t D : {64, 128}) {
    const Case c{"", 1, 2, 1, 130, 270, D, D, Masked::holes}, plain{"", 2, 2, 2, 193, 193, D, D};
    expect_rule(plain, bf16, {.causal = true}, 1, "dot");
    expect_rule(c, f16, {}, 1, "bias", 1);
    expect_rule(plain, bf16, {.metric = LayerChange{}}, 1, "layer-change");
    expect_rule(c, bf16, {.metric = LayerChange{}}, 4, "loud");
  }
}

TEST(CudaEveryPass, narrow_heads) {
  const Case c{"", 1, 2, 1, 33, 140, 32, 32, Masked::holes}, few{"", 1, 2, 2, 5, 7, 16, 24};
  expect_rule(c, bf16, {.causal = true}, 1, "dot");
  expect_rule(c, f16, {.metric = Flat{}, .metric_grad = MetricGrad::through}, 1, "flat");
  expect_rule(few, bf16, {.metric = Random{}}, 1, "random");
  for (const Weighting& weighting :
       {Weighting(Relu2{}), Weighting(Identity{.rescale = Rescale::l2}), Weighting(Identity{}),
        Weighting(Linear{})})
    expect_rule(c, bf16, {.weighting = weighting}, 1, "weighting");
  expect_rule(c, f32, {.weighting = Decay{.content = true}, .causal = true}, 1, "decay");
  expect_rule(c, f32, {.metric = Jacobian{}, .metric_grad = MetricGrad::through}, 1, "jacobian");
}

TEST(CudaEveryPass, short_sequences) {
  const Case c{"", 1, 2, 2, 90, 150, 64, 64, Masked::holes}, plain{"", 2, 2, 2, 197, 197, 64, 64};
  expect_rule(plain, bf16, {}, 1, "dot");
  expect_rule(plain, bf16, {.metric = LayerChange{}}, 1, "layer-change");
  expect_rule(c, f16, {}, 1, "bias", 1);
}

TEST(CudaEveryPass, chunks) {
  const Case c{"", 1, 16, 16, 130, 130, 64, 64};
  expect_rule(c, bf16, {.weighting = Decay{.content = true}, .causal = true}, 1, "decay");
}

TEST(CudaEveryPass, full_metrics) {
  KeyCovariance how;
  how.prior = 64;
  const Case c{"", 1, 2, 1, 70, 600, 64, 64, Masked::holes}, small{"", 1, 2, 1, 40, 90, 16, 16};
  expect_rule(c, bf16, {.metric = how}, .3, "sequence");
  expect_rule(c, bf16, {.metric = KeyCovariance{}, .causal = true}, .3, "prefix");
  expect_rule(small, f32, {.metric = how}, 1, "lines");
}

TEST(CudaEveryPass, few_queries) {
  const Case c{"", 1, 8, 2, 1, 1500, 64, 64, Masked::holes};
  expect_rule(c, bf16, {}, 1, "dot");
  expect_rule(c, f16, {.metric = LayerChange{}}, 1, "layer-change");
}

}  // namespace
}  // namespace foci
