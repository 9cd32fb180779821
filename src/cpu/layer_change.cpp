// SPDX-License-Identifier: Apache-2.0
// m_d = mean (or lower median) over kept tokens of |v_nd - v_prev_nd|, normalised; under prefix a
// running mean; flat: its mean over d. Gradient: d|x| = sign(x), d|0| = 0.
#include "cpu/diagonal.hpp"
#include "metric/normalise.hpp"

#include <cmath>
#include <numeric>

namespace foci::cpu {

Change change_of(const Metric& metric) {
  if (const auto* m = std::get_if<LayerChange>(&metric))
    return {m->reduce, m->normalize, true, false};
  if (const auto* m = std::get_if<Flat>(&metric)) return {m->reduce, m->normalize, true, true};
  return {};
}

std::int64_t DiagonalMetric::median(const float* v, const float* v_prev, std::int64_t d) const {
  const std::int64_t D = p->size.D, n = tokens->n;
  const auto begin = order.begin(), middle = begin + (n - 1) / 2;
  std::iota(begin, begin + n, 0);
  const auto moved = [&](std::int64_t j) { return std::abs(v[j * D + d] - v_prev[j * D + d]); };
  std::nth_element(begin, middle, begin + n, [&](std::int64_t a, std::int64_t b) {
    const float x = moved(a), y = moved(b);
    return x < y || (x == y && a < b);  // of equal changes the earlier token comes first
  });
  return *middle;
}

template <class Each>
void DiagonalMetric::each_change(const float* v, const float* v_prev, Reduce reduce,
                                 Each&& each) const {
  const std::int64_t D = p->size.D;
  double *sum = room.data(), *row = sum + D;
  std::fill_n(sum, D, 0.0);
  std::int64_t j = 0;
  for (std::int64_t i = 0; i < rows(); ++i) {
    const std::int64_t count = counted(i);
    for (; j < count && reduce == Reduce::mean; ++j) {
      const float *a = v + j * D, *b = v_prev + j * D;
      for (std::int64_t d = 0; d < D; ++d) sum[d] += std::abs(double(a[d]) - double(b[d]));
    }
    for (std::int64_t d = 0; d < D; ++d) {
      if (reduce == Reduce::median && count > 0) {
        const std::int64_t at = median(v, v_prev, d) * D + d;
        sum[d] = std::abs(double(v[at]) - double(v_prev[at])) * double(count);
      }
      row[d] = count > 0 ? sum[d] / double(count) : 0.0;
    }
    each(i, row);
  }
}

void DiagonalMetric::change(const float* v, const float* v_prev, const Change& how) {
  const std::int64_t D = p->size.D;
  each_change(v, v_prev, how.reduce, [&](std::int64_t i, double* row) {
    by[i] = metric::normalise(how.normalize, counted(i), row, D);
    if (how.flat) metric::flatten(row, D);
    put_line(0, i, row);
  });
}

void DiagonalMetric::through_change(const Gathered& to, const float* v, const float* v_prev) {
  const Change how = change_of(p->how.metric);
  const std::int64_t D = p->size.D;
  if (tokens->n == 0) return;
  each_change(v, v_prev, how.reduce, [&](std::int64_t i, double* row) {
    double* back = line(dm, 0, i);
    by[i] = metric::normalise(how.normalize, counted(i), row, D);
    if (how.flat) metric::flatten(back, D);
    metric::normalise_backward(how.normalize, by[i], back, row, D);
    for (std::int64_t d = 0; d < D && how.reduce == Reduce::mean; ++d) {
      back[d] = counted(i) > 0 ? back[d] / double(counted(i)) : 0.0;
    }
  });
  const auto move = [&](std::int64_t j, std::int64_t d, double amount) {
    const std::int64_t at = j * D + d;
    const float apart = v[at] - v_prev[at];
    const float change = float(apart > 0 ? amount : apart < 0 ? -amount : 0.0);
    to.dv[at] += change;
    to.dv_prev[at] -= change;
  };
  if (how.reduce == Reduce::median) {
    for (std::int64_t d = 0; d < D; ++d) move(median(v, v_prev, d), d, dm[d]);
    return;
  }
  std::int64_t j = counted(rows() - 1);
  for (std::int64_t i = rows(); i-- > 0;) {  // a token belongs to every row that counts it
    double* row = line(dm, 0, i);
    if (i + 1 < rows()) {
      for (std::int64_t d = 0; d < D; ++d) row[d] += line(dm, 0, i + 1)[d];
    }
    for (const std::int64_t begin = i > 0 ? counted(i - 1) : 0; j > begin;) {
      --j;
      for (std::int64_t d = 0; d < D; ++d) move(j, d, row[d]);
    }
  }
}

}  // namespace foci::cpu
