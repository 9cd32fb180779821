// SPDX-License-Identifier: Apache-2.0
// Scatters, Cholesky factors and triangular inverses in double, in blocks whose bulk is a product
// of register tiles.
#include "cpu/matrix.hpp"
#include "cpu/wide.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/matrix_tile.hpp"

/// The sum of the rows in Vectors vectors of columns.
template <int Vectors>
static void sum_columns(double* sum, const float* x, long n, long D) {
  W line[Vectors];
#pragma GCC unroll 4
  for (int j = 0; j < Vectors; ++j) line[j] = load(sum + j * wide_lanes);
  for (long i = 0; i < n; ++i, x += D) {
#pragma GCC unroll 4
    for (int j = 0; j < Vectors; ++j) line[j] = add(line[j], load_wide(x + j * wide_lanes));
  }
#pragma GCC unroll 4
  for (int j = 0; j < Vectors; ++j) store(sum + j * wide_lanes, line[j]);
}

void sum_rows(double* sum, const float* x, std::int64_t n, std::int64_t D) {
  long d = 0;
  for (; d + 4 * wide_lanes <= D; d += 4 * wide_lanes) sum_columns<4>(sum + d, x + d, n, D);
  for (; d + wide_lanes <= D; d += wide_lanes) sum_columns<1>(sum + d, x + d, n, D);
  for (; d < D; ++d) {
    for (long i = 0; i < n; ++i) sum[d] += x[i * D + d];
  }
}

/// Rows of a tile of the scatter: a multiple of the lanes, so that a row of tiles starts at the
/// diagonal and never before it. Sums and centred rows are padded to whole tiles.
static constexpr long scatter_tile = wide_lanes < 4 ? 4 : wide_lanes;

static long scatter_stride(long D) { return (D + scatter_tile - 1) / scatter_tile * scatter_tile; }

/// Centred rows held at a time: about what the nearest cache holds. (Measured: narrow vectors,
/// which load more often, want less.)
static long scatter_rows(long stride) {
  constexpr long bytes = (wide_lanes == 8 ? 32 : 24) * 1024;
  const long rows = bytes / (long(sizeof(double)) * stride);
  return rows < 16 ? 16 : rows > 128 ? 128 : rows;
}

