// SPDX-License-Identifier: Apache-2.0
// Running sums in place of a sweep: state += k v', read by every query head on the way, and the
// features of linear attention. Compiled once per instruction set.
#include "cpu/decode_row.hpp"

#include "cpu/isa.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

static constexpr long most_heads = 4;

/// Rows whose products are summed up before they join o: short sums round less.
static constexpr long stretch = 16;

template <int Rows, int Vectors, bool Joins>
FOCI_INLINE void run_stretch(V (&c)[Rows][Vectors], const RunningSum& of, const float* q, long e,
                             long first, long end) {
  const V fade = all(of.fade);
  V v[Vectors];
#pragma GCC unroll 4
  for (int i = 0; i < Vectors; ++i) v[i] = Joins ? load(of.v + e + i * lanes) : fade;
  for (long d = first; d < end; ++d) {
    float* line = of.state + d * of.E + e;
    V s[Vectors];
#pragma GCC unroll 4
    for (int i = 0; i < Vectors; ++i) {
      s[i] = load(line + i * lanes);
      if constexpr (Joins) {
        s[i] = fma(all(of.k + d), v[i], mul(fade, s[i]));
        store(line + i * lanes, s[i]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < Rows; ++r) {
      const V x = all(q + r * of.q_step + d);
#pragma GCC unroll 4
      for (int i = 0; i < Vectors; ++i) c[r][i] = fma(x, s[i], c[r][i]);
    }
  }
}

template <int Rows, int Vectors, bool Joins>
static void run_tile(const RunningSum& of, long r0, long e) {
  for (long first = 0; first < of.rows; first += stretch) {
    V c[Rows][Vectors];
#pragma GCC unroll 32
    for (int t = 0; t < Rows * Vectors; ++t) c[t / Vectors][t % Vectors] = all(0.0f);
    run_stretch<Rows, Vectors, Joins>(c, of, of.q + r0 * of.q_step, e, first,
                                      of.rows - first < stretch ? of.rows : first + stretch);
#pragma GCC unroll 32
    for (int t = 0; t < Rows * Vectors; ++t) {
      float* o = of.o + (r0 + t / Vectors) * of.E + e + t % Vectors * lanes;
      store(o, add(load(o), c[t / Vectors][t % Vectors]));
    }
  }
}

template <int Rows, bool Joins>
static void run_heads(const RunningSum& of, long r0) {
  constexpr int most = lanes == 16 || Rows <= 2 ? 4 : 2;
  long e = 0;
  for (; e + most * lanes <= of.E; e += most * lanes) run_tile<Rows, most, Joins>(of, r0, e);
  for (; e + 2 * lanes <= of.E; e += 2 * lanes) run_tile<Rows, 2, Joins>(of, r0, e);
  for (; e < of.E; e += lanes) run_tile<Rows, 1, Joins>(of, r0, e);
}

template <bool Joins>
static void run_group(const RunningSum& of, long r0) {
  const long rows = of.R - r0;
  if (rows == 1) return run_heads<1, Joins>(of, r0);
  if (rows == 2) return run_heads<2, Joins>(of, r0);
  if (rows == 3) return run_heads<3, Joins>(of, r0);
  run_heads<4, Joins>(of, r0);
}

void run(const RunningSum& of);
void run(const RunningSum& of) {
  for (long r0 = 0; r0 < of.R; r0 += most_heads) {
    if (of.k && r0 == 0) {
      run_group<true>(of, r0);
    } else {
      run_group<false>(of, r0);
    }
  }
}

/// Below what the vector exp can tell apart.
static __attribute__((noinline)) V exp_of_small(V x, V e) {
  float from[lanes], to[lanes];
  store(from, x);
  store(to, e);
  for (int l = 0; l < lanes; ++l) {
    if (from[l] < -87.0f) to[l] = expf(from[l]);
  }
  return load(to);
}

FOCI_INLINE V feature(V x, Phi phi, const float* constants) {
  const V zero = all(0.0f);
  if (phi == Phi::relu) return where_above(zero, x, zero, x);  // NaN stays NaN
  if (phi == Phi::exp) return exp(x, constants);
  const V low = where_above(x, zero, zero, x);
  V e = exp(low, constants);
  if (__builtin_expect(any_above(load(constants + lowest_exponent), low), 0))
    e = exp_of_small(low, e);
  return where_above(x, zero, add(x, all(1.0f)), e);
}

void features(float* to, const float* x, Phi phi, std::int64_t count);
void features(float* to, const float* x, Phi phi, std::int64_t count) {
  const float* constants = exp_constants();
  for (long d = 0; d < count; d += lanes) store(to + d, feature(load(x + d), phi, constants));
}

float dot(const float* x, const float* y, std::int64_t count);
float dot(const float* x, const float* y, std::int64_t count) {
  V sum = all(0.0f);
  for (long d = 0; d < count; d += lanes) sum = fma(load(x + d), load(y + d), sum);
  return total(sum);
}

}  // namespace foci::cpu::FOCI_ISA
