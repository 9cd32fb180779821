// SPDX-License-Identifier: Apache-2.0
// Token by token: one (batch, key head) with its cache and the metric's running state. Diagonal:
// counts and sums. Full: a running mean and scatter, the chunk's frozen factor and centre, the
// cached keys whitened with it. The row itself is the full pass's.
#pragma once

#include "ref/jacobian.hpp"
#include "ref/random.hpp"
#include "ref/weigh.hpp"

#include <foci/error.hpp>

namespace foci::ref {

template <class S>
class DecodeHead {
 public:
  using T = Arithmetic<S>;

  /// `problem` describes the whole cache: one query, `capacity` keys.
  DecodeHead(Arena& arena, const Problem& problem, std::int64_t b, std::int64_t g)
      : p_(problem), b_(b), group_(arena, problem) {
    const std::int64_t M = problem.longest_m, D = group_.D;
    for (auto* line : {&s_, &a_}) *line = arena.take<T>(M);
    for (auto* line : {&q_, &folded_}) *line = arena.take<T>(D);
    o_ = arena.take<T>(group_.E);
    for (auto* lines : {&m_, &sum_}) *lines = arena.take<T>(group_.R, D);
    if (p_.metric<Jacobian>()) jacobian_ = JacobianEstimate<T>::take(arena, group_);
    if (p_.full) full_ = Full<T>::take(arena, group_);
    diagonal_ = {metric::form_of(p_.how.metric), T(p_.c), D};
    full_.c = T(p_.c);
    group_.g = g;
    if (const auto* how = p_.metric<KeyCovariance>()) {
      full_.covariance.ridge = how->ridge;
      full_.covariance.prior = *how->prior;
    } else {
      full_.covariance.factor.of = Of::itself;
    }
  }

  void reset() {
    group_.n = t_ = counted_ = 0;
    chunk_ = -1;
    std::fill(sum_.begin(), sum_.end(), T(0));
    if (p_.full) full_.keys.clear();
  }

  /// What could fail about token i, before any head takes it: the chunk's estimate, a given P.
  void prepare(const Problem& tokens) {
    if (p_.metric<KeyCovariance>()) renew();
    if (p_.full && p_.metric<Given>()) {
      const View& given = tokens.from.metric;
      full_.load_given(given, given.shape[0] == 1 ? 0 : b_);
    }
  }

  /// Token i of the checked step `tokens`, after every head's prepare().
  void step(const Outputs& to, const Problem& tokens, std::int64_t i) {
    const View& mask = tokens.from.key_mask;
    const Token token{tokens.from, i, !mask || metric::load_one<std::uint8_t>(mask, {b_, i}) != 0};
    if (token.kept) append(tokens.from, i);
    if (p_.full && p_.metric<Given>()) full_.place(Centre::first_key);
    for (std::int64_t r = 0; r < group_.R; ++r) attend(to, token, r);
    ++t_;
  }

 private:
  struct Token {
    const Inputs& from;
    std::int64_t i;  // which of the step's tokens
    bool kept;
  };

  const T* metric_of(std::int64_t r) const {
    return p_.full || p_.metric<Dot>() ? nullptr : &m_[r * group_.D];
  }

  void append(const Inputs& from, std::int64_t i) {
    const std::int64_t j = group_.n++, D = group_.D, E = group_.E, capacity = p_.longest_m;
    metric::load(&group_.k[j * D], from.k, {b_, group_.g, i}, D);
    metric::load(&group_.v[j * E], from.v, {b_, group_.g, i}, E);
    group_.key_at[j] = t_;
    for (std::int64_t r = 0; r < group_.R; ++r) {
      const View& bias = from.key_bias;
      const std::int64_t head = bias && bias.shape[1] == p_.size.H ? group_.head(r) : group_.g;
      group_.bias[r * capacity + j] = bias ? metric::load_one<T>(bias, {b_, head, i}) : T(0);
    }
    if (p_.metric<LayerChange>() || p_.metric<Flat>()) {
      metric::load(folded_.data(), from.v_prev, {b_, group_.g, i}, E);
      for (std::int64_t d = 0; d < D; ++d) sum_[d] += std::abs(group_.v[j * E + d] - folded_[d]);
      ++counted_;
    }
    if (!p_.metric<KeyCovariance>()) return;
    full_.keys.include(&group_.k[j * D]);
    if (chunk_ == 0 && j == 0) full_.place(Centre::first_key);
    full_.whiten(&full_.zk[j * D], &group_.k[j * D]);
  }

