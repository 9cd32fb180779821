// SPDX-License-Identifier: Apache-2.0
// Folding a metric into queries and keys, and unfolding their gradients. Distances are taken from a
// centre that q and k share, or float would lose the small differences.
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
  if (problem.full) {
    kind_ = Kind::full;
  } else if (form_of(problem.how.metric) == Form::distance) {
    kind_ = last.per_query ? Kind::doubled : Kind::distance;
    per_head_ = kind_ == Kind::distance && last.per_head && problem.heads_per_key() > 1;
  }
  centre_ = arena.take<float>(kind_ == Kind::product ? 0 : problem.sequences, z.G, z.D);
  room_size_ = 2 * problem.longest_m * std::max(z.D, z.E);
  room_ = arena.take<float>(threads, room_size_);
}

void Geometry::estimate(Executor* threads) {
  const std::int64_t G = p_.size.G;
  for (std::int64_t s = 0; s < p_.sequences; ++s) tokens_[s].place(p_, s);
  each(threads, p_.sequences * G,
       [&](std::int64_t i, int thread) { estimate_head(i / G, i % G, thread); });
}

void Geometry::estimate_head(std::int64_t s, std::int64_t g, int thread) {
  const Tokens& tokens = tokens_[s];
  const std::int64_t D = p_.size.D, E = p_.size.E;
  float *here = room(thread), *there = here + room_size_ / 2;
  DiagonalMetric& metric = diagonal_[s * p_.size.G + g];
  metric.tokens = &tokens;
  metric.g = g;
  if (kind_ != Kind::product) find_centre(s, g, tokens.lines(p_.from.k, g, 0, tokens.n, D, here));
  const bool changes = change_of(p_.how.metric).estimated;
  metric.estimate(changes ? tokens.lines(p_.from.v, g, 0, tokens.n, E, here) : nullptr,
                  changes ? tokens.lines(p_.from.v_prev, g, 0, tokens.n, E, there) : nullptr);
}

/// The mean of the keys; a causal row may not feel keys it does not see, so there it is the first.
void Geometry::find_centre(std::int64_t s, std::int64_t g, const float* k) {
  const std::int64_t D = p_.size.D, n = tokens_[s].n;
  float* to = &centre_[(s * p_.size.G + g) * D];
  for (std::int64_t d = 0; d < D; ++d) {
    double sum = 0;
    const std::int64_t count = p_.how.causal ? std::min<std::int64_t>(n, 1) : n;
    for (std::int64_t j = 0; j < count; ++j) sum += double(k[j * D + d]);
    to[d] = count > 0 && std::isfinite(sum) ? float(sum / double(count)) : 0.0f;
  }
}

void Geometry::write(const Outputs& to) const {
  for (const DiagonalMetric& metric : diagonal_) metric.write(to.metric);
}

const float* Geometry::keys(const Meeting& at, std::int64_t first, std::int64_t count, float* to,
                            float* b) const {
  const Tokens& tokens = tokens_[at.s];
  const std::int64_t D = p_.size.D, g = key_head(at.h);
  if (kind_ == Kind::product) return tokens.lines(p_.from.k, g, first, count, D, to);
  if (kind_ == Kind::doubled) return key_lines(at, first, count, to);
  tokens.load(to, p_.from.k, g, first, count, D);
  const float *m = metric(at, 0), *middle = centre(at);
  const float half = -0.5f * float(p_.c);
  for (std::int64_t j = 0; j < count; ++j) {
    float sum = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      float& z = to[j * D + d];
      z = (m ? std::sqrt(m[d]) : 1.0f) * (z - middle[d]);
      sum += z * z;
    }
    b[j] = half * sum;
  }
  return to;
}

const float* Geometry::key_lines(const Meeting& at, std::int64_t first, std::int64_t count,
                                 float* to) const {
  const Tokens& tokens = tokens_[at.s];
  const std::int64_t D = p_.size.D, g = key_head(at.h), wide = width();
  if (kind_ == Kind::product) return tokens.lines(p_.from.k, g, first, count, D, to);
  const float* middle = centre(at);
  for (std::int64_t j = 0; j < count; ++j) {
    float* line = to + j * wide;
    tokens.load(line, p_.from.k, g, first + j, 1, D);
    for (std::int64_t d = 0; d < D; ++d) line[d] -= middle[d];
    for (std::int64_t d = D; d < wide; ++d) line[d] = line[d - D] * line[d - D];
  }
  return to;
}

void Geometry::queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* to,
                       float* r) const {
  const std::int64_t D = p_.size.D, wide = width();
  const float c = float(p_.c), half = -0.5f * c;
  for (std::int64_t i = 0; i < rows; ++i) {
    float* q = to + i * wide;
    const float* m = metric(at, first + i);
    const float* from = tokens_[at.s].queries(p_.from.q, at.h, first + i, 1, D, q);
    r[i] = 0;
    if (kind_ == Kind::product) {
      for (std::int64_t d = 0; d < D; ++d) q[d] = m ? c * m[d] * from[d] : c * from[d];
      continue;
    }
    const float* middle = centre(at);
    float sum = 0;
    for (std::int64_t d = 0; d < D; ++d) {
      const float apart = from[d] - middle[d], by = m ? m[d] : 1.0f;
      if (kind_ == Kind::doubled) {
        sum += by * apart * apart;
        q[d] = c * by * apart;
        q[D + d] = half * by;
      } else {
        const float z = std::sqrt(by) * apart;
        sum += z * z;
        q[d] = c * z;
      }
    }
    r[i] = half * sum;
  }
}

