// SPDX-License-Identifier: Apache-2.0
// What linear, decay and identity are held to alike: the tolerance rule, the same bits for any
// number of threads, rows that know nothing of later tokens, packed sequences.
#pragma once

#include "three.hpp"

namespace foci::cases {

/// A setting on a few draws. `change` may put other tensors into each of the three.
struct Setting {
  Case c;
  Options how;
  DType dtype = DType::f32;
  double size = 1;
  void (*change)(Made&) = nullptr;
};

/// ref answers once, then every instruction set. The fewer rows there are, the more draws; where
/// those do not decide, a fixed larger number of them does.
inline void expect_rule(const Setting& of, const std::string& what) {
  std::map<std::string, Rule> rules;
  const std::uint64_t rows = std::uint64_t(of.c.B * of.c.H * of.c.N), few = 1 + 200 / rows;
  const auto draw = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t seed = first; seed <= last; ++seed) {
      Three three(of.c, of.dtype, of.size, seed);
      give_metric(three.ours, of.how.metric, of.how.causal ? of.c.N : 1);
      if (of.change) of.change(three.ours);
      if (!served(three.ours, of.how)) return;
      three.answer(of.how);
      on_every_isa([&](const std::string& isa) { three.compare(of.how, rules[isa]); });
    }
  };
  draw(1, few);
  bool decided = true;
  for (const auto& [isa, rule] : rules) decided = decided && rule.holds();
  if (!decided) draw(few + 1, 8 * few);
  for (const auto& [isa, rule] : rules) rule.expect(what + " " + isa);
}

/// One long head, and more heads than threads.
inline void expect_same_bits(const Weighting& weighting, bool causal) {
  on_every_isa([&] {
    for (const Case& c : {Case{"one_head", 1, 2, 1, 900, 900, 4, 6},
                          Case{"heads", 2, 8, 4, 70, 70, 8, 8, Masked::holes}}) {
      const Options how{
          .metric = Given{}, .weighting = weighting, .causal = causal, .backend = Backend::cpu};
      Made one(c, 3, DType::f32);
      give_metric(one, how.metric);
      run_on(one, how, nullptr);
      for (const int count : {2, 7}) {
        Executor threads(count);
        Made many(c, 3, DType::f32);
        give_metric(many, how.metric);
        run_on(many, how, &threads);
        for (const std::string& name : results(one))
          EXPECT_EQ(one[name].values(), many[name].values()) << c.name << " " << name;
      }
    }
  });
}

/// The first `rows` rows of every head.
inline std::vector<double> first_rows(const Made& made, const std::string& name,
                                      std::int64_t rows) {
  return Tensor::copy(made[name].view().sliced(2, 0, rows), DType::f64).values();
}

/// Rows before token t do not change when what comes from t on does: not even where it is infinite
/// or masked.
inline void expect_causal(const Weighting& weighting, float later) {
  on_every_isa([&] {
    constexpr std::int64_t t = 301, N = 600, D = 8;
    const Options how{
        .metric = LayerChange{}, .weighting = weighting, .causal = true, .backend = Backend::cpu};
    const Case c{"causal", 1, 2, 1, N, N, D, D};
    Made before(c, 3, DType::f32), after(c, 3, DType::f32), masked(c, 3, DType::f32);
    for (const char* name : {"q", "k", "v", "v_prev", "d_o"}) {
      for (std::int64_t h = 0; h < after[name].view().shape[1]; ++h) {
        for (std::int64_t i = t * D; i < N * D; ++i)
          after[name].data<float>()[h * N * D + i] = later;
      }
    }
    Tensor keep(DType::boolean, {1, N});
    for (std::int64_t j = 0; j < N; ++j) keep.data<std::uint8_t>()[j] = j < t || j % 3 == 0;
    masked.put("key_mask", std::move(keep));
    for (Made* made : {&before, &after, &masked}) run_on(*made, how, nullptr);
    for (const Made* made : {&after, &masked}) {
      for (const char* name : {"o", "dq", "concentration", "largest"})
        EXPECT_EQ(first_rows(before, name, t), first_rows(*made, name, t)) << name;
    }
  });
}

/// Queries that see no key may hold anything.
inline void expect_unseeing_rows_apart(const Weighting& weighting) {
  on_every_isa([&] {
    Made made({"early", 1, 2, 2, 40, 9, 4, 4}, 3, DType::f32);
    for (const char* name : {"q", "d_o"}) {
      for (std::int64_t h = 0; h < 2; ++h) {
        for (std::int64_t i = 0; i < 31 * 4; ++i)
          made[name].data<float>()[h * 40 * 4 + i] = std::nanf("");
      }
    }
    run_on(made, {.weighting = weighting, .causal = true, .backend = Backend::cpu}, nullptr);
    for (const std::string& name : results(made)) {
      for (const double x : made[name].values()) ASSERT_TRUE(std::isfinite(x)) << name;
    }
  });
}

/// Packed sequences against each of them alone, to the bit.
inline void expect_packed_alike(const Weighting& weighting) {
  const std::int64_t lengths[3] = {70, 3, 300};
  const Options how{.metric = LayerChange{},
                    .weighting = weighting,
                    .causal = true,
                    .metric_grad = MetricGrad::through,
                    .backend = Backend::cpu};
  Made all({"packed", 1, 4, 2, 373, 373, 4, 4, Masked::holes}, 6, DType::f32);
  Tensor offsets(DType::i64, {4});
  for (int s = 0; s < 3; ++s)
    offsets.data<std::int64_t>()[s + 1] = offsets.data<std::int64_t>()[s] + lengths[s];
  Inputs from = all.inputs();
  from.q_offsets = from.k_offsets = offsets;
  const Outputs to = all_outputs(all, how);
  attend(to, from, how);
  attend_backward(all_gradients(all, how), from, to, how);
  for (int s = 0; s < 3; ++s) {
    const std::int64_t first = offsets.data<std::int64_t>()[s], last = first + lengths[s];
    Made one({"one", 1, 4, 2, lengths[s], lengths[s], 4, 4}, 6, DType::f32);
    for (const char* name : {"q", "k", "v", "v_prev", "d_o"})
      one.put(name, Tensor::copy(all[name].view().sliced(2, first, last), DType::f32));
    one.put("key_mask",
            Tensor::copy(all["key_mask"].view().sliced(1, first, last), DType::boolean));
    run_on(one, how, nullptr);
    for (const char* name : {"o", "concentration", "dq", "dk", "dv", "dv_prev"}) {
      const View part = all[name].view().sliced(2, first, last);
      EXPECT_EQ(Tensor::copy(part, DType::f64).values(), one[name].values()) << name << " " << s;
    }
  }
}

}  // namespace foci::cases
