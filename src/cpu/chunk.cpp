// SPDX-License-Identifier: Apache-2.0
// Sums over the keys each row sees, in register tiles where the rows of a tile agree and row by row
// where they do not; the small loops over lines; what a row's weights say about themselves.
// Compiled once per instruction set.
#include "cpu/chunk.hpp"

#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/matrix_tile.hpp"

/// The k that only some rows of a tile may meet.
template <int Rows, int Vectors>
static void ragged(const Ranged& of, long from, long to) {
  V c[Rows][Vectors];
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Vectors; ++j) c[i][j] = load(of.c + i * of.c_step + j * lanes);
  }
  for (long k = from; k < to; ++k) {
    V line[Vectors];
    for (int j = 0; j < Vectors; ++j) line[j] = load(of.b + k * of.b_step + j * lanes);
#pragma GCC unroll 16
    for (int i = 0; i < Rows; ++i) {
      if ((of.begin && k < of.begin[i]) || (of.end && k >= of.end[i])) continue;
      const V x = all(of.a + i * of.a_row + k * of.a_k);
      for (int j = 0; j < Vectors; ++j) c[i][j] = fma(x, line[j], c[i][j]);
    }
  }
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Vectors; ++j) store(of.c + i * of.c_step + j * lanes, c[i][j]);
  }
}

template <int Rows, int Vectors>
static void ranged_tile(const Ranged& of) {
  const long start = of.begin ? of.begin[0] : 0, finish = of.end ? of.end[Rows - 1] : of.K;
  long low = of.begin ? of.begin[Rows - 1] : 0, high = of.end ? of.end[0] : of.K;
  if (low >= high) low = high = finish;
  if (start < low) ragged<Rows, Vectors>(of, start, low);
  if (low < high) {
    product_tile<float, Rows, Vectors>({of.c, of.a + low * of.a_k, of.b + low * of.b_step, Rows,
                                        Vectors * lanes, high - low, of.c_step, of.a_row, of.a_k,
                                        of.b_step, true});
  }
  if (high < finish) ragged<Rows, Vectors>(of, high, finish);
}

template <int Vectors, int Most = tile_rows>
static void ranged_rows(const Ranged& of) {
  if constexpr (Most > 1) {
    if (of.rows < Most) return ranged_rows<Vectors, Most - 1>(of);
  }
  ranged_tile<Most, Vectors>(of);
}

static void ranged(const Ranged& of) {
  for (long row = 0; row < of.rows; row += tile_rows) {
    Ranged part = of;
    part.rows = of.rows - row < tile_rows ? of.rows - row : tile_rows;
    part.a = of.a + row * of.a_row;
    part.begin = of.begin ? of.begin + row : nullptr;
    part.end = of.end ? of.end + row : nullptr;
    for (long x = 0; x < of.cols;) {
      const long vectors = of.cols - x >= 2 * lanes ? 2 : 1;
      part.c = of.c + row * of.c_step + x;
      part.b = of.b + x;
      vectors == 2 ? ranged_rows<2>(part) : ranged_rows<1>(part);
      x += vectors * lanes;
    }
  }
}

static void exact_tile(const Product& of, long i, long x, long rows) {
  constexpr int most = 4;
  W c[most][2] = {};
  const float *a[most], *b = of.b + x;
  for (long r = 0; r < most; ++r) a[r] = of.a + (i + (r < rows ? r : 0)) * of.a_row;
  for (long k = 0; k < of.K; ++k, b += of.b_step) {
    const W first = load_wide(b), second = load_wide(b + wide_lanes);
#pragma GCC unroll 4
    for (int r = 0; r < most; ++r) {
      const W y = all(double(a[r][k]));
      c[r][0] = fma(y, first, c[r][0]);
      c[r][1] = fma(y, second, c[r][1]);
    }
  }
  for (long r = 0; r < rows; ++r) {
    double line[2 * wide_lanes];
    store(line, c[r][0]);
    store(line + wide_lanes, c[r][1]);
    for (int l = 0; l < 2 * wide_lanes; ++l) of.c[(i + r) * of.c_step + x + l] = float(line[l]);
  }
}

static void exact_product(const Product& of) {
  for (long i = 0; i < of.rows; i += 4) {
    for (long x = 0; x < of.cols; x += 2 * wide_lanes)
      exact_tile(of, i, x, of.rows - i < 4 ? of.rows - i : 4);
  }
}

static void scale(float* x, float by, std::int64_t count) {
  for (long d = 0; d < count; d += lanes) store(x + d, mul(load(x + d), all(by)));
}

static void divide(float* x, float by, std::int64_t count) {
  for (long d = 0; d < count; ++d) x[d] /= by;
}

static void blend(float* to, float by, const float* x, const float* y, std::int64_t count) {
  for (long d = 0; d < count; d += lanes) store(to + d, fma(all(by), load(x + d), load(y + d)));
}

static double total_wide(W x) {
  double part[wide_lanes], sum = 0;
  store(part, x);
  for (int l = 0; l < wide_lanes; ++l) sum += part[l];
  return sum;
}

