// SPDX-License-Identifier: Apache-2.0
// What one call of attention is made of: tensors in, tensors out, options, workspace.
// Plain structs; attention.hpp has the functions that take them.
#pragma once

#include <foci/metric.hpp>
#include <foci/tensor.hpp>
#include <foci/weighting.hpp>

#include <cstddef>
#include <optional>
#include <span>
#include <variant>

namespace foci {

class Executor;

/// B batch, H query heads, G key heads (H a multiple of G), N queries, M keys, D head size, E value
/// size. Packed sequences: B = 1, tokens of all sequences one after another along N and M, and both
/// offsets (S+1, first 0, last the total) say where each begins; every sequence is attended alone.
struct Inputs {
  View q = {};          ///< (B,H,N,D)
  View k = {};          ///< (B,G,M,D)
  View v = {};          ///< (B,G,M,E)
  View v_prev = {};     ///< (B,G,M,E), values of the layer below: layer-change and flat need it
  View key_mask = {};   ///< (B,M) bool, true = keep
  View key_bias = {};   ///< (B,H,M) or (B,G,M), added to the scores
  View metric = {};     ///< metric `given`: see Given
  View q_offsets = {};  ///< (S+1) i64 or i32: packed queries
  View k_offsets = {};  ///< (S+1) i64 or i32: packed keys
};

/// Everything but `o` is optional; an absent view is not computed. q's dtype for o; f32 (f64 when q
/// is f64) for the others; i64 largest_at, i32 status.
struct Outputs {
  View o = {};               ///< (B,H,N,E)
  View lse = {};             ///< (B,H,N) log of the sum of exp of the scores; softmax only
  View concentration = {};   ///< (B,H,N) S = sum|a| / sqrt(n sum a^2)
  View effective_keys = {};  ///< (B,H,N) n S^2
  View entropy = {};         ///< (B,H,N) -sum a ln a; softmax, linear, decay without content
  View largest = {};         ///< (B,H,N) the largest |a|
  View largest_at = {};      ///< (B,H,N) its lowest index, -1 when the row sees no key
  View metric = {};          ///< metric_shape(): the metric as used
  /// Full metrics, metric_shape() without (D,D): raises of the ridge; on a GPU 7: no factor, o NaN.
  View status = {};
  View scale = {};  ///< (B,G): the scale that MatchDot chose
};

/// `d_o` comes in; the others go out when present. Shapes and dtypes are those of the tensors they
/// are named after.
struct Gradients {
  View d_o = {};      ///< (B,H,N,E) in
  View dq = {};       ///< (B,H,N,D)
  View dk = {};       ///< (B,G,M,D)
  View dv = {};       ///< (B,G,M,E)
  View dv_prev = {};  ///< (B,G,M,E); zero when the metric is detached
  View dmetric = {};  ///< metric_shape() (given: the given shape): dm or dP, of the metric as used
  View dkey_bias = {};  ///< key_bias' shape
};

/// detached: the estimate is a constant. through: the gradient follows the estimate.
/// standard: detached for layer-change, flat and jacobian; through for key-covariance.
enum class MetricGrad { standard, detached, through };

/// Full metrics: one scale per (batch, key head) so that the mean concentration equals dot
/// attention's.
struct MatchDot {
  bool operator==(const MatchDot&) const = default;
};
/// Standard (1/sqrt(D); 1 for full metrics and for linear), a number, or MatchDot.
using Scale = std::variant<std::monostate, double, MatchDot>;

enum class Backend { automatic, ref, cpu, cuda };

struct Options {
  Metric metric = Dot{};
  Weighting weighting = Softmax{};
  Scale scale = {};
  bool causal = false;  ///< query i stands at i + (M - N) and sees keys up to there
  bool allow_leak =
      false;  ///< lets a causal call use a sequence-wide estimate, future tokens included
  MetricGrad metric_grad = MetricGrad::standard;
  Backend backend = Backend::automatic;
  bool operator==(const Options&) const = default;
};

/// What a call needs beyond its tensors.
struct Need {
  std::size_t workspace = 0;  ///< bytes
};

struct Call {
  std::span<std::byte> workspace = {};  ///< at least need().workspace bytes, any alignment
  Executor* threads = nullptr;          ///< nullptr = the calling thread alone
  void* stream = nullptr;               ///< cuda: the cudaStream_t to run on
  bool deterministic = true;  ///< cuda: the same bits every time; without, dq may be faster
  /// lse goes to attend_backward() and nowhere else: cuda may then take queries that a metric has
  /// multiplied in 16 bits, which shows in lse (some 1e-3) and not in o.
  bool lse_for_backward = false;
};

}  // namespace foci
