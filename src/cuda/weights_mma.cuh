// SPDX-License-Identifier: Apache-2.0
// relu2 and identity over bf16 and f16 on tensor cores: scores that are products, D and E up to
// 256. Nothing is subtracted and nothing exponentiated: weights are scores, or their squares, and
// a row is divided at its end.
#pragma once

#include "cuda/passes.cuh"

namespace foci::cuda {

/// Whether weights_mma_forward takes it: q, k, v and o of one 16-bit type, s = c q . k + b, D and
/// E multiples of 8 up to 256, numbers side by side in rows aligned to 16 bytes, no statistics.
bool weights_mma_serves(const Shape& shape, const Folded& folded, const Weigh& weigh,
                        const Rows& to);

/// o alone.
void weights_mma_forward(const Shape& shape, const Folded& folded, const Weigh& weigh,
                         const Rows& to, Stream stream);

/// Head sizes that have kernels of their own; others run in the next one, filled up with zeros.
constexpr int weights_mma_width(int D, int E) {
  const int most = D > E ? D : E;
  for (const int width : {32, 64, 128}) {
    if (most <= width) return width;
  }
  return 256;
}

}  // namespace foci::cuda
