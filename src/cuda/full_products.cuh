// SPDX-License-Identifier: Apache-2.0
// Scores of full metrics as products, for softmax on tensor cores:
//   s_ij = q'_i . k_j + b_j + r_i      q' = c P (q - centre), k as it was given
//   b_j = -1/2 c (k_j - centre)' P (k_j - centre)      r_i = -1/2 q'_i . (q_i + centre)
// q' has two parts of the keys' type. Heads whose numbers are so large that products of their parts
// would show are left to lines and tiles: decided on the device.
#pragma once

#include "cuda/full_slots.cuh"
#include "cuda/launch.cuh"
#include "cuda/whiten.cuh"

namespace foci::cuda {

/// Along the prefix P, centre and b are those of a chunk of queries, q' is one f16 number and meets
/// keys in f16. So it is for Hopper's warpgroups over the whole sequence, where keys are k - centre
/// in f16 and r_i = -1/2 q'_i . (q_i - centre); heads where one number would show have two parts.
struct FullProducts {
  Slots slots;
  float c = 1;
  const float* P = nullptr;       // (slots,D,D)
  const float* centre = nullptr;  // (slots,D)
  float* q = nullptr;             // (B,H,N,D) q'
  float* row_bias = nullptr;      // (B,H,N) r
  float* key_bias = nullptr;      // (B,G,M) b, prefix: (chunks,B,G,M)
  // Prefix: c P over `unit` in two parts of the lines' type, (slots,2,D,D) and (slots); W'W = the
  // same, f16 (slots,D,D); q' and keys, f16 (B,H,N,D) and (B,G,M,D).
  // Over the sequence q' and keys of one number may lie in the rooms of floats, of a head each:
  // `apart` times as far from one another.
  std::uint16_t *P_parts = nullptr, *W = nullptr, *narrow_q = nullptr, *narrow_k = nullptr;
  int apart = 1;
  float *unit = nullptr, *moved = nullptr;  // moved: (slots,D) P over unit times the centre
  // (heads,sizes) bits of the largest of |q'|^2 and |c P (k - centre)|^2, of |r| and |b|, of |k|^2,
  // of c k'Pk, of c (k - centre)'P(k - centre), of |k - centre|^2, of |q'|^2 alone
  static constexpr int sizes = 7;
  int* largest = nullptr;
  int* chosen = nullptr;  // (heads) whether products serve; heads: (sequences,G)
  // The same where one number suffices, and where products have two parts; without prefix, where
  // somebody takes one number.
  int *narrow = nullptr, *wide = nullptr;
  const int* only = nullptr;  // (heads) that queries are folded for; absent: all
  int half = 0;               // keys are f16, which ends early

  /// Whether keys that are written have the centre taken off.
  FOCI_DEVICE bool centred() const { return narrow_k && !slots.prefix; }
};

/// Lines that kernels here read: 16 bits, side by side, rows aligned to 16 bytes.
bool products_read(const Field& lines);

/// q', b, r and which heads are chosen, and how.
void fold_products(const FullProducts& to, const Field& q, const Field& k, Stream stream);

/// Along the prefix: keys in f16, and b of every chunk for the keys that its queries look at.
void fold_prefix(const FullProducts& to, const Field& k, Stream stream);
/// Row-major f16; heads `apart` times as far from one another.
Field narrow_lines(std::uint16_t* data, std::initializer_list<std::int64_t> shape, int apart = 1);
/// The keys that q' meets there: k, or its copy in f16.
Field prefix_keys(const FullProducts& of, const Field& k);

/// What the passes left for q' (B,H,N,D), k (B,G,M,D) and b, which lies as it does there.
struct ProductSums {
  float *dq = nullptr, *dk = nullptr, *dkey_bias = nullptr;
};

/// dq = c P dq'
void unfold_queries(const Field& dq, const ProductSums& sums, const FullProducts& of,
                    Stream stream);
/// dP, not symmetric yet: sum c dq' (q - centre)' - 1/2 c sum db (k - centre)(k - centre)'.
void sum_gradient(const OuterSums& to, const ProductSums& sums, const Field& q, const Field& k,
                  const FullProducts& of, Stream stream);
/// Along the prefix over bf16: A and shift themselves, of the heads that are chosen.
void form_prefix_gradient(const MetricGradient& to, const ProductSums& sums, const Field& q,
                          const Field& k, const FullProducts& of, Stream stream);
/// dk = dk - db c P (k - centre), and A (k - centre) where A is present: (slots,D,D), `step` apart.
struct Estimate {
  const double* A = nullptr;
  std::int64_t step = 0;
};
/// Along the prefix: dk (B,G,M,D) less the sum over chunks of db c P (k - centre).
void unfold_prefix_keys(const ProductSums& sums, const Field& k, const FullProducts& of,
                        Stream stream);
void unfold_keys(const Field& dk, const ProductSums& sums, const Field& k, const Estimate& through,
                 const FullProducts& of, Stream stream);

}  // namespace foci::cuda
