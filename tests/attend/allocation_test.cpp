// SPDX-License-Identifier: Apache-2.0
// A call with a workspace allocates nothing: not for any mechanism, forward, backward or decoding.
#include "allocations.hpp"
#include "mechanisms.hpp"

#include <foci/decode.hpp>
#include <foci/executor.hpp>

#include <gtest/gtest.h>

namespace foci {
namespace {

using namespace cases;

TEST(Allocation, the_counter_counts) {
  const std::int64_t before = allocations;
  std::vector<int> some(100);
  EXPECT_GT(allocations, before) << some.size();
}

TEST(Allocation, none_with_a_workspace) {
  Executor two(2);
  for (const auto& metric : metrics()) {
    for (const auto& weighting : weightings()) {
      const Options how{.metric = metric.metric,
                        .weighting = weighting.weighting,
                        .metric_grad = MetricGrad::through};
      Made made(shape("padded"));
      give_metric(made, how.metric);
      if (!refused(made.inputs(), how).empty()) continue;
      const Inputs from = made.inputs();
      const Outputs to = all_outputs(made, how);
      const Gradients back = all_gradients(made, how);
      std::vector<std::byte> workspace(need(from, how, 2).workspace);
      const Call call{.workspace = workspace, .threads = &two};
      const std::int64_t before = allocations;
      attend(to, from, how, call);
      attend_backward(back, from, to, how, call);
      EXPECT_EQ(allocations, before) << metric.name << " " << weighting.name;
    }
  }
}

TEST(Allocation, none_while_decoding) {
  for (const auto& metric : metrics()) {
    const Options how{.metric = metric.metric, .causal = true};
    Made made({"token", 1, 4, 2, 1, 1, 4, 4});
    give_metric(made, how.metric);
    if (!refused(made.inputs(), how).empty()) continue;
    Decoder decoder({.B = 1, .H = 4, .G = 2, .D = 4, .E = 4, .capacity = 10, .dtype = DType::f64},
                    how);
    const Outputs to{.o = made.fresh("o", {1, 4, 1, 4}, DType::f64)};
    const Inputs from = made.inputs();
    const std::int64_t before = allocations;
    for (int t = 0; t < 10; ++t) decoder.step(to, from);
    EXPECT_EQ(allocations, before) << metric.name;
  }
}

}  // namespace
}  // namespace foci
