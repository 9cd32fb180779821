// SPDX-License-Identifier: Apache-2.0
// The diagonal metric of a group: asks the right estimator, hands out m query by query, gathers dm
// and sends it back through the estimate. Dot has no rows: of() gives nullptr.
#pragma once

#include "ref/diagonal.hpp"
#include "ref/jacobian.hpp"
#include "ref/layer_change.hpp"
#include "ref/random.hpp"
#include "ref/weigh.hpp"

namespace foci::ref {

/// Whether a gradient replaces what is there or is added to it (a metric shared by several
/// sequences).
enum class Accumulate { no, yes };

/// Where a group's gradients gather.
template <class T>
struct Gathered {
  T *dq, *dk, *dv, *dv_prev;
};

template <class T>
class DiagonalRows {
 public:
  Diagonal<T> formula;

  DiagonalRows(Arena& arena, const Group<T>& group) : p_(*group.p), group_(group) {
    if (p_.metric<Jacobian>()) jacobian_ = JacobianEstimate<T>::take(arena, group);
    const View& given = p_.from.metric;
    const bool is_given = p_.metric<Given>() != nullptr && !p_.full;
    per_head_ = p_.metric<Jacobian>() || (is_given && given.shape[1] == p_.size.H);
    per_query_ = is_given ? p_.size.N > 1 && given.shape[2] == p_.size.N
                          : p_.scope == Scope::prefix && !p_.metric<Random>();
    formula.form = metric::form_of(p_.how.metric);
    formula.c = T(p_.c);
    formula.D = group.D;
    if (p_.full || p_.metric<Dot>()) return;
    const std::int64_t rows = per_query_ ? p_.longest_n : 1;
    m_ = arena.take<T>(heads(), rows, group.D);
    dm_ = arena.take<T>(heads(), rows, group.D);
    by_ = arena.take<T>(heads(), rows);
    order_ = arena.take<std::int64_t>(p_.longest_m);
  }

  /// m of head r's query i; nullptr for dot.
  const T* of(std::int64_t r, std::int64_t i) const { return line(m_, r, i); }
  T* gradient(std::int64_t r, std::int64_t i) const { return line(dm_, r, i); }

  /// `buffers` lends its lines.
  void estimate(const Row<T>& buffers) {
    if (m_.empty()) return;
    if (p_.metric<LayerChange>() || p_.metric<Flat>()) change().forward(m_.data(), by_.data());
    if (const auto* how = p_.metric<Jacobian>()) {
      jacobian_.normalize = how->normalize;
      jacobian_.prefix = per_query_;
      jacobian_.c =
          T(std::holds_alternative<Linear>(p_.how.weighting) ? 1 / std::sqrt(double(group_.D))
                                                             : p_.c);
      jacobian_.scratch = buffers;
      for (std::int64_t r = 0; r < group_.R; ++r)
        jacobian_.forward_head(line(m_, r, 0), &by_[r * rows()], r);
    }
    if (const auto* how = p_.metric<Random>()) draw_line(m_.data(), *how, group_.g, group_.D);
    if (p_.metric<Given>()) {
      each_line([&](std::int64_t r, std::int64_t i) {
        metric::load(line(m_, r, i), p_.from.metric, index(p_.from.metric, r, i), group_.D);
      });
    }
  }

  void write(const View& to) const {
    if (!to || m_.empty() || p_.metric<Given>()) return;
    each_line([&](std::int64_t r, std::int64_t i) {
      metric::store(to, index(to, r, i), of(r, i), group_.D);
    });
  }

  void begin_backward() { std::fill(dm_.begin(), dm_.end(), T(0)); }

  void end_backward(const View& dmetric, Accumulate how, const Gathered<T>& to) {
    if (m_.empty()) return;
    if (dmetric) store_gradient(dmetric, how);
    if (!p_.through) return;
    if (p_.metric<LayerChange>() || p_.metric<Flat>()) {
      change().backward(to.dv, to.dv_prev, dm_.data(), m_.data(), by_.data());
    }
    for (std::int64_t r = 0; r < group_.R && p_.metric<Jacobian>(); ++r) {
      jacobian_.backward_head(to.dq + r * group_.N * group_.D, to.dk, to.dv, line(dm_, r, 0),
                              line(m_, r, 0), &by_[r * rows()], r);
    }
  }

 private:
  std::int64_t heads() const { return per_head_ ? group_.R : 1; }
  std::int64_t rows() const { return per_query_ ? group_.N : 1; }

  T* line(std::span<T> lines, std::int64_t r, std::int64_t i) const {
    if (lines.empty()) return nullptr;
    return &lines[((per_head_ ? r : 0) * rows() + (per_query_ ? i : 0)) * group_.D];
  }

  template <class Each>
  void each_line(Each&& each) const {
    for (std::int64_t r = 0; r < heads(); ++r) {
      for (std::int64_t i = 0; i < rows(); ++i) each(r, i);
    }
  }

  /// Where a line stands in a metric tensor (1|B|S, G|H, 1|N, D).
  std::array<std::int64_t, 3> index(const View& in, std::int64_t r, std::int64_t i) const {
    const std::int64_t sequence = per_query_ ? group_.at.b : group_.at.estimate;
    return {in.shape[0] == 1 ? 0 : sequence, per_head_ ? group_.head(r) : group_.g,
            per_query_ ? group_.at.q0 + i : 0};
  }

  void store_gradient(const View& to, Accumulate how) const {
    each_line([&](std::int64_t r, std::int64_t i) {
      const auto [b, h, row] = index(to, r, i);
      for (std::int64_t d = 0; d < group_.D; ++d) {
        const T before = how == Accumulate::yes ? metric::load_one<T>(to, {b, h, row, d}) : T(0);
        metric::store_one(to, {b, h, row, d}, before + gradient(r, i)[d]);
      }
    });
  }

  ChangeEstimate<T> change() const {
    ChangeEstimate<T> estimate{&group_, {}, rows(), per_query_, order_};
    const auto take = [&](const auto& how) { estimate.how = {how.reduce, how.normalize, false}; };
    if (const auto* how = p_.metric<LayerChange>()) take(*how);
    if (const auto* how = p_.metric<Flat>()) {
      take(*how);
      estimate.how.flat = true;
    }
    return estimate;
  }

  const Problem& p_;
  const Group<T>& group_;
  JacobianEstimate<T> jacobian_;
  bool per_head_ = false, per_query_ = false;
  std::span<T> m_, dm_;            // (heads, rows, D)
  std::span<T> by_;                // (heads, rows) divisors
  std::span<std::int64_t> order_;  // (M) scratch of the median
};

}  // namespace foci::ref
