// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16, backward: a block has 64 or 128 keys and walks
// over the queries that see them, tile by tile, for every query head that
// shares them. Scores lie key by query, so that weights are the left side of dv
// += p' d_o and dk += ds' q, and dkey_bias is a sum of rows. dq gets its parts
// by float additions in memory, or from softmax_mma_queries.cu in one order.
#include "cuda/softmax_mma_backward.cuh"

#include "cuda/memory.cuh"
#include "cuda/softmax_wgmma_backward.cuh"

#include <algorithm>

namespace foci::cuda {
namespace {

/// How a block goes about it: warps along keys and queries of the scores; along
/// keys and columns of dk and dv; along queries and columns of dq.
/// `by_chunk`: along the prefix tiles of queries have biases of their own; scores are of f16.
template <DType type_, int width_, bool biased_, Rest rest_, bool by_chunk_ = false>
struct Backward {
  static constexpr DType type = type_;
  static constexpr bool by_chunk = by_chunk_;
  static constexpr int width = width_;
  static constexpr bool biased = biased_;
  static constexpr Rest rest = rest_;
  static constexpr int key_warps = 4, query_warps = width <= 64 ? 1 : 2;
  static constexpr int warps = key_warps * query_warps, threads = warps * warp;
  static constexpr int rows = width <= 128 ? 2 : 1;  // of 16 keys, a warp's
  static constexpr int keys = key_warps * rows * 16, queries = accumulated_queries(width);
  static constexpr int span = query_warps == 1 ? 32 : queries / query_warps;  // queries at a time
  static constexpr int columns = width / query_warps;                         // of dk and dv
  static constexpr int dq_columns = width == 16 ? 16 : width == 96 ? 48 : width * 2 / warps;
  static constexpr int dq_rows = queries / 16 * (width / dq_columns) / warps;  // of 16 queries

  using K = Tile<keys, width>;     // and of values
  using Q = Tile<queries, width>;  // and of d_o
  using P = Tile<keys, queries>;   // and of ds
  static constexpr Address k_at = 0, v_at = K::bytes, narrow_k_at = 2 * K::bytes;
  static constexpr Address q_at = (by_chunk ? 3 : 2) * K::bytes;
  // q, d_o, what q's rounding left over or q in f16
  static constexpr Address stage = (rest == Rest::always || by_chunk ? 3 : 2) * Q::bytes;
  static constexpr Address ds_at = q_at + 2 * stage;
  static constexpr Address p_at = ds_at + P::bytes;
  // lse and delta of queries, and what lse's rounding left over
  static constexpr Address rows_at = p_at + (query_warps > 1 ? P::bytes : 0);
  static constexpr int facts = (biased ? 3 : 2) * queries;
  static constexpr std::size_t bytes = rows_at + 2 * facts * 4;

