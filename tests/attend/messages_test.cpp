// SPDX-License-Identifier: Apache-2.0
// Every message a bad call can get, triggered: one line that says what it got and what it needs.
#include "mechanisms.hpp"
#include "thrown.hpp"

#include <foci/device.hpp>
#include <foci/error.hpp>
#include <foci/executor.hpp>

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

class Messages : public testing::Test {
 protected:
  Made made_{shape("small")};  // B 2, H 4, G 2, N 9, M 9, D 4, E 4
  Inputs from_ = made_.inputs();
  Options how_;
  Outputs to_{.o = made_.fresh("o", {2, 4, 9, 4}, DType::f64)};
  Gradients back_{.d_o = made_.find("d_o")};

  std::string forward() {
    const std::string message = thrown<InvalidArgument>([&] { attend(to_, from_, how_); });
    for (const double x : made_["o"].values())
      EXPECT_TRUE(std::isnan(x)) << "something was written";
    return message;
  }
  std::string backward() {
    return thrown<InvalidArgument>([&] { attend_backward(back_, from_, {}, how_); });
  }
  View room(const std::string& name, const Shape& shape, DType dtype = DType::f64) {
    return made_.fresh(name, shape, dtype);
  }
};

TEST_F(Messages, about_q_k_and_v) {
  const Inputs good = from_;
  from_.q = {};
  EXPECT_EQ(forward(), "q is missing; it must be (B,H,N,D)");
  from_ = good;
  from_.k = room("x", {2, 9, 4});
  EXPECT_EQ(forward(), "k has shape (2, 9, 4); it must be (B,G,M,D)");
  from_.k = room("x", {2, 2, 9, 4}, DType::i64);
  EXPECT_EQ(forward(), "k has type i64; it must be f64, f32, bf16 or f16");
  from_.k = room("x", {2, 2, 9, 8});
  EXPECT_EQ(forward(), "k has shape (2, 2, 9, 8); it must be (B,G,M,D) = (2, 2, 9, 4)");
  from_.k = room("x", {2, 3, 9, 4});
  EXPECT_EQ(forward(), "q has 4 heads and k has 3; query heads must be a multiple of key heads");
  from_.k = room("x", {2, 2, 9, 4}, DType::f32);
  EXPECT_EQ(forward(), "k has type f32; it must be f64 like q");
  from_ = good;
  from_.v = room("x", {2, 2, 8, 4});
  EXPECT_EQ(forward(), "v has shape (2, 2, 8, 4); it must be (B,G,M,E) = (2, 2, 9, 4)");
  from_.v = room("x", {2, 2, 9, 4}, DType::bf16);
  EXPECT_EQ(forward(), "v has type bf16; it must be f64 like q");
  from_.v = room("x", {2, 2, 9, 0});
  EXPECT_EQ(forward(), "v has shape (2, 2, 9, 0): the value size E must be at least 1");
  from_ = good;
  from_.q = room("x", {2, 4, 9, 0});
  EXPECT_EQ(forward(), "q has shape (2, 4, 9, 0): the head size D must be at least 1");
  from_ = good;
  from_.q.data = nullptr;
  EXPECT_EQ(forward(), "q has no memory behind it");
  from_ = good;
  from_.q.shape[2] = -1;
  EXPECT_EQ(forward(), "q has shape (2, 4, -1, 4): sizes are not negative");
}

