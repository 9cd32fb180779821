// SPDX-License-Identifier: Apache-2.0
// Where the lines of a diagonal metric come from and where they are written.
#include "cpu/diagonal.hpp"

#include "metric/draw.hpp"
#include "metric/normalise.hpp"

#include <cmath>

namespace foci::cpu {

DiagonalMetric DiagonalMetric::take(Arena& arena, const Problem& p) {
  DiagonalMetric of;
  of.p = &p;
  if (p.full || p.metric<Dot>()) return of;
  const bool given = p.metric<Given>() != nullptr;
  const View& tensor = p.from.metric;
  of.per_head = p.metric<Jacobian>() || (given && tensor.shape[1] == p.size.H);
  of.per_query = given ? p.size.N > 1 && tensor.shape[2] == p.size.N
                       : p.scope == Scope::prefix && !p.metric<Random>();
  const std::int64_t rows = of.per_query ? p.longest_n : 1;
  of.m = arena.take<float>(of.heads(), rows, p.size.D);
  of.m_rest = arena.take<float>(keeps_rest(p) && !given ? of.heads() : 0, rows, p.size.D);
  of.dm = arena.take<double>(of.heads(), rows, p.size.D);
  of.by = arena.take<double>(of.heads(), rows);
  of.room = arena.take<double>(2, p.size.D);
  const bool median = change_of(p.how.metric).reduce == Reduce::median;
  of.order = arena.take<std::int64_t>(median ? p.longest_m : 0);
  return of;
}

void DiagonalMetric::estimate(const float* v, const float* v_prev) {
  if (m.empty()) return;
  const std::int64_t D = p->size.D;
  if (const Change how = change_of(p->how.metric); how.estimated) change(v, v_prev, how);
  if (const auto* how = p->metric<Random>()) {
    for (std::int64_t d = 0; d < D; ++d)
      m[d] = float(metric::draw(how->floor, how->seed, how->layer, g, d));
    metric::normalise(how->normalize, 1, m.data(), D);
    std::fill(m_rest.begin(), m_rest.end(), 0.0f);
  }
  if (!p->metric<Given>()) return;
  each_line([&](std::int64_t r, std::int64_t i) {
    metric::load(line(m, r, i), p->from.metric, index(p->from.metric, r, i), D);
  });
}

void DiagonalMetric::put_line(std::int64_t r, std::int64_t i, const double* from) const {
  float *to = line(m, r, i), *rest = line(m_rest, r, i);
  for (std::int64_t d = 0; d < p->size.D; ++d) {
    to[d] = float(from[d]);
    if (rest) rest[d] = std::isfinite(to[d]) ? float(from[d] - double(to[d])) : 0.0f;
  }
}

void DiagonalMetric::write(const View& to) const {
  if (!to || m.empty() || p->metric<Given>()) return;
  each_line([&](std::int64_t r, std::int64_t i) {
    metric::store(to, index(to, r, i), line(m, r, i), p->size.D);
  });
}

void DiagonalMetric::write_gradient(const View& to, bool joins) const {
  each_line([&](std::int64_t r, std::int64_t i) {
    const auto [b, h, row] = index(to, r, i);
    for (std::int64_t d = 0; d < p->size.D; ++d) {
      const metric::Index at{b, h, row, d};
      const double before = joins ? metric::load_one<double>(to, at) : 0.0;
      metric::store_one(to, at, before + line(dm, r, i)[d]);
    }
  });
}

/// Where a line stands in a metric tensor (1|B|S, G|H, 1|N, D).
std::array<std::int64_t, 3> DiagonalMetric::index(const View& in, std::int64_t r,
                                                  std::int64_t i) const {
  const std::int64_t sequence = per_query ? tokens->at.b : tokens->at.estimate;
  return {in.shape[0] == 1 ? 0 : sequence, per_head ? g * p->heads_per_key() + r : g,
          per_query ? tokens->at.q0 + i : 0};
}

}  // namespace foci::cpu
