// SPDX-License-Identifier: Apache-2.0
// Every shape, metric, weighting and type of the CUDA backend against ref in double by the
// tolerance rule.
#include "cpu/three.hpp"
#include "cuda/gpu.hpp"

#include <sstream>

namespace foci {
namespace {

using namespace cases;

class CudaSweep : public testing::TestWithParam<NamedWeighting> {};

/// Whether metric_grad changes anything.
bool estimated(const Metric& metric) {
  return !std::holds_alternative<Dot>(metric) && !std::holds_alternative<Random>(metric) &&
         !std::holds_alternative<Given>(metric);
}

bool is_long(const Case& c) { return c.N > 100 || c.M > 100; }

/// FOCI_SWEEP=words: settings whose names have all of them. Without it all on a GPU; the emulator
/// would take an hour, and takes short ones here and there.
bool asked_for(const std::string& what, const Case& c) {
  const char* words = std::getenv("FOCI_SWEEP");
#ifdef FOCI_EMULATED
  static int count = 0;
  if (!words) return c.N < 20 && ++count % 83 == 0;
#else
  static_cast<void>(c);
#endif
  std::istringstream each(words ? words : "");
  for (std::string word; each >> word;) {
    if ((" " + what + " ").find(" " + word + " ") == std::string::npos) return false;
  }
  return true;
}

/// One setting on a few draws; where those do not decide, a fixed larger number of them does.
void expect_rule(const Case& c, const Options& how, DType dtype, const std::string& what) {
  if (!asked_for(what, c)) return;
  const std::uint64_t few = is_long(c) ? 1 : 2, many = is_long(c) ? 4 : 32;
  Rule rule;
  const auto draw = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t seed = first; seed <= last; ++seed) {
      Three three(c, dtype, 1, seed);
      give_metric(three.ours, how.metric);
      if (!served(three.ours, how, Backend::cuda)) return;
      three.answer(how);
      three.compare(how, rule, Backend::cuda);
    }
  };
  draw(1, few);
  if (!rule.holds()) draw(few + 1, many);
  rule.expect(what);
}

TEST_P(CudaSweep, follows_ref) {
  FOCI_WANT_GPU();
  for (const Case& c : shapes()) {
    for (const auto& [name, metric] : metrics()) {
      for (const int setting : {0, 1, 2, 3, 4, 5}) {
        if (is_long(c) && setting > 3) continue;  // f16 is served by the kernels of bf16
        const DType dtype = std::array{DType::f32, DType::bf16, DType::f16}[setting / 2];
        Options how{.metric = metric, .weighting = GetParam().weighting, .causal = setting % 2 > 0};
        const std::string what = std::string(c.name) + " " + name +
                                 (how.causal ? " causal " : " ") + std::string(name_of(dtype));
        how.metric_grad = MetricGrad::detached;
        expect_rule(c, how, dtype, what);
        how.metric_grad = MetricGrad::through;
        if (estimated(metric)) expect_rule(c, how, dtype, what + " through");
      }
    }
  }
}

#ifndef FOCI_EMULATED
/// Heads and sequences long enough for kernels of their own (softmax_wgmma), with a key bias whose
/// gradient is asked for, with holes, in groups, and far below 0.
TEST(CudaWideHeads, follow_ref) {
  FOCI_WANT_GPU();
  for (const Case& c : {Case{"long", 1, 4, 2, 197, 300, 64, 64, Masked::holes},
                        Case{"tall", 2, 2, 2, 321, 257, 64, 64},
                        Case{"wide", 1, 4, 2, 197, 300, 128, 128, Masked::tail},
                        Case{"wide tall", 1, 2, 2, 257, 193, 128, 128}}) {
    for (const int setting : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
      const DType dtype = setting % 2 ? DType::f16 : DType::bf16;
      Options how{.causal = (setting & 2) != 0};
      Three three(c, dtype, 1, 3);
      if (setting & 4) {
        three.ours.normal("key_bias", {c.B, c.H, c.M}, 1);
        Tensor low = Tensor::copy(three.ours["key_bias"], DType::f32);
        for (std::int64_t i = 0; i < low.view().count(); ++i) low.data<float>()[i] -= 120;
        three.ours.put("key_bias", std::move(low));
      } else if (setting < 2) {
        how.metric = LayerChange{};
      }
      Rule rule;
      three.answer(how);
      three.compare(how, rule, Backend::cuda);
      const std::string what = std::string(c.name) + (how.causal ? " causal" : "") +
                               (setting & 4   ? " biased "
                                : setting < 2 ? " layer-change "
                                              : " ") +
                               std::string(name_of(dtype));
      rule.expect(what);
      EXPECT_EQ(three.ours["largest_at"].values(), three.exact["largest_at"].values()) << what;
    }
  }
}
#endif

INSTANTIATE_TEST_SUITE_P(Weightings, CudaSweep, testing::ValuesIn(weightings()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace foci
