// SPDX-License-Identifier: Apache-2.0
// Full metrics of the CPU backend that are given, and the gradient of all of them: written out, and
// sent back through the estimates, against its formula.
#include "cpu/choose.hpp"
#include "cpu/full_head.hpp"
#include "thrown.hpp"

#include <gtest/gtest.h>

namespace foci::cpu {
namespace {

using namespace cases;

class FullMetricOf : public testing::TestWithParam<const Kernels*> {
 protected:
  const Kernels& isa = *GetParam();
};

TEST_P(FullMetricOf, a_given_one_is_factored_even_where_it_is_flat) {
  for (const std::int64_t rank : {1, 5, 9}) {
    Made made({"given", 1, 2, 2, 6, 7, 9, 4}, 1, DType::f32);
    Tensor P(DType::f64, {1, 2, 9, 9});
    const Tensor& half = made.normal("half", {2, 9, rank}, 1);
    for (int i = 0; i < 162; ++i) {
      P.data<double>()[i] = 0;
      for (int l = 0; l < rank; ++l)
        P.data<double>()[i] += double(half.data<float>()[i / 9 * rank + l]) *
                               double(half.data<float>()[(i / 81 * 9 + i % 9) * rank + l]);
    }
    made.put("metric", Tensor::copy(P, DType::f32));
    for (const bool causal : {false, true}) {
      FullHead head(isa, made.inputs(),
                    {.metric = Given{Form::product, Extent::full}, .causal = causal}, 0, 1);
      head.estimate();
      for (int i = 0; i < 81; ++i)
        EXPECT_NEAR(head.P(0, i / 9, i % 9), P.data<double>()[81 + i], 2e-6) << rank;
      for (int d = 0; d < 9; ++d) {
        double mean = 0;
        for (int j = 0; j < 7; ++j) mean += double(head.keys[j * 9 + d]) / 7;
        EXPECT_NEAR(head.metric.at(0).centre[d], causal ? head.keys[d] : mean, 1e-7);
      }
    }
  }
}

TEST_P(FullMetricOf, a_given_one_must_be_semidefinite) {
  Made made({"given", 2, 2, 2, 6, 0, 3, 4}, 1, DType::f32);
  Tensor P(DType::f32, {2, 2, 3, 3});
  for (int i = 0; i < 36; ++i) P.data<float>()[i] = i % 9 % 4 == 0 ? 1.0f : 0.0f;
  P.data<float>()[3 * 9 + 1] = P.data<float>()[3 * 9 + 3] = 1.5f;
  made.put("metric", std::move(P));
  const Options how{.metric = Given{Form::product, Extent::full}};
  FullHead good(isa, made.inputs(), how, 1, 0), bad(isa, made.inputs(), how, 1, 1);
  good.estimate();
  for (int d = 0; d < 3; ++d) EXPECT_EQ(good.metric.at(0).centre[d], 0.0f);
  EXPECT_EQ(thrown<InvalidArgument>([&] { bad.estimate(); }),
            "metric given: P of batch 1, key head 1 is not positive semidefinite");
}

/// dk_j += slope_c dSigma_c (k_j - mean_c), slot by slot and key by key.
std::vector<double> through_by_formula(const FullHead& head) {
  const std::int64_t D = head.p.size.D;
  std::vector<double> dk(head.keys.size()), X(D * D), A(D * D);
  const auto P = [&](std::int64_t c, std::int64_t i, std::int64_t j) { return head.P(c, i, j); };
  for (std::int64_t c = 0; c < head.metric.slots(); ++c) {
    const std::int64_t n = head.metric.count(c);
    const double* dP = head.metric.gradient(c);
    std::vector<double> mean(D), Pc(D * D);
    for (std::int64_t i = 0; i < n * D; ++i) mean[i % D] += double(head.keys[i]) / double(n);
    for (std::int64_t i = 0; i < D * D; ++i) Pc[i] = P(c, i / D, i % D);
    for (std::int64_t i = 0; i < D * D; ++i) {
      X[i] = 0;
      for (std::int64_t l = 0; l < D; ++l) X[i] += Pc[i / D * D + l] * dP[l * D + i % D];
    }
    for (std::int64_t i = 0; i < D * D; ++i) {
      A[i] = 0;
      for (std::int64_t l = 0; l < D; ++l) A[i] -= X[i / D * D + l] * Pc[l * D + i % D];
    }
    const double slope = head.metric.shrink.slope(n);
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t i = 0; i < D * D; ++i)
        dk[j * D + i / D] += slope * A[i] * (double(head.keys[j * D + i % D]) - mean[i % D]);
    }
  }
  return dk;
}

TEST_P(FullMetricOf, gradient_reaches_every_key_that_was_seen) {
  for (const bool causal : {false, true}) {
    for (const float offset : {0.0f, 1e4f}) {
      Made made({"keys", 1, 1, 1, 150, 150, 20, 4}, 5, DType::f32);
      move_keys(made, offset);
      FullHead head(
          isa, made.inputs(),
          {.metric = KeyCovariance{.ridge = 1e-2, .prior = 20.0, .period = 16}, .causal = causal});
      head.estimate(false);
      std::mt19937 random(3);
      std::normal_distribution<double> draw;
      head.metric.clear_gradient();
      for (std::int64_t c = 0; c < head.metric.slots(); ++c) {
        for (int i = 0; i < 20; ++i) {
          for (int j = 0; j <= i; ++j)
            head.metric.gradient(c)[i * 20 + j] = head.metric.gradient(c)[j * 20 + i] =
                draw(random);
        }
      }
      const std::vector<double> expected = through_by_formula(head);
      std::vector<float> dk(head.keys.size(), 0.5f);
      head.metric.through(dk.data(), head.keys.data(), head.room);
      double largest = 0;
      for (const double x : expected) largest = std::max(largest, std::abs(x));
      for (std::size_t i = 0; i < dk.size(); ++i)
        ASSERT_NEAR(dk[i], expected[i] + 0.5, 5e-7 * (largest + 0.5)) << causal << ' ' << i / 20;
      if (causal) {
        EXPECT_EQ(dk.back(), 0.5f);  // no chunk knows the last key
      }
    }
  }
}

TEST_P(FullMetricOf, gradients_are_written_and_joined) {
  Made made({"given", 1, 1, 1, 6, 7, 3, 4}, 1, DType::f32);
  made.put("metric", Tensor(DType::f32, {1, 1, 3, 3}));
  for (int i = 0; i < 9; ++i) made["metric"].data<float>()[i] = i % 4 == 0 ? 1.0f : 0.0f;
  FullHead head(isa, made.inputs(), {.metric = Given{Form::product, Extent::full}});
  head.estimate();
  head.metric.clear_gradient();
  for (int i = 0; i < 9; ++i) head.metric.gradient(0)[i] = i;
  const View to = made.fresh("dmetric", {1, 1, 3, 3}, DType::f32);
  head.metric.write_gradient(to, false);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(made["dmetric"].data<float>()[i], float(i));
  head.metric.write_gradient(to, true);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(made["dmetric"].data<float>()[i], float(2 * i));
}

INSTANTIATE_TEST_SUITE_P(Cpu, FullMetricOf,
                         testing::ValuesIn(available().begin(), available().end()),
                         [](const auto& info) { return std::string(info.param->name); });

}  // namespace
}  // namespace foci::cpu
