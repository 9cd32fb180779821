// SPDX-License-Identifier: Apache-2.0
// Every shape, metric, weighting, type and instruction set of the CPU backend against ref in double
// by the tolerance rule.
#include "three.hpp"

#include <set>

namespace foci {
namespace {

using namespace cases;

class CpuSweep : public testing::TestWithParam<NamedWeighting> {};

/// Whether metric_grad changes anything.
bool estimated(const Metric& metric) {
  return !std::holds_alternative<Dot>(metric) && !std::holds_alternative<Random>(metric) &&
         !std::holds_alternative<Given>(metric);
}

/// One setting on a few draws. Where those do not decide, a fixed larger number of them does, and
/// the largest errors of all count: in a few numbers the naive formula may be right by luck.
void expect_rule(const Case& c, const Options& how, DType dtype, const std::string& what) {
  const std::uint64_t few = c.N > 100 ? 1 : 4, many = c.N > 100 ? 4 : 32;
  std::map<std::string, Rule> rules;
  const auto draw = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t seed = first; seed <= last; ++seed) {
      Three three(c, dtype, 1, seed);
      give_metric(three.ours, how.metric);
      if (!served(three.ours, how)) return;
      three.answer(how);
      on_every_isa(dtype, [&](const std::string& isa) { three.compare(how, rules[isa]); });
    }
  };
  draw(1, few);
  bool decided = true;
  for (const auto& [isa, rule] : rules) decided = decided && rule.holds();
  if (!decided) draw(few + 1, many);
  for (const auto& [isa, rule] : rules) rule.expect(what + " " + isa);
}

/// Long sequences are dear: every metric in f32, half types where the kernels differ.
bool worth_it(const Case& c, const std::string& metric, DType dtype) {
  static const std::set<std::string> some = {"dot", "layer_change", "key_covariance",
                                             "random_distance"};
  return c.N < 100 || dtype == DType::f32 || some.contains(metric);
}

TEST_P(CpuSweep, follows_ref) {
  for (const Case& c : shapes()) {
    for (const auto& [name, metric] : metrics()) {
      for (const int setting : {0, 1, 2, 3, 4, 5}) {
        const DType dtype = std::array{DType::f32, DType::bf16, DType::f16}[setting / 2];
        if (!worth_it(c, name, dtype)) continue;
        Options how{.metric = metric, .weighting = GetParam().weighting, .causal = setting % 2 > 0};
        const std::string what = std::string(c.name) + " " + name +
                                 (how.causal ? " causal " : " ") + std::string(name_of(dtype));
        how.metric_grad = MetricGrad::detached;
        if (c.N < 100 || !estimated(metric)) expect_rule(c, how, dtype, what);
        how.metric_grad = MetricGrad::through;
        if (estimated(metric)) expect_rule(c, how, dtype, what + " through");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Weightings, CpuSweep, testing::ValuesIn(weightings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foci
