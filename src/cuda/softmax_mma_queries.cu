// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16, backward, what belongs to queries and always in
// the same order: delta = sum_j a_j da_j, or dq. A block has 64 or 128 queries
// and walks over the keys that they see. Scores lie query by key, so that ds is
// the left side of dq += ds k.
#include "cuda/softmax_mma_backward.cuh"

namespace foci::cuda {
namespace {

template <DType type_, int width_, bool biased_, bool deltas_, Rest rest_>
struct Queries {
  static constexpr DType type = type_;
  static constexpr int width = width_;
  static constexpr bool biased = biased_,
                        deltas = deltas_;  // delta instead of dq
  static constexpr Rest rest = rest_;
  static constexpr int warps = 4, threads = warps * warp;
  static constexpr int rows = width <= 128 ? 2 : 1;  // of 16 queries, a warp's
  static constexpr int queries = warps * rows * 16, keys = 32;

  using Q = Tile<queries, width>;  // and of d_o
  using K = Tile<keys, width>;     // and of values
  static constexpr Address q_at = 0, d_o_at = Q::bytes, rest_at = 2 * Q::bytes;
  static constexpr Address k_at = (rest == Rest::always ? 3 : 2) * Q::bytes;
  static constexpr Address stage = 2 * K::bytes, bias_at = k_at + 2 * stage;
  static constexpr std::size_t bytes = bias_at + 2 * keys * 4;

