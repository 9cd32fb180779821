// SPDX-License-Identifier: Apache-2.0
// Products and transposes of plain matrices; the factors are in factor.cpp.
#include "cpu/matrix.hpp"

#include "cpu/wide.hpp"

namespace foci::cpu::FOCI_ISA {

#include "cpu/matrix_tile.hpp"

static void product(const Product& of) { multiply_matrices(of); }
static void product_wide(const WideProduct& of) { multiply_matrices(of); }

/// Squares of 16: as many lines are read as written, and all of them stay near.
static void transpose(float* to, const float* from, std::int64_t rows, std::int64_t cols,
                      std::int64_t to_step, std::int64_t from_step) {
  constexpr long side = 16;
  for (long i0 = 0; i0 < rows; i0 += side) {
    const long high = rows - i0 < side ? rows - i0 : side;
    for (long j0 = 0; j0 < cols; j0 += side) {
      const long wide = cols - j0 < side ? cols - j0 : side;
      const float* source = from + i0 * from_step + j0;
      float* target = to + j0 * to_step + i0;
      if (high == side && wide == side) {
        for (long j = 0; j < side; ++j) {
          for (long i = 0; i < side; ++i) target[j * to_step + i] = source[i * from_step + j];
        }
        continue;
      }
      for (long j = 0; j < wide; ++j) {
        for (long i = 0; i < high; ++i) target[j * to_step + i] = source[i * from_step + j];
      }
    }
  }
}

// factor.cpp
void sum_rows(double* sum, const float* x, std::int64_t n, std::int64_t D);
void scatter(double* sum, const float* x, const double* centre, std::int64_t n, std::int64_t D,
             double* room);
std::int64_t scatter_room(std::int64_t D);
void join(double* sum, const double* other, const double* gap, double share, std::int64_t D);
bool cholesky(double* L, const double* A, std::int64_t D);
void invert_lower(double* W, const double* L, std::int64_t D);

const MatrixKernels matrix_kernels = {product,      product_wide, transpose, sum_rows,    scatter,
                                      scatter_room, join,         cholesky,  invert_lower};

}  // namespace foci::cpu::FOCI_ISA
