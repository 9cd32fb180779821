// SPDX-License-Identifier: Apache-2.0
// relu2 and identity over bf16 and f16, backward: a block has 64 or 128 keys and walks over the
// queries that see them, tile by tile, for every query head that shares them. Scores lie key by
// query, so that weights are the left side of dv += a' d_o and dk += ds' q, and dkey_bias is a sum
// of rows. dq gets its parts by float additions in memory, or from weights_mma_queries.cu.
#include "cuda/weights_mma_backward.cuh"

namespace foci::cuda {
namespace {

/// How a block goes about it: warps along keys and queries of the scores; along keys and columns of
/// dk and dv; along queries and columns of dq. biased: a key has a bias or a mask.
template <DType type_, int width_, Kind kind_, bool biased_>
struct Backward {
  static constexpr DType type = type_;
  static constexpr Kind kind = kind_;
  static constexpr int width = width_;
  static constexpr bool biased = biased_;
  static constexpr int key_warps = 4, query_warps = width <= 64 ? 1 : 2;
  static constexpr int warps = key_warps * query_warps, threads = warps * warp;
  static constexpr int rows = width <= 128 ? 2 : 1;  // of 16 keys, a warp's
  static constexpr int keys = key_warps * rows * 16, queries = accumulated_queries(width);
  static constexpr int span = query_warps == 1 ? 32 : queries / query_warps;  // queries at a time
  static constexpr int columns = width / query_warps;                         // of dk and dv
  static constexpr int dq_columns = width * 2 / warps;
  static constexpr int dq_rows = queries / 16 * (width / dq_columns) / warps;  // of 16 queries

  using K = Tile<keys, width>;     // and of values
  using Q = Tile<queries, width>;  // and of d_o
  using P = Tile<keys, queries>;   // weights, and ds
  static constexpr Address k_at = 0, v_at = K::bytes, q_at = 2 * K::bytes, stage = 2 * Q::bytes;
  static constexpr Address ds_at = q_at + 2 * stage;
  static constexpr Address p_at = ds_at + P::bytes;
  static constexpr Address rows_at = p_at + (query_warps > 1 ? P::bytes : 0);  // RowFacts
  static constexpr std::size_t bytes = rows_at + 2 * queries * sizeof(RowFacts);

  using Scores = float[rows][span / 8][4];
  using Sums = float[rows][columns / 8][4];
};

/// Where the warp and its lanes stand.
template <class B>
struct Stand {
  Address memory = shared_address();
  int key = int(threadIdx.x) / warp % B::key_warps * 16 * B::rows;  // its first, in the tile
  int part = int(threadIdx.x) / warp / B::key_warps;                // of queries and of columns

  /// The left side that the warp's keys are, from a tile of them.
  template <class T>
  FOCI_DEVICE auto keys_of(Address tile) const {
    return cuda::rows_at<T>(memory + tile + T::along() + key * T::panel * 2);
  }
};

/// What a block holds of its keys, a thread rows 8 i + lane / 4 of its warp's.
template <class B>
struct KeySums {
  typename B::Sums dk, dv;
  float scale[2 * B::rows], bias[2 * B::rows];  // biased: s = scale x + bias
  float dbias[2 * B::rows];

  FOCI_DEVICE KeySums() {
    clear(dk);
    clear(dv);
    forget();
  }
  FOCI_DEVICE void forget() {
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) dbias[i] = 0;
  }
  /// Facts of the keys as head h sees them.
  FOCI_DEVICE void learn(const WeightsArgs& args, const KeyBlock& block, int h, int first) {
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) {
      const int j = first + 8 * i + lane() / 4;
      const KeyFacts facts(args.folded, block.at, h, block.g, j, block.scale);
      scale[i] = facts.scale;
      bias[i] = facts.bias;
    }
  }
};

/// Sums of products and da to weights and ds; facts of the lane's queries.
template <class B>
FOCI_DEVICE void weigh(typename B::Scores& s, typename B::Scores& da, const RowFacts* row,
                       const KeySums<B>& key, bool squares, float scale) {
  FOCI_UNROLL
  for (int i = 0; i < B::span / 4; ++i) {
    const int n = i / 2;
    RowFacts facts = row[8 * n + 2 * (lane() % 4) + i % 2];
    if (!B::biased) facts.rate *= scale;
    FOCI_UNROLL
    for (int j = 0; j < 2 * B::rows; ++j) {
      float& y = s[j / 2][n][j % 2 * 2 + i % 2];
      float& d = da[j / 2][n][j % 2 * 2 + i % 2];
      y = (B::biased ? fmaf(y, key.scale[j], key.bias[j]) : y) * facts.rate;
      pull<B::kind>(y, d, facts, squares);
      if (B::biased && B::kind == Kind::identity && key.scale[j] == 0) d = 0;  // masked
    }
  }
}

