// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16 on tensor cores: scores that are products, D and E up to 256.
#pragma once

#include "cuda/passes.cuh"

namespace foci::cuda {

/// Whether softmax_mma_forward takes it: k, v and o of one 16-bit type, q of the same or f32,
/// s = c (m q) . k + b with c above 0, D and E multiples of 8 up to 256, numbers side by side in
/// rows aligned to 16 bytes. In f16 m q has to stay below 65504. Along the prefix of a full metric
/// q and k are f16, D and E at most 128.
bool softmax_mma_serves(const Shape& shape, const Folded& folded, const Field& o);

/// In how many 16-bit numbers queries that a metric folded meet the keys: 1 shows in lse and in
/// float gradients, and in everything where keys are few. (lse and statistics get all the bits
/// unless Rows::rough_lse says that they need not.)
int softmax_mma_parts(const Shape& shape, const Folded& folded);

/// o, lse and the statistics that are asked for.
void softmax_mma_forward(const Shape& shape, const Folded& folded, const Rows& to, Stream stream);

/// Whether softmax_mma_backward takes it: in addition d_o and o lie like q.
bool softmax_mma_serves(const Shape& shape, const Folded& folded, const Saved& saved);

/// repeatable: the same bits every time, for a second look at every pair of query and key.
enum class Order { any, repeatable };

/// Room for the sums of dq that blocks of keys add to in any order, and for queries that a metric
/// folded, in up to `parts` 16-bit numbers each.
class SoftmaxMmaScratch {
 public:
  /// `chunks` of the longest sequence, along the prefix.
  SoftmaxMmaScratch(Arena& arena, const Shape& shape, Order order, int parts = 0, int chunks = 0);
  float* dq() const { return dq_; }
  /// (sequences,G), where a metric folded queries
  int* loud() const { return loud_; }
  /// (sequences,G,2), likewise
  int* largest() const { return largest_; }
  /// (B,H,N,D) 16 bits
  std::uint16_t* q(int part) const { return q_[part]; }

 private:
  float* dq_ = nullptr;
  int *loud_ = nullptr, *largest_ = nullptr;
  std::uint16_t* q_[2] = {};
};

/// dq, dk, dv and dkey_bias, those that are asked for; saved.delta is written first. Along the
/// prefix of a full metric `k` has keys in v's type, dkey_bias is added to, and dq has Order::any.
/// `wide`: the same with queries in floats, for the key heads that it says beside those of folded.
void softmax_mma_backward(const Shape& shape, const Folded& folded, const Saved& saved,
                          const Sinks& to, const SoftmaxMmaScratch& scratch, Stream stream,
                          const Field& k = {}, const Folded* wide = nullptr);

/// Whether it takes q and k in f16, v in any type of 16 bits, a key bias and dq in any order: on
/// Hopper, as softmax_wgmma_serves says.
bool softmax_mma_takes_narrow(const Shape& shape, const Folded& folded, const Saved& saved,
                              const SoftmaxMmaScratch& scratch);

/// Head sizes that have kernels of their own; others run in the next one, filled up with zeros.
constexpr int softmax_mma_width(int D, int E) {
  const int most = D > E ? D : E;
  for (const int width : {16, 32, 64, 96, 128}) {
    if (most <= width) return width;
  }
  return 256;
}

}  // namespace foci::cuda
