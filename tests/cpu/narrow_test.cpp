// SPDX-License-Identifier: Apache-2.0
// Whole calls over bf16 on every instruction set that has kernels for it: heads of every width,
// masks, biases, statistics, grouped heads, by the tolerance rule; and that those kernels run.
#include "three.hpp"

#include <set>

namespace foci {
namespace {

using namespace cases;

template <class F>
void on_every_narrow_isa(F&& f) {
  for (const cpu::NarrowKernels* kernels : cpu::available_narrow()) {
    ASSERT_EQ(setenv("FOCI_ISA", kernels->name, 1), 0);
    SCOPED_TRACE(kernels->name);
    f(std::string(kernels->name));
  }
  unsetenv("FOCI_ISA");
}

/// Errors over a few draws, the bias drawn too; over more where those do not decide.
void expect_rule(const Case& c, const Options& how, double size, bool biased,
                 const std::string& what) {
  std::map<std::string, Rule> rules;
  const auto draw = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t seed = first; seed <= last; ++seed) {
      Three three(c, DType::bf16, size, seed);
      give_metric(three.ours, how.metric);
      if (!served(three.ours, how)) return;
      if (biased) three.ours.normal("key_bias", {c.B, c.H, c.M}, 1);
      three.answer(how);
      on_every_narrow_isa([&](const std::string& isa) { three.compare(how, rules[isa]); });
    }
  };
  draw(1, 2);
  bool decided = true;
  for (const auto& [isa, rule] : rules) decided = decided && rule.holds();
  if (!decided) draw(3, 16);
  for (const auto& [isa, rule] : rules) rule.expect(what + " " + isa);
}

const Case calls[] = {{"wide", 1, 2, 2, 130, 130, 64, 64},
                      {"grouped", 1, 4, 2, 97, 150, 33, 40},
                      {"odd", 2, 2, 1, 100, 101, 65, 31},
                      {"few_queries", 1, 2, 1, 5, 200, 16, 128},
                      {"holes", 2, 2, 1, 120, 200, 24, 24, Masked::holes},
                      {"blind", 2, 2, 2, 9, 100, 8, 8, Masked::everything}};

TEST(CpuNarrow, follows_ref) {
  const std::set<std::string> chosen = {"dot", "layer_change", "random", "given"};
  for (const Case& c : calls) {
    for (const auto& [name, metric] : metrics()) {
      if (!chosen.contains(name)) continue;
      for (const int setting : {0, 1, 2, 3}) {
        const Options how{
            .metric = metric, .causal = setting % 2 > 0, .metric_grad = MetricGrad::through};
        const std::string what = std::string(c.name) + " " + name;
        expect_rule(c, how, 1, setting / 2 > 0, what + " " + std::to_string(setting));
      }
    }
  }
}

/// Rows with one large weight: what is left of a difference of near numbers must be right.
TEST(CpuNarrow, follows_ref_where_weights_are_far_apart) {
  for (const auto& [name, metric] : metrics()) {
    if (name != "dot" && name != "layer_change" && name != "given") continue;
    for (const double size : {0.3, 3.0, 8.0}) {
      const Options how{.metric = metric, .metric_grad = MetricGrad::through};
      const std::string what = name + " of size " + std::to_string(size);
      expect_rule({"large", 1, 2, 1, 130, 130, 16, 16}, how, size, false, what);
    }
  }
}

/// What kernels over bf16 do with a bias on the way back.
TEST(CpuNarrow, follows_ref_without_the_gradient_of_the_bias) {
  const Case c{"biased", 1, 4, 2, 100, 150, 24, 24, Masked::holes};
  for (const bool causal : {false, true}) {
    const Options how{.causal = causal, .backend = Backend::cpu};
    on_every_narrow_isa([&](const std::string& isa) {
      Rule rule;
      for (std::uint64_t seed = 1; seed <= 4; ++seed) {
        Three three(c, DType::bf16, 1, seed);
        three.ours.normal("key_bias", {c.B, c.G, c.M}, 1);
        three.answer(how);
        Made& ours = three.ours;
        const Outputs to{.o = ours.fresh("o", {c.B, c.H, c.N, c.E}, DType::bf16)};
        attend(to, ours.inputs(), how);
        const Gradients back{.d_o = ours["d_o"],
                             .dq = ours.fresh("dq", {c.B, c.H, c.N, c.D}, DType::bf16),
                             .dk = ours.fresh("dk", {c.B, c.G, c.M, c.D}, DType::bf16),
                             .dv = ours.fresh("dv", {c.B, c.G, c.M, c.E}, DType::bf16)};
        attend_backward(back, ours.inputs(), to, how);
        rule.add(ours, three.naive, three.exact);
      }
      rule.expect(isa + (causal ? " causal" : ""));
    });
  }
}

/// Else all of the above would hold of the kernels over floats.
TEST(CpuNarrow, kernels_over_bf16_run) {
  if (cpu::available_narrow().empty()) GTEST_SKIP() << "this machine has none";
  const auto run = [](const char* isa) {
    EXPECT_EQ(setenv("FOCI_ISA", isa, 1), 0);
    Made made({"seen", 1, 1, 1, 100, 100, 64, 64}, 1, DType::bf16);
    run_on(made, {.backend = Backend::cpu}, nullptr);
    unsetenv("FOCI_ISA");
    return made;
  };
  const Made floats = run("avx512");
  for (const cpu::NarrowKernels* kernels : cpu::available_narrow()) {
    const Made ours = run(kernels->name);
    for (const char* name : {"lse", "dk"}) EXPECT_NE(ours[name].values(), floats[name].values());
  }
}

}  // namespace
}  // namespace foci
