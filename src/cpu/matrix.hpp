// SPDX-License-Identifier: Apache-2.0
// Plain matrix work that several mechanisms share, once per instruction set: products in float,
// scatters and triangular factors in double.
#pragma once

#include <cstdint>

namespace foci::cpu {

/// c (rows,cols) = or += a (rows,K) times b (K,cols). b and c have rows of neighbouring numbers;
/// a(i,k) stands at i * a_row + k * a_k, so that a transposed matrix needs no copy.
template <class T>
struct ProductOf {
  T* c;
  const T* a;
  const T* b;
  std::int64_t rows, cols, K;
  std::int64_t c_step, a_row, a_k, b_step;
  bool add;  // += instead of =
};
using Product = ProductOf<float>;
using WideProduct = ProductOf<double>;

struct MatrixKernels {
  void (*product)(const Product& of);
  void (*product_wide)(const WideProduct& of);
  /// to (cols,rows) = the transpose of from (rows,cols)
  void (*transpose)(float* to, const float* from, std::int64_t rows, std::int64_t cols,
                    std::int64_t to_step, std::int64_t from_step);
  /// sum (D) += the n rows of x
  void (*sum_rows)(double* sum, const float* x, std::int64_t n, std::int64_t D);
  /// sum (D,D) += sum over n rows of (x - centre)(x - centre)', both triangles; room:
  /// scatter_room(D) doubles
  void (*scatter)(double* sum, const float* x, const double* centre, std::int64_t n, std::int64_t D,
                  double* room);
  std::int64_t (*scatter_room)(std::int64_t D);
  /// sum (D,D) += other + share gap gap'
  void (*join)(double* sum, const double* other, const double* gap, double share, std::int64_t D);
  /// L L' = A (D,D), of which the upper triangle is read; lower with zeros above; false where a
  /// pivot is not positive and finite
  bool (*cholesky)(double* L, const double* A, std::int64_t D);
  /// W = L^-1, lower with zeros above
  void (*invert_lower)(double* W, const double* L, std::int64_t D);
};

namespace portable {
extern const MatrixKernels matrix_kernels;
}
namespace avx2 {
extern const MatrixKernels matrix_kernels;
}
namespace avx512 {
extern const MatrixKernels matrix_kernels;
}

}  // namespace foci::cpu
