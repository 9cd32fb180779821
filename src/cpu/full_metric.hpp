// SPDX-License-Identifier: Apache-2.0
// The full metric of one (sequence, key head): estimated from its keys, once or under prefix chunk
// by chunk, or loaded; handed out as whitenings. Its gradient is written and sent back through the
// estimates.
#pragma once

#include "cpu/key_covariance.hpp"
#include "cpu/tokens.hpp"

namespace foci::cpu {

/// One full metric as the passes use it: z = W (x - centre), s = -1/2 c |z_q - z_k|^2.
struct Whitening {
  const float *W, *Wt;   // (D,D) and its transpose: lower for key-covariance, upper for given
  const float* centre;   // (D)
  const double* factor;  // (D,D) W before rounding
  int raises;
};

/// Which P of a given tensor (1|B, G, D, D).
struct GivenAt {
  std::int64_t b, g;
};
/// W (D,D) = L' of the given P = L L'. Throws where P is not positive semidefinite; rounding may
/// leave it a little short. room: covariance_room(D).
void whiten_given(double* W, const View& given, const GivenAt& at, const MatrixKernels& kernels,
                  double* room);

/// Scratch of one task.
struct FullRoom {
  std::span<double> wide;
  std::span<float> narrow;

  static FullRoom take(Arena& arena, const Problem& p, const MatrixKernels& kernels);
};

/// A slot is an estimate: one for the sequence, under prefix one a chunk. Under prefix slot c knows
/// the first c * period kept keys.
struct FullMetric {
  const Problem* p = nullptr;
  const Tokens* tokens = nullptr;
  const MatrixKernels* kernels = nullptr;
  std::int64_t g = 0;
  std::int64_t most_slots = 0;  // of the longest sequence
  metric::Shrinkage shrink;
  std::span<double> factors;  // (slots,D,D); scatters until they are whitened
  std::span<double> means;    // (slots,D)
  std::span<float> W, Wt;     // (slots,D,D)
  std::span<float> centres;   // (slots,D)
  std::span<int> raises;      // (slots)
  std::span<double> dP;       // (slots,D,D) on the way back

  static FullMetric take(Arena& arena, const Problem& p, const MatrixKernels& kernels);
  /// dP for the way back.
  void take_gradient(Arena& arena);

  bool prefix() const { return p->metric<KeyCovariance>() && p->scope == Scope::prefix; }
  std::int64_t slots() const { return prefix() ? std::max<std::int64_t>(tokens->at.chunks, 1) : 1; }
  std::int64_t slot_of(std::int64_t query) const {
    return prefix() ? metric::chunk_of(tokens->before[query], period()) : 0;
  }
  /// The first slot that queries ask for: all of them come after what it knows.
  std::int64_t first_slot() const { return tokens->at.N > 0 ? slot_of(0) : 0; }
  /// Keys that slot c knows.
  std::int64_t count(std::int64_t c) const {
    return prefix() ? std::min(c * period(), tokens->n) : tokens->n;
  }
  Whitening at(std::int64_t c) const;
  /// The gradient of slot c's P, (D,D), in double; the passes add to it. Only its symmetric part
  /// counts.
  double* gradient(std::int64_t c) const { return dP.data() + (c * square()); }

  /// All slots that queries ask for, or `every` one; keys (n,D) are the kept ones.
  void estimate(const float* keys, bool every, FullRoom& room) const;
  /// The same in steps, of which the first and the last may run side by side, each with its room.
  void gather_slot(std::int64_t c, const float* keys, FullRoom& room) const;
  void join_slots(std::int64_t last, FullRoom& room) const;
  void whiten_slot(std::int64_t c, const float* keys, FullRoom& room) const;
  /// Throws where a slot in [first, last] could not be factored.
  void check(std::int64_t first, std::int64_t last) const;

  /// metric and status, every slot estimated; a given metric is not written.
  void write(const Outputs& to, FullRoom& room) const;

  void clear_gradient() const;
  /// Both triangles alike, for those who look at them.
  void symmetrise_gradient() const;
  /// dP of every slot; `joins` adds to what is there (one metric given for several sequences).
  void write_gradient(const View& to, bool joins) const;
  /// dk (n,D) += what follows from dP through the estimates; dP is used up.
  void through(float* dk, const float* keys, FullRoom& room) const;

 private:
  std::int64_t period() const { return p->metric<KeyCovariance>()->period; }
  std::int64_t square() const { return p->size.D * p->size.D; }
  struct Range {
    std::int64_t first = 0, last = -1;
  };
  Range asked_for() const;
  void load_given(const float* keys, FullRoom& room) const;
  /// The float forms of slot c, around the mean of its keys or, where it knows none, the first.
  void place(std::int64_t c, std::int64_t known, const float* keys) const;
  void store(const View& to, std::int64_t c, const double* matrix, bool joins) const;
  void spread(float* dk, const float* keys, std::int64_t rows, const double* A, const float* centre,
              FullRoom& room) const;
};

}  // namespace foci::cpu