TEST_F(Messages, about_masks_and_biases) {
  from_.key_mask = room("x", {2, 8}, DType::boolean);
  EXPECT_EQ(forward(), "key_mask has shape (2, 8); it must be (B,M) = (2, 9)");
  from_.key_mask = room("x", {2, 9}, DType::f64);
  EXPECT_EQ(forward(), "key_mask has type f64; it must be boolean");
  from_.key_mask = {};
  from_.key_bias = room("x", {2, 3, 9});
  EXPECT_EQ(forward(),
            "key_bias has shape (2, 3, 9); it must be (B,H,M) = (2, 4, 9) or (B,G,M) = (2, 2, 9)");
  from_.key_bias = room("x", {2, 4, 8});
  EXPECT_EQ(forward(),
            "key_bias has shape (2, 4, 8); it must be (B,H,M) = (2, 4, 9) or (B,G,M) = (2, 2, 9)");
  from_.key_bias = room("x", {2, 4, 9}, DType::i32);
  EXPECT_EQ(forward(), "key_bias has type i32; it must be f64, f32, bf16 or f16");
  from_.key_bias = room("x", {2, 4, 9});
  how_.weighting = Linear{};
  EXPECT_EQ(forward(), "weighting linear has no scores to add a key_bias to: leave it out");
  how_.weighting = Decay{};
  how_.causal = true;
  EXPECT_EQ(forward(),
            "weighting decay without content has no scores to add a key_bias to: leave it out");
}

TEST_F(Messages, about_values_of_the_layer_below) {
  how_.metric = LayerChange{};
  from_.v_prev = {};
  EXPECT_EQ(forward(),
            "metric layer-change compares values with those of the layer below: v_prev is missing "
            "(the lowest layer has none: use dot)");
  from_.v_prev = room("x", {2, 2, 9, 3});
  EXPECT_EQ(forward(), "v_prev has shape (2, 2, 9, 3); it must be (B,G,M,E) = (2, 2, 9, 4)");
  from_.v_prev = room("x", {2, 2, 9, 4}, DType::f32);
  EXPECT_EQ(forward(), "v_prev has type f32; it must be f64 like q");
  how_.metric = Flat{};
  from_.v = room("y", {2, 2, 9, 6});
  EXPECT_EQ(forward(),
            "metric flat weighs head dimensions by how values change, so it needs E = D; E is 6 "
            "and D is 4");
}

TEST_F(Messages, about_given_metrics) {
  how_.metric = Given{};
  EXPECT_EQ(forward(), "metric given needs the tensor `metric`, which is missing");
  from_.metric = room("m", {2, 3, 1, 4});
  EXPECT_EQ(forward(),
            "metric has shape (2, 3, 1, 4); a given diagonal metric is (1|B, G|H, 1|N, D) with B = "
            "2, G = 2, H = 4, N = 9, D = 4");
  from_.metric = room("m", {2, 2, 1, 4}, DType::bf16);
  EXPECT_EQ(forward(), "metric has type bf16; it must be f32 or f64");
  Tensor m(DType::f64, {2, 2, 1, 4});
  m.data<double>()[5] = -0.5;
  from_.metric = m;
  EXPECT_EQ(forward(), "metric[0,1,0,1] is -0.5; a given metric must be finite and >= 0");
  from_.metric.data = nullptr;
  EXPECT_EQ(forward(), "metric has no memory behind it");
  how_.metric = Given{Form::product, Extent::full};
  from_.metric = m;
  EXPECT_EQ(forward(),
            "metric has shape (2, 2, 1, 4); a given full metric is (1|B, G, D, D) with B = 2, G = "
            "2, D = 4");
  Tensor P(DType::f64, {1, 2, 4, 4});
  P.data<double>()[1] = 2;
  from_.metric = P;
  EXPECT_EQ(forward(),
            "metric[0,0,1,0] is 0 but its mirror image is 2; a given full metric must be finite "
            "and symmetric");
  P.data<double>()[4] = 2;
  EXPECT_EQ(forward(), "metric given: P of batch 0, key head 0 is not positive semidefinite");
  how_.metric = Dot{};
  EXPECT_EQ(forward(),
            "a metric tensor came along, but the metric is dot: use given, or leave it out");
}

TEST_F(Messages, about_sizes_that_no_memory_holds) {
  from_.q.shape[3] = from_.k.shape[3] = std::int64_t(1) << 60;
  EXPECT_EQ(forward(),
            "q has shape (2, 4, 9, 1152921504606846976): more elements than memory can hold");
  from_ = made_.inputs();
  for (View* view : {&from_.q, &from_.k, &from_.v, &from_.v_prev, &to_.o})
    *view = view->sliced(0, 0, 1).sliced(1, 0, 1).sliced(2, 0, 1);
  for (View* view : {&from_.q, &from_.k}) {
    view->shape[3] = std::int64_t(1) << 40;
    view->strides[3] = 0;
  }
  how_.metric = KeyCovariance{};
  EXPECT_EQ(thrown<InvalidArgument>([&] { need(from_, how_); }),
            "these sizes ask for more memory than any machine can address");
}

