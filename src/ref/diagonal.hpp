// SPDX-License-Identifier: Apache-2.0
// Scores of dot and the diagonal metrics, and their gradient, one row at a time.
//   product   s_j = q' . k_j,  q' = c m q          distance   s_j = -1/2 c sum_d m_d (q_d - k_jd)^2
#pragma once

#include "ref/row.hpp"

#include <foci/metric.hpp>

namespace foci::ref {

/// m of one query, or none for dot. `none` and a metric of ones give the same bits: x * 1 is x.
template <class T>
struct Diagonal {
  Form form = Form::product;
  T c = 1;
  std::int64_t D = 0;

  T m(const T* metric, std::int64_t d) const { return metric ? metric[d] : T(1); }

  /// q' = c m q
  void fold(T* folded, const T* q, const T* metric) const {
    for (std::int64_t d = 0; d < D; ++d) folded[d] = c * m(metric, d) * q[d];
  }

  /// row.q holds q' (product form).
  void score(Row<T>& row, const T* q, const T* metric) const {
    for (std::int64_t j = 0; j < row.n; ++j) {
      const T* k = row.k + j * D;
      if (form == Form::product) {
        row.s[j] = dot(row.q, k, D);
        continue;
      }
      T sum = 0;
      for (std::int64_t d = 0; d < D; ++d) sum += m(metric, d) * (q[d] - k[d]) * (q[d] - k[d]);
      row.s[j] = T(-0.5) * c * sum;
    }
  }

  /// Product form: row.dq (of q') and dk from row.ds.
  void pull_product(Row<T>& row) const {
    for (std::int64_t d = 0; d < D; ++d) row.dq[d] = 0;
    for (std::int64_t j = 0; j < row.n; ++j) {
      add(row.dq, row.ds[j], row.k + j * D, D);
      add(row.dk + j * D, row.ds[j], row.q, D);
    }
  }

  /// dq += c m dq',  dm += c q dq'
  void unfold(T* dq, T* dm, const T* folded, const T* q, const T* metric) const {
    for (std::int64_t d = 0; d < D; ++d) {
      dq[d] += c * m(metric, d) * folded[d];
      if (dm) dm[d] += c * q[d] * folded[d];
    }
  }

  void pull_distance(T* dq, T* dm, Row<T>& row, const T* q, const T* metric) const {
    for (std::int64_t j = 0; j < row.n; ++j) {
      const T ds = row.ds[j];
      for (std::int64_t d = 0; d < D; ++d) {
        const T apart = q[d] - row.k[j * D + d];
        const T pull = c * m(metric, d) * ds * apart;
        dq[d] -= pull;
        row.dk[j * D + d] += pull;
        if (dm) dm[d] -= T(0.5) * c * ds * apart * apart;
      }
    }
  }
};

}  // namespace foci::ref
