// SPDX-License-Identifier: Apache-2.0
// J of one query, keys centred block by block and multiplied as small matrices; and one query's
// gradient for a block of keys. Compiled once per instruction set.
#include "cpu/jacobian_lines.hpp"

#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

FOCI_INLINE W widened(const double* p) { return load(p); }
FOCI_INLINE W widened(const float* p) { return load_wide(p); }

FOCI_INLINE double total(W x) {
  double lane[wide_lanes], sum = 0;
  store(lane, x);
  for (int l = 0; l < wide_lanes; ++l) sum += lane[l];
  return sum;
}

template <class X>
static double dot(const X* x, const float* y, long count) {
  W even = all(0.0), odd = even;
  long d = 0;
  for (; d + 2 * wide_lanes <= count; d += 2 * wide_lanes) {
    even = fma(widened(x + d), widened(y + d), even);
    odd = fma(widened(x + d + wide_lanes), widened(y + d + wide_lanes), odd);
  }
  double sum = total(add(even, odd));
  for (; d < count; ++d) sum += double(x[d]) * double(y[d]);
  return sum;
}

/// e^x within 3e-10 for x <= 0, never below e^-700: far below any float. NaN stays NaN.
FOCI_INLINE W exp(W x) {
  const W magic = all(0x1.8p52);  // adding it rounds to an integer in the low bits
  x = max(all(-700.0), x);
  const W t = fma(x, all(1.4426950408889634), magic), n = sub(t, magic);
  W f = fma(n, all(-0x1.62e42fefap-1), x);  // few bits, so that a product with n is exact
  f = fma(n, all(-0x1.cf79abc9e3b4p-40), f);
  W p = all(1.0 / 40320);
  p = fma(p, f, all(1.0 / 5040));
  p = fma(p, f, all(1.0 / 720));
  p = fma(p, f, all(1.0 / 120));
  p = fma(p, f, all(1.0 / 24));
  p = fma(p, f, all(1.0 / 6));
  p = fma(p, f, all(0.5));
  p = fma(p, f, all(1.0));
  return times_power(fma(p, f, all(1.0)), t);
}

/// a = softmax(c q.k), in double: what follows subtracts, and an estimate's gradient feels the
/// last bits of its weights.
static void weigh(const JacobianQuery& of) {
  const long n = of.n, D = of.D, end = padded(n, wide_lanes);
  double *q = of.wide, *s = of.wide + D, top = -INFINITY;
  for (long d = 0; d < D; ++d) q[d] = double(of.q[d]);
  for (long j = 0; j < n; ++j) {
    s[j] = of.c * dot(q, of.k + j * D, D);
    top = s[j] > top ? s[j] : top;
  }
  for (long j = n; j < end; ++j) s[j] = -INFINITY;
  const W shift = all(top == -INFINITY ? 0.0 : top);  // -inf - -inf would be NaN
  W sum = all(0.0);
  for (long j = 0; j < end; j += wide_lanes) {
    const W e = exp(sub(load(s + j), shift));
    store(s + j, e);
    sum = add(sum, e);
  }
  const double whole = total(sum), inverse = whole > 0 || whole != whole ? 1.0 / whole : 0.0;
  float* a = of.a;
  for (long j = 0; j < n; ++j) a[j] = float(s[j] * inverse);
}

/// to += sum_j a_j from_j, some vectors of columns
template <int Vectors>
static void sum_columns(float* to, const float* a, const float* from, long n, long width) {
  W sum[Vectors];
#pragma GCC unroll 8
  for (int x = 0; x < Vectors; ++x) sum[x] = load_wide(to + x * wide_lanes);
  for (long j = 0; j < n; ++j, from += width) {
    const W by = all(double(a[j]));
#pragma GCC unroll 8
    for (int x = 0; x < Vectors; ++x) sum[x] = fma(by, load_wide(from + x * wide_lanes), sum[x]);
  }
  double lane[wide_lanes];
  for (int x = 0; x < Vectors; ++x) {
    store(lane, sum[x]);
    for (int l = 0; l < wide_lanes; ++l) to[x * wide_lanes + l] = float(lane[l]);
  }
}

static void sum_lines(float* to, const float* a, const float* from, std::int64_t n,
                      std::int64_t width) {
  long d = 0;
  const auto columns = [&](auto sum, long vectors) {
    for (; d + vectors * wide_lanes <= width; d += vectors * wide_lanes)
      sum(to + d, a, from + d, n, width);
  };
  columns(sum_columns<8>, 8);
  columns(sum_columns<4>, 4);
  columns(sum_columns<2>, 2);
  columns(sum_columns<1>, 1);
  for (; d < width; ++d) {
    double sum = double(to[d]);
    for (long j = 0; j < n; ++j) sum += double(a[j]) * double(from[j * width + d]);
    to[d] = float(sum);
  }
}

/// Lines of one block of keys: to_j = from_j - centre, times c a_j where there are weights.
struct Centring {
  float* to;  // line_step(width) apart
  const float *from, *centre;
  long count, width;
};

