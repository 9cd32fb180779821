// SPDX-License-Identifier: Apache-2.0
// What the kernels of the backward pass of relu2 and identity on tensor cores share: their
// arguments, what they know of a row, and the way from a weight's gradient to that of its score.
#pragma once

#include "cuda/softmax_mma_backward.cuh"
#include "cuda/weights_tiles.cuh"

namespace foci::cuda {

/// What the way back knows of a row. With y = rate s a weight is y or relu(y)^2; all are 0 where
/// the row has none.
struct alignas(16) RowFacts {
  float rate = 0,
        slope = 0;  // slope: of y in x, over what x is divided by, 0 where a cannot change
  float delta = 0;  // sum_j a_ij da_ij, 0 where the divisor does not follow the scores
  float unused = 0;
};

struct WeightsArgs : GradientArgs {
  Weigh weigh;
  RowFacts* rows = nullptr;  // (B,H,N)
};

/// Whether rows are divided by what depends on their scores.
__host__ FOCI_DEVICE bool follows_scores(const Weigh& how) {
  return how.rescale == Rescale::l1 || how.rescale == Rescale::l2;
}

/// y to a weight, da to ds; squares: rows are divided by the root of theirs.
template <Kind kind>
FOCI_DEVICE void pull(float& y, float& da, const RowFacts& row, bool squares) {
  if (kind == Kind::relu2) {
    const float positive = positive_of(y);
    y = positive * positive;
    da = positive * row.slope * fmaf(squares ? -y : -1.0f, row.delta, da);
  } else {
    const float sign = y > 0 ? -1.0f : y < 0 ? 1.0f : 0.0f;
    da = row.slope * fmaf(squares ? -y : sign, row.delta, da);
  }
}

/// args.rows: a look at every score where divisors follow them.
void weights_mma_rows(const WeightsArgs& args, Stream stream);
/// dq alone, each from one block that walks over the keys in order.
void weights_mma_queries(const WeightsArgs& args, Stream stream);

}  // namespace foci::cuda
