// SPDX-License-Identifier: Apache-2.0
// The full metric of a group, chunk by chunk: one for the whole sequence, under prefix one for
// every `period` keys. Queries come in order, so a chunk is estimated once, used by its queries,
// and on the way back finished.
#pragma once

#include "ref/diagonal_rows.hpp"
#include "ref/match_dot.hpp"

namespace foci::ref {

template <class T>
class FullRows {
 public:
  Full<T> formula;

  FullRows(Arena& arena, const Group<T>& group) : p_(*group.p), group_(group) {
    if (!p_.full) return;
    formula = Full<T>::take(arena, group);
    formula.c = T(p_.c);
    if (const auto* how = p_.metric<KeyCovariance>()) {
      formula.covariance.ridge = how->ridge;
      formula.covariance.prior = *how->prior;
    } else {
      formula.covariance.factor.of = Of::itself;
    }
  }

  /// What the whole group shares; `buffers` lends its lines.
  void begin(const Row<T>& buffers) {
    chunk_ = -1;
    back_ = false;
    if (!p_.match_dot) return;
    start(0);
    formula.c = T(match_dot(formula, buffers, [&](std::int64_t i) { start(chunk_of(i)); }));
  }

  void begin_backward(const View& dmetric, Accumulate how) {
    back_ = true;
    chunk_ = -1;
    if (!dmetric || how == Accumulate::yes) return;
    std::fill(formula.dP.begin(), formula.dP.end(), 0.0);
    for (std::int64_t c = 0; c < chunks(); ++c) store_matrix(dmetric, c, formula.dP, how);
  }

  /// The chunk of query i; on the way back the one that is left is finished first.
  void move_to(std::int64_t i, const View& dmetric, Accumulate how, T* dk) {
    const std::int64_t chunk = chunk_of(i);
    if (chunk == chunk_) return;
    finish(dmetric, how, dk);
    start(chunk);
    if (back_) formula.begin_backward();
  }

  void finish(const View& dmetric, Accumulate how, T* dk) {
    if (!back_ || chunk_ < 0) return;
    formula.end_backward(dk);
    if (dmetric && chunk_ < chunks())
      store_matrix(dmetric, chunk_, formula.dP, how);  // no keys, no chunks
    if (p_.through && p_.metric<KeyCovariance>()) formula.through_estimate(dk);
  }

  /// metric, status and scale.
  void write(const Outputs& to) {
    metric::store_one(to.scale, {group_.at.estimate, group_.g}, formula.c);
    if (p_.metric<Given>() && to.status && group_.at.estimate < to.status.shape[0])
      metric::store_one(to.status, {group_.at.estimate, group_.g}, 0);  // it has come this far
    if ((!to.metric && !to.status) || p_.metric<Given>()) return;
    for (std::int64_t c = 0; c < chunks(); ++c) {
      const int raises = start(c);
      if (to.metric) {
        formula.form_metric();
        store_matrix(to.metric, c, formula.P, Accumulate::no);
      }
      if (prefix()) {
        metric::store_one(to.status, {group_.at.b, group_.g, group_.at.chunk0 + c}, raises);
      } else {
        metric::store_one(to.status, {group_.at.estimate, group_.g}, raises);
      }
    }
  }

 private:
  bool prefix() const { return p_.metric<KeyCovariance>() && p_.scope == Scope::prefix; }
  std::int64_t chunks() const { return prefix() ? group_.at.chunks : 1; }
  std::int64_t chunk_of(std::int64_t i) const {
    if (!prefix()) return 0;
    return metric::chunk_of(group_.before[i], p_.metric<KeyCovariance>()->period);
  }

  /// Estimates and places chunk c; returns how often its ridge was raised.
  int start(std::int64_t c) {
    if (c == chunk_) return raises_;
    chunk_ = c;
    raises_ = 0;
    if (p_.metric<Given>()) {
      load_given();
      return raises_;
    }
    const auto& how = *p_.metric<KeyCovariance>();
    const std::int64_t count = prefix() ? std::min(c * how.period, group_.n) : group_.n;
    raises_ = formula.estimate(count);
    if (raises_ < 0) {
      throw NumericalError(
          metric::unfactorable(group_.at.estimate, group_.g, count, formula.covariance.ridge));
    }
    formula.place(count > 0 ? Centre::mean : Centre::first_key);
    return raises_;
  }

  void load_given() {
    const View& given = p_.from.metric;
    const std::int64_t b = given.shape[0] == 1 ? 0 : group_.at.estimate, D = group_.D;
    formula.load_given(given, b);
    formula.keys.clear();
    for (std::int64_t j = 0; j < group_.n && !p_.how.causal; ++j)
      formula.keys.include(&group_.k[j * D]);
    formula.place(formula.keys.n > 0 ? Centre::mean : Centre::first_key);
  }

  void store_matrix(const View& to, std::int64_t c, std::span<const double> matrix,
                    Accumulate how) const {
    const std::int64_t D = group_.D, g = group_.g;
    const std::int64_t b = to.shape[0] == 1 ? 0 : group_.at.estimate;
    for (std::int64_t d = 0; d < D; ++d) {
      for (std::int64_t e = 0; e < D; ++e) {
        double entry = matrix[d * D + e];
        if (prefix()) {
          metric::store_one(to, {group_.at.b, g, group_.at.chunk0 + c, d, e}, entry);
          continue;
        }
        if (how == Accumulate::yes) entry += metric::load_one<double>(to, {b, g, d, e});
        metric::store_one(to, {b, g, d, e}, entry);
      }
    }
  }

  const Problem& p_;
  const Group<T>& group_;
  std::int64_t chunk_ = -1;
  int raises_ = 0;
  bool back_ = false;
};

}  // namespace foci::ref