  using Scores = float[rows][keys / 8][4];
  using Sums = float[rows][width / 8][4];
};

/// s += x y' over all columns: x (queries), y (keys)
template <class B>
FOCI_DEVICE void add_cross(typename B::Scores& s, Address x, Address y) {
  FOCI_UNROLL
  for (int step = 0; step < B::width / 16; ++step) {
    const Address x_here = B::Q::beside(x, step), y_here = B::K::beside(y, step);
    unsigned a[B::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < B::rows; ++m) B::Q::template operands<false>(a[m], x_here, 16 * m);
    FOCI_UNROLL
    for (int n = 0; n < B::keys / 16; ++n) {
      unsigned b[4];
      B::K::template operands<false>(b, y_here, 16 * n);
      FOCI_UNROLL
      for (int m = 0; m < B::rows; ++m) {
        multiply<B::type>(s[m][2 * n], a[m], b[0], b[1]);
        multiply<B::type>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// s = x y'
template <class B>
FOCI_DEVICE void cross(typename B::Scores& s, Address x, Address y) {
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::keys / 2; ++i)
    s[i / (B::keys / 2)][i / 4 % (B::keys / 8)][i % 4] = 0;
  add_cross<B>(s, x, y);
}

/// s += rest y', rest what the rounding of queries from `first` on left over: y (keys)
template <class B>
FOCI_DEVICE void add_rest(typename B::Scores& s, const GradientArgs& args, const Place& at,
                          int sequence, int h, int first, Address y) {
  const QueryRest rest(args.folded, args.shape, at, sequence, h);
#ifndef FOCI_EMULATED
#pragma unroll 1
#endif
  for (int step = 0; step < B::width / 16; ++step) {
    const Address y_here = B::K::beside(y, step);
    unsigned a[B::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < B::rows; ++m)
      rest.left<B::type>(a[m], first + 16 * m + lane() / 4, 16 * step + 2 * (lane() % 4), 1);
    FOCI_UNROLL
    for (int n = 0; n < B::keys / 16; ++n) {
      unsigned b[4];
      B::K::template operands<false>(b, y_here, 16 * n);
      FOCI_UNROLL
      for (int m = 0; m < B::rows; ++m) {
        multiply<B::type>(s[m][2 * n], a[m], b[0], b[1]);
        multiply<B::type>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// What a thread knows of its rows, 8 i + lane / 4 of its warp's.
template <class B>
struct RowFacts {
  float lse[2 * B::rows], delta[2 * B::rows];
  float sum[2 * B::rows];  // of weights: 1 but for the rounding of lse
  int reach[2 * B::rows];

  FOCI_DEVICE RowFacts(const GradientArgs& args, const Place& at, int h, int first) {
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) {
      const int row = first + 8 * i + lane() / 4, token = at.q0 + row;
      lse[i] = row < at.N ? saved_lse(args, at, h, token) : INFINITY;
      sum[i] = 0;
      delta[i] =
          !B::deltas && row < at.N ? args.saved.delta[delta_at(args.shape, at, h, token)] : 0.0f;
      reach[i] = row < at.N ? args.shape.reach(at, row) : 0;
    }
  }
};

template <class B>
FOCI_DEVICE bool any_loud(const RowFacts<B>& row) {
  bool any = false;
  FOCI_UNROLL
  for (int i = 0; i < 2 * B::rows; ++i) any = any || is_loud(row.lse[i]);
  return __any_sync(~0u, any);
}

/// Scores become weights.
template <class B>
FOCI_DEVICE void weigh(typename B::Scores& s, const RowFacts<B>& row, const float* bias, float unit,
                       int first_key) {
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::keys / 2; ++i) {
    const int m = i / (B::keys / 2), n = i / 4 % (B::keys / 8), r = 2 * m + i % 4 / 2;
    const int j = 8 * n + 2 * (lane() % 4) + i % 2;
    const float weight =
        far_weight_of<B::biased>(s[m][n][i % 4], unit, B::biased ? bias[j] : 0, row.lse[r], 0);
    s[m][n][i % 4] = first_key + j < row.reach[r] ? weight : 0.0f;
  }
}

/// dq += ds k, ds = p (da - delta)
template <class B>
FOCI_DEVICE void gather(typename B::Sums& dq, const typename B::Scores& p,
                        const typename B::Scores& da, const RowFacts<B>& row, Address k) {
  FOCI_UNROLL
  for (int step = 0; step < B::keys / 16; ++step) {
    unsigned a[B::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < B::rows; ++m) {
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int n = 2 * step + i / 2, half = i % 2;
        const float delta = row.delta[2 * m + half];
        a[m][i] = pack<B::type>(p[m][n][2 * half] * (da[m][n][2 * half] - delta),
                                p[m][n][2 * half + 1] * (da[m][n][2 * half + 1] - delta));
      }
    }
    FOCI_UNROLL
    for (int n = 0; n < B::width / 16; ++n) {
      unsigned b[4];
      B::K::template operands<true>(b, B::K::beside(k, n), 16 * step);
      FOCI_UNROLL
      for (int m = 0; m < B::rows; ++m) {
        multiply<B::type>(dq[m][2 * n], a[m], b[0], b[1]);
        multiply<B::type>(dq[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// The lane's part of delta.
template <class B>
FOCI_DEVICE void add_deltas(RowFacts<B>& row, const typename B::Scores& p,
                            const typename B::Scores& da) {
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::keys / 2; ++i) {
    const int m = i / (B::keys / 2), n = i / 4 % (B::keys / 8);
    const int r = 2 * m + i % 4 / 2;
    row.delta[r] = fmaf(p[m][n][i % 4], da[m][n][i % 4], row.delta[r]);
    row.sum[r] += p[m][n][i % 4];
  }
}

template <class B>
FOCI_DEVICE void write_deltas(const GradientArgs& args, const Place& at, int h, int first,
                              const RowFacts<B>& row) {
  FOCI_UNROLL
  for (int i = 0; i < 2 * B::rows; ++i) {
    const float delta = quad_sum(row.delta[i]), sum = quad_sum(row.sum[i]);
    const int r = first + 8 * i + lane() / 4;
    if (lane() % 4 != 0 || r >= at.N) continue;
    const std::int64_t to = delta_at(args.shape, at, h, at.q0 + r);
    args.saved.delta[to] = sum > 0 ? delta / sum : 0;
    if (args.saved.share) args.saved.share[to] = sum > 0 ? -log2f(sum) : 0;
  }
}

/// Every tile of keys that queries first.. of head h see.
template <class B>
FOCI_DEVICE void walk(typename B::Sums& dq, const GradientArgs& args, const Place& at, int h, int s,
                      int first, float scale) {
  const int g = args.shape.key_head(h), thread = int(threadIdx.x);
  const int mine = thread / warp * 16 * B::rows;
  const Address memory = shared_address();
  auto* bias = reinterpret_cast<float*>(shared_memory() + B::bias_at);
  const int most = args.shape.reach(at, min(first + B::queries, at.N) - 1);
  const int tiles = (most + B::keys - 1) / B::keys;
  const auto load = [&](int tile) {
    const Address to = memory + B::k_at + tile % 2 * B::stage;
    load_tile<typename B::K, B::threads>(
        to, Lines::of(args.folded.k, at.b, g, at.k0, at.M, args.shape.D), tile * B::keys);
    load_tile<typename B::K, B::threads>(
        to + B::K::bytes, Lines::of(args.folded.v, at.b, g, at.k0, at.M, args.shape.E),
        tile * B::keys);
    if (B::biased && thread < B::keys)
      bias[tile % 2 * B::keys + thread] =
          KeyBias(args.folded, at, h, g, tile * B::keys + thread).bias;
    commit_copies();
  };
  load_tile<typename B::Q, B::threads>(
      memory + B::q_at, Lines::of(args.q, at.b, h, at.q0, at.N, args.shape.D), first);
  if (B::rest == Rest::always)
    load_tile<typename B::Q, B::threads>(
        memory + B::rest_at, Lines::of(args.q_rest, at.b, h, at.q0, at.N, args.shape.D), first);
  load_tile<typename B::Q, B::threads>(
      memory + B::d_o_at, Lines::of(args.saved.d_o, at.b, h, at.q0, at.N, args.shape.E), first);
  if (tiles > 0) load(0);
  RowFacts<B> row(args, at, h, first + mine);
  const Address q = memory + B::q_at + B::Q::along() + mine * B::Q::panel * 2;
  for (int tile = 0; tile < tiles; ++tile) {
    await_copies<0>();
    __syncthreads();
    if (tile + 1 < tiles) load(tile + 1);
    const Address k = memory + B::k_at + tile % 2 * B::stage;
    typename B::Scores p, da;
    cross<B>(p, q, k + B::K::across());
    if constexpr (B::rest == Rest::always)
      add_cross<B>(p, q + B::rest_at - B::q_at, k + B::K::across());
    if constexpr (B::rest == Rest::seldom) {
      if (any_loud<B>(row)) add_rest<B>(p, args, at, s, h, first + mine, k + B::K::across());
    }
    weigh<B>(p, row, bias + tile % 2 * B::keys, scale * log2_e, tile * B::keys);
    cross<B>(da, q + B::d_o_at - B::q_at, k + B::K::bytes + B::K::across());
    if constexpr (B::deltas) {
      add_deltas<B>(row, p, da);
    } else {
      gather<B>(dq, p, da, row, k + B::K::along());
    }
  }
  if (B::deltas) write_deltas<B>(args, at, h, first + mine, row);
}

template <class B>
__global__ void __launch_bounds__(B::threads) softmax_queries(GradientArgs args) {
  const Shape& shape = args.shape;
  const int index = block_index();
  const int first = (args.tiles - 1 - index % args.tiles) * B::queries;
  const int h = index / args.tiles % shape.H, s = index / args.tiles / shape.H;
  const Place at = shape.place(s);
  if (first >= at.N || is_left(args.folded, shape, s, shape.key_head(h))) return;
  if (B::deltas && args.loud && !args.loud[s * shape.G + shape.key_head(h)]) return;
  typename B::Sums dq;
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::width / 2; ++i)
    dq[i / (B::width / 2)][i / 4 % (B::width / 8)][i % 4] = 0;
  const float scale = scale_of(args.folded, shape, s, shape.key_head(h));
  walk<B>(dq, args, at, h, s, first, scale);
  if (B::deltas) return;
  const int mine = first + int(threadIdx.x) / warp * 16 * B::rows + lane() / 4;
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::width / 4; ++i) {
    const int half = i % 2, n = i / 2 % (B::width / 8), m = i / 2 / (B::width / 8);
    const int row = mine + 16 * m + 8 * half, column = 8 * n + 2 * (lane() % 4);
    if (row >= at.N || column >= shape.D) continue;
    const float2 by = dq_factor(args, s, h, at.q0 + row, column, scale);
    store_pair(args.to.dq, args.to.dq.offset(at.b, h, at.q0 + row, column),
               by.x * dq[m][n][2 * half], by.y * dq[m][n][2 * half + 1]);
  }
}

template <DType type, int width, bool biased, bool deltas, Rest rest>
void launch_queries(GradientArgs args, Stream stream) {
  using B = Queries<type, width, biased, deltas, rest>;
  args.tiles = int(parts(args.shape.longest_n, B::queries));
  const std::int64_t blocks = std::int64_t(args.tiles) * args.shape.H * args.shape.sequences;
  launch("softmax_mma_queries", softmax_queries<B>, {dim3(unsigned(blocks)), B::threads, B::bytes},
         stream, args);
}

template <DType type, int width>
void choose_queries(const GradientArgs& args, bool deltas, Stream stream) {
  if (args.q_rest.data) {
    deltas ? launch_queries<type, width, true, true, Rest::always>(args, stream)
           : launch_queries<type, width, true, false, Rest::always>(args, stream);
  } else if (deltas) {
    args.folded.m.data ? launch_queries<type, width, true, true, Rest::seldom>(args, stream)
                       : launch_queries<type, width, true, true, Rest::none>(args, stream);
  } else if (args.folded.m.data) {
    launch_queries<type, width, true, false, Rest::seldom>(args, stream);
  } else if (args.folded.key_bias.data || args.folded.key_mask.data) {
    launch_queries<type, width, true, false, Rest::none>(args, stream);
  } else {
    launch_queries<type, width, false, false, Rest::none>(args, stream);
  }
}

template <DType type>
void choose_width(const GradientArgs& args, bool deltas, Stream stream) {
  switch (args.width) {
    case 16:
      return choose_queries<type, 16>(args, deltas, stream);
    case 32:
      return choose_queries<type, 32>(args, deltas, stream);
    case 64:
      return choose_queries<type, 64>(args, deltas, stream);
    case 96:
      return choose_queries<type, 96>(args, deltas, stream);
    case 128:
      return choose_queries<type, 128>(args, deltas, stream);
    default:
      return choose_queries<type, 256>(args, deltas, stream);
  }
}

void choose_type(const GradientArgs& args, bool deltas, Stream stream) {
  if (args.folded.k.dtype == DType::bf16) {
    choose_width<DType::bf16>(args, deltas, stream);
  } else {
    choose_width<DType::f16>(args, deltas, stream);
  }
}

}  // namespace

void softmax_mma_deltas(const GradientArgs& args, Stream stream) {
  choose_type(args, true, stream);
}
void softmax_mma_queries(const GradientArgs& args, Stream stream) {
  choose_type(args, false, stream);
}

}  // namespace foci::cuda
