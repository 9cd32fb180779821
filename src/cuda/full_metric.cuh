// SPDX-License-Identifier: Apache-2.0
// Full metrics on the device: key-covariance over the sequence or along prefixes, and given ones.
// Estimated and factored, folded into whitened lines z = W (x - centre) with s = -1/2 c |z_q -
// z_k|^2, and unfolded: what the passes leave for the lines goes to q, k and the metric.
#pragma once

#include "cuda/full_products.cuh"
#include "cuda/key_covariance.cuh"
#include "cuda/match_dot.cuh"
#include "cuda/passes.cuh"
#include "cuda/whiten.cuh"

namespace foci::cuda {

class FullMetric {
 public:
  enum class Pass { forward, backward };

  /// Bytes of key lines that a wave may have.
  static constexpr std::int64_t standard_wave = std::int64_t(512) << 20;

  /// Takes its workspace. `problem` outlives this.
  FullMetric(Arena& arena, const Problem& problem, const Shape& shape, Pass pass,
             std::int64_t wave_bytes = standard_wave);

  /// Whether there is room for products.
  bool may_multiply() const;
  /// Whether scores may be products for softmax on tensor cores, outputs of 16 bits alone and no
  /// dmetric: they are in the heads that estimate() then chooses, and by lines in the others.
  bool offers_products() const;
  /// Whether q' and keys may be one f16 number each, of the heads where that suffices.
  bool offers_narrow() const;
  void allow_products() { slots_.by_mma = moments_.slots.by_mma = products_.chosen; }
  void allow_narrow();
  /// Along the prefix their chunks, else 0.
  int product_chunks() const { return slots_.prefix ? slots_.chunks : 0; }
  bool multiplies() const { return slots_.by_mma != nullptr; }
  bool narrows() const { return products_.narrow != nullptr; }
  /// What tensor cores work on: in two parts (along the prefix one f16 number), and in one.
  Folded products() const;
  Folded narrow_products() const;
  Sinks product_sinks(const Gradients& to);

  /// W and centre of every metric that queries use; scale, metric and status where present. A
  /// metric that cannot be factored has status 7 and NaN for a factor.
  void estimate(const Outputs& to, Stream stream);
  /// Under prefix lines of keys are made for a few chunks at a time.
  int waves() const;
  Folded fold(int wave, Stream stream);
  Sinks sinks(const Gradients& to);
  /// What follows from the lines of a wave's keys.
  void gather(int wave, const Gradients& to, Stream stream);
  void finish(const Gradients& to, Stream stream);

 private:
  struct Wave {
    int first, chunks;
  };
  Wave wave_at(int index) const;
  void take_estimates(Arena& arena);
  void take_products(Arena& arena);
  void take_lines(Arena& arena, std::int64_t wave_bytes);
  void take_gradients(Arena& arena);

  bool has_means() const;
  std::int64_t bias_bytes() const;
  Factors factors(const Outputs& to) const;
  void factor_all(const Outputs& to, Stream stream) const;
  void fold_products(const Outputs& to, Stream stream) const;
  void match(Stream stream);
  LineSet lines(const Wave& wave, bool keys) const;
  Folded folded(const Wave& wave) const;
  bool wants_metric(const Gradients& to) const;
  MetricGradient gradient(const Gradients& to) const;
  void clear_sums(Stream stream) const;
  ProductSums product_sums() const { return {dzq_, slots_.prefix ? dk_ : dzk_, dproduct_bias_}; }

  const Problem& p_;
  Pass pass_;
  Slots slots_;
  bool covariance_;  // else given
  metric::Shrinkage shrink_;
  int first_chunk_ = 0;  // no query uses one before it
  int wave_chunks_ = 1;
  int parts_ = 1, part_keys_ = 1;  // stretches that moments and outer sums are taken over

  Moments moments_;            // key-covariance, or the means alone
  double* sums_ = nullptr;     // (slots,parts,D,D) scatters; on the way back outer sums
  float* W_ = nullptr;         // (slots,D,D)
  float* centre_ = nullptr;    // (slots,D)
  double* lower_ = nullptr;    // (slots,D,D) L, on the way back
  double* inverse_ = nullptr;  // (slots,D,D) L^-1, on the way back
  ScaleMatch match_;
  float *zq_ = nullptr, *zk_ = nullptr;         // (B,H,N,D), (wave's chunks,B,G,M,D)
  float *dzq_ = nullptr, *dzk_ = nullptr;       // the same
  float* dk_ = nullptr;                         // (B,G,M,D) but for what goes through the estimate
  float *dv_ = nullptr, *dkey_bias_ = nullptr;  // prefix: sums over waves
  double *shift_ = nullptr, *room_ = nullptr;   // of MetricGradient
  FullProducts products_;                       // q' lies where zq does, narrow keys where zk does
  int* narrow_heads_ = nullptr;                 // (2,heads) room of FullProducts::narrow and wide
  float* P_ = nullptr;                          // (slots,D,D) of products
  float* dproduct_bias_ = nullptr;              // (B,G,M)
};

}  // namespace foci::cuda
