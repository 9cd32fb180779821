// SPDX-License-Identifier: Apache-2.0
// m of the next token: running means in double, normalised; or drawn, or the caller's.
#include "cpu/decode_metric.hpp"

#include "metric/draw.hpp"
#include "metric/normalise.hpp"

#include <cmath>

namespace foci::cpu {

JacobianScratch JacobianScratch::take(Arena& arena, const Problem& p) {
  JacobianScratch room;
  if (!p.metric<Jacobian>()) return room;
  const std::int64_t D = p.size.D, E = p.size.E, capacity = p.longest_m;
  room.a = arena.take<float>(capacity);
  room.centre = arena.take<float>(D + E);
  room.J = arena.take<float>(D, line_step(E));
  room.size = arena.take<float>(D);
  room.pulls = arena.take<float>(jacobian_keys, line_step(D));
  room.apart = arena.take<float>(jacobian_keys, line_step(E));
  room.wide = arena.take<double>(D + capacity + 8);
  return room;
}

RunningMetric RunningMetric::take(Arena& arena, const Problem& p) {
  RunningMetric of;
  of.p_ = &p;
  of.R_ = p.heads_per_key();
  of.D_ = p.size.D;
  if (p.full || p.metric<Dot>()) return of;
  of.per_head_ = p.metric<Jacobian>() || p.metric<Given>();
  of.sum_ = arena.take<double>(of.R_, of.D_);
  of.m_ = arena.take<double>(of.R_, of.D_);
  return of;
}

void RunningMetric::reset(std::int64_t g) {
  counted_ = 0;
  std::fill(sum_.begin(), sum_.end(), 0.0);
  const auto* how = p_->metric<Random>();
  if (!how) return;
  for (std::int64_t d = 0; d < D_; ++d)
    m_[d] = metric::draw(how->floor, how->seed, how->layer, g, d);
  metric::normalise(how->normalize, 1, m_.data(), D_);
}

void RunningMetric::count_change(const float* v, const float* v_prev) {
  for (std::int64_t d = 0; d < D_; ++d) sum_[d] += std::abs(double(v[d]) - double(v_prev[d]));
  ++counted_;
}

void RunningMetric::count_jacobian(const DecodeCache& cache, const float* q, std::int64_t q_step,
                                   const JacobianScratch& room, const Kernels& isa) {
  const bool linear = std::holds_alternative<Linear>(p_->how.weighting);
  for (std::int64_t r = 0; r < R_; ++r) {
    isa.jacobian->differentiate({.q = q + r * q_step,
                                 .k = cache.key_lines.data(),
                                 .v = cache.value_lines.data(),
                                 .n = cache.n,
                                 .D = D_,
                                 .E = cache.E,
                                 .c = linear ? 1 / std::sqrt(double(D_)) : p_->c,
                                 .a = room.a.data(),
                                 .centre = room.centre.data(),
                                 .J = room.J.data(),
                                 .size = room.size.data(),
                                 .pulls = room.pulls.data(),
                                 .apart = room.apart.data(),
                                 .wide = room.wide.data()});
    for (std::int64_t d = 0; d < D_; ++d) sum_[r * D_ + d] += double(room.size[d]);
  }
  ++counted_;
}

void RunningMetric::average(Normalize how, std::int64_t line) {
  double* m = &m_[line * D_];
  for (std::int64_t d = 0; d < D_; ++d)
    m[d] = counted_ == 0 ? 0.0 : sum_[line * D_ + d] / double(counted_);
  metric::normalise(how, counted_, m, D_);
}

void RunningMetric::renew(const NextToken& token) {
  if (const Change how = change_of(p_->how.metric); how.estimated) {
    average(how.normalize, 0);
    if (how.flat) metric::flatten(m_.data(), D_);
  }
  if (const auto* how = p_->metric<Jacobian>()) {
    for (std::int64_t r = 0; r < R_; ++r) average(how->normalize, r);
  }
  if (!p_->metric<Given>() || p_->full) return;
  const View& given = token.of.from.metric;
  const std::int64_t b = given.shape[0] == 1 ? 0 : token.b, row = given.shape[2] == 1 ? 0 : token.i;
  for (std::int64_t r = 0; r < R_; ++r) {
    const std::int64_t head = given.shape[1] == p_->size.H ? token.g * R_ + r : token.g;
    metric::load(&m_[r * D_], given, {b, head, row}, D_);
  }
}

void RunningMetric::write(const View& to, const NextToken& token) const {
  if (!to || m_.empty() || p_->metric<Given>()) return;
  const std::int64_t row = p_->metric<Random>() ? 0 : token.i;
  for (std::int64_t r = 0; r < (per_head_ ? R_ : 1); ++r) {
    const std::int64_t head = per_head_ ? token.g * R_ + r : token.g;
    metric::store(to, {token.b, head, row}, &m_[r * D_], D_);
  }
}

}  // namespace foci::cpu
