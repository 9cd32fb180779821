// SPDX-License-Identifier: Apache-2.0
// The diagonal metric of one (batch, key head) of a decoder: counts and sums, from which every
// token gets its m. Dot has none.
#pragma once

#include "cpu/decode_cache.hpp"
#include "cpu/diagonal.hpp"

namespace foci::cpu {

/// Where the jacobian of one query is worked out; shared by all heads.
struct JacobianScratch {
  std::span<float> a, centre, J, size, pulls, apart;
  std::span<double> wide;
  static JacobianScratch take(Arena& arena, const Problem& p);
};

class RunningMetric {
 public:
  static RunningMetric take(Arena& arena, const Problem& p);
  void reset(std::int64_t g);

  /// A kept token's v and v_prev (D).
  void count_change(const float* v, const float* v_prev);
  /// A kept token's queries (R, q_step), against the keys so far.
  void count_jacobian(const DecodeCache& cache, const float* q, std::int64_t q_step,
                      const JacobianScratch& room, const Kernels& isa);
  /// m of every head for this token; then of() may be asked.
  void renew(const NextToken& token);
  /// Writes the lines of this token.
  void write(const View& to, const NextToken& token) const;
  /// (D) of query head r; nullptr: ones.
  const double* of(std::int64_t r) const {
    return m_.empty() ? nullptr : &m_[(per_head_ ? r : 0) * D_];
  }

 private:
  void average(Normalize how, std::int64_t line);

  const Problem* p_ = nullptr;
  std::int64_t R_ = 1, D_ = 0, counted_ = 0;
  bool per_head_ = false;
  std::span<double> sum_;  // (R,D); all but jacobian use the first line
  std::span<double> m_;    // (R,D)
};

}  // namespace foci::cpu
