// SPDX-License-Identifier: Apache-2.0
// A layer of nn::Attention's parameters whose q and k are turned by their positions before they
// meet. Diagonal metrics are averaged within the turned pairs.
#pragma once

#include "nn/mechanism.hpp"

#include <foci/language.hpp>

namespace foci::models {

/// cos and sin of (N,D/2): of N positions, for each pair its angle.
struct Turn {
  at::Tensor cos, sin;
};
Turn turn(std::int64_t first, std::int64_t count, std::int64_t head_dim, double base,
          const at::Tensor& like);
/// x (..,N,D) turned.
at::Tensor turned(const at::Tensor& x, const Turn& by, Pairs pairs);
/// m (..,D) with the mean of each pair in both places.
at::Tensor pair_means(const at::Tensor& m, Pairs pairs);

struct RotaryCache {
  std::unique_ptr<Decoder> decoder;
  std::int64_t length = 0;
  at::Tensor sum;   ///< (B,G|H,1,D): the raw metric of the tokens so far
  at::Tensor k, v;  ///< jacobian: (B,G,length,D)
};

class RotaryAttention {
 public:
  using Result = nn::AttentionImpl::Result;
  RotaryAttention(nn::Attention layer, const nn::AttentionOptions& options, Pairs pairs);
  Result forward(const at::Tensor& x, const Turn& by, const at::Tensor& v_prev);
  Result step(const at::Tensor& x, const Turn& by, const at::Tensor& v_prev, RotaryCache& cache,
              std::int64_t capacity);

 private:
  struct Heads;
  Heads project(const at::Tensor& x, const Turn& by);
  at::Tensor finish(const at::Tensor& raw) const;
  at::Tensor fixed_metric() const;
  at::Tensor sizes(const Heads& p, const at::Tensor& v_prev, RotaryCache* cache) const;
  at::Tensor out(const at::Tensor& o);

  nn::Attention layer_;
  nn::AttentionOptions options_;
  nn::Mechanism how_;
  Pairs pairs_;
  bool estimates_;  ///< layer-change, flat, jacobian
};

}  // namespace foci::models
