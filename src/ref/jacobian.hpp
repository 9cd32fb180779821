// SPDX-License-Identifier: Apache-2.0
// m_d = mean over queries of sum_e |J_de|, J = d o / d q of plain softmax attention at scale c:
//   J_de = c (sum_j a_j k_jd v_je - kappa_d omega_e),  kappa = sum_j a_j k_j, omega = sum_j a_j v_j
// One query head; under prefix a running mean. Gradient, with X_de = sign(J_de) dm_d / count:
//   dk_j = c a_j X (v_j - omega)              dv_j = c a_j X' (k_j - kappa)
//   da_j = c (k_j - kappa)' X (v_j - omega)
#pragma once

#include "metric/normalise.hpp"
#include "ref/group.hpp"
#include "ref/softmax.hpp"

namespace foci::ref {

template <class T>
struct JacobianEstimate {
  const Group<T>* group = nullptr;
  Normalize normalize = Normalize::max;
  T c = 1;
  bool prefix = false;
  Row<T> scratch;       // s, a, da, ds of one row
  std::span<T> J;       // (D,E)
  std::span<T> centre;  // (D+E): kappa, omega
  std::span<T> of_key;  // (D+E): X v, X' k of one key

  static JacobianEstimate take(Arena& arena, const Group<T>& group) {
    JacobianEstimate e;
    e.group = &group;
    e.J = arena.take<T>(group.D, group.E);
    e.centre = arena.take<T>(group.D + group.E);
    e.of_key = arena.take<T>(group.D + group.E);
    return e;
  }

  bool counts(std::int64_t i) const {
    return group->sees[i] > 0 && (group->N != group->at.M || group->keeps(i));
  }
  std::int64_t rows() const { return prefix ? group->N : 1; }
  std::int64_t row_of(std::int64_t i) const { return prefix ? i : 0; }

  /// J of a query that sees the first n keys; leaves its weights in scratch.a.
  void differentiate(const T* q, std::int64_t n) {
    const std::int64_t D = group->D, E = group->E;
    Row<T>& row = scratch;
    row.n = n;
    for (std::int64_t j = 0; j < n; ++j) row.s[j] = c * dot(q, &group->k[j * D], D);
    forward(Softmax{}, row);
    std::fill(J.begin(), J.end(), T(0));
    std::fill(centre.begin(), centre.end(), T(0));
    for (std::int64_t j = 0; j < n; ++j) {
      add(centre.data(), row.a[j], &group->k[j * D], D);
      add(centre.data() + D, row.a[j], &group->v[j * E], E);
    }
    // Centred first: the difference of two large sums would cancel.
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t d = 0; d < D; ++d) {
        const T pull = c * row.a[j] * (group->k[j * D + d] - centre[d]);
        for (std::int64_t e = 0; e < E; ++e)
          J[d * E + e] += pull * (group->v[j * E + e] - centre[D + e]);
      }
    }
  }

  /// size_d += sum_e |J_de|
  void add_size(T* size) const {
    for (std::int64_t d = 0; d < group->D; ++d) {
      for (std::int64_t e = 0; e < group->E; ++e) size[d] += std::abs(J[d * group->E + e]);
    }
  }

  /// m (rows,D), by (rows) of query head r.
  void forward_head(T* m, T* by, std::int64_t r) {
    const std::int64_t D = group->D;
    std::fill(m, m + rows() * D, T(0));
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < group->N; ++i) {
      if (prefix && i > 0) std::copy_n(m + (i - 1) * D, D, m + i * D);
      if (counts(i)) {
        differentiate(group->query(r, i), group->sees[i]);
        add_size(m + row_of(i) * D);
        ++counted;
      }
      if (prefix) by[i] = T(counted);
    }
    if (!prefix) by[0] = T(counted);
    for (std::int64_t i = 0; i < rows(); ++i) {
      const T count = by[i];
      for (std::int64_t d = 0; d < D && count > T(0); ++d) m[i * D + d] /= count;
      by[i] = metric::normalise(normalize, std::int64_t(count), m + i * D, D);
    }
  }

  /// Adds to dq (N,D), dk (n,D), dv (n,E); dm (rows,D) is used up.
  void backward_head(T* dq, T* dk, T* dv, T* dm, const T* m, const T* by, std::int64_t r) {
    const std::int64_t D = group->D;
    std::int64_t counted = 0;
    for (std::int64_t i = 0; i < group->N; ++i) {
      counted += counts(i);
      if (!prefix && i + 1 < group->N) continue;
      T* row = dm + row_of(i) * D;
      metric::normalise_backward(normalize, by[row_of(i)], row, m + row_of(i) * D, D);
      for (std::int64_t d = 0; d < D; ++d) row[d] = counted > 0 ? row[d] / T(counted) : T(0);
    }
    for (std::int64_t i = group->N; i-- > 0;) {  // query i belongs to every row at or after it
      if (prefix && i + 1 < group->N) add(dm + i * D, T(1), dm + (i + 1) * D, D);
      if (counts(i))
        pull(dq + i * D, dk, dv, dm + row_of(i) * D, group->query(r, i), group->sees[i]);
    }
  }

 private:
  void pull(T* dq, T* dk, T* dv, const T* dm, const T* q, std::int64_t n) {
    const std::int64_t D = group->D, E = group->E;
    differentiate(q, n);
    Row<T>& row = scratch;
    for (std::int64_t d = 0; d < D; ++d) {  // J becomes X
      for (std::int64_t e = 0; e < E; ++e) {
        T& x = J[d * E + e];
        x = x > T(0) ? dm[d] : x < T(0) ? -dm[d] : T(0);
      }
    }
    for (std::int64_t j = 0; j < n; ++j) {
      std::fill(of_key.begin(), of_key.end(), T(0));
      row.da[j] = 0;
      for (std::int64_t d = 0; d < D; ++d) {
        const T k = group->k[j * D + d] - centre[d];
        for (std::int64_t e = 0; e < E; ++e) {
          of_key[d] += J[d * E + e] * (group->v[j * E + e] - centre[D + e]);
          of_key[D + e] += J[d * E + e] * k;
        }
        row.da[j] += c * k * of_key[d];
      }
      add(dk + j * D, c * row.a[j], of_key.data(), D);
      add(dv + j * E, c * row.a[j], of_key.data() + D, E);
    }
    backward(Softmax{}, row);
    for (std::int64_t j = 0; j < n; ++j) {
      add(dq, c * row.ds[j], &group->k[j * D], D);
      add(dk + j * D, c * row.ds[j], q, D);
    }
  }
};

}  // namespace foci::ref
