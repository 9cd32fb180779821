// SPDX-License-Identifier: Apache-2.0
// The passes over queries and keys, whatever the metric: what they write, and who runs them.
// tile: every weighting, in float. softmax_mma: softmax over bf16 and f16 on tensor cores, and
// weights_mma: relu2 and identity. chunked: linear, decay and identity in O(N D^2).
#pragma once

#include "cuda/field.cuh"
#include "cuda/launch.cuh"

#include "metric/arena.hpp"

namespace foci::cuda {

using metric::Arena;
using metric::Problem;

/// linear is identity with Rescale::l1 over lines of features.
enum class Kind : int { softmax, relu2, identity, decay, decay_content };

struct Weigh {
  Kind kind = Kind::softmax;
  Rescale rescale = Rescale::none;  // relu2, identity
  float log2_rate = 0;              // decay: log2 of the rate, at most 0
  bool features = false;            // linear: x is never below 0, and |x| is smooth at 0
};

/// What a forward pass writes; absent fields are left out.
struct Rows {
  Field o = {};                                                                         // (B,H,N,E)
  Field lse = {}, concentration = {}, effective_keys = {}, entropy = {}, largest = {};  // (B,H,N)
  Field largest_at = {};  // (B,H,N) i64
  int rough_lse = 0;      // lse may show that folded queries were rounded to 16 bits
  float* by = nullptr;    // (B,H,N): what a row was divided by (not softmax: it has lse); 0: no key

  bool statistics() const {
    return concentration.data || effective_keys.data || entropy.data || largest.data ||
           largest_at.data;
  }
  /// Whether something is asked for that would show the rounding of folded queries to 16 bits.
  bool want_all_bits() const { return statistics() || (lse.data && !rough_lse); }
};

/// What a backward pass reads beside the problem: o and lse or by of the forward pass, in float.
struct Saved {
  Field d_o = {}, o = {};     // (B,H,N,E)
  Field lse = {};             // (B,H,N) softmax
  const float* by = nullptr;  // (B,H,N) the others
  float* delta = nullptr;     // (B,H,N) room: sum_j a_ij da_ij = o . d_o
  // (B,H,N) room, softmax: what rounding of lse left of a row's sum; softmax_mma: -log2 of it
  float* share = nullptr;
};

/// Where a backward pass leaves its sums; absent fields are left out. The gradients of q and k are
/// those of the lines in Folded, c in them.
struct Sinks {
  Field dq;         // (B,H,N,D)
  int dq_of_q = 0;  // product with Folded::m: dq is that of q, m in it, else that of m q
  Field dk;         // (B,G,M,D), prefix full: (chunks of this wave, B,G,M,D), like Folded::k
  Field dv;         // (B,G,M,E), prefix full: added to what is there
  Field dm;         // (B,H,N,D) weighted: c times -1/2 sum_j ds_ij (q - k)^2
  Field dkey_bias;  // like Folded::key_bias; prefix full: added to what is there
};

void tile_forward(const Shape& shape, const Folded& folded, const Weigh& weigh, const Rows& to,
                  Stream stream);
void tile_backward(const Shape& shape, const Folded& folded, const Weigh& weigh, const Saved& saved,
                   const Sinks& to, Stream stream);

}  // namespace foci::cuda
