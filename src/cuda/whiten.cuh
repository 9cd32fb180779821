// SPDX-License-Identifier: Apache-2.0
// LineSet as a full metric sees them, z = W (x - centre), and the way back of their gradients: to
// lines, to the metric, and through the estimate to the keys.
#pragma once

#include "cuda/full_slots.cuh"
#include "cuda/launch.cuh"

#include "metric/key_covariance.hpp"

namespace foci::cuda {

/// W (slots,D,D), triangular, and the point that distances are measured from.
struct Whitening {
  const float* W = nullptr;
  const float* centre = nullptr;  // (slots,D)
  int lower = 0;                  // else upper
};

/// Queries, all of them; or keys, for each of `chunks` chunks from `first` on.
struct LineSet {
  Slots slots;
  Whitening by;
  int keys = 0;
  int first = 0, chunks = 1;
  int room = 0;  // tokens that a head of z has room for, where that is more than there are

  int heads() const { return keys ? slots.shape.G : slots.shape.H; }
};

/// z (chunks if keys,B,heads,tokens,D). Masked keys become 0; keys that nobody looks at stay as
/// they are.
void whiten(float* z, const Field& x, const LineSet& lines, Stream stream);

/// dq (B,H,N,D) = W' dz
void unwhiten_queries(const Field& dq, const float* dz, const LineSet& lines, Stream stream);
/// dk (B,G,M,D) = sum over the chunks of W' dz, or that is added to it.
void unwhiten_keys(float* dk, bool adds, const float* dz, const LineSet& lines, Stream stream);

/// Sums of dz z' over stretches of tokens: what a gradient of W W^-1 is made of.
struct OuterSums {
  double* to = nullptr;  // (slots,parts,D,D)
  int parts = 1;
  int adds = 0;
};
void sum_outer(const OuterSums& to, const float* dz, const float* z, const LineSet& lines,
               Stream stream);

/// From G, the sum of dz z' over queries and keys, to the metric's gradient and to the estimate's:
///   dP = 1/2 W^-1 G W'^-1      A = slope dSigma = -1/2 slope W' G W
struct MetricGradient {
  Slots slots;
  double* G = nullptr;  // (slots,parts,D,D); part 0 becomes A where `through`
  int parts = 1;
  int joined = 1;                   // sequences that share one given metric
  const double* lower = nullptr;    // (slots,D,D) L of key-covariance
  const double* inverse = nullptr;  // (slots,D,D) L^-1; P where scores are products
  Field dmetric;                    // written where present
  int through = 0;
  metric::Shrinkage shrink;
  const int* count = nullptr;    // (slots)
  const double* mean = nullptr;  // (slots,D)
  int formed = 0;                // A and shift of heads whose scores are products are there
  double* shift = nullptr;       // (slots,D) A (mean - the mean of the last chunk)
  double* room = nullptr;        // (gradient_blocks,D,D); (slots,D,D) where scores are products
};
inline constexpr int gradient_blocks = 264;
void form_gradient(const MetricGradient& of, Stream stream);

/// dk (B,G,M,D) = base + sum over the slots that know a key of A (k - mean); absent A adds nothing.
void spread_to_keys(const Field& dk, const float* base, const Field& k, const MetricGradient& of,
                    Stream stream);

/// to (of up to four axes) = from, row-major, or 0 where absent.
void copy_out(const View& to, const float* from, Stream stream);

}  // namespace foci::cuda
