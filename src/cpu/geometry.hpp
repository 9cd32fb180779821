// SPDX-License-Identifier: Apache-2.0
// How a metric lets queries meet keys: s_ij = q'_i . k'_j + b_j + r_i, and the way back from dq',
// dk', db and dr to dq, dk and the metric. Everything the passes know about metrics is asked here.
#pragma once

#include "cpu/diagonal.hpp"

namespace foci::cpu {

/// product    q' = c m q, k' = k
/// distance   m the same for all queries: z = sqrt(m) (x - centre), q' = c z_q, k' = z_k,
///            b = -1/2 c |z_k|^2, r = -1/2 c |z_q|^2
/// doubled    distance with m of each query: q' = [c m q, -1/2 c m], k' = [k, k k], r alike
/// full       distance with z = W (x - centre), P = W'W
enum class Kind { product, distance, doubled, full };

/// A query head of a sequence, and which span of its queries: those that share one estimate.
struct Meeting {
  std::int64_t s = 0, h = 0, span = 0;
};

class Geometry {
 public:
  Geometry(Arena& arena, const Problem& problem, const Kernels& isa, int threads);

  Kind kind() const { return kind_; }
  std::int64_t width() const { return kind_ == Kind::doubled ? 2 * p_.size.D : p_.size.D; }
  const Tokens& tokens(std::int64_t s) const { return tokens_[s]; }
  DiagonalMetric& diagonal(std::int64_t s, std::int64_t g) { return diagonal_[s * p_.size.G + g]; }
  std::int64_t key_head(std::int64_t h) const { return h / p_.heads_per_key(); }

  /// Whether the metric itself biases keys.
  bool has_bias() const { return kind_ == Kind::distance || kind_ == Kind::full; }
  /// Whether k' differ from span to span.
  bool has_spans() const { return false; }
  /// Whether each query head meets keys of its own.
  bool keys_per_head() const { return per_head_; }
  /// Spans of the longest sequence; queries [first, last) of a sequence's span.
  std::int64_t spans() const { return 1; }
  struct Rows {
    std::int64_t first = 0, last = 0;
  };
  Rows rows(std::int64_t s, std::int64_t) const { return {0, tokens_[s].at.N}; }

  /// Places the tokens and estimates the metric of every (sequence, key head).
  void estimate(Executor* threads);
  void write(const Outputs& to) const;

  /// k' of kept keys [first, first + count) as (count,width), in place or in `to`; b (count) is
  /// written unless the kind is product or doubled.
  const float* keys(const Meeting& at, std::int64_t first, std::int64_t count, float* to,
                    float* b) const;
  /// What dq' sums up over keys, likewise.
  const float* key_lines(const Meeting& at, std::int64_t first, std::int64_t count,
                         float* to) const;
  /// q' (rows,width) and r (rows) of queries [first, first + rows).
  void queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* to, float* r) const;
  /// What dk' sums up over queries; false where that is q' itself.
  bool query_lines(const Meeting& at, std::int64_t first, std::int64_t rows, float* to) const;

  /// dk (count,D) += from T (count,width) = sum_i ds_ij query_lines_i and db (count).
  void unfold_keys(const Meeting& at, std::int64_t first, std::int64_t count, const float* T,
                   const float* db, float* dk) const;
  /// dq (rows,D) = from U (rows,width) = sum_j ds_ij key_lines_j and dr (rows); gathers dm.
  /// Queries of one key head come one after the other.
  void unfold_queries(const Meeting& at, std::int64_t first, std::int64_t rows, const float* U,
                      const float* dr, float* dq);
  void begin_backward();
  /// The keys' own share of dm: db (n) summed over the query heads that met them.
  void gather_keys(const Meeting& at, const float* db);
  /// Writes the metric's gradient (`joins`: adds it) and sends it back through the estimate.
  void finish(const View& dmetric, std::int64_t s, std::int64_t g, bool joins, const Gathered& to,
              int thread);

 private:
  const float* metric(const Meeting& at, std::int64_t i) const {
    return diagonal_[at.s * p_.size.G + key_head(at.h)].of(at.h % p_.heads_per_key(), i);
  }
  const float* centre(const Meeting& at) const {
    return &centre_[(at.s * p_.size.G + key_head(at.h)) * p_.size.D];
  }
  void find_centre(std::int64_t s, std::int64_t g, const float* k);
  void estimate_head(std::int64_t s, std::int64_t g, int thread);
  float* room(int thread) { return &room_[thread * room_size_]; }

  const Problem& p_;
  const Kernels& isa_;
  Kind kind_ = Kind::product;
  bool per_head_ = false;
  std::span<Tokens> tokens_;            // (sequences)
  std::span<DiagonalMetric> diagonal_;  // (sequences, G)
  std::span<float> centre_;             // (sequences, G, D)
  std::span<float> room_;               // (threads, 2, longest_m, max(D,E))
  std::int64_t room_size_ = 0;
};

}  // namespace foci::cpu
