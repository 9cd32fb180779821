// SPDX-License-Identifier: Apache-2.0
// Whole calls with diagonal metrics over 16 bits as a training step makes them: o, lse for the way
// back, gradients of the tensors. More keys than the exact routes take, so that queries are
// rounded.
#include "cuda/train_step.hpp"

namespace foci {
namespace {

using namespace cases;

TEST(CudaDiagonalMma, trains_by_the_rule) {
  const Case whole{"", 1, 4, 2, 40, 140, 32, 32, Masked::holes};
  const Case square{"", 1, 2, 2, 140, 140, 16, 16};
  for (const double size : {1.0, 3.0}) {
    for (const MetricGrad grad : {MetricGrad::detached, MetricGrad::through}) {
      const std::string through = grad == MetricGrad::through ? " through" : "";
      expect_rule(whole, DType::bf16, {.metric = LayerChange{}, .metric_grad = grad}, size,
                  "layer-change" + through);
      expect_rule(square, DType::bf16,
                  {.metric = LayerChange{.normalize = Normalize::mean},
                   .causal = true,
                   .metric_grad = grad},
                  size, "prefix" + through);
      expect_rule(whole, DType::f16, {.metric = Flat{}, .metric_grad = grad}, size,
                  "flat" + through);
    }
    expect_rule(whole, DType::bf16, {.metric = Random{}}, size, "random");
  }
  // Scores large enough for some heads' delta to need more than 16 bits of o.
  expect_rule(whole, DType::bf16, {.metric = Flat{}, .metric_grad = MetricGrad::through}, 2,
              "flat");
  expect_rule(whole, DType::f16, {}, 1, "biases far below 0", -120);
}

#ifndef FOCI_EMULATED  // its D = 64 would take minutes
/// Heads of 64 and 128, which Hopper has kernels of its own for, both ways.
TEST(CudaWideHeads, train_by_the_rule) {
  for (const std::int64_t D : {64, 128}) {
    const Case few{"", 1, 4, 2, 197, 300, D, D, Masked::holes}, many{"", 2, 2, 2, 321, 257, D, D};
    for (const Case& c : {few, many}) {
      for (const bool causal : {false, true}) {
        for (const DType dtype : {DType::bf16, DType::f16}) {
          const std::string what = std::to_string(D) + (causal ? " causal" : "");
          expect_rule(c, dtype, {.causal = causal}, 1, "dot " + what);
          expect_rule(c, dtype, {.causal = causal}, 1, "bias " + what, 1);
          expect_rule(c, dtype, {.causal = causal}, 1, "low bias " + what, -120);
          const Options change{.metric = LayerChange{}, .metric_grad = MetricGrad::through};
          for (const double size : {1.0, 2.0, 3.0})
            if (!causal) expect_rule(c, dtype, change, size, "layer-change " + what);
        }
      }
    }
  }
}

/// o and lse of a forward pass with heads of 64 and 128.
void forward(Made& made, Options how) {
  const Case& c = made.c;
  how.backend = made.dtype == DType::f64 ? Backend::ref : how.backend;
  Outputs to;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  // Queries that a metric folds are rounded only where lse does not show it.
  if (std::holds_alternative<Dot>(how.metric))
    to.lse = made.fresh("lse", {c.B, c.H, c.N}, made.dtype == DType::f64 ? DType::f64 : DType::f32);
  attend(to, made.inputs(), how);
}

/// A bias of every fifth key is -inf, and that of all keys of the first head where `none`.
Tensor bias_of(const Case& c, float size, bool none) {
  Tensor bias(DType::f32, {c.B, c.H, c.M});
  for (std::int64_t i = 0; i < c.B * c.H * c.M; ++i) {
    const bool hidden = i % 5 == 0 || (none && i < c.M);
    bias.data<float>()[i] = hidden ? -INFINITY : size * float(std::sin(double(i)));
  }
  return bias;
}

void expect_forward(const Case& c, DType dtype, Options how, float bias, double size,
                    const std::string& what) {
  Three three(c, dtype, size, 7);
  if (bias != 0) three.ours.put("key_bias", bias_of(c, bias, size > 1));
  for (const char* name : {"q", "k", "v", "v_prev", "key_mask", "key_bias"}) three.share(name);
  how.backend = Backend::cuda;
  forward(three.ours, how);
  how.backend = Backend::ref;
  forward(three.naive, how);
  forward(three.exact, how);
  Rule rule;
  rule.add(three.ours, three.naive, three.exact);
  rule.expect(what + " " + std::to_string(c.N) + " " + std::to_string(c.D) + " " +
              std::string(name_of(dtype)) + " bias " + std::to_string(bias) + " size " +
              std::to_string(size));
}

TEST(CudaWideHeads, follow_ref) {
  FOCI_WANT_GPU();
  for (const std::int64_t D : {64, 128}) {
    const Case odd{"", 2, 3, 3, 197, 197, D, D},
        grouped{"", 1, 4, 2, 333, 333, D, D, Masked::holes};
    const Case few{"", 1, 2, 1, 63, 700, D, D}, many{"", 1, 2, 1, 500, 130, D, D, Masked::tail};
    for (const Case& c : {odd, grouped, few, many}) {
      for (const bool causal : {false, true}) {
        const DType dtype = causal == (D == 64) ? DType::bf16 : DType::f16;
        for (const float bias : {0.0f, 1.0f, 1e4f}) {
          expect_forward(c, dtype, {.causal = causal}, bias, bias == 1 ? 4 : 1, "dot");
        }
        const LayerChange change;
        expect_forward(c, dtype, {.metric = change, .causal = causal}, 0, 1, "layer-change");
        expect_forward(c, DType::bf16, {.metric = change, .causal = causal}, 0, 4, "loud");
        expect_forward(c, dtype, {.metric = Flat{}, .causal = causal}, 1, 1, "flat");
      }
    }
  }
}

/// Layer-change is estimated by the pass itself: many keys to a sum, none that counts, layers that
/// agree, every way to normalise.
TEST(CudaWideHeads, estimate_on_their_way) {
  FOCI_WANT_GPU();
  for (const std::int64_t D : {64, 128}) {
    const Case deep{"", 2, 2, 1, 70, 4500, D, D};
    const Case holes{"", 3, 2, 2, 200, 2311, D, D, Masked::holes};
    const Case tail{"", 2, 3, 3, 150, 150, D, D, Masked::tail};
    for (const Case& c : {deep, holes, tail}) {
      for (const Normalize normalize : {Normalize::max, Normalize::mean, Normalize::none}) {
        const std::string way = std::to_string(int(normalize));
        expect_forward(c, DType::bf16, {.metric = LayerChange{.normalize = normalize}}, 0, 1, way);
        expect_forward(c, DType::bf16, {.metric = Flat{.normalize = normalize}}, 1, 1,
                       "flat" + way);
      }
      expect_forward(c, DType::f16, {.metric = LayerChange{}}, 0, 1, "layer-change");
      Made agree(c, 7, DType::bf16);
      agree.put("v_prev", Tensor::copy(agree["v"], DType::bf16));
      forward(agree, {.metric = LayerChange{}, .backend = Backend::cuda});
      const Tensor by_metric = Tensor::copy(agree["o"], DType::f32);
      forward(agree, {.backend = Backend::cuda});
      const Tensor plain = Tensor::copy(agree["o"], DType::f32);
      for (std::int64_t i = 0; i < plain.view().count(); ++i)
        ASSERT_EQ(by_metric.data<float>()[i], plain.data<float>()[i]) << "o at " << i;
    }
  }
}
#endif

}  // namespace
}  // namespace foci
