// SPDX-License-Identifier: Apache-2.0
// Folding a metric into queries and keys, and unfolding their gradients.
#include "cpu/geometry.hpp"

#include <cmath>

namespace foci::cpu {

Geometry::Geometry(Arena& arena, const Problem& problem, const Kernels& isa, int threads)
    : p_(problem), isa_(isa) {
  const auto& z = problem.size;
  tokens_ = arena.take<Tokens>(problem.sequences);
  diagonal_ = arena.take<DiagonalMetric>(problem.sequences, z.G);
  for (std::int64_t s = 0; s < problem.sequences; ++s)
    put(tokens_, s, Tokens::take(arena, problem));
  DiagonalMetric last;
  for (std::int64_t i = 0; i < problem.sequences * z.G; ++i) {
    last = DiagonalMetric::take(arena, problem);
    put(diagonal_, i, last);
  }
  if (problem.full) kind_ = Kind::full;
  full_ = arena.take<FullMetric>(problem.full ? problem.sequences : 0, z.G);
  for (std::int64_t i = 0; i < (problem.full ? problem.sequences * z.G : 0); ++i) {
    counted_ = FullMetric::take(arena, problem, *isa.matrix);
    put(full_, i, counted_);
  }
  full_rooms_ = arena.take<FullRoom>(problem.full ? threads : 0);
  for (int t = 0; t < (problem.full ? threads : 0); ++t)
    put(full_rooms_, t, FullRoom::take(arena, problem, *isa.matrix));
  spanned_ = cpu::has_spans(problem);
  scale_ = arena.take<double>(problem.match_dot ? problem.sequences : 0, z.G);
  if (!problem.full && metric::form_of(problem.how.metric) == Form::distance) {
    kind_ = Kind::distance;
    doubled_ = last.per_query || last.per_head;
  }
  centre_ = arena.take<float>(kind_ == Kind::distance ? problem.sequences : 0, z.G, z.D);
  const bool looks = kind_ != Kind::product || problem.metric<Jacobian>() ||
                     change_of(problem.how.metric).estimated;
  room_size_ = looks ? 2 * (problem.longest_m + z.D + block_rows) * std::max(z.D, z.E) : 0;
  room_ = arena.take<float>(threads, room_size_);
  jacobian_room_ = JacobianRoom::take(arena, problem, threads);
}

void Geometry::estimate(Executor* threads, bool every) {
  const std::int64_t G = p_.size.G;
  threads_ = threads;
  for (std::int64_t s = 0; s < p_.sequences; ++s) tokens_[s].place(p_, s);
  std::fill(scale_.begin(), scale_.end(), 1.0);
  each(threads, p_.sequences * G,
       [&](std::int64_t i, int thread) { estimate_head(i / G, i % G, every, thread); });
  for (std::int64_t i = 0; i < p_.sequences * G && p_.metric<Jacobian>(); ++i)
    jacobian(i / G, i % G).forward(jacobian_room_, threads);
}

/// Of one head at a time: its keys lie in the first thread's room.
JacobianEstimate Geometry::jacobian(std::int64_t s, std::int64_t g) {
  const Tokens& tokens = tokens_[s];
  float *here = room(0), *there = here + room_size_ / 2;
  return {diagonal_[s * p_.size.G + g], isa_,
          tokens.lines(p_.from.k, g, 0, tokens.n, p_.size.D, here),
          tokens.lines(p_.from.v, g, 0, tokens.n, p_.size.E, there)};
}

void Geometry::estimate_head(std::int64_t s, std::int64_t g, bool every, int thread) {
  const Tokens& tokens = tokens_[s];
  const std::int64_t D = p_.size.D, E = p_.size.E, i = s * p_.size.G + g;
  float *here = room(thread), *there = here + room_size_ / 2;
  diagonal_[i].tokens = &tokens;
  diagonal_[i].g = g;
  if (kind_ != Kind::product) {
    const float* k = tokens.lines(p_.from.k, g, 0, tokens.n, D, here);
    if (kind_ == Kind::distance) find_centre(s, g, k);
    if (kind_ == Kind::full) {
      full_[i].tokens = &tokens;
      full_[i].g = g;
      full_[i].estimate(k, every, full_rooms_[thread]);
    }
  }
  const bool changes = change_of(p_.how.metric).estimated;
  diagonal_[i].estimate(changes ? tokens.lines(p_.from.v, g, 0, tokens.n, E, here) : nullptr,
                        changes ? tokens.lines(p_.from.v_prev, g, 0, tokens.n, E, there) : nullptr);
}

Geometry::Rows Geometry::rows(std::int64_t s, std::int64_t span) const {
  const Tokens& tokens = tokens_[s];
  if (!spanned_) return {0, tokens.at.N};
  const auto* how = p_.metric<KeyCovariance>();
  const auto begin = tokens.before.begin(), end = begin + tokens.at.N;
  return {std::lower_bound(begin, end, span * how->period) - begin,
          std::lower_bound(begin, end, (span + 1) * how->period) - begin};
}

/// The mean of the keys: sums of what lies around it keep more digits.
void Geometry::find_centre(std::int64_t s, std::int64_t g, const float* k) {
  const std::int64_t D = p_.size.D, n = tokens_[s].n;
  float* to = centre_.data() + ((s * p_.size.G + g) * D);
  for (std::int64_t d = 0; d < D; ++d) {
    double sum = 0;
    for (std::int64_t j = 0; j < n; ++j) sum += double(k[j * D + d]);
    to[d] = n > 0 && std::isfinite(sum) ? float(sum / double(n)) : 0.0f;
  }
}

void Geometry::write(const Outputs& to) {
  for (const DiagonalMetric& metric : diagonal_) metric.write(to.metric);
  for (const FullMetric& metric : full_) metric.write(to, full_rooms_[0]);
  for (std::int64_t i = 0; i < p_.sequences * p_.size.G && to.scale; ++i) {
    const std::int64_t s = i / p_.size.G, g = i % p_.size.G;
    metric::store_one(to.scale, {tokens_[s].at.estimate, g}, scale(s, g));
  }
}

const float* Geometry::keys(const Meeting& at, std::int64_t first, std::int64_t count, float* to,
                            float* b, float* room) const {
  if (kind_ == Kind::full) {
    const std::int64_t g = key_head(at.h), D = p_.size.D;
    if (whitens()) {
      key_lines(at, first, count, room);
      whiten(at, count, to, room);
      isa_.row_dots(b, to, to, count, D);
    } else {
      whiten_few(at, count, to, tokens_[at.s].lines(p_.from.k, g, first, count, D, room), b);
    }
    const float half = by_differences(at) ? 0.0f : float(-0.5 * scale(at.s, key_head(at.h)));
    for (std::int64_t j = 0; j < count; ++j) b[j] *= half;
    return to;
  }
  return tokens_[at.s].lines(p_.from.k, key_head(at.h), first, count, p_.size.D, to);
}

void Geometry::queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* q, float* m,
                       float* r) const {
  const std::int64_t D = p_.size.D;
  const float c = float(scale(at.s, key_head(at.h))), half = -0.5f * c;
  if (kind_ == Kind::full) return whiten_queries(at, first, rows, q, m, r);
  const float* from = tokens_[at.s].queries(p_.from.q, at.h, first, rows, D, q);
  std::fill_n(r, rows, 0.0f);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float *x = from + i * D, *of = metric(at, first + i);
    float *to = q + i * D, *by = m + i * D;
    if (kind_ == Kind::product) {
      if (of) {
        for (std::int64_t d = 0; d < D; ++d) to[d] = c * of[d] * x[d];
      } else {
        for (std::int64_t d = 0; d < D; ++d) to[d] = c * x[d];
      }
    } else {
      for (std::int64_t d = 0; d < D; ++d) {
        to[d] = x[d];
        by[d] = of ? half * of[d] : half;
      }
    }
  }
}

