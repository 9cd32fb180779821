// SPDX-License-Identifier: Apache-2.0
// The jacobian metric: sum_e |J_de| of every query, J = d o / d q of plain softmax attention,
//   J_de = c sum_j a_j (k_jd - kappa_d) (v_je - omega_e),  kappa = sum_j a_j k_j, omega alike;
// and its gradient, with X_de = sign(J_de) g_d, g the gradient of a query's sizes:
//   dk_j = c a_j X (v_j - omega)   dv_j = c a_j X' (k_j - kappa)   da_j = c (k_j - kappa)' X (v_j -
//   omega)
#pragma once

#include "cuda/token_mean.cuh"

namespace foci::cuda {

struct JacobianEstimate {
  Shape shape;
  Field q, k, v, mask;
  double c = 1;
  int last_keys = 0;                // queries are the last keys, and count if those are kept
  float* sizes = nullptr;           // (B,H,N,D), or
  double* wide = nullptr;           // the same where keys are few: all is in double then
  std::uint8_t* counted = nullptr;  // (B,N) queries that count
  // The way back, some queries of every head at a time:
  std::int64_t most_signs = std::int64_t(1) << 28;
  int first = 0, round = 0;
  signed char* signs = nullptr;  // (sequences, H, round, D, E) of J
  double* centres = nullptr;     // (sequences, H, round, D + E) kappa, omega
  double* notes = nullptr;  // (sequences, H, round, 3) largest score, sum of exp, sum_j a_j da_j

  void take(metric::Arena& arena, const metric::Problem& problem, const Shape& of_shape, bool exact,
            bool back);
  /// Sizes and which of them count.
  void measure(Stream stream) const;
  Terms terms(const metric::Problem& problem) const;

  struct Gradient {
    Field g;              // (1|sequences, H, 1|N, D)
    int per_query;        // a line of g a query
    Field dq_so_far, dq;  // (B,H,N,D): the sum of both is written
    Field dk, dv;         // (B,G,M,D) (B,G,M,E): added to
  };
  void backward(const Gradient& to, Stream stream) const;

 private:
  template <class T>
  void pull_back(const Gradient& to, Stream stream) const;
};

}  // namespace foci::cuda