  using Scores = float[rows][span / 8][4];
  using Sums = float[rows][columns / 8][4];
};

/// Where the warp and its lanes stand.
template <class B>
struct Stand {
  Address memory = shared_address();
  int key = int(threadIdx.x) / warp % B::key_warps * 16 * B::rows;  // its first, in the tile
  int part = int(threadIdx.x) / warp / B::key_warps;                // of queries and of columns
};

/// s += x y' over all columns: x (keys), y (queries)
template <class B, DType type = B::type>
FOCI_DEVICE void add_cross(typename B::Scores& s, Address x, Address y) {
  FOCI_UNROLL
  for (int step = 0; step < B::width / 16; ++step) {
    const Address x_here = B::K::beside(x, step), y_here = B::Q::beside(y, step);
    unsigned a[B::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < B::rows; ++m) B::K::template operands<false>(a[m], x_here, 16 * m);
    FOCI_UNROLL
    for (int n = 0; n < B::span / 16; ++n) {
      unsigned b[4];
      B::Q::template operands<false>(b, y_here, 16 * n);
      FOCI_UNROLL
      for (int m = 0; m < B::rows; ++m) {
        multiply<type>(s[m][2 * n], a[m], b[0], b[1]);
        multiply<type>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// s = x y'
template <class B, DType type = B::type>
FOCI_DEVICE void cross(typename B::Scores& s, Address x, Address y) {
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::span / 2; ++i)
    s[i / (B::span / 2)][i / 4 % (B::span / 8)][i % 4] = 0;
  add_cross<B, type>(s, x, y);
}

/// s += x rest', rest what the rounding of queries from `first` on left over: x (keys)
template <class B>
FOCI_DEVICE void add_rest(typename B::Scores& s, const GradientArgs& args, const KeyBlock& block,
                          int h, int first, Address x) {
  const QueryRest rest(args.folded, args.shape, block.at, block.s, h);
#ifndef FOCI_EMULATED
#pragma unroll 1
#endif
  for (int step = 0; step < B::width / 16; ++step) {
    const Address x_here = B::K::beside(x, step);
    unsigned a[B::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < B::rows; ++m) B::K::template operands<false>(a[m], x_here, 16 * m);
    FOCI_UNROLL
    for (int n = 0; n < B::span / 16; ++n) {
      unsigned b[4];
      rest.right<B::type>(b, first + 16 * n + lane() / 4, 16 * step + 2 * (lane() % 4));
      FOCI_UNROLL
      for (int m = 0; m < B::rows; ++m) {
        multiply<B::type>(s[m][2 * n], a[m], b[0], b[1]);
        multiply<B::type>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// sums += left y, y (queries) from `first_column` on; left(a, m, step) gives
/// 16 keys by 16 queries
template <class B, int steps, class Left>
FOCI_DEVICE void sum_up(typename B::Sums& sums, Address y, int first_column, const Left& left) {
  Address y_here[B::columns / 16];
  FOCI_UNROLL
  for (int n = 0; n < B::columns / 16; ++n) y_here[n] = B::Q::beside(y, first_column / 16 + n);
  FOCI_UNROLL
  for (int step = 0; step < steps; ++step) {
    unsigned a[B::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < B::rows; ++m) left(a[m], m, step);
    FOCI_UNROLL
    for (int n = 0; n < B::columns / 16; ++n) {
      unsigned b[4];
      B::Q::template operands<true>(b, y_here[n], 16 * step);
      FOCI_UNROLL
      for (int m = 0; m < B::rows; ++m) {
        multiply<B::type>(sums[m][2 * n], a[m], b[0], b[1]);
        multiply<B::type>(sums[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Scores become weights 2^(unit s + bias - lse), lse of the lane's columns.
template <class B>
FOCI_DEVICE void weigh(typename B::Scores& s, const float* lse, const float (&bias)[B::rows][2],
                       float unit) {
  float off[B::span / 8][2], more[B::span / 8][2] = {};
  bool any_far = false;
  FOCI_UNROLL
  for (int n = 0; n < B::span / 8; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * (lane() % 4));
    off[n][0] = pair.x;
    off[n][1] = pair.y;
    any_far = any_far || is_far(pair.x) || is_far(pair.y);
    if (!B::biased) continue;
    const float* left = lse + 2 * B::queries + 8 * n + 2 * (lane() % 4);
    more[n][0] = left[0];
    more[n][1] = left[1];
  }
  const auto each = [&](const auto& weight) {
    FOCI_UNROLL
    for (int i = 0; i < B::rows * B::span / 2; ++i) {
      const int m = i / (B::span / 2), n = i / 4 % (B::span / 8);
      s[m][n][i % 4] = weight(s[m][n][i % 4], B::biased ? bias[m][i % 4 / 2] : 0.0f, off[n][i % 2],
                              more[n][i % 2]);
    }
  };
  if (any_far) {
    each([=](float x, float b, float l, float m) {
      return far_weight_of<B::biased>(x, unit, b, l, m);
    });
  } else {
    each(
        [=](float x, float b, float l, float m) { return weight_of<B::biased>(x, unit, b, l, m); });
  }
}

/// No weight where a query does not see a key. first_key and first_query of
/// this lane's scores.
template <class B>
FOCI_DEVICE void hide(typename B::Scores& p, const Shape& shape, const Place& at, int first_key,
                      int first_query) {
  FOCI_UNROLL
  for (int m = 0; m < B::rows; ++m) {
    FOCI_UNROLL
    for (int n = 0; n < B::span / 8; ++n) {
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) {
        const int reach = shape.reach(at, first_query + 8 * n + i % 2);
        if (first_key + 16 * m + 8 * (i / 2) >= reach) p[m][n][i] = 0;
      }
    }
  }
}

/// da becomes ds = p (da - delta); dbias gets its sums.
template <class B>
FOCI_DEVICE void pull(typename B::Scores& da, const typename B::Scores& p, const float* delta,
                      float (&dbias)[B::rows][2]) {
  FOCI_UNROLL
  for (int n = 0; n < B::span / 8; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(delta + 8 * n + 2 * (lane() % 4));
    FOCI_UNROLL
    for (int m = 0; m < B::rows; ++m) {
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) {
        da[m][n][i] = p[m][n][i] * (da[m][n][i] - (i % 2 ? pair.y : pair.x));
        if (B::biased) dbias[m][i / 2] += da[m][n][i];
      }
    }
  }
}

/// Scores rounded into a (keys, queries) tile, at `key` and `query`.
template <class B>
FOCI_DEVICE void put(Address tile, const typename B::Scores& x, int key, int query) {
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::span / 4; ++i) {
    const int half = i % 2, n = i / 2 % (B::span / 8), m = i / 2 / (B::span / 8);
    const Address at = B::P::at(key + 16 * m + 8 * half + lane() / 4, query / 8 + n);
    *reinterpret_cast<unsigned*>(shared_memory() + tile + at + 4 * (lane() % 4)) =
        pack<B::type>(x[m][n][2 * half], x[m][n][2 * half + 1]);
  }
}

/// x as the left side of a product: 16 keys by 16 queries.
template <class B>
FOCI_DEVICE void take(unsigned (&a)[4], const typename B::Scores& x, int m, int step) {
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float* pair = x[m][2 * step + i / 2] + 2 * (i % 2);
    a[i] = pack<B::type>(pair[0], pair[1]);
  }
}

/// What a block holds of its keys.
template <class B>
struct KeySums {
  typename B::Sums dk, dv;
  float dbias[B::rows][2], bias[B::rows][2];

  FOCI_DEVICE KeySums() {
    FOCI_UNROLL
    for (int i = 0; i < B::rows * B::columns / 2; ++i) {
      const int m = i / (B::columns / 2), n = i / 4 % (B::columns / 8);
      dk[m][n][i % 4] = dv[m][n][i % 4] = 0;
    }
    forget();
  }
  FOCI_DEVICE void forget() {
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) dbias[i / 2][i % 2] = 0;
  }
};

/// Weights of the warp's keys for a tile of queries, and what follows from them
/// but dq.
template <class B>
FOCI_DEVICE void meet(KeySums<B>& sums, const GradientArgs& args, const KeyBlock& block,
                      const Stand<B>& stand, int slot, int h, int first_query) {
  const Address q = stand.memory + B::q_at + slot * B::stage, d_o = q + B::Q::bytes;
  const Address mine = B::K::along() + stand.key * B::K::panel * 2;
  const auto* lse = reinterpret_cast<const float*>(shared_memory() + B::rows_at) + slot * B::facts;
#ifndef FOCI_EMULATED
#pragma unroll 1  // twice the code, and 100 bytes of registers go to memory
#endif
  for (int span = 0; span < B::queries; span += B::query_warps * B::span) {
    const int query = span + stand.part * B::span;
    const Address below = query * B::Q::panel * 2;
    typename B::Scores p, ds;
    if constexpr (B::by_chunk) {
      cross<B, DType::f16>(p, stand.memory + B::narrow_k_at + mine,
                           q + 2 * B::Q::bytes + B::Q::across() + below);
    } else {
      cross<B>(p, stand.memory + B::k_at + mine, q + B::Q::across() + below);
    }
    if constexpr (B::rest == Rest::always)
      add_cross<B>(p, stand.memory + B::k_at + mine, q + 2 * B::Q::bytes + B::Q::across() + below);
    if constexpr (B::rest == Rest::seldom) {
      if (__any_sync(~0u, is_loud(lse[query + lane() % B::span])))
        add_rest<B>(p, args, block, h, first_query + query, stand.memory + B::k_at + mine);
    }
    cross<B>(ds, stand.memory + B::v_at + mine, d_o + B::Q::across() + below);
    weigh<B>(p, lse + query, sums.bias, block.scale * log2_e);
    const int last = block.first + B::keys;
    if (last > block.at.M || last > args.shape.reach(block.at, first_query + query))
      hide<B>(p, args.shape, block.at, block.first + stand.key + lane() / 4,
              first_query + query + 2 * (lane() % 4));
    pull<B>(ds, p, lse + B::queries + query, sums.dbias);
    put<B>(B::ds_at, ds, stand.key, query);
    if constexpr (B::query_warps > 1) {
      put<B>(B::p_at, p, stand.key, query);
    } else {
      const auto left = [](const typename B::Scores& x) {
        return [&x](unsigned(&a)[4], int m, int step) { take<B>(a, x, m, step); };
      };
      sum_up<B, B::span / 16>(sums.dv, d_o + B::Q::along() + below, 0, left(p));
      sum_up<B, B::span / 16>(sums.dk, q + B::Q::along() + below, 0, left(ds));
    }
  }
}

/// dk and dv where a warp has half of the columns, for all queries of a tile.
template <class B>
FOCI_DEVICE void share(KeySums<B>& sums, const Stand<B>& stand, int slot) {
  const Address q = stand.memory + B::q_at + slot * B::stage + B::Q::along();
  const Address mine = stand.memory + B::P::along() + stand.key * B::P::panel * 2;
  const auto left = [&](Address tile) {
    return [from = mine + tile](unsigned(&a)[4], int m, int step) {
      B::P::template operands<false>(a, B::P::beside(from, step), 16 * m);
    };
  };
  const int first_column = stand.part * B::columns;
  sum_up<B, B::queries / 16>(sums.dv, q + B::Q::bytes, first_column, left(B::p_at));
  sum_up<B, B::queries / 16>(sums.dk, q, first_column, left(B::ds_at));
}

/// dq of a tile of queries from the block's keys, added to `to`, (queries,
/// width) in blocks of 16x8 as accumulators have them.
template <class B>
FOCI_DEVICE void add_dq(float* to, const Stand<B>& stand) {
  const int index = int(threadIdx.x) / warp, wide = B::width / B::dq_columns;
  const int first_column = index % wide * B::dq_columns, first = index / wide * B::dq_rows;
  float dq[B::dq_rows][B::dq_columns / 8][4];
  FOCI_UNROLL
  for (int i = 0; i < B::dq_rows * B::dq_columns / 2; ++i)
    dq[i / (B::dq_columns / 2)][i / 4 % (B::dq_columns / 8)][i % 4] = 0;
  const Address ds = stand.memory + B::ds_at + B::P::across();
  Address k[B::dq_columns / 16];
  FOCI_UNROLL
  for (int n = 0; n < B::dq_columns / 16; ++n)
    k[n] = B::K::beside(stand.memory + B::k_at + B::K::along(), first_column / 16 + n);
  FOCI_UNROLL
  for (int step = 0; step < B::keys / 16; ++step) {
    unsigned a[B::dq_rows][4];
    FOCI_UNROLL
    for (int m = 0; m < B::dq_rows; ++m)
      B::P::template operands<true>(a[m], B::P::beside(ds, first + m), 16 * step);
    FOCI_UNROLL
    for (int n = 0; n < B::dq_columns / 16; ++n) {
      unsigned b[4];
      B::K::template operands<true>(b, k[n], 16 * step);
      FOCI_UNROLL
      for (int m = 0; m < B::dq_rows; ++m) {
        multiply<B::type>(dq[m][2 * n], a[m], b[0], b[1]);
        multiply<B::type>(dq[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
  FOCI_UNROLL
  for (int m = 0; m < B::dq_rows; ++m) {
    FOCI_UNROLL
    for (int n = 0; n < B::dq_columns / 8; ++n)
      add_four(to + ((first + m) * (B::width / 8) + first_column / 8 + n) * 128 + 4 * lane(),
               dq[m][n]);
  }
}

/// Writes dbias and starts anew; the four lanes of a row have a part each, and
/// so do the warps along queries, through shared memory at p_at, which is free.
template <class B>
FOCI_DEVICE void write_dbias(KeySums<B>& sums, const GradientArgs& args, const KeyBlock& block,
                             const Stand<B>& stand, int h) {
  auto* room = reinterpret_cast<float*>(shared_memory() + B::ds_at);
  __syncthreads();
  FOCI_UNROLL
  for (int i = 0; i < 2 * B::rows; ++i) {
    const float sum = quad_sum(sums.dbias[i / 2][i % 2]);
    if (lane() % 4 == 0) room[stand.part * B::keys + stand.key + 8 * i + lane() / 4] = sum;
  }
  __syncthreads();
  for (int j = int(threadIdx.x); j < B::keys && block.first + j < block.at.M; j += B::threads) {
    float sum = 0;
    for (int part = 0; part < B::query_warps; ++part) sum += room[part * B::keys + j];
    args.to.dkey_bias.store(sum, block.at.b, args.folded.key_head_bias ? block.g : h,
                            block.at.k0 + block.first + j);
  }
  __syncthreads();
  sums.forget();
}

/// Two numbers of each row of the warp's.
template <class B>
FOCI_DEVICE void write_sums(const Field& to, const typename B::Sums& sums, const KeyBlock& block,
                            const Stand<B>& stand, float scale, int width) {
  if (!to) return;
  FOCI_UNROLL
  for (int i = 0; i < B::rows * B::columns / 4; ++i) {
    const int half = i % 2, n = i / 2 % (B::columns / 8), m = i / 2 / (B::columns / 8);
    const int j = block.first + stand.key + 16 * m + 8 * half + lane() / 4;
    const int column = stand.part * B::columns + 8 * n + 2 * (lane() % 4);
    if (j >= block.at.M || column >= width) continue;
    store_pair(to, to.offset(block.at.b, block.g, block.at.k0 + j, column),
               scale * sums[m][n][2 * half], scale * sums[m][n][2 * half + 1]);
  }
}

/// lse, delta and what lse left over of a query, one a thread, on their way to shared memory; lse
/// is +inf where there is nothing to weigh.
template <class B>
struct RowFacts {
  float lse = INFINITY, delta = 0, more = 0;

  FOCI_DEVICE RowFacts(const GradientArgs& args, const Place& at, int h, int first) {
    static_assert(B::queries <= B::threads);
    const int row = first + int(threadIdx.x), token = at.q0 + row;
    if (int(threadIdx.x) >= B::queries || row >= at.N) return;
    lse = saved_lse(args, at, h, token);
    delta = args.saved.delta[delta_at(args.shape, at, h, token)];
    if (B::biased) more = saved_share(args, at, h, token);
  }
  FOCI_DEVICE void write(int slot) const {
    if (int(threadIdx.x) >= B::queries) return;
    auto* to = reinterpret_cast<float*>(shared_memory() + B::rows_at) + slot * B::facts;
    to[threadIdx.x] = lse;
    to[B::queries + threadIdx.x] = delta;
    if (B::biased) to[2 * B::queries + threadIdx.x] = more;
  }
};

/// Every tile of queries that sees the block's keys, of every head that shares
/// them.
template <class B>
FOCI_DEVICE void walk(KeySums<B>& sums, const GradientArgs& args, const KeyBlock& block,
                      const Stand<B>& stand) {
  const Place& at = block.at;
  const int heads = args.shape.H / args.shape.G, first_head = block.g * heads;
  const int seen_from = args.shape.causal ? max(block.first - at.first_seen, 0) : 0;
  const int first = seen_from / B::queries;  // tile of queries
  const int count = max((at.N + B::queries - 1) / B::queries - first, 0);
  const auto load = [&](int turn) {
    const int h = first_head + turn / count, from = (first + turn % count) * B::queries;
    const Address to = stand.memory + B::q_at + turn % 2 * B::stage;
    load_tile<typename B::Q, B::threads>(to, Lines::of(args.q, at.b, h, at.q0, at.N, args.shape.D),
                                         from);
    load_tile<typename B::Q, B::threads>(
        to + B::Q::bytes, Lines::of(args.saved.d_o, at.b, h, at.q0, at.N, args.shape.E), from);
    if (B::rest == Rest::always)
      load_tile<typename B::Q, B::threads>(
          to + 2 * B::Q::bytes, Lines::of(args.q_rest, at.b, h, at.q0, at.N, args.shape.D), from);
    commit_copies();
    return RowFacts<B>(args, at, h, from);
  };
  if (count > 0) load(0).write(0);
  for (int turn = 0; turn < count * heads; ++turn) {
    const int h = first_head + turn / count, tile = first + turn % count;
    if (B::biased && turn % count == 0) {
      FOCI_UNROLL
      for (int i = 0; i < 2 * B::rows; ++i)
        sums.bias[i / 2][i % 2] =
            KeyBias(args.folded, at, h, block.g, block.first + stand.key + 8 * i + lane() / 4).bias;
    }
    await_copies<0>();
    __syncthreads();
    const bool more = turn + 1 < count * heads;
    const RowFacts<B> next = more ? load(turn + 1) : RowFacts<B>(args, at, h, at.N);
    meet<B>(sums, args, block, stand, turn % 2, h, tile * B::queries);
    next.write((turn + 1) % 2);
    __syncthreads();
    if constexpr (B::query_warps > 1) share<B>(sums, stand, turn % 2);
    if (args.dq) add_dq<B>(args.dq + dq_tile_at(args, block.s, h, tile), stand);
    if (B::biased && args.to.dkey_bias && !args.folded.key_head_bias && turn % count == count - 1)
      write_dbias<B>(sums, args, block, stand, h);
  }
  if (!B::biased || !args.to.dkey_bias) return;
  if (args.folded.key_head_bias) return write_dbias<B>(sums, args, block, stand, first_head);
  for (int h = first_head; count == 0 && h < first_head + heads; ++h)
    write_dbias<B>(sums, args, block, stand, h);
}

/// The lane's share of a chunk's dbias, and it starts anew.
template <class B>
FOCI_DEVICE void add_dbias(KeySums<B>& sums, const GradientArgs& args, const KeyBlock& block,
                           const Stand<B>& stand, int chunk) {
  FOCI_UNROLL
  for (int i = 0; i < 2 * B::rows; ++i) {
    const float sum = quad_sum(sums.dbias[i / 2][i % 2]);
    const int j = block.first + stand.key + 8 * i + lane() / 4;
    if (lane() % 4 != 0 || j >= block.at.M) continue;
    const Field& to = args.to.dkey_bias;
    atomicAdd(static_cast<float*>(to.data) + to.offset(chunk, block.at.b, block.g, block.at.k0 + j),
              sum);
  }
  sums.forget();
}

/// Every tile of queries along the prefix that sees the block's keys, of every head that shares
/// them.
template <class B>
FOCI_DEVICE void walk_by_chunk(KeySums<B>& sums, const GradientArgs& args, const KeyBlock& block,
                               const Stand<B>& stand) {
  const auto load = [&](const ChunkCursor& of, int slot) {
    Place at = block.at;
    at.N = of.done() ? 0 : of.end;
    const Address to = stand.memory + B::q_at + slot * B::stage;
    const auto copy = [&](int part, const Field& from, int width) {
      load_tile<typename B::Q, B::threads>(
          to + part * B::Q::bytes, Lines::of(from, at.b, of.h, at.q0, at.N, width), of.from);
    };
    if (!of.done()) {
      copy(0, args.q, args.shape.D);
      copy(1, args.saved.d_o, args.shape.E);
      copy(2, args.q_rest, args.shape.D);
    }
    commit_copies();
    return RowFacts<B>(args, at, of.h, of.from);
  };
  ChunkCursor now(args, block);
  load(now, 0).write(0);
  for (int slot = 0; !now.done(); slot ^= 1) {
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i)
      sums.bias[i / 2][i % 2] = KeyBias::of_chunk(args.folded, block.at, now.chunk, block.g,
                                                  block.first + stand.key + 8 * i + lane() / 4)
                                    .bias;
    await_copies<0>();
    __syncthreads();
    const int h = now.h, chunk = now.chunk, from = now.from;
    now.advance();
    const RowFacts<B> next = load(now, slot ^ 1);
    meet<B>(sums, args, block, stand, slot, h, from);
    next.write(slot ^ 1);
    __syncthreads();
    if constexpr (B::query_warps > 1) share<B>(sums, stand, slot);
    const int tile = from / B::queries + chunk;
    if (args.dq) add_dq<B>(args.dq + dq_tile_at(args, block.s, h, tile), stand);
    add_dbias<B>(sums, args, block, stand, chunk);
  }
}

template <class B>
FOCI_DEVICE void backward_block(const GradientArgs& args, int index) {
  const KeyBlock block(args, index, B::keys);
  if (block.first >= block.at.M || is_left(args.folded, args.shape, block.s, block.g)) return;
  if (args.loud && !args.loud[block.s * args.shape.G + block.g]) return;
  const Stand<B> stand;
  const auto load = [&](Address to, const Field& from, int width) {
    load_tile<typename B::K, B::threads>(
        stand.memory + to, Lines::of(from, block.at.b, block.g, block.at.k0, block.at.M, width),
        block.first);
  };
  load(B::k_at, B::by_chunk ? args.k : args.folded.k, args.shape.D);
  load(B::v_at, args.folded.v, args.shape.E);
  if (B::by_chunk) load(B::narrow_k_at, args.folded.k, args.shape.D);
  commit_copies();
  KeySums<B> sums;
  if constexpr (B::by_chunk) {
    walk_by_chunk<B>(sums, args, block, stand);
  } else {
    walk<B>(sums, args, block, stand);
  }
  write_sums<B>(args.to.dk, sums.dk, block, stand, block.scale, args.shape.D);
  write_sums<B>(args.to.dv, sums.dv, block, stand, 1, args.shape.E);
}

template <class B>
__global__ void __launch_bounds__(B::threads) softmax_backward(GradientArgs args) {
  if constexpr (B::rest != Rest::seldom) return backward_block<B>(args, block_index());
  const int heads = args.shape.sequences * args.shape.G, blocks = heads * args.tiles;
  if (args.loud && !any_marked(args.loud, heads)) return;
  for (int index = int(blockIdx.x); index < blocks; index += int(gridDim.x)) {
    backward_block<B>(args, index);
    __syncthreads();
  }
}

template <DType type, int width, bool biased, Rest rest, bool by_chunk = false>
void launch_backward(GradientArgs args, Stream stream) {
  using B = Backward<type, width, biased, rest, by_chunk>;
  args.tiles = int(parts(args.shape.longest_m, B::keys));
  std::int64_t blocks = std::int64_t(args.tiles) * args.shape.G * args.shape.sequences;
  if (rest == Rest::seldom && args.loud) blocks = std::min(blocks, few_blocks);
  launch("softmax_mma_backward", softmax_backward<B>,
         {dim3(unsigned(blocks)), B::threads, B::bytes}, stream, args);
}

template <DType type, int width>
void choose_backward(const GradientArgs& args, Stream stream) {
  const bool biased = args.folded.key_bias.data || args.folded.key_mask.data;
  if (args.q_rest.data) {
    launch_backward<type, width, true, Rest::always>(args, stream);
  } else if (args.folded.m.data) {
    biased ? launch_backward<type, width, true, Rest::seldom>(args, stream)
           : launch_backward<type, width, false, Rest::seldom>(args, stream);
  } else {
    biased ? launch_backward<type, width, true, Rest::none>(args, stream)
           : launch_backward<type, width, false, Rest::none>(args, stream);
  }
}

template <DType type>
void choose_width(const GradientArgs& args, Stream stream) {
  if (args.folded.spans)
    return args.width == 64 ? launch_backward<type, 64, true, Rest::none, true>(args, stream)
                            : launch_backward<type, 128, true, Rest::none, true>(args, stream);
  switch (args.width) {
    case 16:
      return choose_backward<type, 16>(args, stream);
    case 32:
      return choose_backward<type, 32>(args, stream);
    case 64:
      return choose_backward<type, 64>(args, stream);
    case 96:
      return choose_backward<type, 96>(args, stream);
    case 128:
      return choose_backward<type, 128>(args, stream);
    default:
      return choose_backward<type, 256>(args, stream);
  }
}

/// Whether a block along the prefix fits into the shared memory of the current GPU.
bool fits(const Shape& shape) {
  using Narrow = Backward<DType::bf16, 64, true, Rest::none, true>;
  using Wide = Backward<DType::bf16, 128, true, Rest::none, true>;
  return block_memory() >= (DqRoom(shape, 1).width == 64 ? Narrow::bytes : Wide::bytes);
}

}  // namespace

bool softmax_mma_serves(const Shape& shape, const Folded& folded, const Saved& saved) {
  if (folded.spans && !fits(shape)) return false;
  return softmax_mma_serves(shape, folded, saved.d_o) && softmax_mma_serves(shape, folded, saved.o);
}

namespace {

/// What all kernels are told, where `folded` says what they work on.
GradientArgs arguments(const Shape& shape, const Folded& folded, const Saved& saved,
                       const SoftmaxMmaScratch& scratch) {
  GradientArgs args{};
  args.shape = shape, args.folded = folded, args.q = folded.q, args.saved = saved;
  const DqRoom room(shape, folded.spans ? folded.most_chunks : 0);
  args.width = room.width, args.queries = room.queries, args.dq_tiles = room.tiles;
  args.dq = scratch.dq();
  if (has_narrow_lines(folded)) args.largest = scratch.largest();
  return args;
}

void choose_type(const GradientArgs& args, Stream stream) {
  args.folded.v.dtype == DType::bf16 ? choose_width<DType::bf16>(args, stream)
                                     : choose_width<DType::f16>(args, stream);
}

}  // namespace

bool softmax_mma_takes_narrow(const Shape& shape, const Folded& folded, const Saved& saved,
                              const SoftmaxMmaScratch& scratch) {
  return scratch.dq() && scratch.largest() &&
         softmax_wgmma_serves(arguments(shape, folded, saved, scratch));
}

void softmax_mma_backward(const Shape& shape, const Folded& folded, const Saved& saved,
                          const Sinks& to, const SoftmaxMmaScratch& scratch, Stream stream,
                          const Field& k, const Folded* wide) {
  GradientArgs args = arguments(shape, folded, saved, scratch);
  args.k = k, args.to = to;
  const bool narrow = args.largest != nullptr;
  // Narrow lines are for softmax_wgmma, which adds to dq in any case.
  if (!to.dq.data && !narrow) args.dq = nullptr;
  // o carries the rounding of its weights, which shows in gradients of few keys and of a float
  // bias; one that a full metric made goes into 16-bit gradients.
  const bool own_bias = to.dkey_bias.data && !folded.row_bias.data;
  const bool exact = shape.longest_m <= 128 || own_bias;
  softmax_mma_rows(args, scratch, !exact, stream);
  // And in the gradient of a metric, of heads where scores are large.
  GradientArgs by_weights = args;
  if (exact) by_weights.loud = nullptr;
  if (exact || (args.loud && !to.dq_of_q)) softmax_mma_deltas(by_weights, stream);
  if (narrow) {
    args.saved.lse = Field::of(saved.share, {shape.sequences, shape.H, shape.N});
    args.folded.row_bias = {};
  }
  if (!exact) args.saved.share = nullptr;
  const std::size_t sums = std::size_t(args.dq_tiles) * shape.H * args.queries * args.width;
  if (args.dq) fill(args.dq, 0, sums * sizeof(float), stream);
  // What rounding m q leaves over is added where a row is loud, which softmax_wgmma cannot.
  const bool on_hopper = softmax_wgmma_serves(args);
  if (on_hopper) softmax_wgmma_backward(args, stream);
  if (!on_hopper) args.loud = nullptr;
  if (!on_hopper || args.loud) choose_type(args, stream);
  if (wide) {
    GradientArgs others = args;
    others.folded = *wide, others.largest = nullptr, others.saved.lse = saved.lse;
    softmax_mma_rows(others, scratch, false, stream);
    choose_type(others, stream);
  }
  if (!to.dq.data) return;
  if (wide) args.folded.by_mma = nullptr;
  args.dq ? softmax_mma_gather(args, stream) : softmax_mma_queries(args, stream);
}

}  // namespace foci::cuda
