// SPDX-License-Identifier: Apache-2.0
// m_d = mean (or lower median) over kept tokens of |v_nd - v_prev_nd|, normalised; under prefix a
// running mean. `flat` is the same with m replaced by its mean over d. Gradient: d|x| = sign(x),
// d|0| = 0.
#pragma once

#include "metric/normalise.hpp"
#include "ref/group.hpp"

#include <cmath>
#include <numeric>

namespace foci::ref {

/// What layer-change and flat share.
struct ChangeOptions {
  Reduce reduce = Reduce::mean;
  Normalize normalize = Normalize::max;
  bool flat = false;
};

template <class T>
struct ChangeEstimate {
  const Group<T>* group = nullptr;
  ChangeOptions how;
  std::int64_t rows = 1;  // 1, or N under prefix
  bool prefix = false;
  std::span<std::int64_t> order;  // (n) scratch of the median

  T change(std::int64_t j, std::int64_t d) const {
    return std::abs(group->v[j * group->E + d] - group->v_prev[j * group->E + d]);
  }
  std::int64_t counted(std::int64_t i) const { return prefix ? group->upto[i] : group->n; }

  /// Index of the token whose change is the lower median of coordinate d.
  std::int64_t median(std::int64_t d) const {
    const auto begin = order.begin(), end = begin + group->n, middle = begin + (group->n - 1) / 2;
    std::iota(begin, end, 0);
    std::nth_element(begin, middle, end, [&](std::int64_t a, std::int64_t b) {
      const T x = change(a, d), y = change(b, d);
      return x < y || (x == y && a < b);  // of equal changes the earlier token comes first
    });
    return *middle;
  }

  /// m (rows,D), by (rows): the divisors.
  void forward(T* m, T* by) const {
    const std::int64_t D = group->D;
    for (std::int64_t d = 0; d < D && group->n > 0; ++d) {
      if (how.reduce == Reduce::median) {
        m[d] = change(median(d), d);
        continue;
      }
      T sum = 0;
      std::int64_t j = 0;
      for (std::int64_t i = 0; i < rows; ++i) {
        for (; j < counted(i); ++j) sum += change(j, d);
        m[i * D + d] = j == 0 ? T(0) : sum / T(j);
      }
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      by[i] = metric::normalise(how.normalize, counted(i), m + i * D, D);
      if (how.flat) metric::flatten(m + i * D, D);
    }
  }

  /// dv += , dv_prev -= what dm (rows,D) sends back. m and by as forward left them; dm and m are
  /// used up.
  void backward(T* dv, T* dv_prev, T* dm, T* m, T* by) const {
    if (group->n == 0) return;
    const std::int64_t D = group->D;
    if (how.flat) {  // the shape that was flattened away
      ChangeEstimate shape = *this;
      shape.how.flat = false;
      shape.forward(m, by);
    }
    for (std::int64_t i = 0; i < rows; ++i) {
      if (how.flat) metric::flatten(dm + i * D, D);
      metric::normalise_backward(how.normalize, by[i], dm + i * D, m + i * D, D);
    }
    for (std::int64_t d = 0; d < D; ++d) {
      if (how.reduce == Reduce::median) {
        spread(dv, dv_prev, median(d), d, dm[d]);
        continue;
      }
      T running = 0;  // token j belongs to every row that counts it: the rows after it
      std::int64_t j = group->n;
      for (std::int64_t i = rows; i-- > 0;) {
        const std::int64_t begin = i > 0 ? counted(i - 1) : 0;
        if (counted(i) > 0) running += dm[i * D + d] / T(counted(i));
        if (i == rows - 1) j = counted(i);
        while (j > begin) spread(dv, dv_prev, --j, d, running);
      }
    }
  }

 private:
  void spread(T* dv, T* dv_prev, std::int64_t j, std::int64_t d, T amount) const {
    const std::int64_t at = j * group->E + d;
    const T apart = group->v[at] - group->v_prev[at];
    const T signed_amount = apart > T(0) ? amount : apart < T(0) ? -amount : T(0);
    dv[at] += signed_amount;
    dv_prev[at] -= signed_amount;
  }
};

}  // namespace foci::ref
