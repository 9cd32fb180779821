// SPDX-License-Identifier: Apache-2.0
// The features of linear attention, phi(x) = elu(x) + 1, max(x, 0) or e^x, and their slopes.
// e^x of a key is taken from its coordinate's peak among the keys seen, of a query so that its
// largest product with a peak is 1: nothing overflows, and what underflows would not have counted.
// Compiled once per instruction set.
#include "cpu/chunk.hpp"
#include "cpu/wide.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

/// e^x down to where it is 0: where exp() stops, as the square of a root.
FOCI_INLINE V exp_to_zero(V x, const float* constants) {
  V y = exp(x, constants);
  const V low = all(-86.0f);
  if (__builtin_expect(any_above(low, x), 0)) {
    const V root = exp(mul(x, all(0.5f)), constants);
    y = where_above(low, x, mul(root, root), y);
  }
  return y;
}

/// x + y = high + low exactly: the sum of large numbers is rounded, their difference may be small.
struct Sum {
  V high, low;
};
FOCI_INLINE Sum exact_sum(V x, V y) {
  const V high = add(x, y), part = sub(high, x);
  return {high, add(sub(x, sub(high, part)), sub(y, part))};
}

/// Where q + peak is largest; past D the peaks lie far below.
static long top_of(const float* q, const float* peak, long D) {
  float most[lanes], at[lanes];
  V best = add(load(q), load(peak)), block = all(0.0f);
  for (long d = lanes; d < D; d += lanes) {
    const V x = add(load(q + d), load(peak + d));
    block = where_above(x, best, all(float(d)), block);
    best = max(x, best);
  }
  store(most, best);
  store(at, block);
  int lane = 0;
  for (int l = 1; l < lanes; ++l) lane = most[l] > most[lane] ? l : lane;
  const long top = long(at[lane]) + lane;
  return top < D ? top : 0;
}

static void clear_rest(float* line, long D, long step) {
  for (long d = D; d < step; ++d) line[d] = 0;
}

void map_features(const Mapped& of);
void map_features(const Mapped& of) {
  const float* constants = exp_constants();
  const V zero = all(0.0f), one = all(1.0f);
  for (long i = 0; i < of.rows; ++i) {
    const float* from = of.from.at + i * of.from.step;
    float* to = of.to + i * of.step;
    for (long d = 0; d < of.D; d += lanes) {
      const V x = load(from + d);
      V y = x;
      if (of.how == Map::relu) y = where_above(zero, x, zero, x);
      if (of.how == Map::elu1) y = where_above(x, zero, add(x, one), exp_to_zero(x, constants));
      if (of.how == Map::exp) y = exp(sub(x, load(of.peak + d)), constants);
      store(to + d, y);
    }
    clear_rest(to, of.D, of.step);
  }
}

void exp_queries(float* lines, const float* peak, std::int64_t rows, std::int64_t D,
                 std::int64_t step);
void exp_queries(float* lines, const float* peak, std::int64_t rows, std::int64_t D,
                 std::int64_t step) {
  const float* constants = exp_constants();
  for (long i = 0; i < rows; ++i) {
    float* line = lines + i * step;
    const long top = top_of(line, peak, D);
    const Sum most = exact_sum(all(line[top]), all(peak[top]));
    for (long d = 0; d < D; d += lanes) {
      const Sum x = exact_sum(load(line + d), load(peak + d));
      store(line + d, exp(add(sub(x.high, most.high), sub(x.low, most.low)), constants));
    }
    clear_rest(line, D, step);
  }
}

/// phi' where phi has this value.
FOCI_INLINE V slope_of(V phi, Map how) {
  const V zero = all(0.0f), one = all(1.0f);
  if (how == Map::elu1) return where_above(phi, one, one, phi);
  return how == Map::relu ? where_above(phi, zero, one, zero) : phi;
}

void slope(float* d, const float* phi, Map how, std::int64_t count);
void slope(float* d, const float* phi, Map how, std::int64_t count) {
  for (long x = 0; x < count; x += lanes)
    store(d + x, mul(load(d + x), slope_of(load(phi + x), how)));
}

/// Lanes [d, d + lanes) of y = phi'(q') (dq - delta z) by, in two halves.
FOCI_INLINE void pulled(W (&y)[2], const QueryGradient& of, double by, long d) {
  split(y[0], y[1], load(of.dq + d));
  if (of.map == Map::none) {
    for (int half = 0; half < 2; ++half) y[half] = mul(y[half], all(by));
    return;
  }
  W z[2], slope[2];
  split(z[0], z[1], load(of.z + d));
  split(slope[0], slope[1], slope_of(load(of.phi + d), of.map));
  for (int half = 0; half < 2; ++half) {
    const W rest = fma(all(-of.delta), z[half], y[half]);
    y[half] = mul(mul(rest, slope[half]), all(by));
  }
}

void finish_query(const QueryGradient& of);
void finish_query(const QueryGradient& of) {
  const bool divides = of.map != Map::none;
  const double by = !divides ? of.c : of.sum == 0 ? 0 : of.c / of.sum;
  for (long d = 0; d < of.D; d += lanes) {
    W y[2];
    double line[lanes];
    pulled(y, of, by, d);
    store(line, y[0]);
    store(line + wide_lanes, y[1]);
    const long count = of.D - d < lanes ? of.D - d : lanes;
    if (divides && of.sum == 0) {
      for (long x = 0; x < count; ++x) of.dq[d + x] = 0;
      continue;
    }
    for (long x = 0; x < count; ++x)
      of.dq[d + x] = float(of.m ? double(of.m[d + x]) * line[x] : line[x]);
    for (long x = 0; of.dm && x < count; ++x) of.dm[d + x] += double(of.q[d + x]) * line[x];
  }
}

void raise(float* top, const float* x, std::int64_t count);
void raise(float* top, const float* x, std::int64_t count) {
  for (long d = 0; d < count; d += lanes) store(top + d, max(load(x + d), load(top + d)));
}

bool outgrown_peak(const float* x, const float* peak, std::int64_t count);
bool outgrown_peak(const float* x, const float* peak, std::int64_t count) {
  const V most = all(16.0f);
  for (long d = 0; d < count; d += lanes) {
    if (any_above(load(x + d), add(load(peak + d), most))) return true;
  }
  return false;
}

void exp_between(float* to, const float* x, const float* y, std::int64_t count);
void exp_between(float* to, const float* x, const float* y, std::int64_t count) {
  const float* constants = exp_constants();
  for (long d = 0; d < count; d += lanes)
    store(to + d, exp(sub(load(x + d), load(y + d)), constants));
}

}  // namespace foci::cpu::FOCI_ISA
