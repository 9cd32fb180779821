// SPDX-License-Identifier: Apache-2.0
// The diagonal metric of one (sequence, key head): estimated, drawn or loaded, handed out line by
// line; its gradient gathered, written and sent back through the estimate. Dot has no lines.
#pragma once

#include "cpu/tokens.hpp"

namespace foci::cpu {

/// What layer-change and flat share; `estimated` is false for every other metric.
struct Change {
  Reduce reduce = Reduce::mean;
  Normalize normalize = Normalize::max;
  bool estimated = false, flat = false;
};
Change change_of(const Metric& metric);

/// Where a key head's gradients gather when more than one step adds to them; empty where absent.
struct Gathered {
  std::span<float> dq;           // (R,longest_n,D)
  std::span<float> dk;           // (n,D)
  std::span<float> dv, dv_prev;  // (n,E)
};

/// Whether digits that floats have no room for count: what a few keys weigh may be divided by next
/// to nothing, which softmax never does.
inline bool keeps_rest(const Problem& p) {
  return p.longest_m <= gradient_keys && !std::holds_alternative<Softmax>(p.how.weighting);
}

struct DiagonalMetric {
  const Problem* p = nullptr;
  const Tokens* tokens = nullptr;
  std::int64_t g = 0;
  bool per_head = false, per_query = false;
  std::span<float> m;             // (heads, rows, D)
  std::span<float> m_rest;        // (heads, rows, D) what rounding took from an estimate, or none
  std::span<double> dm;           // (heads, rows, D)
  std::span<double> by;           // (heads, rows) what they were divided by
  std::span<double> room;         // (2, D)
  std::span<std::int64_t> order;  // (longest_m) of the median

  static DiagonalMetric take(Arena& arena, const Problem& p);

  std::int64_t heads() const { return per_head ? p->heads_per_key() : 1; }
  std::int64_t rows() const { return per_query ? tokens->at.N : 1; }
  /// The line of head r's query i in m or dm; nullptr for dot.
  template <class T>
  T* line(std::span<T> of, std::int64_t r, std::int64_t i) const {
    if (of.empty()) return nullptr;
    return of.data() + (((per_head ? r : 0) * rows() + (per_query ? i : 0)) * p->size.D);
  }
  const float* of(std::int64_t r, std::int64_t i) const { return line(m, r, i); }
  void put_line(std::int64_t r, std::int64_t i, const double* from) const;

  /// All but jacobian. v and v_prev (n,D) are looked at by layer-change and flat.
  void estimate(const float* v, const float* v_prev);
  void write(const View& to) const;
  /// dm to `to`; `joins` adds to what is there (one metric given for several sequences).
  void write_gradient(const View& to, bool joins) const;
  /// dm through the normalisation and mean |v - v_prev|; dm is used up.
  void through_change(const Gathered& to, const float* v, const float* v_prev);

 private:
  std::int64_t counted(std::int64_t i) const { return per_query ? tokens->upto[i] : tokens->n; }
  std::array<std::int64_t, 3> index(const View& in, std::int64_t r, std::int64_t i) const;
  std::int64_t median(const float* v, const float* v_prev, std::int64_t d) const;
  /// Calls each(i, raw m of row i, in `room`).
  template <class Each>
  void each_change(const float* v, const float* v_prev, Reduce reduce, Each&& each) const;
  void change(const float* v, const float* v_prev, const Change& how);
  template <class Each>
  void each_line(Each&& each) const {
    for (std::int64_t r = 0; r < heads(); ++r) {
      for (std::int64_t i = 0; i < rows(); ++i) each(r, i);
    }
  }
};

}  // namespace foci::cpu
