// SPDX-License-Identifier: Apache-2.0
// Running sums of one (batch, key head) that stand for all its tokens: linear, decay, and identity
// where the score is a product. One token costs D E, however many came before.
#pragma once

#include "cpu/decode_cache.hpp"

namespace foci::cpu {

/// Whether a decoder's outputs need no sweep over its cache.
bool runs_on_sums(const Problem& p);

/// Lines are padded with zeros to whole vectors: D to wide_D, E to wide_E.
class RunningSums {
 public:
  static RunningSums take(Arena& arena, const Problem& p, const DecodeKernels& isa);
  void reset();

  /// What a kept token brings.
  struct Joining {
    float* k;        // (wide_D); used up
    const float* v;  // (wide_E)
  };
  /// A key at position t: decay's clock, for decoders that sweep too.
  void pass(std::int64_t t);
  /// o (R, wide_E) = what the queries q' (R, wide_D) read, before they are divided; `joins` may be
  /// nullptr. linear leaves phi(q') in q.
  void read(float* o, float* q, const Joining* joins, const DecodeCache& cache);
  /// What the row of query q, as read() left it, is divided by; 0: a row of zeros.
  float divisor(const float* q, std::int64_t n) const;

  /// linear: x_rj = phi(q'_r) . phi(k_j), q as read() left it. room: a panel of keys.
  void similarities(float* x, const float* q, float* room, const DecodeCache& cache) const;
  /// decay: ln(rate), and where the last key stands.
  float slope() const { return slope_; }
  std::int64_t last() const { return last_; }

 private:
  void join_linear(const Joining& joins);
  void read_linear(float* q);
  void read_positions(float* o, const Joining* joins);

  const Problem* p_ = nullptr;
  const DecodeKernels* isa_ = nullptr;
  std::int64_t R_ = 1, D_ = 0, wide_D_ = 0, wide_E_ = 0;
  double rate_ = 1, weight_ = 0, fade_ = 1;  // decay: sum of powers; this token's step in time
  float slope_ = 0;
  std::int64_t last_ = 0;
  std::span<float> state_;       // (D, wide_E) sum of k v'
  std::span<float> of_bias_;     // (R, wide_E) sum of bias v'
  std::span<float> sum_;         // (wide_D) linear: sum of phi(k)
  std::span<float> top_;         // (D) exp: what exponents are measured from
  std::span<double> positions_;  // (wide_E) decay without content: sum of powers times v
};

}  // namespace foci::cpu
