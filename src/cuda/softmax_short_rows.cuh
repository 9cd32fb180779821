// SPDX-License-Identifier: Apache-2.0
// Forward over short sequences: 16 queries of a warp, whose scores with all keys are in registers
// at once: from scores to weights, and where rows go.
#pragma once

#include "cuda/softmax_short_block.cuh"

namespace foci::cuda {

/// A tile of 16 queries of a head.
struct ShortTile {
  Place at;
  int s, g, h, first;
};

/// What scores are and how they come about, with room for `keys`.
template <DType type_, int keys_, bool biased_, bool folds_>
struct ShortScores {
  static constexpr DType type = type_;
  static constexpr int keys = keys_;
  static constexpr bool biased = biased_, folds = folds_;
  static constexpr bool two_parts = folds && keys <= short_two_parts;
  static constexpr bool has_rest = folds && !two_parts;

  using Scores = float[keys / 8][4];
  using Weights = unsigned[keys / 8][2];  // rounded, two neighbours a word
};

/// s += q k': q as left(a, step) gives it.
template <class F, class Left>
FOCI_DEVICE void add_scores(typename F::Scores& s, Address k, const Left& left) {
#ifndef FOCI_EMULATED
#pragma unroll 1  // a step has enough products
#endif
  for (int step = 0; step < short_width / 16; ++step) {
    unsigned a[4];
    left(a, step);
    const Address k_here = ShortRows::beside(k, step);
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 16; ++n) {
      unsigned b[4];
      ShortRows::operands<false>(b, k_here, 16 * n);
      multiply<F::type>(s[2 * n], a, b[0], b[1]);
      multiply<F::type>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// Queries at `q` as a left side, word by word as each(two neighbours, their numbers of m) has it.
template <class Each>
FOCI_DEVICE void take_queries(unsigned (&a)[4], Address q, const float* m, int step,
                              const Each& each) {
  ShortRows::operands<false>(a, ShortRows::beside(q, step), 0);
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float* here = m + 16 * step + 8 * (i / 2) + 2 * (lane() % 4);
    a[i] = each(a[i], *reinterpret_cast<const float2*>(here));
  }
}

/// Sums of products of the queries at `q`.
template <class F>
FOCI_DEVICE void score(typename F::Scores& s, Address q, Address k, const float* m) {
  FOCI_UNROLL
  for (int i = 0; i < F::keys / 2; ++i) s[i / 4][i % 4] = 0;
  add_scores<F>(s, k, [&](unsigned(&a)[4], int step) {
    if constexpr (F::folds) {
      take_queries(a, q, m, step,
                   [](unsigned x, float2 by) { return folded_pair<F::type>(x, by); });
    } else {
      ShortRows::operands<false>(a, ShortRows::beside(q, step), 0);
    }
  });
}

/// s += rest k', rest what the rounding of queries left over: after all else, as on the way back,
/// which gets the same bits.
template <class F>
FOCI_DEVICE void add_rest(typename F::Scores& s, Address q, Address k, const float* m) {
  add_scores<F>(s, k, [&](unsigned(&a)[4], int step) {
    take_queries(a, q, m, step, [](unsigned x, float2 by) { return rest_of_pair<F::type>(x, by); });
  });
}

/// Scores in powers of two, the bias in them.
template <class F>
FOCI_DEVICE void add_bias(typename F::Scores& s, const float* bias, float unit) {
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    const float2 b = *reinterpret_cast<const float2*>(bias + 8 * n + 2 * (lane() % 4));
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) s[n][i] = fmaf(s[n][i], unit, i % 2 ? b.y : b.x);
  }
}

