// SPDX-License-Identifier: Apache-2.0
// Bisection on log c; each step is a forward pass over the queries of one key head.
#include "cpu/match_dot.hpp"

#include "metric/match_dot.hpp"

#include <cmath>

namespace foci::cpu {

namespace {

/// Softmax without a bias, as concentrations are compared.
Problem bare(Problem p) {
  p.from.key_bias = {};
  p.how.weighting = Softmax{};
  return p;
}

Problem plain(const Problem& problem) {
  Problem p = bare(problem);
  p.how.metric = Dot{};
  p.full = p.match_dot = false;
  p.scope = Scope::sequence;
  p.c = 1 / std::sqrt(double(p.size.D));
  return p;
}

/// Adds up the concentration of the rows that see a key; a NaN stays in its own row.
struct Mean {
  double sum = 0;
  std::int64_t rows = 0;

  void add(const ForwardBlock& block) {
    for (std::int64_t i = 0; i < block.rows; ++i) {
      const double squares = double(block.squares[i]);
      if (block.sees[i] == 0 || std::isnan(squares) || squares == 0) continue;
      sum += 1 / std::sqrt(double(block.sees[i]) * squares);
      ++rows;
    }
  }
  double value() const { return rows == 0 ? 1.0 : sum / double(rows); }
};

double mean_of(Forward& pass, std::int64_t s, std::int64_t g, int thread) {
  Mean mean;
  const auto add = [&mean](const Forward::Result& result, int) { mean.add(result.block); };
  pass.run_head(s, g, thread, add);
  return mean.value();
}

}  // namespace

void match_dot(Geometry& geometry, const Problem& problem, const Kernels& isa, Arena arena,
               Executor* threads) {
  const int count = threads ? threads->threads() : 1;
  const Problem dot = plain(problem), full = bare(problem);
  Geometry other(arena, dot, isa, count);
  other.estimate(threads, false);
  Forward theirs(arena, dot, isa, other, count), ours(arena, full, isa, geometry, count);
  theirs.prepare();
  ours.prepare();
  const std::int64_t G = problem.size.G;
  each(threads, problem.sequences * G, [&](std::int64_t i, int thread) {
    const std::int64_t s = i / G, g = i % G;
    const double target = mean_of(theirs, s, g, thread);
    const double c = metric::match_dot(
        [&](double log_c) {
          geometry.set_scale(s, g, std::exp(log_c));
          return mean_of(ours, s, g, thread) - target;
        },
        1e-9);
    geometry.set_scale(s, g, c);
  });
}

std::size_t match_dot_room(Geometry& geometry, const Problem& problem, const Kernels& isa,
                           Arena arena, int threads) {
  const Problem dot = plain(problem), full = bare(problem);
  const Geometry other(arena, dot, isa, threads);
  const Forward theirs(arena, dot, isa, other, threads);
  const Forward ours(arena, full, isa, geometry, threads);
  return arena.used();
}

}  // namespace foci::cpu
