// SPDX-License-Identifier: Apache-2.0
// The full metric of one (sequence, key head) of a call, alone, with the memory behind it.
#pragma once

#include "attend/check.hpp"
#include "cpu/full_metric.hpp"
#include "mechanisms.hpp"

#include <vector>

namespace foci::cpu {

class FullHead {
 public:
  Problem p;
  Tokens tokens;
  FullMetric metric;
  FullRoom room;
  std::vector<float> keys;  // (n,D)

  FullHead(const Kernels& isa, const Inputs& from, const Options& how, std::int64_t s = 0,
           std::int64_t g = 0)
      : p(checks::check(from, how)) {
    Arena counting;
    take(counting, isa);
    memory_.assign(counting.used() + Arena::alignment, std::byte{0xff});
    Arena arena(memory_);
    take(arena, isa);
    tokens.place(p, s);
    metric.tokens = &tokens;
    metric.g = g;
    keys.resize(tokens.n * p.size.D);
    tokens.load(keys.data(), p.from.k, g, 0, tokens.n, p.size.D);
  }
  FullHead(const FullHead&) = delete;

  void estimate(bool every = true) { metric.estimate(keys.data(), every, room); }
  double P(std::int64_t slot, std::int64_t i, std::int64_t j) const {
    const std::int64_t D = p.size.D;
    const double* W = metric.at(slot).factor;
    double sum = 0;
    for (std::int64_t l = 0; l < D; ++l) sum += W[l * D + i] * W[l * D + j];
    return sum;
  }

 private:
  void take(Arena& arena, const Kernels& isa) {
    tokens = Tokens::take(arena, p);
    metric = FullMetric::take(arena, p, *isa.matrix);
    metric.take_gradient(arena);
    room = FullRoom::take(arena, p, *isa.matrix);
  }
  std::vector<std::byte> memory_;
};

/// Keys far from the origin.
inline void move_keys(cases::Made& made, float offset) {
  float* k = made["k"].data<float>();
  for (std::int64_t i = 0; i < made["k"].view().count(); ++i) k[i] += offset;
}

}  // namespace foci::cpu