/// Hides keys that the tile's queries do not reach.
template <class F>
FOCI_DEVICE void hide(typename F::Scores& s, const Shape& shape, const ShortTile& tile) {
  const int all = shape.reach(tile.at, tile.first), row = tile.first + lane() / 4;
  const int low = shape.reach(tile.at, row), high = shape.reach(tile.at, row + 8);
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    if (8 * n + 8 <= all) continue;
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (8 * n + 2 * (lane() % 4) + i % 2 >= (i < 2 ? low : high)) s[n][i] = nothing;
    }
  }
}

/// Row maxima.
template <class F>
FOCI_DEVICE void find_tops(float (&top)[2], const typename F::Scores& s) {
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    float most = nothing;
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 8; ++n)
      most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top[half] = quad_max(most);
  }
}
/// The same of scores to which biases will be added, in powers of two.
template <class F>
FOCI_DEVICE void find_tops(float (&top)[2], const typename F::Scores& s, const float* bias,
                           float unit) {
  float most[2] = {nothing, nothing};
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    const float2 b = *reinterpret_cast<const float2*>(bias + 8 * n + 2 * (lane() % 4));
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i)
      most[i / 2] = fmaxf(most[i / 2], fmaf(s[n][i], unit, i % 2 ? b.y : b.x));
  }
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) top[half] = quad_max(most[half]);
}

/// Whether any of the warp's rows has a maximum that shows how queries were rounded.
FOCI_DEVICE bool any_is_loud(const float (&top)[2], float unit) {
  float most = 0;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half)
    most = fmaxf(most, top[half] == nothing ? 0.0f : fabsf(top[half] * unit));
  return __any_sync(~0u, most > loud);
}

/// Takes the largest score from those of rows far from 0, whose `low` becomes 0.
template <class F>
FOCI_DEVICE void lower(typename F::Scores& s, float (&low)[2], const float (&top)[2]) {
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (fabsf(low[half]) <= far) continue;
    low[half] = 0;
    FOCI_UNROLL
    for (int i = 0; i < F::keys / 4; ++i) s[i / 2][2 * half + i % 2] -= top[half];
  }
}

/// Scores become weights, neighbours of a product's operand one after the other; and their sums.
template <class F>
FOCI_DEVICE void weigh(typename F::Weights& p, typename F::Scores& s, const float (&top)[2],
                       float (&sum)[2], float unit) {
  float low[2];
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half)
    low[half] = top[half] == nothing ? 0.0f : rounded_product(top[half], unit);
  if constexpr (!F::biased) lower<F>(s, low, top);
  float part[2][2] = {};
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      float x[2];
      FOCI_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float score = s[n][2 * half + i];
        x[i] = power_of_two(F::biased ? score - low[half] : fmaf(score, unit, -low[half]));
        part[half][i] += x[i];
      }
      p[n][half] = pack<F::type>(x[0], x[1]);
    }
  }
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) sum[half] = quad_sum(part[half][0] + part[half][1]);
}

/// lse, and o from the shared memory in which it is.
template <class F>
FOCI_DEVICE void write_rows(const Folded& folded, const Rows& out, const ShortTile& tile,
                            const float (&top)[2], const float (&sum)[2], Address q) {
  const Place& at = tile.at;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = tile.first + 8 * half + lane() / 4;
    if (!out.lse || lane() % 4 != 0 || i >= at.N) continue;
    const float low = F::biased ? top[half] : top[half] * (folded.scale * log2_e);
    const float lse = fmaf(low, ln_2, logf(sum[half]));
    out.lse.store(sum[half] > 0 ? lse : nothing, at.b, tile.h, at.q0 + i);
  }
  const Field& to = out.o;
  const int row = lane() / 8, piece = lane() % 8;
  auto* line = static_cast<std::uint16_t*>(to.data) +
               to.offset(at.b, tile.h, at.q0 + tile.first + row, 8 * piece);
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (tile.first + row + 4 * i < at.N)
      *reinterpret_cast<uint4*>(line + 4 * i * to.strides[2]) = piece_at(q, row + 4 * i, piece);
  }
  __syncwarp();
}

}  // namespace foci::cuda
