// SPDX-License-Identifier: Apache-2.0
// Products of whole tiles on tensor cores, as one warp sees them. Sums lie in registers,
// [rows of 16][columns of 8][4] as accumulators have them; left(a, m, step) gives the 16x16 block
// `step` of row m of the left side; the right side lies in shared memory.
#pragma once

#include "cuda/mma.cuh"

namespace foci::cuda {

template <int rows, int columns>
FOCI_DEVICE void clear(float (&x)[rows][columns][4]) {
  FOCI_UNROLL
  for (int i = 0; i < rows * columns * 4; ++i) x[i / (4 * columns)][i / 4 % columns][i % 4] = 0;
}

/// s = left y' over all columns of y, which begins at `y` plus Y::across()
template <DType type, class Y, int rows, int columns, class Left>
FOCI_DEVICE void cross(float (&s)[rows][columns][4], Address y, const Left& left) {
  clear(s);
  FOCI_UNROLL
  for (int step = 0; step < Y::width / 16; ++step) {
    const Address y_here = Y::beside(y, step);
    unsigned a[rows][4];
    FOCI_UNROLL
    for (int m = 0; m < rows; ++m) left(a[m], m, step);
    FOCI_UNROLL
    for (int n = 0; n < columns / 2; ++n) {
      unsigned b[4];
      Y::template operands<false>(b, y_here, 16 * n);
      FOCI_UNROLL
      for (int m = 0; m < rows; ++m) {
        multiply<type>(s[m][2 * n], a[m], b[0], b[1]);
        multiply<type>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// sums += left y over 16 `steps` rows of y, from `first_column` on: where a panel begins, or all
/// within one; y with Y::along()
template <DType type, class Y, int steps, int rows, int columns, class Left>
FOCI_DEVICE void sum_up(float (&sums)[rows][columns][4], Address y, int first_column,
                        const Left& left) {
  constexpr int most = Y::panel / 16;  // after which places repeat, a panel further on
  constexpr int turns = most < columns / 2 ? most : columns / 2;
  Address y_here[turns];
  FOCI_UNROLL
  for (int n = 0; n < turns; ++n) y_here[n] = Y::beside(y, first_column / 16 + n);
  FOCI_UNROLL
  for (int step = 0; step < steps; ++step) {
    unsigned a[rows][4];
    FOCI_UNROLL
    for (int m = 0; m < rows; ++m) left(a[m], m, step);
    FOCI_UNROLL
    for (int n = 0; n < columns / 2; ++n) {
      unsigned b[4];
      Y::template operands<true>(b, y_here[n % turns], 16 * step + n / turns * Y::rows);
      FOCI_UNROLL
      for (int m = 0; m < rows; ++m) {
        multiply<type>(sums[m][2 * n], a[m], b[0], b[1]);
        multiply<type>(sums[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// A left side from shared memory: rows from x on, x with X::along().
template <class X>
FOCI_DEVICE auto rows_at(Address x) {
  return [x](unsigned(&a)[4], int m, int step) {
    X::template operands<false>(a, X::beside(x, step), 16 * m);
  };
}

/// A left side from sums, rounded: their columns are summed over.
template <DType type, int rows, int columns>
FOCI_DEVICE auto rounded(const float (&x)[rows][columns][4]) {
  return [&x](unsigned(&a)[4], int m, int step) {
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* pair = x[m][2 * step + i / 2] + 2 * (i % 2);
      a[i] = pack<type>(pair[0], pair[1]);
    }
  };
}

}  // namespace foci::cuda
