// SPDX-License-Identifier: Apache-2.0
// layer-change and flat beside their mean: the lower median over tokens, and the gradient's last
// step, from |v - v_prev| to v and v_prev.
#pragma once

#include "cuda/token_mean.cuh"

namespace foci::cuda {

/// The median of the terms, times their number, into mean.sums, their number into mean.counts, of
/// one chunk; chosen (sequences, heads, D) gets the token that it is of, -1 where there is none.
void sum_up_median(const TokenMean& mean, int* chosen, Stream stream);

/// The gradient of each term to v and v_prev.
struct ChangeGradient {
  TokenMean mean;
  const float* dm = nullptr;    // as TokenMean::backward() left it
  const int* chosen = nullptr;  // median: the tokens that get something
  Field so_far;                 // (B,G,M,D) dv of the pass
  Field dv, dv_prev;            // (B,G,M,D)
};
void pull_change(const ChangeGradient& of, Stream stream);

}  // namespace foci::cuda
