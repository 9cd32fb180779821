// SPDX-License-Identifier: Apache-2.0
// Token-by-token attention: keeps the keys, the values and the metric's running estimate, and gives
// for each new token what the full causal pass would give for it.
#pragma once

#include <foci/export.h>
#include <foci/call.hpp>

#include <cstdint>
#include <memory>

namespace foci {

struct DecoderSizes {
  std::int64_t B = 1, H = 1, G = 1, D = 0, E = 0;
  std::int64_t capacity = 0;  ///< most tokens it will ever hold
  DType dtype = DType::f32;
};

/// Options must be causal; estimates use the prefix scope. Allocates when made, never afterwards.
///   Decoder decoder({.H = 8, .G = 2, .D = 64, .E = 64, .capacity = 4096}, {.metric =
///   LayerChange{}, .causal = true}); decoder.step({.o = o}, {.q = q, .k = k, .v = v, .v_prev =
///   v_prev});   // q (B,H,1,D): one token
class FOCI_API Decoder {
 public:
  Decoder(const DecoderSizes& sizes, const Options& how);
  ~Decoder();
  Decoder(Decoder&&) noexcept;
  Decoder& operator=(Decoder&&) noexcept;

  /// Appends the n >= 1 tokens of k, v [v_prev, key_mask, key_bias] and attends their queries.
  /// A bad argument leaves the state as it was; a covariance that cannot be factored ends the step
  /// before its token is taken, and length() tells how many were. `metric` given: the tokens' rows
  /// (1|B, G|H, 1|n, D).
  void step(const Outputs& to, const Inputs& tokens);

  std::int64_t length() const;  ///< tokens taken so far
  void reset();                 ///< forgets them

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace foci
