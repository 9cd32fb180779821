// SPDX-License-Identifier: Apache-2.0
// relu2 and identity over bf16 and f16 on tensor cores: scores that are products, D and E up to
// 256. Nothing is subtracted and nothing exponentiated: weights are scores, or their squares, and
// a row is divided at its end.
#pragma once

#include "cuda/softmax_mma.cuh"

namespace foci::cuda {

/// Whether weights_mma_forward takes it: q, k, v and o of one 16-bit type, s = c q . k + b, D and
/// E multiples of 8 up to 256, numbers side by side in rows aligned to 16 bytes, no statistics.
bool weights_mma_serves(const Shape& shape, const Folded& folded, const Weigh& weigh,
                        const Rows& to);

/// o alone.
void weights_mma_forward(const Shape& shape, const Folded& folded, const Weigh& weigh,
                         const Rows& to, Stream stream);

/// Whether weights_mma_backward takes it: d_o lies as o would.
bool weights_mma_serves(const Shape& shape, const Folded& folded, const Weigh& weigh,
                        const Field& d_o);

/// Room for what rows are divided by, and for the sums of dq that blocks of keys add to in any
/// order.
class WeightsMmaScratch {
 public:
  WeightsMmaScratch(Arena& arena, const Shape& shape, Order order);
  float* rows() const { return rows_; }
  float* dq() const { return dq_; }

 private:
  float *rows_ = nullptr, *dq_ = nullptr;
};

/// dq, dk, dv and dkey_bias, those that are asked for. What the forward pass left is not needed.
void weights_mma_backward(const Shape& shape, const Folded& folded, const Weigh& weigh,
                          const Field& d_o, const Sinks& to, const WeightsMmaScratch& scratch,
                          Stream stream);

/// Head sizes that have kernels of their own; others run in the next one, filled up with zeros.
constexpr int weights_mma_width(int D, int E) {
  const int most = D > E ? D : E;
  for (const int width : {32, 64, 128}) {
    if (most <= width) return width;
  }
  return 256;
}

}  // namespace foci::cuda