bool Geometry::weighted_queries(const Meeting& at, std::int64_t first, std::int64_t rows,
                                float* to) const {
  if (!metric(at, first)) return false;
  const std::int64_t D = p_.size.D;
  const float* q = tokens_[at.s].queries(p_.from.q, at.h, first, rows, D, to);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* m = metric(at, first + i);
    for (std::int64_t d = 0; d < D; ++d) to[i * D + d] = m[d] * q[i * D + d];
  }
  return true;
}

const float* Geometry::plain_queries(const Meeting& at, std::int64_t first, std::int64_t rows,
                                     float* r) const {
  const View& q = p_.from.q;
  const bool lie_so = q.dtype == DType::f32 && q.strides[3] == 1 && q.strides[2] == p_.size.D;
  if (kind_ != Kind::product || metric(at, first) || !lie_so) return nullptr;
  std::fill_n(r, rows, 0.0f);
  return tokens_[at.s].queries(q, at.h, first, rows, p_.size.D, nullptr);
}

void Geometry::rounded_off(const Meeting& at, std::int64_t first, std::int64_t rows, const float* q,
                           float* rest) const {
  const std::int64_t D = p_.size.D;
  const double c = scale(at.s, key_head(at.h));
  const float* from = tokens_[at.s].queries(p_.from.q, at.h, first, rows, D, rest);
  for (std::int64_t i = 0; i < rows; ++i) {
    const DiagonalMetric& of = diagonal(at.s, at.h);
    const float* m = metric(at, first + i);
    const float* m_rest = of.line(of.m_rest, at.h % p_.heads_per_key(), first + i);
    for (std::int64_t d = 0; d < D; ++d) {
      const std::int64_t x = i * D + d;
      const double by = m ? double(m[d]) + (m_rest ? double(m_rest[d]) : 0.0) : 1.0;
      rest[x] = std::isfinite(q[x]) ? float(c * by * double(from[x]) - double(q[x])) : 0.0f;
    }
  }
}

