// SPDX-License-Identifier: Apache-2.0
// The peer that everything is timed beside: softmax dot attention as a textbook has it, the whole N
// x M matrix in memory, forward and backward. No masks, no statistics, no other mechanism.
#pragma once

#include "cli/problem.hpp"

#include <foci/executor.hpp>

#include <cstdint>
#include <vector>

namespace foci::cli {

/// T is float or double; the problem's q, k, v, do have that type and outlive it.
template <class T>
class NaiveAttention {
 public:
  NaiveAttention(const Problem& problem, const Options& how, Executor& threads);

  void forward();
  void backward();

  const std::vector<T>& o() const { return o_; }
  const std::vector<T>& dq() const { return dq_; }
  const std::vector<T>& dk() const { return dk_; }
  const std::vector<T>& dv() const { return dv_; }

  /// Bytes of the matrices alone.
  static double matrix_bytes(const Sizes& s, int threads) {
    return 2.0 * double(sizeof(T)) * double(s.N) * double(s.M) * double(threads);
  }

 private:
  struct Room {
    std::vector<T> a, da;   // (N,M)
    std::vector<T> kt, vt;  // (D,M), (E,M)
  };

  std::int64_t sees(std::int64_t i) const;
  void weights(Room& room, std::int64_t b, std::int64_t h) const;
  void pull(Room& room, std::int64_t b, std::int64_t h);

  const Problem& problem_;
  Executor& threads_;
  Sizes s_;
  bool causal_ = false;
  std::vector<Room> rooms_;
  std::vector<T> o_, dq_, dk_, dv_;
};

}  // namespace foci::cli
