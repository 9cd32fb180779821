// SPDX-License-Identifier: Apache-2.0
// Every shape, metric, weighting, type and instruction set of the CPU backend against ref in double
// by the tolerance rule.
#include "three.hpp"

namespace foci {
namespace {

using namespace cases;

class CpuSweep : public testing::TestWithParam<NamedWeighting> {};

/// One setting on a few draws.
void expect_rule(const Case& c, const Options& how, DType dtype, const std::string& what) {
  Rule rule;
  for (std::uint64_t seed = 1; seed <= 4; ++seed) {
    Three three(c, dtype, 1, seed);
    give_metric(three.ours, how.metric);
    if (!served(three.ours, how)) return;
    three.compare(how, rule);
  }
  rule.expect(what);
}

TEST_P(CpuSweep, follows_ref) {
  const Weighting weighting = GetParam().weighting;
  on_every_isa([&] {
    for (const Case& c : shapes()) {
      for (const auto& [name, metric] : metrics()) {
        for (const bool causal : {false, true}) {
          for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
            const std::string what = std::string(c.name) + " " + name +
                                     (causal ? " causal " : " ") + std::string(name_of(dtype));
            Options how{.metric = metric, .weighting = weighting, .causal = causal};
            how.metric_grad = MetricGrad::detached;
            expect_rule(c, how, dtype, what);
            how.metric_grad = MetricGrad::through;
            expect_rule(c, how, dtype, what + " through");
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
