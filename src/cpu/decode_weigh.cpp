// SPDX-License-Identifier: Apache-2.0
// From a row of scores to a row of weights, and what a row tells of itself. Rows lie in room padded
// to a panel; what stands in the padding before never counts. Compiled once per instruction set.
#include "cpu/decode_row.hpp"

#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

FOCI_INLINE V size_of(V x) { return max(x, sub(all(0.0f), x)); }

/// The largest of a row, `of` taken of each number; NaN is passed over.
template <class Of>
FOCI_INLINE float largest(const float* x, long n, Of&& of) {
  V top[2] = {all(-INFINITY), all(-INFINITY)};
  long j = 0;
  for (; j + panel <= n; j += panel) {
    for (int v = 0; v < 2; ++v) top[v] = max(of(load(x + j + v * lanes)), top[v]);
  }
  for (; j < n; j += lanes)
    top[0] = max(keep_first(of(load(x + j)), float(n - j), -INFINITY), top[0]);
  float line[lanes], best = -INFINITY;
  store(line, max(top[0], top[1]));
  for (int l = 0; l < lanes; ++l) best = line[l] > best ? line[l] : best;
  return best;
}

static double total(W x) {
  double part[wide_lanes], sum = 0;
  store(part, x);
  for (int l = 0; l < wide_lanes; ++l) sum += part[l];
  return sum;
}

template <bool Statistics>
static Exponentials exponentials(float* x, long n, float top) {
  const float* constants = exp_constants();
  const V down = all(top);
  V sum[2] = {all(0.0f), all(0.0f)}, squares = sum[0], scored = sum[0];
  for (long j = 0; j < n; j += panel) {
#pragma GCC unroll 2
    for (int v = 0; v < 2; ++v) {
      float* at = x + j + v * lanes;
      const V s = sub(load(at), down);
      V p = exp(s, constants);
      if (j + panel > n) p = keep_first(p, float(n - j - v * lanes), 0.0f);
      store(at, p);
      sum[v] = add(sum[v], p);
      if constexpr (Statistics) {
        V share = mul(max(s, load(constants + lowest_exponent)), p);
        if (j + panel > n) share = keep_first(share, float(n - j - v * lanes), 0.0f);
        squares = fma(p, p, squares);
        scored = add(scored, share);
      }
    }
  }
  return {top, total(add(sum[0], sum[1])), total(squares), total(scored), 0};
}

Exponentials exponentiate(float* x, std::int64_t n, bool statistics);
Exponentials exponentiate(float* x, std::int64_t n, bool statistics) {
  const float top = largest(x, n, [](V s) { return s; });
  if (top == -INFINITY) {  // nothing seen but -inf, or a NaN beside it
    float sum = 0;
    for (long j = 0; j < n; ++j) sum += x[j] == -INFINITY ? 0.0f : x[j];
    for (long j = 0; j < padded(n, panel); ++j) x[j] = sum;
    return {top, sum, sum, sum, 0};
  }
  if (!statistics) return exponentials<false>(x, n, top);
  const V below = all(nextafterf(top, -INFINITY));
  long at = 0;
  while (!any_above(load(x + at), below)) at += lanes;
  while (x[at] != top) ++at;
  Exponentials of = exponentials<true>(x, n, top);
  of.at = of.sum == of.sum ? at : 0;  // NaN spreads over the row, from its first key on
  return of;
}

void fade(float* x, const std::int64_t* at, std::int64_t last, float slope, std::int64_t n);
void fade(float* x, const std::int64_t* at, std::int64_t last, float slope, std::int64_t n) {
  const float* constants = exp_constants();
  for (long j = 0; j < n; j += lanes) {
    float away[lanes];
    for (int l = 0; l < lanes; ++l) away[l] = j + l < n ? slope * float(last - at[j + l]) : 0.0f;
    store(x + j, mul(load(x + j), exp(load(away), constants)));
  }
}

void square_positive(float* x, std::int64_t n);
void square_positive(float* x, std::int64_t n) {
  const V zero = all(0.0f);
  for (long j = 0; j < n; j += lanes) {
    const V s = load(x + j), positive = where_above(zero, s, zero, s);  // NaN stays NaN
    store(x + j, mul(positive, positive));
  }
}

Sizes measure(const float* x, std::int64_t n);
Sizes measure(const float* x, std::int64_t n) {
  W sum[2] = {all(0.0), all(0.0)}, squares[2] = {all(0.0), all(0.0)};
  for (long j = 0; j < n; j += lanes) {
    V size = size_of(load(x + j));
    if (j + lanes > n) size = keep_first(size, float(n - j), 0.0f);
    W half[2];
    split(half[0], half[1], size);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      sum[h] = add(sum[h], half[h]);
      squares[h] = fma(half[h], half[h], squares[h]);
    }
  }
  const float most = largest(x, n, size_of);
  return {most > 0 ? most : 0.0f, total(add(sum[0], sum[1])), total(add(squares[0], squares[1]))};
}

void divide(float* x, float by, std::int64_t n);
void divide(float* x, float by, std::int64_t n) {
  const V divisor = all(by);
  for (long j = 0; j < n; j += lanes) store(x + j, load(x + j) / divisor);
}

}  // namespace foci::cpu::FOCI_ISA