static double dot(const float* x, const float* y, std::int64_t count) {
  W sum = all(0.0);
  const long whole = count / wide_lanes * wide_lanes;
  for (long d = 0; d < whole; d += wide_lanes) sum = fma(load_wide(x + d), load_wide(y + d), sum);
  double result = total_wide(sum);
  for (long d = whole; d < count; ++d) result += double(x[d]) * double(y[d]);
  return result;
}

static double sum(const float* x, std::int64_t count) {
  W sum = all(0.0);
  const long whole = count / wide_lanes * wide_lanes;
  for (long d = 0; d < whole; d += wide_lanes) sum = fma(load_wide(x + d), all(1.0), sum);
  double result = total_wide(sum);
  for (long d = whole; d < count; ++d) result += double(x[d]);
  return result;
}

static void subtract(float* x, double y, std::int64_t count) {
  const float high = float(y), low = float(y - double(high));
  for (long j = 0; j < count; ++j) x[j] = (x[j] - high) - low;
}

static void weigh(float* x, const float* bias, const float* by, std::int64_t count) {
  for (long j = 0; bias && j < count; ++j) x[j] += bias[j];
  for (long j = 0; by && j < count; ++j) x[j] *= by[j];
}

/// x = x ln x, 0 where x is 0. ln of x = m 2^e, m near 1, by ln m = 2 artanh((m-1)/(m+1)): five
/// terms, relative error 2e-9 before rounding.
static void entropy_terms(float* x, long count) {
  for (long j = 0; j < count; ++j) {
    const float a = x[j];
    const float raised = a < 0x1p-100f ? a * 0x1p60f : a;  // subnormal numbers too
    int bits;
    __builtin_memcpy(&bits, &raised, sizeof bits);
    const int shifted = bits - 0x3f3504f3;  // of 1/sqrt(2)
    const int e = shifted >> 23;
    bits = (shifted & 0x7fffff) + 0x3f3504f3;
    float m;
    __builtin_memcpy(&m, &bits, sizeof m);
    const float s = (m - 1) / (m + 1), z = s * s;
    const float series = ((z * (1 / 9.0f) + 1 / 7.0f) * z + 1 / 5.0f) * z + 1 / 3.0f;
    const float exponent = float(e) - (a < 0x1p-100f ? 60.0f : 0.0f);
    const float log =
        exponent * 0.693359375f + ((2 * s * z) * series - exponent * 2.12194440e-4f + 2 * s);
    x[j] = a > 0 ? a * log : a * 0.0f;
  }
}

static float largest_size(const float* x, long count) {
  float top[lanes] = {};
  const long whole = count / lanes * lanes;
  V most = all(0.0f);
  for (long j = 0; j < whole; j += lanes) {
    const V a = load(x + j);
    most = max(max(a, sub(all(0.0f), a)), most);
  }
  store(top, most);
  float result = 0;
  for (int l = 0; l < lanes; ++l) result = top[l] > result ? top[l] : result;
  for (long j = whole; j < count; ++j) result = fabsf(x[j]) > result ? fabsf(x[j]) : result;
  return result;
}

static void tally(Tally& to, float* x, std::int64_t count, std::int64_t key, bool sums_to_one) {
  const float top = largest_size(x, count);
  if (to.largest_at < 0) {
    to.largest = 0;
    to.largest_at = key;
  }
  for (long j = 0; top > to.largest && j < count; ++j) {
    if (fabsf(x[j]) != top) continue;
    to.largest = top;
    to.largest_at = key + j;
  }
  W sizes = all(0.0), squares = sizes;
  const long whole = count / wide_lanes * wide_lanes;
  for (long j = 0; j < whole; j += wide_lanes) {
    const W a = load_wide(x + j);
    squares = fma(a, a, squares);
  }
  for (long j = 0; j < count; ++j) x[j] = sums_to_one ? x[j] : fabsf(x[j]);
  for (long j = 0; j < whole; j += wide_lanes) sizes = fma(load_wide(x + j), all(1.0), sizes);
  to.sizes += total_wide(sizes);
  to.squares += total_wide(squares);
  for (long j = whole; j < count; ++j) {
    to.sizes += double(x[j]);
    to.squares += double(x[j]) * double(x[j]);
  }
  for (long j = 0; to.squares != to.squares && to.largest == to.largest && j < count; ++j) {
    if (x[j] == x[j]) continue;
    to.largest = x[j];
    to.largest_at = key + j;
  }
  if (!sums_to_one) return;
  entropy_terms(x, count);
  to.entropy -= sum(x, count);
}

// linear.cpp
void map_features(const Mapped& of);
void exp_queries(float* lines, const float* peak, std::int64_t rows, std::int64_t D,
                 std::int64_t step);
void slope(float* d, const float* phi, Map how, std::int64_t count);
void finish_query(const QueryGradient& of);
void raise(float* top, const float* x, std::int64_t count);
bool outgrown_peak(const float* x, const float* peak, std::int64_t count);
void exp_between(float* to, const float* x, const float* y, std::int64_t count);

const ChunkKernels chunk_kernels = {ranged, exact_product, map_features,  exp_queries, finish_query,
                                    slope,  raise,         outgrown_peak, exp_between, scale,
                                    divide, blend,         dot,           sum,         subtract,
                                    weigh,  tally};

}  // namespace foci::cpu::FOCI_ISA