TEST_F(Messages, a_refused_metric_is_not_even_echoed) {
  Tensor P(DType::f64, {1, 2, 4, 4});
  P.data<double>()[1] = P.data<double>()[4] = 2;
  from_.metric = P;
  how_.metric = Given{Form::product, Extent::full};
  to_.metric = room("metric_used", {1, 2, 4, 4});
  EXPECT_EQ(forward(), "metric given: P of batch 0, key head 0 is not positive semidefinite");
  for (const double x : made_["metric_used"].values()) EXPECT_TRUE(std::isnan(x));
}

TEST_F(Messages, about_packed_sequences) {
  Tensor offsets(DType::i64, {2});
  offsets.data<std::int64_t>()[1] = 9;
  from_.q_offsets = offsets;
  EXPECT_EQ(forward(), "packed sequences need both q_offsets and k_offsets; one is missing");
  from_.k_offsets = offsets;
  EXPECT_EQ(forward(), "packed sequences need B = 1; q has B = 2");
  for (View* view : {&from_.q, &from_.k, &from_.v, &from_.v_prev, &to_.o})
    *view = view->sliced(0, 0, 1);
  from_.q_offsets = room("x", {2, 1}, DType::i64);
  EXPECT_EQ(forward(), "q_offsets has shape (2, 1); it must be (S+1)");
  from_.q_offsets = room("x", {2}, DType::f64);
  EXPECT_EQ(forward(), "q_offsets has type f64; it must be i64 or i32");
  offsets.data<std::int64_t>()[0] = 1;
  from_.q_offsets = offsets;
  EXPECT_EQ(forward(), "q_offsets[0] is 1; offsets begin at 0 and never fall");
  offsets.data<std::int64_t>()[0] = 0;
  offsets.data<std::int64_t>()[1] = 8;
  EXPECT_EQ(forward(), "q_offsets ends at 8; there are 9 tokens");
  offsets.data<std::int64_t>()[1] = 9;
  Tensor two(DType::i32, {3});
  two.data<std::int32_t>()[1] = 4;
  two.data<std::int32_t>()[2] = 9;
  from_.k_offsets = two;
  EXPECT_EQ(forward(), "q_offsets tells of 1 sequences and k_offsets of 2");
}

TEST_F(Messages, about_pairs_that_do_not_fit) {
  how_ = {.metric = KeyCovariance{}, .weighting = Relu2{}};
  EXPECT_EQ(forward(),
            "metric key-covariance (a full metric) does not go with weighting relu2: its scores "
            "are never positive, so every weight would be 0 "
            "(use softmax or identity)");
  how_.weighting = Linear{};
  EXPECT_EQ(forward(),
            "metric key-covariance (a full metric) does not go with weighting linear: "
            "phi(q).phi(k) has no place for a bias per key (use softmax or "
            "identity)");
  how_ = {.metric = Dot{Form::distance}, .weighting = Relu2{}};
  EXPECT_NE(forward().find("metric dot with form distance does not go with weighting relu2"),
            std::string::npos);
  how_ = {.weighting = Decay{}};
  EXPECT_EQ(forward(), "weighting decay looks back in time and is causal only: set causal");
}