  /// At every `period` keys the metric is estimated anew from all keys so far, before the next one
  /// joins them.
  void renew() {
    const std::int64_t chunk = metric::chunk_of(group_.n, p_.metric<KeyCovariance>()->period);
    if (chunk == chunk_) return;
    if (full_.covariance.estimate(full_.keys) < 0)
      throw NumericalError(
          metric::unfactorable(b_, group_.g, full_.keys.n, full_.covariance.ridge));
    full_.place(chunk > 0 ? Centre::mean : Centre::first_key);
    chunk_ = chunk;
  }

  void update_diagonal(const Token& token, std::int64_t r) {
    const std::int64_t D = group_.D;
    T* m = &m_[r * D];
    const auto running = [&](const auto& how, const T* sum) {
      for (std::int64_t d = 0; d < D; ++d) m[d] = counted_ == 0 ? T(0) : sum[d] / T(counted_);
      metric::normalise(how.normalize, counted_, m, D);
    };
    if (const auto* how = p_.metric<LayerChange>()) running(*how, sum_.data());
    if (const auto* how = p_.metric<Flat>()) {
      running(*how, sum_.data());
      metric::flatten(m, D);
    }
    if (const auto* how = p_.metric<Jacobian>()) {
      if (token.kept) {
        jacobian_.c =
            T(std::holds_alternative<Linear>(p_.how.weighting) ? 1 / std::sqrt(double(D)) : p_.c);
        jacobian_.scratch.s = s_.data();
        jacobian_.scratch.a = a_.data();
        jacobian_.differentiate(q_.data(), group_.n);
        jacobian_.add_size(&sum_[r * D]);
        counted_ += r == 0;
      }
      running(*how, &sum_[r * D]);
    }
    if (const auto* how = p_.metric<Random>()) draw_line(m, *how, group_.g, D);
    if (p_.metric<Given>()) {
      const View& given = token.from.metric;
      const std::int64_t b = given.shape[0] == 1 ? 0 : b_, row = given.shape[2] == 1 ? 0 : token.i;
      metric::load(m, given, {b, given.shape[1] == p_.size.H ? group_.head(r) : group_.g, row}, D);
    }
  }

  void attend(const Outputs& to, const Token& token, std::int64_t r) {
    const std::int64_t D = group_.D;
    metric::load(q_.data(), token.from.q, {b_, group_.head(r), token.i}, D);
    if (!p_.full && !p_.metric<Dot>()) update_diagonal(token, r);
    if (to.metric && !p_.metric<Given>() && (r == 0 || p_.metric<Jacobian>())) {
      const std::int64_t row = p_.metric<Random>() ? 0 : token.i;
      metric::store(to.metric, {b_, p_.metric<Jacobian>() ? group_.head(r) : group_.g, row},
                    &m_[r * D], D);
    }
    Row<T> row = group_.row();
    row.n = group_.n;
    row.s = s_.data();
    row.a = a_.data();
    weigh(row,
          {.q = q_.data(),
           .m = metric_of(r),
           .bias = &group_.bias[r * p_.longest_m],
           .folded = folded_.data()},
          p_, diagonal_, full_);
    gather<S>(o_.data(), row, group_.v.data(), group_.E);
    write_row<T>(to, {b_, group_.head(r), token.i}, row, o_);
  }

  const Problem& p_;
  std::int64_t b_ = 0;
  Group<T> group_;
  Diagonal<T> diagonal_;
  Full<T> full_;
  JacobianEstimate<T> jacobian_;
  std::span<T> s_, a_;       // (capacity)
  std::span<T> q_, folded_;  // (D)
  std::span<T> o_;           // (E)
  std::span<T> m_, sum_;     // (R,D); layer-change keeps one sum, in the first line
  std::int64_t t_ = 0, chunk_ = -1, counted_ = 0;
};

}  // namespace foci::ref
