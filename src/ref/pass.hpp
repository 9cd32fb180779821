// SPDX-License-Identifier: Apache-2.0
// The forward and the backward pass over one group: estimate, then row by row score -> weigh -> sum
// up, and back. One thread's buffers; another group reuses them.
#pragma once

#include "ref/full_rows.hpp"
#include "ref/weigh.hpp"

namespace foci::ref {

template <class S>
class Pass {
 public:
  using T = Arithmetic<S>;

  Pass(Arena& arena, const Problem& problem)
      : p_(problem), group_(arena, problem), diagonal_(arena, group_), full_(arena, group_) {
    const std::int64_t N = problem.longest_n, M = problem.longest_m, R = group_.R;
    for (auto* line : {&s_, &a_, &da_, &ds_}) *line = arena.take<T>(M);
    for (auto* line : {&folded_, &dfolded_}) *line = arena.take<T>(group_.D);
    for (auto* line : {&o_, &do_}) *line = arena.take<T>(group_.E);
    dq_ = arena.take<T>(R, N, group_.D);
    dk_ = arena.take<T>(M, group_.D);
    dv_ = arena.take<T>(M, group_.E);
    dv_prev_ = arena.take<T>(bool(problem.from.v_prev), M, group_.E);
    dbias_ = arena.take<T>(bool(problem.from.key_bias), R, M);
  }

  /// Throws where a given P is not positive semidefinite.
  void check_given() {
    const std::int64_t batch = p_.from.metric.shape[0];
    for (group_.g = 0; group_.g < p_.size.G; ++group_.g) {
      for (std::int64_t b = 0; b < batch; ++b) full_.formula.load_given(p_.from.metric, b);
    }
  }

  void forward(const Outputs& to, std::int64_t s, std::int64_t g);
  void backward(const Gradients& to, std::int64_t s, std::int64_t g, Accumulate dmetric);

 private:
  Row<T> lines() const {
    Row<T> row = group_.row();
    row.s = s_.data();
    row.a = a_.data();
    row.da = da_.data();
    row.ds = ds_.data();
    row.q = folded_.data();
    row.dq = dfolded_.data();
    row.dk = dk_.data();
    return row;
  }

  Row<T> row(std::int64_t i) const {
    Row<T> row = lines();
    row.n = group_.sees[i];
    return row;
  }

  void estimate() {
    const Row<T> buffers = lines();
    if (p_.full) {
      full_.begin(buffers);
    } else {
      diagonal_.estimate(buffers);
    }
  }

  void weigh(Row<T>& row, std::int64_t r, std::int64_t i);
  void pull(Row<T>& row, std::int64_t r, std::int64_t i);
  void store(const Gradients& to) const;

