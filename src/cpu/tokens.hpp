// SPDX-License-Identifier: Apache-2.0
// The tokens of one sequence after masking: which keys are kept, who sees how many of them, and
// their lines as floats. Masked keys are left out here, once; nothing below knows about masks.
#pragma once

#include "cpu/kernels.hpp"
#include "metric/arena.hpp"
#include "metric/problem.hpp"

#include <foci/executor.hpp>

#include <algorithm>
#include <span>

namespace foci::cpu {

using metric::Arena;
using metric::Problem;
using metric::Sequence;

constexpr std::int64_t padded(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }
constexpr std::int64_t blocks_of(std::int64_t x, std::int64_t size) {
  return (x + size - 1) / size;
}

template <class F>
void each(Executor* threads, std::int64_t count, F&& f) {
  if (threads && count > 1) {
    threads->run(count, f);
  } else {
    for (std::int64_t i = 0; i < count; ++i) f(i, 0);
  }
}

/// Counting arenas hand out nothing to put into.
template <class X>
void put(std::span<X> to, std::int64_t i, X x) {
  if (!to.empty()) to[i] = x;
}

struct Tokens {
  Sequence at;
  std::int64_t n = 0;              // keys kept
  std::span<std::int64_t> key_at;  // (n) where they stand in their sequence
  std::span<std::int64_t> before;  // (N) kept keys strictly before each query's position
  std::span<std::int64_t> upto;    // (N) kept keys at or before it
  std::span<std::int64_t> sees;    // (N + block_rows) keys each query sees, the last repeated

  static Tokens take(Arena& arena, const Problem& p) {
    Tokens tokens;
    tokens.key_at = arena.take<std::int64_t>(p.longest_m);
    tokens.before = arena.take<std::int64_t>(p.longest_n);
    tokens.upto = arena.take<std::int64_t>(p.longest_n);
    tokens.sees = arena.take<std::int64_t>(p.longest_n + block_rows);
    return tokens;
  }

  void place(const Problem& p, std::int64_t s) {
    at = metric::sequence(p, s);
    n = 0;
    const View& mask = p.from.key_mask;
    for (std::int64_t j = 0; j < at.M; ++j) {
      if (!mask || metric::load_one<std::uint8_t>(mask, {at.b, at.k0 + j}) != 0) key_at[n++] = j;
    }
    std::int64_t kept = 0;
    for (std::int64_t i = 0; i < at.N; ++i) {
      const std::int64_t t = metric::position(i, at.N, at.M);
      while (kept < n && key_at[kept] < t) ++kept;
      before[i] = kept;
      upto[i] = kept + (kept < n && key_at[kept] == t);
      sees[i] = p.how.causal ? upto[i] : n;
    }
    const std::int64_t last = at.N > 0 ? sees[at.N - 1] : 0;
    std::fill_n(sees.begin() + at.N, block_rows, last);
  }

  /// Kept keys [first, first + count) of a (B,G,M,width) tensor as floats.
  void load(float* to, const View& from, std::int64_t g, std::int64_t first, std::int64_t count,
            std::int64_t width) const {
    if (count > 0 && from.dtype == DType::f32 && from.strides[3] == 1) {  // short lines: quick
      const float* lines = metric::address<float>(from, {at.b, g, at.k0, 0});
      for (std::int64_t j = 0; j < count; ++j)
        std::copy_n(lines + key_at[first + j] * from.strides[2], width, to + j * width);
      return;
    }
    for (std::int64_t j = 0; j < count; ++j) {
      metric::load(to + j * width, from, {at.b, g, at.k0 + key_at[first + j]}, width);
    }
  }

  /// The same without a copy where they already lie so; else in `room`.
  const float* lines(const View& from, std::int64_t g, std::int64_t first, std::int64_t count,
                     std::int64_t width, float* room) const {
    const bool together =
        from.strides[3] == 1 && (from.strides[2] == width || at.M == 1) && n == at.M;
    if (from.dtype == DType::f32 && together && n > 0) {
      return metric::address<float>(from, {at.b, g, at.k0 + first, 0});
    }
    load(room, from, g, first, count, width);
    return room;
  }

  /// Rows [first, first + rows) of a (B,H,N,width) tensor as floats, in place or in `room`.
  const float* queries(const View& from, std::int64_t h, std::int64_t first, std::int64_t rows,
                       std::int64_t width, float* room) const {
    if (from.dtype == DType::f32 && from.strides[3] == 1) {
      const float* lines = metric::address<float>(from, {at.b, h, at.q0 + first, 0});
      if (from.strides[2] == width) return lines;
      for (std::int64_t i = 0; i < rows; ++i)
        std::copy_n(lines + i * from.strides[2], width, room + i * width);
      return room;
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      metric::load(room + i * width, from, {at.b, h, at.q0 + first + i}, width);
    }
    return room;
  }
};

}  // namespace foci::cpu
