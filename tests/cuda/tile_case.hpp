// SPDX-License-Identifier: Apache-2.0
// Problems with their metric folded in, drawn for the tile passes: awkward shapes, masks, biases,
// packed sequences, chunks with keys of their own.
#pragma once

#include "cuda/passes.cuh"

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

namespace foci::cuda::cases {

enum class Masked { nothing, tail, head, holes, everything };
enum class Biased { no, heads, key_heads };
enum class Memory { rows, heads_inside, packed };

struct Case {
  std::int64_t B = 1, H = 1, G = 1, N = 1, M = 1, D = 4, E = 4;
  bool causal = false;
  Masked masked = Masked::nothing;
  Biased biased = Biased::no;
  Memory memory = Memory::rows;
  int period = 0;  // queries of a chunk with keys of its own, 0 = no chunks
  double size = 1;
  DType dtype = DType::f32;
};

struct Mechanism {
  Score score = Score::product;
  Weigh weigh;
  double rate = 1;  // what weigh.log2_rate is of
};

inline const char* name_of(Kind kind) {
  const char* names[] = {"softmax", "relu2", "identity", "decay", "decay_content"};
  return names[int(kind)];
}

/// Where a sequence lies.
struct Stretch {
  std::int64_t b, q0, N, k0, M;
};

/// Tensors of a case. All chunks' keys lie in one tensor (C,B,G,M,D).
struct Drawn {
  Case c;
  Mechanism how;
  std::int64_t batch, N, M, chunks = 1;  // as they lie in memory
  std::vector<Stretch> sequences;
  std::vector<int> q_offsets, k_offsets, spans;
  std::vector<float> scales;
  Tensor q, k, v, m, d_o, bias, mask;

  Drawn(const Case& of, const Mechanism& mechanism, std::uint64_t seed)
      : c(of), how(mechanism), random_(seed) {
    place();
    cut();
    q = normal({batch, c.H, N, c.D}, c.dtype);
    k = normal({chunks, batch, c.G, M, c.D}, c.dtype);
    v = normal({batch, c.G, M, c.E}, c.dtype);
    d_o = normal({batch, c.H, N, c.E}, c.dtype, 1);
    if (how.weigh.features) {
      make_positive(q);
      make_positive(k);
    }
    if (how.score == Score::weighted) {
      m = normal({batch, c.H, N, c.D}, DType::f32, 1);
      make_positive(m);
    }
    if (c.biased != Biased::no) {
      bias = normal({batch, c.biased == Biased::heads ? c.H : c.G, M}, DType::f32, 1);
      if (how.weigh.features) make_positive(bias);
    }
    if (c.masked != Masked::nothing) hide();
    for (std::int64_t i = 0; i < std::int64_t(sequences.size()) * c.G; ++i)
      scales.push_back(1.0f + 0.25f * float(i % 3));
  }

  double scale() const { return 1 / std::sqrt(double(c.D)) / (c.size * c.size); }
  std::int64_t chunk_of(std::int64_t s, std::int64_t i) const {
    std::int64_t at = 0;
    while (c.period && spans[std::size_t(s * (chunks + 1) + at + 1)] <= i) ++at;
    return at;
  }
  bool keeps(const Stretch& at, std::int64_t j) const {
    return !mask || mask.data<std::uint8_t>()[at.b * M + at.k0 + j] != 0;
  }

 private:
  void place() {
    if (c.memory != Memory::packed) {
      batch = c.B, N = c.N, M = c.M;
      for (std::int64_t b = 0; b < c.B; ++b) sequences.push_back({b, 0, c.N, 0, c.M});
      return;
    }
    batch = 1, N = M = 0;
    q_offsets = k_offsets = {0};
    for (std::int64_t s = 0; s < c.B; ++s) {  // the second has no tokens
      const std::int64_t n = s == 1 ? 0 : c.N - 3 * s, m = s == 1 ? 0 : c.M - 5 * s;
      sequences.push_back({0, N, n, M, m});
      N += n, M += m;
      q_offsets.push_back(int(N));
      k_offsets.push_back(int(M));
    }
  }
  /// Chunks of queries; those of a short sequence come late, and some are empty.
  void cut() {
    if (!c.period) return;
    chunks = c.N / c.period + 2;
    for (const Stretch& at : sequences) {
      for (std::int64_t i = 0; i <= chunks; ++i)
        spans.push_back(int(std::clamp<std::int64_t>((i - 1) * c.period + 2, 0, at.N)));
      spans[spans.size() - std::size_t(chunks) - 1] = 0;
      spans.back() = int(at.N);
    }
  }
  Tensor normal(const foci::Shape& shape, DType dtype, double size = 0) {
    Tensor wide(DType::f64, shape);
    std::normal_distribution<double> draw;
    for (std::int64_t i = 0; i < wide.view().count(); ++i)
      wide.data<double>()[i] = (size == 0 ? c.size : size) * draw(random_);
    return Tensor::copy(wide, dtype);
  }
  static void make_positive(Tensor& tensor) {
    const Tensor wide = Tensor::copy(tensor, DType::f64);
    for (std::int64_t i = 0; i < wide.view().count(); ++i)
      wide.data<double>()[i] = std::max(0.0, wide.data<double>()[i]);
    tensor = Tensor::copy(wide, tensor.view().dtype);
  }
  void hide() {
    mask = Tensor(DType::boolean, {batch, M});
    for (std::int64_t b = 0; b < batch; ++b) {
      for (std::int64_t j = 0; j < M; ++j) {
        bool kept = true;
        if (c.masked == Masked::tail) kept = j < M - 2 - M / 3 * (b + 1);
        if (c.masked == Masked::head) kept = j >= 3 + 4 * b;
        if (c.masked == Masked::holes) kept = (j + 3 - b) % 4 != 0;
        if (c.masked == Masked::everything) kept = b != 0;
        mask.data<std::uint8_t>()[b * M + j] = kept;
      }
    }
  }
  std::mt19937_64 random_;
};

}  // namespace foci::cuda::cases
