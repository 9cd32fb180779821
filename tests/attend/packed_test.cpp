// SPDX-License-Identifier: Apache-2.0
// Packed sequences of different lengths against each of them alone: outputs, metrics and gradients,
// to the bit.
#include "mechanisms.hpp"

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

class Packed : public testing::Test {
 protected:
  static constexpr std::int64_t lengths_q_[3] = {3, 7, 1}, lengths_k_[3] = {5, 7, 9};

  static Tensor offsets(const std::int64_t* lengths, DType dtype) {
    Tensor made(DType::i64, {4});
    for (int s = 0; s < 3; ++s)
      made.data<std::int64_t>()[s + 1] = made.data<std::int64_t>()[s] + lengths[s];
    return Tensor::copy(made, dtype);
  }

  static void expect_part(const Tensor& whole, int axis, std::int64_t begin, const Tensor& part,
                          const std::string& what) {
    const View view = whole.view().sliced(axis, begin, begin + part.view().shape[axis]);
    EXPECT_EQ(Tensor::copy(view, DType::f64).values(), part.values()) << what;
  }
};

TEST_F(Packed, equal_sequences_attended_alone) {
  for (const auto& metric : metrics()) {
    if (std::holds_alternative<Given>(metric.metric)) continue;
    for (const bool causal : {false, true}) {
      const Options how{
          .metric = metric.metric, .causal = causal, .metric_grad = MetricGrad::through};
      Made all({"packed", 1, 4, 2, 11, 21, 4, 4, Masked::holes}, 6);
      const Tensor q_offsets = offsets(lengths_q_, DType::i64),
                   k_offsets = offsets(lengths_k_, DType::i32);
      Inputs from = all.inputs();
      from.q_offsets = q_offsets;
      from.k_offsets = k_offsets;
      if (!refused(from, how).empty()) continue;
      Outputs to = all_outputs(all, how);
      const Shape shape = metric_shape(from, how);
      if (!shape.empty()) to.metric = all.fresh("metric_used", shape, DType::f64);
      attend(to, from, how);
      Gradients back = all_gradients(all, how);
      if (!shape.empty()) back.dmetric = all.fresh("dmetric", shape, DType::f64);
      attend_backward(back, from, to, how);

      std::int64_t q0 = 0, k0 = 0, chunk0 = 0;
      for (int s = 0; s < 3; ++s) {
        SCOPED_TRACE(metric.name + (causal ? " causal " : " ") + std::to_string(s));
        Made one({"one", 1, 4, 2, lengths_q_[s], lengths_k_[s], 4, 4}, 6);
        for (const char* name : {"q", "d_o"})
          one.put(name,
                  Tensor::copy(all[name].view().sliced(2, q0, q0 + lengths_q_[s]), DType::f64));
        for (const char* name : {"k", "v", "v_prev"}) {
          one.put(name,
                  Tensor::copy(all[name].view().sliced(2, k0, k0 + lengths_k_[s]), DType::f64));
        }
        one.put("key_mask", Tensor::copy(all["key_mask"].view().sliced(1, k0, k0 + lengths_k_[s]),
                                         DType::boolean));
        run(one, how);
        for (const char* name : {"o", "lse", "entropy", "dq"})
          expect_part(all[name], 2, q0, one[name], name);
        for (const char* name : {"dk", "dv", "dv_prev"})
          expect_part(all[name], 2, k0, one[name], name);
        if (!shape.empty()) {
          const bool by_chunk = shape.size() == 5, by_query = causal && !by_chunk && shape[2] > 1;
          const int axis = by_chunk || by_query ? 2 : 0;
          expect_part(all["metric_used"], axis,
                      by_chunk   ? chunk0
                      : by_query ? q0
                                 : s,
                      one["metric_used"], "metric");
          if (by_chunk) chunk0 += one["metric_used"].view().shape[2];
        }
        q0 += lengths_q_[s];
        k0 += lengths_k_[s];
      }
    }
  }
}

TEST_F(Packed, given_metrics_fit_too) {
  for (const Shape& shape : {Shape{3, 2, 1, 4}, Shape{1, 2, 1, 4}, Shape{1, 4, 11, 4}}) {
    Made all({"packed", 1, 4, 2, 11, 21, 4, 4}, 6);
    Tensor m = Tensor::copy(all.normal("metric", shape, 1), DType::f64);
    for (std::int64_t i = 0; i < m.view().count(); ++i)
      m.data<double>()[i] = std::abs(m.data<double>()[i]);
    all.put("metric", std::move(m));
    const Tensor q_offsets = offsets(lengths_q_, DType::i64),
                 k_offsets = offsets(lengths_k_, DType::i64);
    Inputs from = all.inputs();
    from.q_offsets = q_offsets;
    from.k_offsets = k_offsets;
    const Options how{.metric = Given{}};
    const View dmetric = all.fresh("dmetric", shape, DType::f64);
    const View o = all.fresh("o", {1, 4, 11, 4}, DType::f64);
    attend({.o = o}, from, how);
    attend_backward({.d_o = all.find("d_o"), .dmetric = dmetric}, from, {}, how);
    for (const char* name : {"o", "dmetric"}) {
      for (const double x : all[name].values()) EXPECT_TRUE(std::isfinite(x)) << name;
    }
  }
}

/// One query in all, in the second of two sequences: it has that sequence's metric.
TEST_F(Packed, one_query_finds_its_own_metric) {
  Made all({"packed", 1, 1, 1, 1, 4, 2, 2}, 6);
  Tensor q_offsets(DType::i64, {3}), k_offsets(DType::i64, {3}), m(DType::f64, {2, 1, 1, 2});
  q_offsets.data<std::int64_t>()[2] = 1;
  k_offsets.data<std::int64_t>()[1] = 2;
  k_offsets.data<std::int64_t>()[2] = 4;
  m.data<double>()[0] = m.data<double>()[1] = 50;  // the first sequence's, which nobody asks
  Inputs from = all.inputs();
  from.metric = m;
  from.q_offsets = q_offsets;
  from.k_offsets = k_offsets;
  const View dmetric = all.fresh("dmetric", {2, 1, 1, 2}, DType::f64);
  attend({.o = all.fresh("o", {1, 1, 1, 2}, DType::f64)}, from, {.metric = Given{}});
  attend_backward({.d_o = all.find("d_o"), .dmetric = dmetric}, from, {}, {.metric = Given{}});
  for (int e = 0; e < 2; ++e) {  // a metric of zeros sees both keys alike
    EXPECT_DOUBLE_EQ(all["o"].data<double>()[e],
                     (all["v"].data<double>()[4 + e] + all["v"].data<double>()[6 + e]) / 2);
    EXPECT_EQ(all["dmetric"].data<double>()[e], 0.0);
    EXPECT_NE(all["dmetric"].data<double>()[2 + e], 0.0);
  }
}

}  // namespace
}  // namespace foci