const float* Geometry::key_lines(const Meeting& at, std::int64_t first, std::int64_t count,
                                 float* to) const {
  const Tokens& tokens = tokens_[at.s];
  const std::int64_t D = p_.size.D, g = key_head(at.h);
  if (kind_ == Kind::product) return tokens.lines(p_.from.k, g, first, count, D, to);
  const float* k = tokens.lines(p_.from.k, g, first, count, D, to);
  subtract(to, k, centre(at), count, D);
  return to;
}

void Geometry::centred_queries(const Meeting& at, std::int64_t first, std::int64_t rows,
                               float* to) const {
  const float* q = tokens_[at.s].queries(p_.from.q, at.h, first, rows, p_.size.D, to);
  subtract(to, q, centre(at), rows, p_.size.D);
}

bool Geometry::query_lines(const Meeting& at, std::int64_t first, std::int64_t rows,
                           float* to) const {
  if (kind_ == Kind::product) return false;
  const std::int64_t D = p_.size.D;
  if (!doubled_) {
    centred_queries(at, first, rows, to);
    return true;
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* m = metric(at, first + i);
    float* line = to + 2 * i * D;
    centred_queries(at, first + i, 1, line);
    for (std::int64_t d = 0; d < D; ++d) {
      line[d] *= m[d];
      line[D + d] = m[d];
    }
  }
  return true;
}

void Geometry::unfold_keys(const Meeting& at, std::int64_t first, std::int64_t count, float* T,
                           const float* db, float* dk, float* room) const {
  const std::int64_t D = p_.size.D, wide = line_width();
  if (kind_ == Kind::full) {
    key_lines(at, first, count, room);
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t d = 0; d < D; ++d)
        T[j * D + d] = without(T[j * D + d], db[j], room[j * D + d]);
    }
    apply_metric(at, count, T, room);
    for (std::int64_t i = 0; i < count * D; ++i) dk[i] += T[i];
    return;
  }
  if (kind_ == Kind::product) {
    for (std::int64_t i = 0; i < count * D; ++i) dk[i] += T[i];
    return;
  }
  const float *m = metric(at, 0), *lines = key_lines(at, first, count, room);
  for (std::int64_t j = 0; j < count; ++j) {
    const float* from = T + j * wide;
    for (std::int64_t d = 0; d < D; ++d) {
      const double k = double(lines[j * D + d]);
      const double pull = doubled_ ? double(from[d]) - double(from[D + d]) * k
                                   : (m ? m[d] : 1.0f) * (double(from[d]) - double(db[j]) * k);
      dk[j * D + d] += float(p_.c * pull);
    }
  }
}