TEST_F(Messages, about_numbers_out_of_range) {
  how_.metric = KeyCovariance{.ridge = -1};
  EXPECT_EQ(forward(), "ridge is -1; it must be a finite number >= 0");
  how_.metric = KeyCovariance{.ridge = std::nan("")};
  EXPECT_EQ(forward(), "ridge is nan; it must be a finite number >= 0");
  how_.metric = KeyCovariance{.prior = -2.0};
  EXPECT_EQ(forward(), "prior is -2; it must be a finite number >= 0");
  how_.metric = KeyCovariance{.period = 0};
  EXPECT_EQ(forward(), "period is 0; it must be at least 1 key");
  how_.metric = Random{.floor = 1.5};
  EXPECT_EQ(forward(), "floor is 1.5; it must lie in [0, 1]");
  how_ = {.weighting = Decay{0.0}, .causal = true};
  EXPECT_EQ(forward(), "rate is 0; it must lie in (0, 1]");
  how_ = {.scale = -1.0};
  EXPECT_EQ(forward(), "scale is -1; it must be a finite number > 0");
}

TEST_F(Messages, about_leaks) {
  how_ = {.metric = LayerChange{.scope = Scope::sequence}, .causal = true};
  EXPECT_EQ(forward(),
            "metric layer-change: scope sequence in a causal call would let the estimate see "
            "future tokens: use scope prefix, or set allow_leak to do "
            "it knowingly");
  how_.allow_leak = true;
  EXPECT_NO_THROW(attend(to_, from_, how_));
  to_.o = made_.fresh("o", {2, 4, 9, 4}, DType::f64);
  how_.metric = LayerChange{.reduce = Reduce::median};
  EXPECT_EQ(forward(),
            "metric layer-change: reduce median cannot run along a prefix: use reduce mean, or "
            "scope sequence");
  how_ = {.metric = KeyCovariance{}, .scale = MatchDot{}, .causal = true};
  EXPECT_EQ(forward(),
            "scale auto looks at all queries and would leak the future into a causal call: give a "
            "number");
  how_ = {.scale = MatchDot{}};
  EXPECT_EQ(forward(),
            "scale auto belongs to a full metric (key-covariance, or given with extent full), not "
            "to dot");
  how_ = {.metric = KeyCovariance{}, .weighting = Identity{}, .scale = MatchDot{}};
  EXPECT_EQ(forward(),
            "scale auto matches softmax attention's concentration; the weighting is identity");
}

TEST_F(Messages, about_outputs) {
  const Outputs good = to_;
  to_.o = {};
  EXPECT_EQ(forward(), "o is missing; it must be (B,H,N,E)");
  to_.o = room("x", {2, 4, 9, 5});
  EXPECT_EQ(forward(), "o has shape (2, 4, 9, 5); it must be (B,H,N,E) = (2, 4, 9, 4)");
  to_.o = room("x", {2, 4, 9, 4}, DType::f32);
  EXPECT_EQ(forward(), "o has type f32; it must be f64 like q");
  to_ = good;
  to_.o.strides[0] = 0;
  EXPECT_EQ(forward(), "o is written to, but its axis 0 has stride 0: its elements overlap");
  to_ = good;
  to_.concentration = room("x", {2, 4, 8});
  EXPECT_EQ(forward(), "concentration has shape (2, 4, 8); it must be (B,H,N) = (2, 4, 9)");
  to_.concentration = room("x", {2, 4, 9}, DType::bf16);
  EXPECT_EQ(forward(), "concentration has type bf16; it must be f32 or f64");
  to_ = good;
  to_.largest_at = room("x", {2, 4, 9}, DType::i32);
  EXPECT_EQ(forward(), "largest_at has type i32; it must be i64");
  to_ = good;
  to_.metric = room("x", {2, 2, 1, 4});
  EXPECT_EQ(forward(), "dot has no metric to write out");
  to_ = good;
  to_.status = room("x", {2, 2}, DType::i32);
  EXPECT_EQ(forward(), "status belongs to full metrics; the metric is dot");
  to_ = good;
  to_.scale = room("x", {2, 2});
  EXPECT_EQ(forward(), "scale is written for full metrics; the metric is dot");
  to_ = good;
  how_.weighting = Identity{};
  to_.lse = room("x", {2, 4, 9});
  EXPECT_EQ(forward(), "lse belongs to softmax; the weighting is identity");
  to_ = good;
  to_.entropy = room("x", {2, 4, 9});
  EXPECT_EQ(forward(),
            "entropy needs weights that sum to one (softmax, linear, decay without content); the "
            "weighting is identity");
  how_ = {.metric = KeyCovariance{}};
  to_ = good;
  to_.status = room("x", {2, 3}, DType::i32);
  EXPECT_EQ(forward(),
            "status has shape (2, 3); it must be the metric's shape without (D,D) = (2, 2)");
}

