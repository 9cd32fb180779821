// SPDX-License-Identifier: Apache-2.0
// Whole calls with diagonal metrics over 16 bits as a training step makes them: o, lse for the way
// back, gradients of the tensors. More keys than the exact routes take, so that queries are
// rounded.
#include "cpu/three.hpp"
#include "cuda/gpu.hpp"

namespace foci {
namespace {

using namespace cases;

/// Only what a training step asks for.
void train(Made& made, Options how, bool deterministic) {
  const Case& c = made.c;
  const Inputs from = made.inputs();
  how.backend = made.dtype == DType::f64 ? Backend::ref : how.backend;
  std::vector<std::byte> workspace(need(from, how, 1).workspace);
  const Call call{.workspace = workspace, .deterministic = deterministic, .lse_for_backward = true};
  const DType wide = made.dtype == DType::f64 ? DType::f64 : DType::f32;
  Outputs to;
  to.o = made.fresh("o", {c.B, c.H, c.N, c.E}, made.dtype);
  to.lse = made.fresh("rough", {c.B, c.H, c.N}, wide);
  attend(to, from, how, call);
  Gradients back{.d_o = made.find("d_o")};
  back.dq = made.fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  back.dk = made.fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  back.dv = made.fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  back.dv_prev = made.fresh("dv_prev", {c.B, c.G, c.M, c.E}, made.dtype);
  attend_backward(back, from, to, how, call);
}

void expect_rule(const Case& c, DType dtype, Options how, double size, const std::string& what) {
  FOCI_WANT_GPU();
  Rule rule;
  for (const bool deterministic : {false, true}) {
    Three three(c, dtype, size, deterministic ? 5 : 6);
    for (const char* name : {"q", "k", "v", "v_prev", "d_o", "key_mask"}) three.share(name);
    how.backend = Backend::cuda;
    train(three.ours, how, deterministic);
    how.backend = Backend::ref;
    train(three.naive, how, true);
    train(three.exact, how, true);
    rule.add(three.ours, three.naive, three.exact);
  }
  rule.expect(what + " " + std::string(name_of(dtype)) + " size " + std::to_string(size));
}

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
}

}  // namespace
}  // namespace foci
