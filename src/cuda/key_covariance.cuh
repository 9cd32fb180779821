// SPDX-License-Identifier: Apache-2.0
// From keys to the factors of full metrics: where chunks begin, moments of stretches of keys,
// joined by Chan's formula, and a Cholesky factor of each covariance with its inverse. All in
// double.
#pragma once

#include "cuda/full_slots.cuh"
#include "cuda/launch.cuh"

#include "metric/key_covariance.hpp"

namespace foci::cuda {

/// Fills kept, spans, key_spans and chunks_before of a prefix problem.
void place_chunks(const Slots& slots, Stream stream);

/// Keys of a slot: under prefix those that the slot before does not know, else the part-th stretch.
struct Moments {
  Slots slots;
  Field k;
  int parts = 1, part_keys = 1;  // without prefix
  int* part_count = nullptr;     // (slots,parts)
  double* part_mean = nullptr;   // (slots,parts,D)
  double* scatter = nullptr;     // (slots,parts,D,D), lower triangle; means alone where absent
  // Joined: (slots), (slots,D), and the scatter in part 0. Of one part alone they are its own.
  int* count = nullptr;
  double* mean = nullptr;
};
void gather_moments(const Moments& to, Stream stream);
/// The same over keys of 16 bits, D up to 128, on tensor cores: scatters are off by
/// some 2^-19 of the largest square of a key's numbers.
void estimate_moments(const Moments& to, Stream stream);

/// z = W (x - centre). key-covariance: L L' = Sigma, W = L^-1. Given: L L' = P, W = L'.
struct Factors {
  Slots slots;
  Field k;
  Field given;                      // (1|sequences,G,D,D), or the moments below
  const int* count = nullptr;       // (slots); absent: around the first key
  const double* mean = nullptr;     // (slots,D)
  const double* scatter = nullptr;  // (slots,D,D) lower, `scatter_step` apart
  std::int64_t scatter_step = 0;
  metric::Shrinkage shrink;
  double slack = 0;         // given: what rounding may have left of a pivot
  int every = 0;            // also slots that no query uses
  float* W = nullptr;       // (slots,D,D)
  float* centre = nullptr;  // (slots,D)
  double* lower = nullptr;  // (slots,D,D) L, where somebody asks
  double* inverse =
      nullptr;         // (slots,D,D) L^-1, where somebody asks, or shared memory is too small
  float* P = nullptr;  // (slots,D,D), where somebody asks
  // invert(), where somebody asks: f16 (slots,D,D) lower triangular, c P = unit W'W, unit (slots).
  // With it c P over unit in two parts of k's type, (slots,2,D,D), and times the centre, (slots,D).
  std::uint16_t *narrow_W = nullptr, *P_parts = nullptr;
  float *unit = nullptr, *moved = nullptr;
  float c = 1;
  Field metric, status;  // written where present
};
void factor(const Factors& to, Stream stream);
/// P (and in double as `inverse`) and centre of covariances alone, D up to 128, and status 0: fast,
/// and NaN where a covariance is not positive definite as it stands.
void invert(const Factors& to, Stream stream);
/// Whether factor() needs Factors::inverse as room.
bool wants_room(int D);

}  // namespace foci::cuda
