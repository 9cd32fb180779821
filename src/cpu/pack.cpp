// SPDX-License-Identifier: Apache-2.0
// Lines of a tensor put where the register tiles read them, and dot products of lines; squares of
// lanes x lanes numbers are turned in registers. Compiled once per instruction set.
#include "cpu/isa.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

/// Columns [d, d + lanes) of `count` lines become x; lines that are not there are zero.
FOCI_INLINE void turn(V (&x)[lanes], const float* from, long step, long count) {
#pragma GCC unroll 16
  for (long i = 0; i < lanes; ++i) x[i] = i < count ? load(from + i * step) : all(0.0f);
  transpose(x);
}

void pack_keys(float* to, const float* from, std::int64_t n, std::int64_t D);
void pack_keys(float* to, const float* from, std::int64_t n, std::int64_t D) {
  for (long j = 0; j < padded(n, panel); j += lanes) {
    float* out = to + j / panel * panel * D + j % panel;
    const float* lines = from + j * D;
    const long count = n - j < 0 ? 0 : n - j < lanes ? n - j : lanes;
    long d = 0;
    for (; d + lanes <= D; d += lanes) {
      V x[lanes];
      turn(x, lines + d, D, count);
#pragma GCC unroll 16
      for (long i = 0; i < lanes; ++i) store(out + (d + i) * panel, x[i]);
    }
    for (; d < D; ++d) {
      for (long i = 0; i < lanes; ++i) out[d * panel + i] = i < count ? lines[i * D + d] : 0;
    }
  }
}

void row_dots(float* to, const float* a, const float* b, std::int64_t rows, std::int64_t E);
void row_dots(float* to, const float* a, const float* b, std::int64_t rows, std::int64_t E) {
  for (long r = 0; r < rows; r += lanes) {
    const float *x = a + r * E, *y = b + r * E;
    const long count = rows - r < lanes ? rows - r : lanes;
    V sum = all(0.0f);
    long e = 0;
    for (; e + lanes <= E; e += lanes) {
      V left[lanes], right[lanes];
      turn(left, x + e, E, count);
      turn(right, y + e, E, count);
#pragma GCC unroll 16
      for (long i = 0; i < lanes; ++i) sum = fma(right[i], left[i], sum);
    }
    float sums[lanes];
    store(sums, sum);
    for (; e < E; ++e) {
      for (long i = 0; i < count; ++i) sums[i] = fma_one(y[i * E + e], x[i * E + e], sums[i]);
    }
    for (long i = 0; i < count; ++i) to[r + i] = sums[i];
  }
}

}  // namespace foci::cpu::FOCI_ISA