/// Nothing where a query does not see a key. first_key and first_query of this lane's scores.
template <class B>
FOCI_DEVICE void hide(typename B::Scores& a, typename B::Scores& ds, const Shape& shape,
                      const Place& at, int first_key, int first_query) {
  FOCI_UNROLL
  for (int i = 0; i < B::span / 4; ++i) {
    const int n = i / 2, reach = shape.reach(at, first_query + 8 * n + i % 2);
    FOCI_UNROLL
    for (int j = 0; j < 2 * B::rows; ++j) {
      if (first_key + 8 * j < reach) continue;
      a[j / 2][n][j % 2 * 2 + i % 2] = ds[j / 2][n][j % 2 * 2 + i % 2] = 0;
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

/// Weights of the warp's keys for a tile of queries, and what follows from them but dq.
template <class B>
FOCI_DEVICE void meet(KeySums<B>& sums, const WeightsArgs& args, const KeyBlock& block,
                      const Stand<B>& stand, int slot, int first_query) {
  using Q = typename B::Q;
  const Address q = stand.memory + B::q_at + slot * B::stage, d_o = q + Q::bytes;
  const auto* row = reinterpret_cast<const RowFacts*>(shared_memory() + B::rows_at);
#ifndef FOCI_EMULATED
#pragma unroll 1  // twice the code, and registers go to memory
#endif
  for (int span = 0; span < B::queries; span += B::query_warps * B::span) {
    const int query = span + stand.part * B::span;
    const Address below = query * Q::panel * 2;
    typename B::Scores a, ds;
    cross<B::type, Q>(a, q + Q::across() + below, stand.template keys_of<typename B::K>(B::k_at));
    cross<B::type, Q>(ds, d_o + Q::across() + below,
                      stand.template keys_of<typename B::K>(B::v_at));
    weigh<B>(a, ds, row + slot * B::queries + query, sums, args.weigh.rescale == Rescale::l2,
             block.scale);
    const int last = block.first + B::keys;
    if (last > block.at.M || last > args.shape.reach(block.at, first_query + query))
      hide<B>(a, ds, args.shape, block.at, block.first + stand.key + lane() / 4,
              first_query + query + 2 * (lane() % 4));
    if (B::biased && args.to.dkey_bias) {
      FOCI_UNROLL
      for (int i = 0; i < B::rows * B::span / 2; ++i) {
        const int m = i / (B::span / 2), n = i / 4 % (B::span / 8);
        sums.dbias[2 * m + i % 4 / 2] += ds[m][n][i % 4];
      }
    }
    put<B>(B::ds_at, ds, stand.key, query);
    if constexpr (B::query_warps > 1) {
      put<B>(B::p_at, a, stand.key, query);
    } else {
      sum_up<B::type, Q, B::span / 16>(sums.dv, d_o + Q::along() + below, 0, rounded<B::type>(a));
      sum_up<B::type, Q, B::span / 16>(sums.dk, q + Q::along() + below, 0, rounded<B::type>(ds));
    }
  }
}

/// dk and dv where a warp has half of the columns, for all queries of a tile.
template <class B>
FOCI_DEVICE void share(KeySums<B>& sums, const Stand<B>& stand, int slot) {
  using Q = typename B::Q;
  using P = typename B::P;
  const Address q = stand.memory + B::q_at + slot * B::stage + Q::along();
  const int first_column = stand.part * B::columns;
  sum_up<B::type, Q, B::queries / 16>(sums.dv, q + Q::bytes, first_column,
                                      stand.template keys_of<P>(B::p_at));
  sum_up<B::type, Q, B::queries / 16>(sums.dk, q, first_column,
                                      stand.template keys_of<P>(B::ds_at));
}

/// dq of a tile of queries from the block's keys, added to `to`, (queries, width) in blocks of 16x8
/// as accumulators have them.
template <class B>
FOCI_DEVICE void add_dq(float* to, const Stand<B>& stand) {
  using P = typename B::P;
  const int index = int(threadIdx.x) / warp, wide = B::width / B::dq_columns;
  const int first_column = index % wide * B::dq_columns, first = index / wide * B::dq_rows;
  float dq[B::dq_rows][B::dq_columns / 8][4];
  clear(dq);
  const Address ds = stand.memory + B::ds_at + P::across();
  sum_up<B::type, typename B::K, B::keys / 16>(dq, stand.memory + B::k_at + B::K::along(),
                                               first_column, [&](unsigned(&a)[4], int m, int step) {
                                                 P::template operands<true>(
                                                     a, P::beside(ds, first + m), 16 * step);
                                               });
  FOCI_UNROLL
  for (int m = 0; m < B::dq_rows; ++m) {
    FOCI_UNROLL
    for (int n = 0; n < B::dq_columns / 8; ++n)
      add_four(to + ((first + m) * (B::width / 8) + first_column / 8 + n) * 128 + 4 * lane(),
               dq[m][n]);
  }
}

/// Writes dbias and starts anew; the four lanes of a row have a part each, and so do the warps
/// along queries, through shared memory at ds_at, which is free.
template <class B>
FOCI_DEVICE void write_dbias(KeySums<B>& sums, const WeightsArgs& args, const KeyBlock& block,
                             const Stand<B>& stand, int h) {
  auto* room = reinterpret_cast<float*>(shared_memory() + B::ds_at);
  __syncthreads();
  FOCI_UNROLL
  for (int i = 0; i < 2 * B::rows; ++i) {
    const float sum = quad_sum(sums.dbias[i]);
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

/// The facts of a query, one a thread, on their way to shared memory.
template <class B>
struct NextRow {
  RowFacts facts;

  FOCI_DEVICE NextRow(const WeightsArgs& args, const Place& at, int h, int first) {
    static_assert(B::queries <= B::threads);
    const int row = first + int(threadIdx.x);
    if (int(threadIdx.x) >= B::queries || row >= at.N) return;
    facts = args.rows[delta_at(args.shape, at, h, at.q0 + row)];
  }
  FOCI_DEVICE void write(int slot) const {
    if (int(threadIdx.x) >= B::queries) return;
    auto* to = reinterpret_cast<RowFacts*>(shared_memory() + B::rows_at);
    to[slot * B::queries + int(threadIdx.x)] = facts;
  }
};

/// Every tile of queries that sees the block's keys, of every head that shares them.
template <class B>
FOCI_DEVICE void walk(KeySums<B>& sums, const WeightsArgs& args, const KeyBlock& block,
                      const Stand<B>& stand) {
  const Place& at = block.at;
  const int heads = args.shape.H / args.shape.G, first_head = block.g * heads;
  const int seen_from = args.shape.causal ? max(block.first - at.first_seen, 0) : 0;
  const int first = seen_from / B::queries;  // tile of queries
  const int count = max((at.N + B::queries - 1) / B::queries - first, 0);
  const auto load = [&](int turn) {
    const int h = first_head + turn / count, from = (first + turn % count) * B::queries;
    const Address to = stand.memory + B::q_at + turn % 2 * B::stage;
    load_tile<typename B::Q, B::threads>(
        to, Lines::of(args.folded.q, at.b, h, at.q0, at.N, args.shape.D), from);
    load_tile<typename B::Q, B::threads>(
        to + B::Q::bytes, Lines::of(args.saved.d_o, at.b, h, at.q0, at.N, args.shape.E), from);
    commit_copies();
    return NextRow<B>(args, at, h, from);
  };
  if (count > 0) load(0).write(0);
  for (int turn = 0; turn < count * heads; ++turn) {
    const int h = first_head + turn / count, tile = first + turn % count;
    if (B::biased && turn % count == 0) sums.learn(args, block, h, block.first + stand.key);
    await_copies<0>();
    __syncthreads();
    const bool more = turn + 1 < count * heads;
    const NextRow<B> next = more ? load(turn + 1) : NextRow<B>(args, at, h, at.N);
    meet<B>(sums, args, block, stand, turn % 2, tile * B::queries);
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

template <class B>
__global__ void __launch_bounds__(B::threads) weights_backward(WeightsArgs args) {
  const KeyBlock block(args, block_index(), B::keys);
  if (block.first >= block.at.M) return;
  const Stand<B> stand;
  const auto load = [&](Address to, const Field& from, int width) {
    load_tile<typename B::K, B::threads>(
        stand.memory + to, Lines::of(from, block.at.b, block.g, block.at.k0, block.at.M, width),
        block.first);
  };
  load(B::k_at, args.folded.k, args.shape.D);
  load(B::v_at, args.folded.v, args.shape.E);
  commit_copies();
  KeySums<B> sums;
  walk<B>(sums, args, block, stand);
  write_sums<B>(args.to.dk, sums.dk, block, stand, block.scale, args.shape.D);
  write_sums<B>(args.to.dv, sums.dv, block, stand, 1, args.shape.E);
}

template <DType type, int width, Kind kind, bool biased>
void launch_backward(WeightsArgs args, Stream stream) {
  using B = Backward<type, width, kind, biased>;
  args.tiles = int(parts(args.shape.longest_m, B::keys));
  const std::int64_t blocks = std::int64_t(args.tiles) * args.shape.G * args.shape.sequences;
  launch("weights_mma_backward", weights_backward<B>,
         {dim3(unsigned(blocks)), B::threads, B::bytes}, stream, args);
}

template <DType type, int width>
void choose_kind(const WeightsArgs& args, Stream stream) {
  if (args.weigh.kind == Kind::relu2) {
    launch_backward<type, width, Kind::relu2, true>(args, stream);
  } else {
    launch_backward<type, width, Kind::identity, true>(args, stream);
  }
}

/// relu2 in the sizes that most heads have goes without a bias; others take what asks for it.
template <DType type>
void choose_backward(const WeightsArgs& args, Stream stream) {
  const bool biased = args.folded.key_bias.data || args.folded.key_mask.data;
  const bool plain = args.weigh.kind == Kind::relu2 && !biased;
  switch (args.width) {
    case 32:
      return choose_kind<type, 32>(args, stream);
    case 64:
      return plain ? launch_backward<type, 64, Kind::relu2, false>(args, stream)
                   : choose_kind<type, 64>(args, stream);
    case 128:
      return plain ? launch_backward<type, 128, Kind::relu2, false>(args, stream)
                   : choose_kind<type, 128>(args, stream);
    default:
      return choose_kind<type, 256>(args, stream);
  }
}

/// Tiles of queries that dq has room for, of one head.
std::int64_t dq_tiles(const Shape& shape) {
  const int queries = accumulated_queries(weights_mma_width(shape.D, shape.E));
  if (shape.q_offsets) return shape.N / queries + shape.sequences;
  return parts(shape.N, queries) * shape.sequences;
}

std::size_t dq_room(const Shape& shape) {
  const int width = weights_mma_width(shape.D, shape.E);
  return std::size_t(dq_tiles(shape)) * shape.H * accumulated_queries(width) * width;
}

}  // namespace

WeightsMmaScratch::WeightsMmaScratch(Arena& arena, const Shape& shape, Order order) {
  const std::int64_t batch = shape.q_offsets ? 1 : shape.sequences;
  rows_ = arena.take<float>(batch * shape.H * shape.N * 4).data();
  if (order == Order::any) dq_ = arena.take<float>(dq_room(shape)).data();
}

bool weights_mma_serves(const Shape& shape, const Folded& folded, const Weigh& weigh,
                        const Field& d_o) {
  Rows to;
  to.o = d_o;
  return weights_mma_serves(shape, folded, weigh, to);
}

void weights_mma_backward(const Shape& shape, const Folded& folded, const Weigh& weigh,
                          const Field& d_o, const Sinks& to, const WeightsMmaScratch& scratch,
                          Stream stream) {
  WeightsArgs args;
  args.shape = shape;
  args.folded = folded;
  args.saved.d_o = d_o;
  args.to = to;
  args.weigh = weigh;
  args.rows = reinterpret_cast<RowFacts*>(scratch.rows());
  args.width = weights_mma_width(shape.D, shape.E);
  args.queries = accumulated_queries(args.width);
  args.dq_tiles = dq_tiles(shape);
  if (to.dq.data) args.dq = scratch.dq();
  weights_mma_rows(args, stream);
  if (args.dq) fill(args.dq, 0, dq_room(shape) * sizeof(float), stream);
  if (folded.q.dtype == DType::bf16) {
    choose_backward<DType::bf16>(args, stream);
  } else {
    choose_backward<DType::f16>(args, stream);
  }
  if (!to.dq.data) return;
  args.dq ? softmax_mma_gather(args, stream) : weights_mma_queries(args, stream);
}

}  // namespace foci::cuda
