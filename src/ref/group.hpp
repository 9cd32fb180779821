// SPDX-License-Identifier: Apache-2.0
// One sequence's tokens of one key head, with the R = H/G query heads that share it, loaded
// row-major as T. Masked keys are left out here, once: nothing downstream knows about masks.
#pragma once

#include "metric/arena.hpp"
#include "metric/problem.hpp"
#include "ref/row.hpp"

#include <algorithm>
#include <span>

namespace foci::ref {

using metric::Arena;
using metric::Problem;
using metric::Sequence;

template <class T>
struct Group {
  const Problem* p = nullptr;
  Sequence at;           // which sequence
  std::int64_t g = 0;    // which key head
  std::int64_t R, D, E;  // query heads, head size, value size
  std::int64_t N = 0;    // queries
  std::int64_t n = 0;    // keys that are kept

  std::span<T> q;                  // (R,N,D)
  std::span<T> k;                  // (n,D)
  std::span<T> v, v_prev;          // (n,E)
  std::span<T> bias;               // (R,n)
  std::span<std::int64_t> key_at;  // (n) where each kept key stands in its sequence
  std::span<std::int64_t> sees;    // (N) query i sees the first sees[i] kept keys
  std::span<std::int64_t> before;  // (N) kept keys strictly before its position
  std::span<std::int64_t> upto;    // (N) kept keys at or before its position

  Group(Arena& arena, const Problem& problem)
      : p(&problem), R(problem.heads_per_key()), D(problem.size.D), E(problem.size.E) {
    const std::int64_t most_n = problem.longest_n, most_m = problem.longest_m;
    q = arena.take<T>(R, most_n, D);
    k = arena.take<T>(most_m, D);
    v = arena.take<T>(most_m, E);
    v_prev = arena.take<T>(bool(problem.from.v_prev), most_m, E);
    bias = arena.take<T>(bool(problem.from.key_bias), R, most_m);
    key_at = arena.take<std::int64_t>(most_m);
    sees = arena.take<std::int64_t>(most_n);
    before = arena.take<std::int64_t>(most_n);
    upto = arena.take<std::int64_t>(most_n);
  }

  T* query(std::int64_t r, std::int64_t i) const { return &q[(r * N + i) * D]; }
  std::int64_t head(std::int64_t r) const { return g * R + r; }
  /// Where head r finds its bias: key_bias may have H or G heads.
  std::int64_t bias_head(std::int64_t r) const {
    return p->from.key_bias.shape[1] == p->size.H ? head(r) : g;
  }

  void load(std::int64_t s, std::int64_t key_head) {
    at = metric::sequence(*p, s);
    g = key_head;
    N = at.N;
    n = 0;
    for (std::int64_t j = 0; j < at.M; ++j) {
      if (keeps(j)) key_at[n++] = j;
    }
    for (std::int64_t j = 0; j < n; ++j) load_key(j);
    for (std::int64_t r = 0; r < R; ++r) {
      for (std::int64_t i = 0; i < N; ++i) {
        metric::load(query(r, i), p->from.q, {at.b, head(r), at.q0 + i}, D);
      }
    }
    for (std::int64_t i = 0; i < N; ++i) place(i);
  }

  bool keeps(std::int64_t j) const {
    const View& mask = p->from.key_mask;
    return !mask || metric::load_one<std::uint8_t>(mask, {at.b, at.k0 + j}) != 0;
  }

  /// A row that does not know its query yet.
  Row<T> row() const {
    Row<T> row;
    row.at = key_at.data();
    row.D = D;
    row.k = k.data();
    return row;
  }

 private:
  void load_key(std::int64_t j) {
    const Inputs& from = p->from;
    const std::int64_t token = at.k0 + key_at[j];
    metric::load(&k[j * D], from.k, {at.b, g, token}, D);
    metric::load(&v[j * E], from.v, {at.b, g, token}, E);
    if (from.v_prev) metric::load(&v_prev[j * E], from.v_prev, {at.b, g, token}, E);
    if (!from.key_bias) return;
    for (std::int64_t r = 0; r < R; ++r) {
      bias[r * n + j] = metric::load_one<T>(from.key_bias, {at.b, bias_head(r), token});
    }
  }

  void place(std::int64_t i) {
    const std::int64_t t = metric::position(i, N, at.M);
    const auto begin = key_at.begin(), end = begin + n;
    before[i] = std::lower_bound(begin, end, t) - begin;
    upto[i] = std::upper_bound(begin, end, t) - begin;
    sees[i] = p->how.causal ? upto[i] : n;
  }
};

}  // namespace foci::ref