  const Problem& p_;
  Group<T> group_;
  DiagonalRows<T> diagonal_;
  FullRows<T> full_;
  std::span<T> s_, a_, da_, ds_;   // (M)
  std::span<T> folded_, dfolded_;  // (D) q' and its gradient
  std::span<T> o_, do_;            // (E)
  std::span<T> dq_, dk_, dv_, dv_prev_, dbias_;
};

/// Scores, then weights, of head r's query i.
template <class S>
void Pass<S>::weigh(Row<T>& row, std::int64_t r, std::int64_t i) {
  const Query<T> query{.q = group_.query(r, i),
                       .m = diagonal_.of(r, i),
                       .bias = p_.from.key_bias ? &group_.bias[r * group_.n] : nullptr,
                       .folded = folded_.data()};
  ref::weigh(row, query, p_, diagonal_.formula, full_.formula);
}

template <class S>
void Pass<S>::forward(const Outputs& to, std::int64_t s, std::int64_t g) {
  group_.load(s, g);
  estimate();
  if (p_.full) full_.write(to);
  diagonal_.write(to.metric);
  for (std::int64_t i = 0; i < group_.N; ++i) {
    if (p_.full) full_.move_to(i, {}, Accumulate::no, nullptr);
    for (std::int64_t r = 0; r < group_.R; ++r) {
      Row<T> line = row(i);
      weigh(line, r, i);
      gather<S>(o_.data(), line, group_.v.data(), group_.E);
      write_row<T>(to, {group_.at.b, group_.head(r), group_.at.q0 + i}, line, o_);
    }
  }
}

/// ds from da, then its way to dq, dk, dm or dP.
template <class S>
void Pass<S>::pull(Row<T>& row, std::int64_t r, std::int64_t i) {
  std::visit([&](const auto& weighting) { ref::backward(weighting, row); }, p_.how.weighting);
  const T* q = group_.query(r, i);
  T* dq = &dq_[(r * group_.N + i) * group_.D];
  if (std::holds_alternative<Linear>(p_.how.weighting)) {
    diagonal_.formula.unfold(dq, diagonal_.gradient(r, i), row.dq, q, diagonal_.of(r, i));
    return;
  }
  if (!needs_scores(p_.how.weighting)) return;
  for (std::int64_t j = 0; j < row.n; ++j) {
    if (p_.from.key_bias) dbias_[r * group_.n + j] += row.ds[j];
    row.ds[j] = rounded<S>(row.ds[j]);
  }
  if (p_.full) {
    full_.formula.pull(dq, row, q);
  } else if (diagonal_.formula.form == Form::distance) {
    diagonal_.formula.pull_distance(dq, diagonal_.gradient(r, i), row, q, diagonal_.of(r, i));
  } else {
    diagonal_.formula.pull_product(row);
    diagonal_.formula.unfold(dq, diagonal_.gradient(r, i), row.dq, q, diagonal_.of(r, i));
  }
}

template <class S>
void Pass<S>::backward(const Gradients& to, std::int64_t s, std::int64_t g, Accumulate dmetric) {
  group_.load(s, g);
  estimate();
  for (auto* gradient : {&dq_, &dk_, &dv_, &dv_prev_, &dbias_})
    std::fill(gradient->begin(), gradient->end(), T(0));
  diagonal_.begin_backward();
  if (p_.full) full_.begin_backward(to.dmetric, dmetric);
  const std::int64_t E = group_.E;
  for (std::int64_t i = 0; i < group_.N; ++i) {
    if (p_.full) full_.move_to(i, to.dmetric, dmetric, dk_.data());
    for (std::int64_t r = 0; r < group_.R; ++r) {
      Row<T> line = row(i);
      weigh(line, r, i);
      metric::load(do_.data(), to.d_o, {group_.at.b, group_.head(r), group_.at.q0 + i}, E);
      for (std::int64_t j = 0; j < line.n; ++j) {
        line.da[j] = dot(do_.data(), &group_.v[j * E], E);
        add(&dv_[j * E], rounded<S>(line.a[j]), do_.data(), E);
      }
      pull(line, r, i);
    }
  }
  if (p_.full) full_.finish(to.dmetric, dmetric, dk_.data());
  diagonal_.end_backward(to.dmetric, dmetric,
                         {dq_.data(), dk_.data(), dv_.data(), dv_prev_.data()});
  store(to);
}

template <class S>
void Pass<S>::store(const Gradients& to) const {
  const std::int64_t b = group_.at.b, D = group_.D, E = group_.E, R = group_.R, N = group_.N;
  for (std::int64_t r = 0; r < R && to.dq; ++r) {
    for (std::int64_t i = 0; i < N; ++i) {
      metric::store(to.dq, {b, group_.head(r), group_.at.q0 + i}, &dq_[(r * N + i) * D], D);
    }
  }
  std::int64_t kept = 0;
  for (std::int64_t j = 0; j < group_.at.M; ++j) {
    const bool keep = kept < group_.n && group_.key_at[kept] == j;
    const std::int64_t token = group_.at.k0 + j;
    const auto line = [&](const View& view, std::span<const T> from, std::int64_t width) {
      if (!view) return;
      for (std::int64_t d = 0; d < width; ++d) {
        metric::store_one(view, {b, group_.g, token, d}, keep ? from[kept * width + d] : T(0));
      }
    };
    line(to.dk, dk_, D);
    line(to.dv, dv_, E);
    line(to.dv_prev, dv_prev_, E);
    for (std::int64_t r = 0; r < R && to.dkey_bias; ++r) {
      T sum = keep ? dbias_[r * group_.n + kept] : T(0);
      if (to.dkey_bias.shape[1] != p_.size.H && r > 0) {
        sum += metric::load_one<T>(to.dkey_bias, {b, group_.g, token});
      }
      metric::store_one(to.dkey_bias, {b, group_.bias_head(r), token}, sum);
    }
    kept += keep;
  }
}

}  // namespace foci::ref