std::int64_t scatter_room(std::int64_t D) {
  const long stride = scatter_stride(D);
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

/// upper += rows' rows for scatter_tile rows of the sum, from the diagonal to the right: `cols`
/// columns, whole vectors.
static void scatter_tiles(double* upper, const double* rows, long cols, long count, long stride) {
  WideProduct of{upper, rows, rows, scatter_tile, cols, count, stride, 1, stride, stride, true};
  const auto next = [&of](int vectors) {
    of.c += vectors * wide_lanes;
    of.b += vectors * wide_lanes;
    of.cols -= vectors * wide_lanes;
  };
  for (; of.cols >= 3 * wide_lanes; next(3)) product_tile<double, scatter_tile, 3>(of);
  for (; of.cols >= 2 * wide_lanes; next(2)) product_tile<double, scatter_tile, 2>(of);
  for (; of.cols > 0; next(1)) product_tile<double, scatter_tile, 1>(of);
}

void scatter(double* sum, const float* x, const double* centre, std::int64_t n, std::int64_t D,
             double* room) {
  const long stride = scatter_stride(D), most = scatter_rows(stride);
  double* upper = room;  // (stride,stride), the tiles on and above the diagonal
  double* rows = room + stride * stride;
  for (long i = 0; i < stride * stride; ++i) upper[i] = 0;
  for (long first = 0; first < n; first += most) {
    const long count = n - first < most ? n - first : most;
    centre_rows(rows, x + first * D, centre, count, D, stride);
    for (long i = 0; i < stride; i += scatter_tile)
      scatter_tiles(upper + i * stride + i, rows + i, stride - i, count, stride);
  }
  for (long i = 0; i < D; ++i) {
    for (long j = i; j < D; ++j) sum[i * D + j] += upper[i * stride + j];
    for (long j = i + 1; j < D; ++j) sum[j * D + i] += upper[i * stride + j];
  }
}

void join(double* sum, const double* other, const double* gap, double share, std::int64_t D) {
  for (long i = 0; i < D; ++i, sum += D, other += D) {
    const double part = share * gap[i];
    for (long j = 0; j < D; ++j) sum[j] += other[j] + part * gap[j];
  }
}

static constexpr long factor_block = 8;

/// What a block of rows does to itself, in order: row i is multiplied with scale[i], then added
/// share[i][j] times to every later row j.
struct Substitution {
  double scale[factor_block], share[factor_block][factor_block];
  long count;

  void run(double* rows, long step, long from, long to) const {
    long x = from;
    for (; count == factor_block && x + wide_lanes <= to; x += wide_lanes) {
      W line[factor_block];
#pragma GCC unroll 8
      for (long i = 0; i < factor_block; ++i) line[i] = load(rows + i * step + x);
#pragma GCC unroll 8
      for (long i = 0; i < factor_block; ++i) {
        line[i] = mul(line[i], all(scale + i));
#pragma GCC unroll 8
        for (long j = i + 1; j < factor_block; ++j)
          line[j] = fma(line[i], all(&share[i][j]), line[j]);
        store(rows + i * step + x, line[i]);
      }
    }
    for (; x < to; ++x) {
      for (long i = 0; i < count; ++i) {
        const double value = rows[i * step + x] *= scale[i];
        for (long j = i + 1; j < count; ++j) rows[j * step + x] += value * share[i][j];
      }
    }
  }
};

/// Rows first .. first + count of the upper factor, everything before them taken off already.
static bool factor_rows(double* U, long first, long count, long D, Substitution& how) {
  double* square = U + first * D + first;
  how.count = count;
  for (long i = 0; i < count; ++i) {
    const double pivot = square[i * D + i];
    if (!(pivot > 0 && pivot < INFINITY)) return false;
    const double root = sqrt(pivot);
    how.scale[i] = 1 / root;
    square[i * D + i] = root;
    for (long j = i + 1; j < count; ++j) how.share[i][j] = -(square[i * D + j] *= how.scale[i]);
    for (long j = i + 1; j < count; ++j) {
      for (long x = j; x < count; ++x) square[j * D + x] += how.share[i][j] * square[i * D + x];
    }
  }
  how.run(U + first * D, D, first + count, D);
  return true;
}

/// Takes the outer products of the block's rows off the upper triangle that follows them.
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

/// The upper triangle becomes the lower one, zeros take its place; in squares, for lines of a
/// column may fall on one another in the cache.
static void turn_over(double* L, long D) {
  for (long first = 0; first < D; first += factor_block) {
    const long end = D - first < factor_block ? D : first + factor_block;
    for (long column = first; column < D; column += factor_block) {
      const long right = D - column < factor_block ? D : column + factor_block;
      for (long i = first; i < end; ++i) {
        for (long j = column > i ? column : i + 1; j < right; ++j) {
          L[j * D + i] = L[i * D + j];
          L[i * D + j] = 0;
        }
      }
    }
  }
}

/// Upwards, since rows of the upper factor are neighbours in memory; turned over at the end.
bool cholesky(double* L, const double* A, std::int64_t D) {
  Substitution how;
  for (long i = 0; i < D; ++i) {
    for (long j = i; j < D; ++j) L[i * D + j] = A[i * D + j];
  }
  for (long first = 0; first < D; first += factor_block) {
    const long count = D - first < factor_block ? D - first : factor_block;
    if (!factor_rows(L, first, count, D, how)) return false;
    take_off(L, first, count, D);
  }
  turn_over(L, D);
  return true;
}

/// Row i of W is (sum over l < i of L(i,l) W(l) - e_i) / -L(i,i), and row l of W ends at column l:
/// the rows above a block by products, those inside it by substitution.
void invert_lower(double* W, const double* L, std::int64_t D) {
  constexpr long panel = 2 * wide_lanes;
  Substitution how;
  for (long first = 0; first < D; first += factor_block) {
    const long end = D - first < factor_block ? D : first + factor_block;
    for (long x = 0; x < first; x += panel) {
      const long width = first - x < panel ? first - x : panel;
      multiply_matrices(WideProduct{W + first * D + x, L + first * D + x, W + x * D + x,
                                    end - first, width, first - x, D, D, 1, D, false});
    }
    how.count = end - first;
    for (long i = first; i < end; ++i) {
      for (long x = first; x < D; ++x) W[i * D + x] = x == i ? -1 : 0;
      how.scale[i - first] = -1 / L[i * D + i];
      for (long j = i + 1; j < end; ++j) how.share[i - first][j - first] = L[j * D + i];
    }
    how.run(W + first * D, D, 0, end);
    for (long i = first; i < end; ++i) {
      for (long x = i + 1; x < end; ++x) W[i * D + x] = 0;
    }
  }
}

}  // namespace foci::cpu::FOCI_ISA