static void subtract(const Centring& of) {
  const long count = of.count, width = of.width, step = line_step(width);
  const float *line = of.from, *centre = of.centre;
  float* to = of.to;
  for (long j = 0; j < count; ++j, line += width, to += step) {
    long x = 0;
    for (; x + lanes <= width; x += lanes) store(to + x, sub(load(line + x), load(centre + x)));
    for (; x < width; ++x) to[x] = line[x] - centre[x];
  }
}

static void subtract(const Centring& of, const float* a, double c) {
  const long count = of.count, width = of.width, step = line_step(width);
  const float *line = of.from, *centre = of.centre;
  float* to = of.to;
  for (long j = 0; j < count; ++j, line += width, to += step) {
    const float factor = float(c * double(a[j]));
    const V by = all(factor);
    long x = 0;
    for (; x + lanes <= width; x += lanes)
      store(to + x, mul(by, sub(load(line + x), load(centre + x))));
    for (; x < width; ++x) to[x] = factor * (line[x] - centre[x]);
  }
}

/// size_d = sum_e |J_de|
static void measure(const JacobianQuery& of) {
  const long step = line_step(of.E);
  for (long d = 0; d < of.D; ++d) {
    const float* line = of.J + d * step;
    V sum = all(0.0f);
    long e = 0;
    for (; e + lanes <= of.E; e += lanes) {
      const V x = load(line + e);
      sum = add(sum, max(x, sub(all(0.0f), x)));
    }
    float whole = total(sum);
    for (; e < of.E; ++e) whole += fabsf(line[e]);
    of.size[d] = whole;
  }
}

static void differentiate(const JacobianQuery& of) {
  const long D = of.D, E = of.E;
  const float *kappa = of.centre, *omega = of.centre + D;
  weigh(of);
  for (long d = 0; d < D + E; ++d) of.centre[d] = 0;
  sum_lines(of.centre, of.a, of.k, of.n, D);
  sum_lines(of.centre + D, of.a, of.v, of.n, E);
  Product product{};
  product.c = of.J;
  product.a = of.pulls;
  product.b = of.apart;
  product.rows = D;
  product.cols = E;
  product.c_step = product.b_step = line_step(E);
  product.a_row = 1;
  product.a_k = line_step(D);
  for (long first = 0; first < of.n; first += jacobian_keys) {
    const long count = of.n - first < jacobian_keys ? of.n - first : jacobian_keys;
    subtract({of.pulls, of.k + first * D, kappa, count, D}, of.a + first, of.c);
    subtract({of.apart, of.v + first * E, omega, count, E});
    product.K = count;
    product.add = first > 0;
    matrix_kernels.product(product);
  }
  measure(of);
}

static void turn(float* J, const double* dm, std::int64_t D, std::int64_t E) {
  const long step = line_step(E);
  const V nothing = all(0.0f);
  for (long d = 0; d < D; ++d) {
    float* line = J + d * step;  // as long as a whole number of vectors
    const V up = all(float(dm[d])), down = all(float(-dm[d]));
    for (long e = 0; e < E; e += lanes) {
      const V x = load(line + e);
      store(line + e, where_above(x, nothing, up, where_above(nothing, x, down, nothing)));
    }
  }
}

/// of_key_j = X (v_j - omega)
static void project_values(const JacobianPull& of) {
  Product product{};
  product.c = of.of_key;
  product.a = of.apart;
  product.b = of.Xt;
  product.rows = of.count;
  product.cols = of.D;
  product.K = of.E;
  product.c_step = product.b_step = line_step(of.D);
  product.a_row = line_step(of.E);
  product.a_k = 1;
  matrix_kernels.product(product);
}

/// of_value_j = X' (c a_j (k_j - kappa))
static void project_keys(const JacobianPull& of) {
  Product product{};
  product.c = of.of_value;
  product.a = of.pulls;
  product.b = of.X;
  product.rows = of.count;
  product.cols = of.E;
  product.K = of.D;
  product.c_step = product.b_step = line_step(of.E);
  product.a_row = line_step(of.D);
  product.a_k = 1;
  matrix_kernels.product(product);
}

/// y += factor x
static void add_line(float* y, float factor, const float* x, long width) {
  const V by = all(factor);
  long d = 0;
  for (; d + lanes <= width; d += lanes) store(y + d, fma(by, load(x + d), load(y + d)));
  for (; d < width; ++d) y[d] += factor * x[d];
}

static void pull(const JacobianPull& of) {
  const long D = of.D, E = of.E;
  float* a = of.a + of.first;
  subtract({of.pulls, of.k + of.first * D, of.centre, of.count, D}, a, of.c);
  subtract({of.apart, of.v + of.first * E, of.centre + D, of.count, E});
  project_values(of);
  project_keys(of);
  for (long j = 0; j < of.count; ++j) {
    const long key = j * line_step(D), value = j * line_step(E);
    const double weight = double(a[j]);
    a[j] = float(of.c * (dot(of.pulls + key, of.of_key + key, D) - weight * of.delta));
    add_line(of.dk + key, float(of.c * weight), of.of_key + key, D);
    add_line(of.dk + key, a[j], of.q, D);
    add_line(of.dv + value, 1.0f, of.of_value + value, E);
  }
}

const JacobianKernels jacobian_kernels = {differentiate, turn, pull, sum_lines};

}  // namespace foci::cpu::FOCI_ISA