TEST_F(Messages, about_gradients) {
  const Gradients good = back_;
  back_.d_o = {};
  EXPECT_EQ(backward(), "d_o is missing; it must be (B,H,N,E)");
  back_.d_o = room("x", {2, 4, 9, 5});
  EXPECT_EQ(backward(), "d_o has shape (2, 4, 9, 5); it must be (B,H,N,E) = (2, 4, 9, 4)");
  back_ = good;
  back_.dq = room("x", {2, 4, 9, 5});
  EXPECT_EQ(backward(), "dq has shape (2, 4, 9, 5); it must be (B,H,N,D) = (2, 4, 9, 4)");
  back_ = good;
  back_.dmetric = room("x", {2, 2, 1, 4});
  EXPECT_EQ(backward(), "dmetric is asked for, but dot has no metric");
  back_ = good;
  back_.dkey_bias = room("x", {2, 2, 9});
  EXPECT_EQ(backward(), "dkey_bias is asked for, but there is no key_bias");
  back_ = good;
  from_.key_bias = room("b", {2, 4, 9}, DType::bf16);
  back_.dkey_bias = room("x", {2, 4, 9}, DType::f16);
  EXPECT_EQ(backward(), "dkey_bias has type f16; it must be f32 or f64");
  back_.dkey_bias = room("x", {2, 4, 9}, DType::bf16);
  EXPECT_NO_THROW(attend_backward(back_, from_, {}, how_));
  from_.key_bias = {};
  back_ = good;
  from_.v_prev = {};
  back_.dv_prev = room("x", {2, 2, 9, 4});
  EXPECT_EQ(backward(), "dv_prev is asked for, but there is no v_prev");
}

TEST_F(Messages, about_backends_workspace_and_threads) {
  how_.backend = Backend::cpu;
  EXPECT_EQ(thrown<Unsupported>([&] { attend(to_, from_, how_); }),
            "backend cpu computes in f32 and takes no f64; the nearest that can is backend ref");
  how_.backend = Backend::cuda;
  EXPECT_EQ(thrown<Unsupported>([&] { need(from_, how_); }),
            has_cuda() ? "backend cuda computes in f32 and takes no f64; the nearest that can is "
                         "backend ref"
                       : "backend cuda is not in this build; it has: cpu, ref");
  how_ = {};
  EXPECT_EQ(thrown<InvalidArgument>([&] { need(from_, how_, 0); }),
            "threads is 0; it must be at least 1");
  Executor two(2);
  const std::size_t one = need(from_, how_).workspace;
  std::vector<std::byte> workspace(one);
  EXPECT_EQ(thrown<InvalidArgument>(
                [&] { attend(to_, from_, how_, {.workspace = workspace, .threads = &two}); }),
            "the workspace has " + std::to_string(one) + " bytes; this call on 2 thread(s) needs " +
                std::to_string(2 * one) + " (see need())");
}

/// The support table says what the checks do.
TEST(SupportTable, agrees_with_the_checks) {
  const std::vector<Support> table = support();
  EXPECT_EQ(table.size(), std::size_t(3 * 7 * 5));
  int refusals = 0;
  for (const Support& cell : table) {
    EXPECT_EQ(cell.supported, cell.why_not.empty());
    if (cell.backend == "cuda" && !has_cuda()) {
      EXPECT_FALSE(cell.supported);
      continue;
    }
    const bool fits = !(cell.metric == "key-covariance" &&
                        (cell.weighting == "relu2" || cell.weighting == "linear"));
    EXPECT_EQ(cell.supported, fits) << cell.metric << " " << cell.weighting;
    refusals += !cell.supported;
  }
  EXPECT_EQ(refusals, has_cuda() ? 6 : 4);  // what does not fit, two on each backend
}

}  // namespace
}  // namespace foci
