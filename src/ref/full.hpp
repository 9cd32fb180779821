// SPDX-License-Identifier: Apache-2.0
// Scores of a full metric and their gradient: s_j = -1/2 c (q-k_j)' P (q-k_j) = -1/2 c |z(q) -
// z(k_j)|^2 with z = L^-1 (x - centre). Distances do not feel the centre, so it gets no gradient.
// One chunk of queries at a time.
//   dq = -c P u,  u = sum_j ds_j (q - k_j)      dk_j = c P ds_j (q - k_j)      dP = -1/2 c sum ds_j
//   (q-k_j)(q-k_j)'
#pragma once

#include "ref/group.hpp"
#include "ref/key_covariance.hpp"

namespace foci::ref {

enum class Centre { mean, first_key };

template <class T>
struct Full {
  const Group<T>* group = nullptr;
  T c = 1;
  Covariance covariance;
  Scatter keys;                // what the chunk's estimate has seen
  std::span<T> centre;         // (D)
  std::span<T> zk;             // (n,D) whitened keys
  std::span<T> x, z, u, w;     // (D) each
  std::span<T> apart;          // (n,D) sum over queries of ds_j (q - k_j)
  std::span<T> dbias;          // (n) sum over queries of ds_j
  std::span<double> P, dP, X;  // (D,D)
  std::span<double> unit;      // (D)

  static Full take(Arena& arena, const Group<T>& group) {
    const std::int64_t D = group.D, M = group.p->longest_m;
    Full full;
    full.group = &group;
    full.covariance = Covariance::take(arena, D);
    full.keys = Scatter::take(arena, D);
    for (auto* row : {&full.centre, &full.x, &full.z, &full.u, &full.w}) *row = arena.take<T>(D);
    full.zk = arena.take<T>(M, D);
    full.apart = arena.take<T>(M, D);
    full.dbias = arena.take<T>(M);
    full.unit = arena.take<double>(D);
    for (auto* matrix : {&full.P, &full.dP, &full.X}) *matrix = arena.take<double>(D, D);
    return full;
  }

  /// Estimates from the first `count` kept keys; returns the number of raises, -1 if it failed.
  int estimate(std::int64_t count) {
    keys.clear();
    for (std::int64_t j = 0; j < count; ++j) keys.include(&group->k[j * group->D]);
    return covariance.estimate(keys);
  }

  /// Centres and whitens the keys. A causal row may not feel a mean of keys it does not see.
  void place(Centre where) {
    const std::int64_t D = group->D;
    for (std::int64_t d = 0; d < D; ++d) {
      centre[d] = where == Centre::mean ? T(keys.mean[d]) : group->n > 0 ? group->k[d] : T(0);
    }
    for (std::int64_t j = 0; j < group->n; ++j) {
      whiten(&zk[j * D], &group->k[j * D]);
    }
  }

  /// The caller's P of batch b; rounding may leave it a little short of semidefinite.
  void load_given(const View& given, std::int64_t b) {
    const std::int64_t D = group->D;
    for (std::int64_t d = 0; d < D; ++d) metric::load(&P[d * D], given, {b, group->g, d}, D);
    const double slack = metric::slack_of(given.dtype == DType::f64, D);
    if (covariance.factor.decompose(P.data(), slack)) return;
    throw InvalidArgument(metric::not_semidefinite(b, group->g));
  }

  void whiten(T* to, const T* from) {
    for (std::int64_t d = 0; d < group->D; ++d) x[d] = from[d] - centre[d];
    covariance.factor.whiten(to, x.data());
  }

  void score(Row<T>& row, const T* q) {
    whiten(z.data(), q);
    for (std::int64_t j = 0; j < row.n; ++j) {
      T sum = 0;
      for (std::int64_t d = 0; d < group->D; ++d) {
        const T gap = z[d] - zk[j * group->D + d];
        sum += gap * gap;
      }
      row.s[j] = T(-0.5) * c * sum;
    }
  }

  /// P in double, column by column.
  void form_metric() {
    const std::int64_t D = group->D;
    for (std::int64_t j = 0; j < D; ++j) {  // P is symmetric: its row j is P e_j
      std::fill(unit.begin(), unit.end(), 0.0);
      unit[j] = 1;
      covariance.factor.apply(&P[j * D], unit.data(), X.data());
    }
  }

  void begin_backward() {
    form_metric();
    std::fill(dP.begin(), dP.end(), 0.0);
    std::fill(apart.begin(), apart.end(), T(0));
    std::fill(dbias.begin(), dbias.end(), T(0));
  }

  /// Adds to dq; keeps what belongs to the keys and to P until end_backward.
  void pull(T* dq, const Row<T>& row, const T* q) {
    const std::int64_t D = group->D;
    T total = 0;
    std::fill(w.begin(), w.end(), T(0));
    for (std::int64_t j = 0; j < row.n; ++j) {
      const T* k = &group->k[j * D];
      total += row.ds[j];
      dbias[j] += row.ds[j];
      for (std::int64_t d = 0; d < D; ++d) {
        w[d] += row.ds[j] * (k[d] - centre[d]);
        apart[j * D + d] += row.ds[j] * (q[d] - k[d]);
      }
    }
    for (std::int64_t d = 0; d < D; ++d) {
      x[d] = q[d] - centre[d];
      u[d] = total * x[d] - w[d];
    }
    for (std::int64_t d = 0; d < D; ++d) {
      for (std::int64_t e = 0; e < D; ++e)
        dP[d * D + e] += double(x[d]) * u[e] - double(w[d]) * x[e];
    }
    covariance.factor.apply(w.data(), u.data(), z.data());
    add(dq, -c, w.data(), D);
  }

  /// dk gains the scores' part; dP becomes whole.
  void end_backward(T* dk) {
    const std::int64_t D = group->D;
    for (std::int64_t j = 0; j < group->n; ++j) {
      covariance.factor.apply(u.data(), &apart[j * D], z.data());
      add(dk + j * D, c, u.data(), D);
      for (std::int64_t d = 0; d < D; ++d) x[d] = group->k[j * D + d] - centre[d];
      for (std::int64_t d = 0; d < D; ++d) {
        for (std::int64_t e = 0; e < D; ++e) dP[d * D + e] += double(dbias[j]) * x[d] * x[e];
      }
    }
    for (double& entry : dP) entry *= -0.5 * double(c);
  }

  /// dk_j += slope dSigma (k_j - mean) for the keys the estimate has seen; dSigma = -P dP P.
  void through_estimate(T* dk) {
    const std::int64_t D = group->D;
    multiply(X, P, dP);
    multiply(dP, X, P);
    const double slope = -covariance.slope(keys.n);
    for (std::int64_t j = 0; j < keys.n; ++j) {
      for (std::int64_t d = 0; d < D; ++d) {
        double sum = 0;
        for (std::int64_t e = 0; e < D; ++e)
          sum += dP[d * D + e] * (double(group->k[j * D + e]) - keys.mean[e]);
        dk[j * D + d] += T(slope * sum);
      }
    }
  }

 private:
  void multiply(std::span<double> to, std::span<const double> a, std::span<const double> b) const {
    const std::int64_t D = group->D;
    for (std::int64_t i = 0; i < D; ++i) {
      for (std::int64_t j = 0; j < D; ++j) {
        double sum = 0;
        for (std::int64_t l = 0; l < D; ++l) sum += a[i * D + l] * b[l * D + j];
        to[i * D + j] = sum;
      }
    }
  }
};

}  // namespace foci::ref
