// SPDX-License-Identifier: Apache-2.0
// How a metric lets queries meet keys, and the way back from the sums a sweep over keys leaves
// behind to dq, dk and the metric. Everything the passes know about metrics is asked here.
#pragma once

#include "cpu/full_metric.hpp"
#include "cpu/jacobian.hpp"

namespace foci::cpu {

/// - product: s = q' . k, q' = c m q.
///   Back: dq = c m U, dk = T with U = sum_j ds k_j, T = sum_i ds q'_i.
/// - distance: s = -1/2 c sum_d m_d (q_d - k_d)^2, by differences.
///   Back, with q and k measured from a centre: dq = c m (U - dr q), dk = c (T - t k),
///   T = sum_i ds m_i q_i, t = sum_i ds m_i.
/// - full: s = q' . z_k + b + r with z = W (x - centre), P = W'W, q' = c z_q,
///   b = -1/2 c |z_k|^2, r = -1/2 c |z_q|^2.
///   Back: dq = c P (U - dr q), dk = c P (T - db k).
enum class Kind { product, distance, full };

inline constexpr std::int64_t few_keys = gradient_keys;

/// Whether k' differ from span to span of the queries.
inline bool has_spans(const Problem& p) {
  return p.metric<KeyCovariance>() && p.scope == Scope::prefix;
}

/// Whether the way back sums up lines that are measured from one centre, whatever the span: where
/// keys are many. Under prefix that is far from most, which only softmax's ds forgive: their sum
/// over a row is 0.
inline bool has_one_centre(const Problem& p) {
  return p.full && p.longest_m > few_keys &&
         (!has_spans(p) || std::holds_alternative<Softmax>(p.how.weighting));
}

/// sum - by * x, rounded once.
inline float without(float sum, float by, float x) {
  return float(double(sum) - double(by) * double(x));
}

/// to (rows,D) = from - centre (D)
inline void subtract(float* to, const float* from, const float* centre, std::int64_t rows,
                     std::int64_t D) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < D; ++d) to[i * D + d] = from[i * D + d] - centre[d];
  }
}

/// A query head of a sequence, and which span of its queries: those that share one estimate.
struct Meeting {
  std::int64_t s = 0, h = 0, span = 0;
};

/// Sums over keys for a block of queries.
struct QuerySums {
  float* U;         // (rows,D) sum_j ds_ij key_lines_j; used up
  const float* dr;  // (rows) sum_j ds_ij, or nullptr
  float* dm;        // (rows,D) sum_j ds_ij (q_i - k_j)^2, or room
};

class Geometry {
 public:
  Geometry(Arena& arena, const Problem& problem, const Kernels& isa, int threads);

  Kind kind() const { return kind_; }
  const Tokens& tokens(std::int64_t s) const { return tokens_[s]; }
  const DiagonalMetric& diagonal(std::int64_t s, std::int64_t h) const {
    return diagonal_[s * p_.size.G + key_head(h)];
  }
  std::int64_t key_head(std::int64_t h) const { return h / p_.heads_per_key(); }

  /// Whether scores are taken by differences: distances, and full metrics that are given, or of a
  /// few keys, or not yet estimated from any (their centre is the first key, far from most). q' .
  /// k' + b + r is cheaper and loses digits where q and k are near each other.
  bool by_differences(const Meeting& at) const {
    return kind_ == Kind::distance ||
           (kind_ == Kind::full &&
            (p_.metric<Given>() || p_.longest_m <= few_keys || full(at).count(at.span) == 0));
  }
  /// Whether the metric itself biases keys.
  bool has_bias() const { return kind_ == Kind::full; }
  /// Whether k' differ from span to span: under prefix a full metric has its chunks.
  bool has_spans() const { return spanned_; }
  /// Spans of the longest sequence; queries [first, last) of a sequence's span.
  std::int64_t spans() const {
    return spanned_ ? std::max<std::int64_t>(counted_.most_slots, 1) : 1;
  }
  struct Rows {
    std::int64_t first = 0, last = 0;
  };
  Rows rows(std::int64_t s, std::int64_t span) const;

