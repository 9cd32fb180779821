// SPDX-License-Identifier: Apache-2.0
// Scatters, Cholesky factors and triangular inverses in double, in blocks whose bulk is a product
// of register tiles.
#include "cpu/matrix.hpp"
#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/matrix_tile.hpp"

static long whole_vectors(long x) { return (x + wide_lanes - 1) / wide_lanes * wide_lanes; }

/// Centred rows held at a time: they share the nearest cache with the tiles of the sum.
static long scatter_rows(long stride) {
  const long rows = 24 * 1024 / (long(sizeof(double)) * stride);
  return rows < 16 ? 16 : rows > 128 ? 128 : rows;
}

/// Rows of a tile of the scatter: a multiple of the lanes, so that a row of tiles starts at the
/// diagonal and never before it.
static constexpr long scatter_tile = wide_lanes < 4 ? 4 : wide_lanes;

std::int64_t scatter_room(std::int64_t D) {
  const long stride = whole_vectors(D);
  return (stride + scatter_rows(stride)) * stride;
}

/// to (rows,stride) = x (rows,D) - centre, padded with zeros
static void centre_rows(double* to, const float* x, const double* centre, long rows, long D,
                        long stride) {
  for (long i = 0; i < rows; ++i, x += D, to += stride) {
    long d = 0;
    for (; d + wide_lanes <= D; d += wide_lanes)
      store(to + d, sub(load_wide(x + d), load(centre + d)));
    for (; d < D; ++d) to[d] = double(x[d]) - centre[d];
    for (; d < stride; ++d) to[d] = 0;
  }
}

void scatter(double* sum, const float* x, const double* centre, std::int64_t n, std::int64_t D,
             double* room) {
  const long stride = whole_vectors(D), most = scatter_rows(stride);
  double* upper = room;  // (stride,stride), the tiles on and above the diagonal
  double* rows = room + stride * stride;
  for (long i = 0; i < stride * stride; ++i) upper[i] = 0;
  for (long first = 0; first < n; first += most) {
    const long count = n - first < most ? n - first : most;
    centre_rows(rows, x + first * D, centre, count, D, stride);
    for (long i = 0; i < stride; i += scatter_tile) {
      const long high = stride - i < scatter_tile ? stride - i : scatter_tile;
      product_stretch(WideProduct{upper + i * stride + i, rows + i, rows + i, high, stride - i,
                                  count, stride, 1, stride, stride, true});
    }
  }
  for (long i = 0; i < D; ++i) {
    for (long j = i; j < D; ++j) sum[i * D + j] += upper[i * stride + j];
    for (long j = i + 1; j < D; ++j) sum[j * D + i] += upper[i * stride + j];
  }
}

static constexpr long factor_block = 8;

/// Rows first .. first + count of the upper factor, everything before them taken off already.
static bool factor_rows(double* U, long first, long count, long D) {
  for (long j = first; j < first + count; ++j) {
    double* row = U + j * D;
    const double pivot = row[j];
    if (!(pivot > 0 && pivot < INFINITY)) return false;
    const double root = sqrt(pivot), inverse = 1 / root;
    row[j] = root;
    for (long x = j + 1; x < D; ++x) row[x] *= inverse;
    for (long i = j + 1; i < first + count; ++i) {
      double* below = U + i * D;
      const double share = row[i];
      for (long x = i; x < D; ++x) below[x] -= share * row[x];
    }
  }
  return true;
}

/// Takes the outer products of `count` factored rows off the upper triangle that follows them.
static void take_off(double* U, long first, long count, long D) {
  for (long i = first + count; i < D; i += factor_block) {
    const long high = D - i < factor_block ? D - i : factor_block;
    double minus[factor_block * factor_block];
    for (long k = 0; k < count; ++k) {
      for (long x = 0; x < high; ++x) minus[k * factor_block + x] = -U[(first + k) * D + i + x];
    }
    product_stretch(WideProduct{U + i * D + i, minus, U + first * D + i, high, D - i, count, D, 1,
                                factor_block, D, true});
  }
}

/// Upwards, since rows of the upper factor are neighbours in memory; turned over at the end.
bool cholesky(double* L, const double* A, std::int64_t D) {
  for (long i = 0; i < D; ++i) {
    for (long j = i; j < D; ++j) L[i * D + j] = A[i * D + j];
  }
  for (long first = 0; first < D; first += factor_block) {
    const long count = D - first < factor_block ? D - first : factor_block;
    if (!factor_rows(L, first, count, D)) return false;
    take_off(L, first, count, D);
  }
  for (long i = 0; i < D; ++i) {
    for (long j = i + 1; j < D; ++j) {
      L[j * D + i] = L[i * D + j];
      L[i * D + j] = 0;
    }
  }
  return true;
}

/// Row i of W is (e_i - sum over l < i of L(i,l) W(l)) / L(i,i), and row l of W ends at column l:
/// the rows above a block by products, those inside it one by one.
void invert_lower(double* W, const double* L, std::int64_t D) {
  constexpr long panel = 2 * wide_lanes;
  for (long first = 0; first < D; first += factor_block) {
    const long end = D - first < factor_block ? D : first + factor_block;
    for (long x = 0; x < first; x += panel) {
      const long width = first - x < panel ? first - x : panel;
      multiply_matrices(WideProduct{W + first * D + x, L + first * D + x, W + x * D + x,
                                    end - first, width, first - x, D, D, 1, D, false});
    }
    for (long i = first; i < end; ++i) {
      double* row = W + i * D;
      for (long x = first; x < D; ++x) row[x] = 0;
      for (long l = first; l < i; ++l) {
        const double share = L[i * D + l];
        for (long x = 0; x <= l; ++x) row[x] += share * W[l * D + x];
      }
      const double inverse = 1 / L[i * D + i];
      for (long x = 0; x < i; ++x) row[x] *= -inverse;
      row[i] = inverse;
    }
  }
}

}  // namespace foci::cpu::FOCI_ISA
