// SPDX-License-Identifier: Apache-2.0
// dot and the diagonal metrics: estimates m, folds it into the queries (product) or hands it to the
// pass (distance, or a product on tensor cores), and takes the pass's sums to dq, dk, dv, dv_prev
// and dmetric.
#pragma once

#include "cuda/few_keys.cuh"
#include "cuda/jacobian.cuh"
#include "cuda/layer_change.cuh"
#include "cuda/passes.cuh"

namespace foci::cuda {

/// m as kernels see it, its strides 0 along axes of size 1.
struct MetricLines {
  Field m;            // (1|sequences, G|H, 1|N, D)
  int per_head = 0;   // a line a query head, else one a key head
  int per_query = 0;  // a line a query, else one a sequence

  FOCI_DEVICE int head(const Shape& shape, int h) const { return per_head ? h : shape.key_head(h); }
  FOCI_DEVICE std::int64_t offset(const Shape& shape, const Place& at, int s, int h, int i,
                                  int d) const {
    return m.offset(s, head(shape, h), per_query ? at.q0 + i : 0, d);
  }
};

/// A problem's own lines, whatever its metric: product.
Folded plain_lines(const Problem& problem);

class DiagonalMetric {
 public:
  enum class Pass { forward, backward };

  /// `problem` must outlive it. exact: m in double and apart from q, as the pass of few keys wants
  /// it. `carried`: estimates go on from there, and v_prev has the tokens of the queries alone,
  /// which are the last keys.
  DiagonalMetric(Arena& arena, const Problem& problem, const Shape& shape, Pass pass, bool exact,
                 const Carried& carried = {});
  DiagonalMetric(Arena& arena, const Problem& problem, const Shape& shape, Pass pass)
      : DiagonalMetric(arena, problem, shape, pass, few_keys_serve(problem)) {}

  /// m
  void estimate(const Outputs& to, Stream stream);
  /// What a pass that has all values of a head needs to estimate m itself; nullptr where it cannot.
  const TokenMean* within_pass() const;
  /// Leaves the estimate to that pass.
  void leave_estimate(const Outputs& to) { mean_.copy = Field(to.metric); }
  int waves() const { return 1; }
  Folded fold(int wave, Stream stream);
  Sinks sinks(const Gradients& to);
  /// The same for tensor cores, which multiply by m themselves where the form is a product.
  Folded beside() const;
  Sinks sinks_beside(const Gradients& to);
  /// Whether beside() may be asked for: m times a number of q's type is one, too.
  bool stays_in_range() const;
  /// Whether a gradient is asked for that would show the rounding of m q to 16 bits.
  bool wants_all_bits(const Gradients& to) const;
  void gather(int, const Gradients&, Stream) {}
  /// beside: the pass got sinks_beside().
  void finish(const Gradients& to, Stream stream, bool beside = false);

 private:
  bool product() const { return metric::form_of(p_.how.metric) == Form::product; }
  /// Whether m goes into the queries, else it goes to the pass.
  bool folds() const { return product() && !exact_; }
  bool changes() const { return p_.metric<LayerChange>() || p_.metric<Flat>(); }
  bool differentiates() const { return p_.metric<Jacobian>() != nullptr; }
  bool estimated() const { return changes() || differentiates(); }
  bool median() const { return chosen_ != nullptr; }
  bool wants_dm(const Gradients& to) const;
  void describe();
  Terms changing_values() const;
  void take_estimate(Arena& arena, Pass pass);
  void take_fold(Arena& arena);
  void take_gradients(Arena& arena);
  void fold_queries(const Field& from, const Field& to, Stream stream) const;
  void sum_gradient(Stream stream) const;
  void pull_jacobian(const Gradients& to, Stream stream) const;

  const Problem& p_;
  Shape shape_;
  bool exact_;
  bool none_ = false;  // dot
  std::int64_t batches_ = 0, rows_ = 0;
  int heads_ = 0;  // lines of m: (batches, heads, rows, D)
  MetricLines lines_;
  TokenMean mean_;  // layer-change, flat, jacobian
  JacobianEstimate jacobian_;
  int* chosen_ = nullptr;  // (sequences, G, D) median
  float* drawn_ = nullptr;
  double* drawn_exactly_ = nullptr;
  bool spread_ = false;            // distance: m needs a copy for the pass
  Field folded_;                   // q' (B,H,N,D), or m (B,H,1|N,D)
  Field dq_, dm_terms_, dk_, dv_;  // f32, what the pass leaves
  float* dm_ = nullptr;            // (batches, heads, rows, D)
  double* sums_ = nullptr;         // (sequences, heads, chunks, D)
  int chunk_ = 0, chunks_ = 0;     // of queries
};

}  // namespace foci::cuda