  /// Places the tokens and estimates the metric of every (sequence, key head), `every` chunk of it
  /// or those that queries ask for.
  void estimate(Executor* threads, bool every);
  void write(const Outputs& to);
  /// c of a (sequence, key head).
  double scale(std::int64_t s, std::int64_t g) const {
    return scale_.empty() ? p_.c : scale_[s * p_.size.G + g];
  }
  void set_scale(std::int64_t s, std::int64_t g, double c) { scale_[s * p_.size.G + g] = c; }

  /// k' of kept keys [first, first + count) as (count,D), in place or in `to`; b (count) where the
  /// metric has one. `room` is as large as `to`.
  const float* keys(const Meeting& at, std::int64_t first, std::int64_t count, float* to, float* b,
                    float* room) const;
  /// The same for keys that were packed: z and b in panels, from raw panels of n keys.
  bool whitens() const { return kind_ == Kind::full && p_.longest_m > few_keys; }
  void whiten_panels(const Meeting& at, std::int64_t n, float* z, float* b, const float* raw,
                     float* room) const;
  /// dk -= db c P (k - centre) in panels like z's: what a key's own bias pulls; db (n, padded to a
  /// panel) is used up.
  void unwhiten_panels(const Meeting& at, std::int64_t n, float* dk, const float* z, float* db,
                       float* room) const;
  /// dk (count,D) from T = sum_i ds_ij q'_i, db (count) and z (count,D); T is used up.
  void unwhiten_keys(const Meeting& at, std::int64_t count, float* dk, float* T, const float* db,
                     const float* z) const;
  /// y (rows,D) = c P (q - centre), of q' as queries() makes them.
  void metric_queries(const Meeting& at, std::int64_t rows, float* y, const float* q) const;
  /// q as it lies in memory where scale times it is q', r at 0; else nullptr: queries() makes q'.
  const float* plain_queries(const Meeting& at, std::int64_t first, std::int64_t rows,
                             float* r) const;
  /// q' (rows,D), m (rows,D) where scores are taken by differences (else it is room), r (rows).
  void queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* q, float* m,
               float* r) const;
  /// m q (rows,D) where scores are products; false where that is q itself.
  bool weighted_queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* to) const;

  /// What rounding took from q' (rows,D), where it matters.
  bool keeps_rest() const { return kind_ == Kind::product && cpu::keeps_rest(p_); }
  void rounded_off(const Meeting& at, std::int64_t first, std::int64_t rows, const float* q,
                   float* rest) const;

  /// What the sums of the way back are made of: key_lines (count,D), in place or in `to`;
  /// query_lines (rows,line_width), false where that is q' itself.
  const float* key_lines(const Meeting& at, std::int64_t first, std::int64_t count,
                         float* to) const;
  bool query_lines(const Meeting& at, std::int64_t first, std::int64_t rows, float* to) const;
  std::int64_t line_width() const { return doubled_ ? 2 * p_.size.D : p_.size.D; }
  /// Queries measured as key_lines are (rows,D): what dm's differences are taken of.
  void centred_queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* to) const;
  bool wants_db() const { return kind_ == Kind::full || (kind_ == Kind::distance && !doubled_); }
  bool wants_dr() const { return kind_ != Kind::product; }
  bool wants_dm() const { return kind_ == Kind::distance && !p_.metric<Dot>(); }

  /// dk (count,D) += from T (count,line_width) = sum_i ds_ij query_lines_i and db (count); T is
  /// used up, `room` is as large.
  void unfold_keys(const Meeting& at, std::int64_t first, std::int64_t count, float* T,
                   const float* db, float* dk, float* room) const;
  /// dq (rows,D) from the sums; gathers dm. Queries of one key head come one after the other.
  void unfold_queries(const Meeting& at, std::int64_t first, std::int64_t rows,
                      const QuerySums& sums, float* dq, int thread);
  /// Whether the metric's gradient is gathered.
  bool wants_gradient() const { return wants_gradient_; }
  /// The span's metric gets what keys alone know of it, the upper triangle of sums (D,step) =
  /// sum_j db_j k_j k_j' of key_lines.
  void gather_scatter(const Meeting& at, const double* sums, std::int64_t step);
  /// The same of lines; db (n) is summed over the heads that share it.
  void gather_keys(const Meeting& at, std::int64_t n, const float* db, int thread);
  /// Room for the metric's gradient, then zeros in it; `wanted`: whether anybody will look at it.
  void take_gradient(Arena& arena);
  void clear_gradient(bool wanted);
  /// Writes the metric's gradient (`joins`: adds it) and sends it back through the estimate.
  void finish(const View& dmetric, std::int64_t s, std::int64_t g, bool joins, const Gathered& to,
              int thread);
  /// Whether finish() shares its work out itself, and takes one head after another.
  bool finishes_in_turn() const { return p_.through && p_.metric<Jacobian>(); }

 private:
  const float* metric(const Meeting& at, std::int64_t i) const {
    return diagonal(at.s, at.h).of(at.h % p_.heads_per_key(), i);
  }
  const FullMetric& full(const Meeting& at) const {
    return full_[at.s * p_.size.G + key_head(at.h)];
  }
  /// What lines of the way back are measured from.
  const float* centre(const Meeting& at) const {
    if (kind_ == Kind::full)
      return full(at).at(has_one_centre(p_) ? full(at).first_slot() : at.span).centre;
    return centre_.data() + ((at.s * p_.size.G + key_head(at.h)) * p_.size.D);
  }
  void unwhiten(const Meeting& at, std::int64_t rows, float* x, const float* z) const;
  void whiten(const Meeting& at, std::int64_t rows, float* z, const float* x) const;
  void whiten_few(const Meeting& at, std::int64_t rows, float* z, const float* x,
                  float* norms) const;
  void apply_metric(const Meeting& at, std::int64_t rows, float* x, float* room) const;
  void whiten_queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* q, float* m,
                      float* r) const;
  void add_products(double* to, std::int64_t rows, const float* a, const float* b, double c,
                    float* room) const;
  void find_centre(std::int64_t s, std::int64_t g, const float* k);
  void estimate_head(std::int64_t s, std::int64_t g, bool every, int thread);
  JacobianEstimate jacobian(std::int64_t s, std::int64_t g);
  void unfold_full(const Meeting& at, std::int64_t first, std::int64_t rows, const QuerySums& sums,
                   float* dq, int thread);
  void finish_full(const View& dmetric, std::int64_t s, std::int64_t g, bool joins,
                   const Gathered& to, int thread);
  float* room(int thread) { return room_.data() + thread * room_size_; }

  const Problem& p_;
  const Kernels& isa_;
  Kind kind_ = Kind::product;
  bool doubled_ = false;                // query_lines are [m q, m]: m differs between the queries
  std::span<Tokens> tokens_;            // (sequences)
  std::span<DiagonalMetric> diagonal_;  // (sequences, G)
  bool spanned_ = false, wants_gradient_ = false;
  std::span<FullMetric> full_;      // (sequences, G) or none
  FullMetric counted_;              // the like of them, even where the arena only counts
  std::span<FullRoom> full_rooms_;  // (threads)
  std::span<double> scale_;         // (sequences, G), where scales are matched
  std::span<float> centre_;         // (sequences, G, D)
  std::span<float> room_;           // (threads, 2, longest_m, max(D,E))
  std::int64_t room_size_ = 0;
  JacobianRoom jacobian_room_;
  Executor* threads_ = nullptr;
};

}  // namespace foci::cpu
