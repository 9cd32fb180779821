// SPDX-License-Identifier: Apache-2.0
// The jacobian metric of one (sequence, key head): m_d = mean over queries of sum_e |J_de|,
// J = d o / d q of plain softmax attention, and the gradient through it. N n D E multiplications by
// nature, done as products of small matrices. Threads share queries, on the way back also keys;
// no sum depends on how.
#pragma once

#include "cpu/diagonal.hpp"
#include "cpu/jacobian_lines.hpp"

namespace foci::cpu {

/// Memory of one estimate at a time, for all threads.
struct JacobianRoom {
  /// Of one query at work.
  struct Query {
    std::span<float> own;     // (D) where q does not lie as floats
    std::span<float> a;       // (longest_m) weights; on the way back then c ds
    std::span<float> centre;  // (D+E)
    std::span<float> J, Jt;   // (D,E), (E,D); the transpose only on the way back
    std::span<float> size;    // (D) sum_e |J_de|
    const float* q = nullptr;
    float* dq = nullptr;
    std::int64_t n = 0;  // keys it sees, 0 where it does not count
    double delta = 0;    // sum_j a_j da_j
  };
  /// Of one thread, for a block of keys.
  struct Block {
    std::span<float> pulls, of_key, dk;    // (jacobian_keys, D)
    std::span<float> apart, of_value, dv;  // (jacobian_keys, E)
    std::span<double> wide;                // (D + longest_m + 8); for few keys more behind it
  };
  std::span<Query> queries;  // (threads), more where gradients go through the estimate
  std::span<Block> blocks;   // (threads)
  std::span<double> sums;    // (R, parts, D)

  /// Nothing unless the metric is jacobian.
  static JacobianRoom take(Arena& arena, const Problem& p, int threads);
};

class JacobianEstimate {
 public:
  /// k (n,D), v (n,E): the kept keys as floats. Queries are read from the problem.
  JacobianEstimate(DiagonalMetric& of, const Kernels& isa, const float* k, const float* v);

  /// Fills m and by.
  void forward(const JacobianRoom& room, Executor* threads);
  /// Adds what dm sends back to dq, dk and dv; dm is used up.
  void backward(const Gathered& to, const JacobianRoom& room, Executor* threads);

 private:
  using Query = JacobianRoom::Query;
  using Block = JacobianRoom::Block;

  /// Whether query i is part of the mean.
  bool counts(std::int64_t i) const {
    return tokens_.sees[i] > 0 &&
           (tokens_.at.N != tokens_.at.M || tokens_.upto[i] > tokens_.before[i]);
  }
  std::int64_t counted() const {
    std::int64_t count = 0;
    for (std::int64_t i = 0; i < N_; ++i) count += counts(i);
    return count;
  }
  /// The same threads, or none where the work is too little to be shared.
  Executor* worth(Executor* threads) const;
  /// J and its sizes of head r's query i, where it counts.
  void differentiate(Query& query, const Block& block, std::int64_t r, std::int64_t i) const;
  /// All in double, for few keys, from what differentiate() left behind: weights, centres, room.
  struct Wide {
    double *kappa, *a, *omega;      // (D), (n), (E)
    double *row, *X, *pulls, *sum;  // (E), (D,E), (D), (D)
  };
  Wide widen(const Query& query, const Block& block) const;
  void differentiate_row(const Wide& of, std::int64_t n, std::int64_t d) const;
  /// Sizes (D).
  void measure_wide(const Query& query, const Block& block, double* to) const;
  /// One query's share of what dm (D) sends back.
  void pull_wide(const Gathered& to, const Query& query, const Block& block,
                 const double* dm) const;
  /// A row of m and by from its sizes summed up.
  void normalise(std::int64_t r, std::int64_t row, const double* sum, std::int64_t counted) const;
  void finish_mean(const JacobianRoom& room, std::int64_t r) const;
  void finish_running_mean(const JacobianRoom& room, std::int64_t r) const;
  /// dm becomes the gradient of each query's sizes.
  void spread(const JacobianRoom& room, std::int64_t r) const;
  void turn(Query& query, const Block& block, std::int64_t r, std::int64_t i) const;
  /// What a block of keys gets from queries at work.
  struct Keys {
    std::int64_t first, last;
  };
  void pull(Query& query, const Block& block, const Keys& keys) const;
  void pull(const Gathered& to, std::span<Query> queries, const Block& block,
            const Keys& keys) const;
  void finish(Query& query) const;

  DiagonalMetric& of_;
  const Problem& p_;
  const Tokens& tokens_;
  const Kernels& isa_;
  const float *k_, *v_;
  std::int64_t D_, E_, N_;
  Normalize normalize_;
  double c_;
};

}  // namespace foci::cpu
