// SPDX-License-Identifier: Apache-2.0
// Calls the chunked passes as the backend does, over dot, and holds them to ref by the tolerance
// rule.
#pragma once

#include "attend/check.hpp"
#include "cpu/three.hpp"
#include "cuda/chunked.cuh"

namespace foci::cuda {

using cases::Case;
using cases::Made;

/// Offsets of packed sequences, as the device wants them.
inline std::vector<int> offsets_of(const View& of) {
  std::vector<int> all;
  for (std::int64_t s = 0; of && s < of.shape[0]; ++s) all.push_back(int(metric::offset(of, s)));
  return all;
}

struct Asked {
  Problem problem;
  std::vector<int> q_offsets, k_offsets;
  Shape shape;
  Folded folded;

  Asked(const Inputs& from, const Options& how) : problem(checks::check(from, how)) {
    const metric::Sizes& z = problem.size;
    q_offsets = offsets_of(from.q_offsets);
    k_offsets = offsets_of(from.k_offsets);
    shape.sequences = int(problem.sequences);
    shape.H = int(z.H), shape.G = int(z.G), shape.N = int(z.N), shape.M = int(z.M);
    shape.D = int(z.D), shape.E = int(z.E);
    shape.longest_n = int(problem.longest_n), shape.longest_m = int(problem.longest_m);
    shape.causal = how.causal;
    shape.q_offsets = q_offsets.empty() ? nullptr : q_offsets.data();
    shape.k_offsets = k_offsets.empty() ? nullptr : k_offsets.data();
    folded.scale = float(problem.c);
    folded.q = Field(from.q), folded.k = Field(from.k), folded.v = Field(from.v);
    folded.key_bias = Field(from.key_bias), folded.key_mask = Field(from.key_mask);
    folded.key_head_bias = from.key_bias && from.key_bias.shape[1] != z.H;
  }

  /// Workspace full of NaN.
  template <class F>
  void with_pass(ChunkedPass::Pass pass, F&& f) const {
    Arena counting;
    ChunkedPass(counting, problem, shape, pass);
    std::vector<std::byte> memory(counting.used() + Arena::alignment, std::byte(0xff));
    Arena arena(memory);
    ChunkedPass made(arena, problem, shape, pass);
    ASSERT_LE(arena.used(), memory.size());
    f(made);
  }
  void forward(const Outputs& to) const {
    Rows rows;
    rows.o = Field(to.o), rows.concentration = Field(to.concentration);
    rows.effective_keys = Field(to.effective_keys), rows.entropy = Field(to.entropy);
    rows.largest = Field(to.largest), rows.largest_at = Field(to.largest_at);
    with_pass(ChunkedPass::Pass::forward,
              [&](ChunkedPass& pass) { pass.forward(folded, rows, nullptr); });
  }
  void backward(const Gradients& to) const {
    Sinks sinks;
    sinks.dq = Field(to.dq), sinks.dk = Field(to.dk), sinks.dv = Field(to.dv);
    sinks.dkey_bias = Field(to.dkey_bias);
    with_pass(ChunkedPass::Pass::backward,
              [&](ChunkedPass& pass) { pass.backward(folded, Field(to.d_o), sinks, nullptr); });
  }
};

/// All that the passes write, in `made`.
inline void run_chunked(Made& made, const Inputs& from, const Options& how) {
  const Case& c = made.c;
  const Outputs to = cases::all_outputs(made, how);
  Gradients back{.d_o = made.find("d_o")};
  back.dq = made.fresh("dq", {c.B, c.H, c.N, c.D}, made.dtype);
  back.dk = made.fresh("dk", {c.B, c.G, c.M, c.D}, made.dtype);
  back.dv = made.fresh("dv", {c.B, c.G, c.M, c.E}, made.dtype);
  if (from.key_bias) {
    back.dkey_bias =
        made.fresh("dkey_bias", {c.B, from.key_bias.shape[1], c.M}, from.key_bias.dtype);
  }
  const Asked asked(from, how);
  ASSERT_TRUE(chunked_serves(asked.problem));
  asked.forward(to);
  asked.backward(back);
}

/// f(name, options) for every weighting that is served, causal and not.
template <class F>
void each_weighting(F&& f) {
  const std::vector<cases::NamedWeighting> all = {{"linear_elu1", Linear{}},
                                                  {"linear_relu", Linear{Feature::relu}},
                                                  {"linear_exp", Linear{Feature::exp}},
                                                  {"identity", Identity{}},
                                                  {"identity_none", Identity{Rescale::none}},
                                                  {"decay", Decay{}},
                                                  {"decay_one", Decay{1}},
                                                  {"decay_content", Decay{0.999, true}}};
  for (const auto& [name, weighting] : all) {
    for (const bool causal : {false, true}) {
      if (!causal && std::holds_alternative<Decay>(weighting)) continue;
      f(name + (causal ? " causal" : ""), Options{.weighting = weighting, .causal = causal});
    }
  }
}

struct Setting {
  Case c;
  Options how;
  DType dtype = DType::f32;
  double size = 1;
  void (*change)(Made&) = nullptr;
};

/// The fewer rows there are, the more draws; where those do not decide, more of them do.
inline void expect_rule(const Setting& of, const std::string& what) {
  cases::Rule rule;
  const std::uint64_t rows = std::uint64_t(of.c.B * of.c.H * of.c.N), few = 1 + 2 / rows;
  const auto draw = [&](std::uint64_t first, std::uint64_t last) {
    for (std::uint64_t seed = first; seed <= last; ++seed) {
      cases::Three three(of.c, of.dtype, of.size, seed);
      if (of.change) of.change(three.ours);
      three.answer(of.how);
      run_chunked(three.ours, three.ours.inputs(), of.how);
      rule.add(three.ours, three.naive, three.exact);
    }
  };
  draw(1, few);
  if (!rule.holds()) draw(few + 1, 16 * few);
  rule.expect(what);
}

}  // namespace foci::cuda