void Geometry::take_gradient(Arena& arena) {
  if (p_.full && full_.empty()) {  // only counted
    for (std::int64_t i = 0; i < p_.sequences * p_.size.G; ++i) {
      FullMetric of = counted_;
      of.take_gradient(arena);
    }
  }
  for (FullMetric& metric : full_) metric.take_gradient(arena);
}

void Geometry::clear_gradient(bool wanted) {
  wants_gradient_ = wanted;
  for (DiagonalMetric& metric : diagonal_) std::fill(metric.dm.begin(), metric.dm.end(), 0.0);
  for (const FullMetric& metric : full_) {
    if (wanted) metric.clear_gradient();
  }
}

void Geometry::unfold_queries(const Meeting& at, std::int64_t first, std::int64_t rows,
                              const QuerySums& sums, float* dq, int thread) {
  const std::int64_t D = p_.size.D, r = at.h % p_.heads_per_key();
  if (kind_ == Kind::full) return unfold_full(at, first, rows, sums, dq, thread);
  const float c = float(p_.c);
  const DiagonalMetric& of = diagonal(at.s, at.h);
  if (kind_ == Kind::product && of.m.empty()) {
    for (std::int64_t i = 0; i < rows * D; ++i) dq[i] = c * sums.U[i];
    return;
  }
  const float* middle = kind_ == Kind::product ? nullptr : centre(at);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float *m = of.of(r, first + i), *u = sums.U + i * D;
    double* dm = of.line(of.dm, r, first + i);
    const bool gathers = dm && wants_gradient_;
    float* to = dq + i * D;
    if (kind_ == Kind::product && !gathers) {  // nothing here looks at q
      for (std::int64_t d = 0; d < D; ++d) to[d] = c * m[d] * u[d];
      continue;
    }
    const float* q = tokens_[at.s].queries(p_.from.q, at.h, first + i, 1, D, to);
    for (std::int64_t d = 0; d < D; ++d) {
      float pull = u[d];
      if (kind_ == Kind::product) {
        if (gathers) dm[d] += p_.c * double(q[d]) * double(u[d]);
      } else {
        pull = without(pull, sums.dr[i], q[d] - middle[d]);
        if (gathers) dm[d] -= 0.5 * p_.c * double(sums.dm[i * D + d]);
      }
      to[d] = c * (m ? m[d] : 1.0f) * pull;
    }
  }
}

void Geometry::finish(const View& dmetric, std::int64_t s, std::int64_t g, bool joins,
                      const Gathered& to, int thread) {
  DiagonalMetric& diagonal = diagonal_[s * p_.size.G + g];
  if (kind_ == Kind::full) return finish_full(dmetric, s, g, joins, to, thread);
  if (diagonal.m.empty()) return;
  if (dmetric) diagonal.write_gradient(dmetric, joins);
  if (finishes_in_turn()) jacobian(s, g).backward(to, jacobian_room_, threads_);
  if (!p_.through || !change_of(p_.how.metric).estimated) return;
  const Tokens& tokens = tokens_[s];
  const std::int64_t E = p_.size.E;
  float *here = room(thread), *there = here + room_size_ / 2;
  diagonal.through_change(to, tokens.lines(p_.from.v, g, 0, tokens.n, E, here),
                          tokens.lines(p_.from.v_prev, g, 0, tokens.n, E, there));
}

}  // namespace foci::cpu
