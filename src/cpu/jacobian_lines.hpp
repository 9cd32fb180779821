// SPDX-License-Identifier: Apache-2.0
// What the jacobian metric asks of an instruction set: J = d o / d q of one query of plain softmax
// attention, and what one query sends back to a block of keys. Lines of neighbouring floats; a
// query sees the first n keys, and nothing beyond them is read.
#pragma once

#include <cstdint>

namespace foci::cpu {

/// Keys centred and multiplied at a time.
inline constexpr std::int64_t jacobian_keys = 96;

/// From one line of a small matrix to the next: rounded up, and away from powers of two, whose
/// lines would crowd into a few sets of the cache.
constexpr std::int64_t line_step(std::int64_t width) { return (width + 15) / 16 * 16 + 16; }

/// J_de = c sum_j a_j (k_jd - kappa_d)(v_je - omega_e), a = softmax(c q.k), kappa = sum_j a_j k_j,
/// omega = sum_j a_j v_j.
struct JacobianQuery {
  const float *q, *k, *v;  // (D), (n,D), (n,E)
  std::int64_t n, D, E;
  double c;
  float* a;       // (n) out
  float* centre;  // (D+E) kappa, omega: out
  float* J;       // (D, line_step(E)) out
  float* size;    // (D) out: sum_e |J_de|
  float* pulls;   // (jacobian_keys, line_step(D)) room
  float* apart;   // (jacobian_keys, line_step(E)) room
  double* wide;   // (D+n+8) room
};

/// What comes back to keys [first, first + count) from X, the gradient of J:
///   dk_j = c a_j X (v_j - omega) + c ds_j q      dv_j = c a_j X' (k_j - kappa)
///   ds_j = a_j (c (k_j - kappa)' X (v_j - omega) - delta)
struct JacobianPull {
  const float *q, *k, *v, *centre;
  const float *X, *Xt;  // (D, line_step(E)) and its transpose (E, line_step(D))
  double delta;         // sum_j a_j da_j
  std::int64_t first, count, D, E;
  double c;
  float* a;                 // (n) in: weights; out: c ds
  float *dk, *dv;           // (count, line_step(D)), (count, line_step(E)) +=
  float *pulls, *of_key;    // (count, line_step(D)) room
  float *apart, *of_value;  // (count, line_step(E)) room
};

struct JacobianKernels {
  void (*differentiate)(const JacobianQuery& of);
  /// J becomes X_de = sign(J_de) dm_d, and 0 where J is 0.
  void (*turn)(float* J, const double* dm, std::int64_t D, std::int64_t E);
  void (*pull)(const JacobianPull& of);
  /// to (width) += sum_j a_j from_j over n lines
  void (*sum_lines)(float* to, const float* a, const float* from, std::int64_t n,
                    std::int64_t width);
};

namespace portable {
extern const JacobianKernels jacobian_kernels;
}
namespace avx2 {
extern const JacobianKernels jacobian_kernels;
}
namespace avx512 {
extern const JacobianKernels jacobian_kernels;
}

}  // namespace foci::cpu
