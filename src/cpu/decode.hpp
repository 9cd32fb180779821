// SPDX-License-Identifier: Apache-2.0
// Decoding on the CPU backend, in float: every (batch, key head) of a decoder with its cache, its
// running sums and its metric; one token at a time. A sweep over the cache costs M D, running sums
// D E; statistics that look at every weight are worked out only when asked.
#pragma once

#include "cpu/decode_full.hpp"
#include "cpu/decode_metric.hpp"
#include "cpu/decode_sums.hpp"

#include <vector>

namespace foci::cpu {

class Decoding {
 public:
  /// `cache` describes the whole cache, one query and `capacity` keys, and outlives this.
  Decoding(Arena& arena, const Problem& cache, DType type, const Kernels& isa);

  void reset();
  /// What could fail about the next token, before any head takes it.
  void prepare(const Problem& tokens);
  /// Token i of the checked step `tokens`, for every head.
  void step(const Outputs& to, const Problem& tokens, std::int64_t i);

 private:
  struct Head {
    std::int64_t b, g;
    DecodeCache cache;
    RunningMetric metric;
    RunningWhitening full;
    RunningSums sums;
  };
  /// What a row of weights tells.
  struct Facts {
    float by = 1;  // what o is divided by; 0: a row of zeros
    float lse = 0, concentration = 0, effective_keys = 0, entropy = 0, largest = 0;
    std::int64_t largest_at = -1;
  };

  void attend(Head& head, const Outputs& to, const NextToken& token);
  void take_token(Head& head, const NextToken& token);
  void fold(const Head& head);
  void sweep(const Head& head, const Outputs& to);
  void read_sums(Head& head, const NextToken& token, const Outputs& to);
  void score(const Head& head) const;
  template <class T>
  CachedScores<T> scores(const Head& head, std::span<T> q, std::span<T> w) const;
  Facts weigh(const Head& head, std::int64_t r, bool statistics) const;
  Facts softmax(const Head& head, float* x, bool statistics) const;
  void look_at_weights(const Head& head, const Outputs& to);
  static void concentrate(Facts& facts, double sum, double squares, std::int64_t n);
  void measure(Facts& facts, const Head& head, const float* x) const;
  void write(const Outputs& to, const NextToken& token);

  const Problem& p_;
  const Kernels& isa_;
  const DecodeKernels& rows_;
  std::int64_t R_, D_, wide_D_, wide_E_, step_;
  bool on_sums_ = false, distances_ = false, wide_ = false;
  std::int64_t t_ = 0;
  std::vector<Head> heads_;
  std::vector<Facts> facts_;                     // (R)
  std::span<double> wide_folded_, wide_spread_;  // the same, where scores are summed up in double
  std::span<float> s_;                           // (R, step) scores, then weights
  std::span<float> q_, folded_;                  // (R, wide_D)
  std::span<float> spread_;                      // (R, wide_D) distances: -1/2 c m
  std::span<float> k_, v_, v_prev_;              // (wide_D), (wide_E)
  std::span<float> o_;                           // (R, wide_E)
  WhiteningRoom whitening_;
  JacobianScratch jacobian_;
  std::span<float> panel_;  // (D, panel) linear
};

}  // namespace foci::cpu
