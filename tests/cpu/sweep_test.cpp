// SPDX-License-Identifier: Apache-2.0
// Every shape, metric, weighting, type and instruction set of the CPU backend against ref in double
// by the tolerance rule.
#include "three.hpp"

namespace foci {
namespace {

using namespace cases;

class CpuSweep : public testing::TestWithParam<NamedWeighting> {};

TEST_P(CpuSweep, follows_ref) {
  on_every_isa([] {
    for (const Case& c : shapes()) {
      for (const auto& metric : metrics()) {
        for (const bool causal : {false, true}) {
          for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            for (const MetricGrad grad : {MetricGrad::detached, MetricGrad::through}) {
              Three three(c, dtype);
              const Options how{.metric = metric.metric,
                                .weighting = GetParam().weighting,
                                .causal = causal,
                                .metric_grad = grad};
              give_metric(three.ours, how.metric);
              if (!served(three.ours, how)) continue;
              three.compare(how, std::string(c.name) + " " + metric.name +
                                     (causal ? " causal " : " ") + std::string(name_of(dtype)) +
                                     (grad == MetricGrad::through ? " through" : ""));
            }
          }
        }
      }
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Weightings, CpuSweep, testing::ValuesIn(weightings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foci
