// SPDX-License-Identifier: Apache-2.0
// Scores of full metrics as products, for softmax on tensor cores:
//   s_ij = q'_i . k_j + b_j + r_i      q' = c P (q - centre), k as it was given
//   b_j = -1/2 c (k_j - centre)' P (k_j - centre)      r_i = -1/2 q'_i . (q_i + centre)
// Without prefix. Where these numbers are so large that products of parts of them would show, a
// head is left to lines and tiles: decided on the device.
#pragma once

#include "cuda/full_slots.cuh"
#include "cuda/launch.cuh"
#include "cuda/whiten.cuh"

namespace foci::cuda {

struct FullProducts {
  Slots slots;
  float c = 1;
  const float* P = nullptr;       // (slots,D,D)
  const float* centre = nullptr;  // (slots,D)
  float* q = nullptr;             // (B,H,N,D) q'
  float* row_bias = nullptr;      // (B,H,N) r
  float* key_bias = nullptr;      // (B,G,M) b
  // (slots,sizes) bits of the largest of |q'|^2 and |c P (k - centre)|^2, of |r| and |b|, of |k|^2,
  // of c k'Pk, of c (k - centre)'P(k - centre)
  static constexpr int sizes = 5;
  int* largest = nullptr;
  int* chosen = nullptr;  // (slots) whether products serve
  int half = 0;           // keys are f16, which ends early
};

/// Lines that kernels here read: 16 bits, side by side, rows aligned to 16 bytes.
bool products_read(const Field& lines);

/// q', b, r and which heads are chosen.
void fold_products(const FullProducts& to, const Field& q, const Field& k, Stream stream);

/// What the passes left for q' (B,H,N,D), k (B,G,M,D) and b (B,G,M).
struct ProductSums {
  float *dq = nullptr, *dk = nullptr, *dkey_bias = nullptr;
};

/// dq = c P dq'
void unfold_queries(const Field& dq, const ProductSums& sums, const FullProducts& of,
                    Stream stream);
/// dP, not symmetric yet: sum c dq' (q - centre)' - 1/2 c sum db (k - centre)(k - centre)'.
void sum_gradient(const OuterSums& to, const ProductSums& sums, const Field& q, const Field& k,
                  const FullProducts& of, Stream stream);
/// dk = dk - db c P (k - centre), and A (k - centre) where A is present: (slots,D,D), `step` apart.
struct Estimate {
  const double* A = nullptr;
  std::int64_t step = 0;
};
void unfold_keys(const Field& dk, const ProductSums& sums, const Field& k, const Estimate& through,
                 const FullProducts& of, Stream stream);

}  // namespace foci::cuda