bool Geometry::query_lines(const Meeting& at, std::int64_t first, std::int64_t rows,
                           float* to) const {
  if (kind_ == Kind::product || kind_ == Kind::doubled) return false;
  const std::int64_t D = p_.size.D;
  const float* middle = centre(at);
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* from = tokens_[at.s].queries(p_.from.q, at.h, first + i, 1, D, to + i * D);
    for (std::int64_t d = 0; d < D; ++d) to[i * D + d] = from[d] - middle[d];
  }
  return true;
}

void Geometry::unfold_keys(const Meeting& at, std::int64_t first, std::int64_t count,
                           const float* T, const float* db, float* dk) const {
  const std::int64_t D = p_.size.D, wide = width();
  const float c = float(p_.c);
  const float* m = metric(at, 0);
  for (std::int64_t j = 0; j < count; ++j) {
    const float* from = T + j * wide;
    float* to = dk + j * D;
    if (kind_ == Kind::product) {
      for (std::int64_t d = 0; d < D; ++d) to[d] += from[d];
      continue;
    }
    const float* middle = centre(at);
    const std::int64_t token = tokens_[at.s].at.k0 + tokens_[at.s].key_at[first + j];
    for (std::int64_t d = 0; d < D; ++d) {
      const float apart =
          metric::load_one<float>(p_.from.k, {tokens_[at.s].at.b, key_head(at.h), token, d}) -
          middle[d];
      if (kind_ == Kind::doubled) {
        to[d] += from[d] + 2 * apart * from[D + d];
      } else {
        to[d] += c * (m ? m[d] : 1.0f) * (from[d] - db[j] * apart);
      }
    }
  }
}

void Geometry::begin_backward() {
  for (DiagonalMetric& metric : diagonal_) std::fill(metric.dm.begin(), metric.dm.end(), 0.0f);
}

void Geometry::unfold_queries(const Meeting& at, std::int64_t first, std::int64_t rows,
                              const float* U, const float* dr, float* dq) {
  const std::int64_t D = p_.size.D, wide = width(), r = at.h % p_.heads_per_key();
  const float c = float(p_.c), half = -0.5f * c;
  const DiagonalMetric& diagonal = diagonal_[at.s * p_.size.G + key_head(at.h)];
  const bool product = kind_ == Kind::product;
  for (std::int64_t i = 0; i < rows; ++i) {
    const float* m = diagonal.of(r, first + i);
    float* dm = diagonal.line(diagonal.dm, r, first + i);
    const float* u = U + i * wide;
    float* to = dq + i * D;
    const float* q = tokens_[at.s].queries(p_.from.q, at.h, first + i, 1, D, to);
    for (std::int64_t d = 0; d < D; ++d) {
      const float apart = product ? q[d] : q[d] - centre(at)[d];
      const float pull = product || !dr ? u[d] : u[d] - dr[i] * apart;
      if (dm) {
        dm[d] += c * apart * u[d];
        if (kind_ == Kind::doubled) dm[d] += half * u[D + d];
        if (dr) dm[d] += half * dr[i] * apart * apart;
      }
      to[d] = c * (m ? m[d] : 1.0f) * pull;
    }
  }
}

void Geometry::gather_keys(const Meeting& at, const float* db) {
  if (kind_ != Kind::distance) return;
  const std::int64_t D = p_.size.D, g = key_head(at.h);
  const DiagonalMetric& diagonal = diagonal_[at.s * p_.size.G + g];
  float* dm = diagonal.line(diagonal.dm, at.h % p_.heads_per_key(), 0);
  if (!dm) return;
  const Tokens& tokens = tokens_[at.s];
  const float half = -0.5f * float(p_.c);
  for (std::int64_t j = 0; j < tokens.n; ++j) {
    for (std::int64_t d = 0; d < D; ++d) {
      const float apart =
          metric::load_one<float>(p_.from.k, {tokens.at.b, g, tokens.at.k0 + tokens.key_at[j], d}) -
          centre(at)[d];
      dm[d] += half * db[j] * apart * apart;
    }
  }
}

void Geometry::finish(const View& dmetric, std::int64_t s, std::int64_t g, bool joins,
                      const Gathered& to, int thread) {
  DiagonalMetric& diagonal = diagonal_[s * p_.size.G + g];
  if (diagonal.m.empty()) return;
  if (dmetric) diagonal.write_gradient(dmetric, joins);
  if (!p_.through || !change_of(p_.how.metric).estimated) return;
  const Tokens& tokens = tokens_[s];
  const std::int64_t E = p_.size.E;
  float *here = room(thread), *there = here + room_size_ / 2;
  diagonal.through_change(to, tokens.lines(p_.from.v, g, 0, tokens.n, E, here),
                          tokens.lines(p_.from.v_prev, g, 0, tokens.n, E, there));
}

}  // namespace foci::cpu
