// SPDX-License-Identifier: Apache-2.0
// relu2 and identity over bf16 and f16, backward, what belongs to queries and always in the same
// order: what a row is divided by and its delta, or dq. A block has 64 or 128 queries and walks
// over the keys that they see. Scores lie query by key, so that ds is the left side of dq += ds k.
#include "cuda/weights_mma_backward.cuh"

namespace foci::cuda {
namespace {

template <DType type_, int width_, Kind kind_>
struct Queries {
  static constexpr DType type = type_;
  static constexpr Kind kind = kind_;
  static constexpr int width = width_;
  static constexpr int warps = 4, threads = warps * warp;
  static constexpr int rows = width <= 128 ? 2 : 1;  // of 16 queries, a warp's
  static constexpr int queries = warps * rows * 16, keys = 32;

  using Q = Tile<queries, width>;  // and of d_o
  using K = Tile<keys, width>;     // and of values
  using Facts = KeyTile<keys>;
  static constexpr Address q_at = 0, d_o_at = Q::bytes, k_at = 2 * Q::bytes;
  static constexpr Address stage = 2 * K::bytes, facts_at = k_at + 2 * stage;
  static constexpr std::size_t bytes = facts_at + 2 * sizeof(Facts);

  using Scores = float[rows][keys / 8][4];
  using Sums = float[rows][width / 8][4];
};

/// What a block works on.
struct Block {
  Place at;
  int h, g, first;  // of its queries
  float scale;      // c

  FOCI_DEVICE Block(const WeightsArgs& args, int queries) {
    const int index = block_index(), s = index / args.tiles / args.shape.H;
    first = (args.tiles - 1 - index % args.tiles) * queries;  // causal: the longest first
    h = index / args.tiles % args.shape.H;
    g = args.shape.key_head(h);
    at = args.shape.place(s);
    scale = scale_of(args.folded, args.shape, s, g);
  }
  FOCI_DEVICE std::int64_t row_at(const Shape& shape, int row) const {
    return delta_at(shape, at, h, at.q0 + row);
  }
};

/// What the rows of a warp see of a tile.
template <class B>
struct Sight {
  int reach[2 * B::rows];  // of its keys
  unsigned kept;           // a bit a key
  bool whole;              // every row all of it

  FOCI_DEVICE Sight(const Shape& shape, const Place& at, int first_row, int first_key,
                    unsigned bits)
      : kept(bits) {
    static_assert(B::keys == 32);
    whole = kept == ~0u;
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) {
      reach[i] = shape.reach(at, first_row + 8 * i + lane() / 4) - first_key;
      whole = whole && reach[i] >= B::keys;
    }
  }
  /// 0 where a row does not see the key.
  FOCI_DEVICE void hide(typename B::Scores& x) const {
    if (whole) return;
    FOCI_UNROLL
    for (int i = 0; i < B::rows * B::keys / 2; ++i) {
      const int m = i / (B::keys / 2), n = i / 4 % (B::keys / 8);
      const int j = 8 * n + 2 * (lane() % 4) + i % 2;
      if (j >= reach[2 * m + i % 4 / 2] || !(kept >> j & 1)) x[m][n][i % 4] = 0;
    }
  }
};

/// Sums of products to scores.
template <class B>
FOCI_DEVICE void add_bias(typename B::Scores& s, const typename B::Facts& facts) {
  FOCI_UNROLL
  for (int n = 0; n < B::keys / 8; ++n) {
    const int j = 8 * n + 2 * (lane() % 4);
    const float2 scale = *reinterpret_cast<const float2*>(facts.scale + j);
    const float2 bias = *reinterpret_cast<const float2*>(facts.bias + j);
    FOCI_UNROLL
    for (int i = 0; i < 4 * B::rows; ++i) {
      float& x = s[i / 4][n][i % 4];
      x = i % 2 ? fmaf(x, scale.y, bias.y) : fmaf(x, scale.x, bias.x);
    }
  }
}

/// A thread's rows, 8 i + lane / 4 of its warp's, on their way to RowFacts.
template <class B>
struct RowSums {
  float unit[2 * B::rows];                     // a power of two that scores are multiplied by
  float sum[2 * B::rows], along[2 * B::rows];  // this lane's part: of |x| or x^2, of x da
  int seen[2 * B::rows];

  FOCI_DEVICE RowSums() {
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) {
      unit[i] = 1;
      sum[i] = along[i] = 0;
      seen[i] = 0;
    }
  }
  FOCI_DEVICE void add(const typename B::Scores& s, const typename B::Scores& da,
                       const Weigh& how) {
    const bool squares = how.rescale == Rescale::l2;
    FOCI_UNROLL
    for (int i = 0; i < B::rows * B::keys / 2; ++i) {
      const int m = i / (B::keys / 2), n = i / 4 % (B::keys / 8), r = 2 * m + i % 4 / 2;
      const float x = value_of<B::kind>(unit[r] * s[m][n][i % 4]);
      sum[r] = fmaf(fabsf(x), squares ? fabsf(x) : 1.0f, sum[r]);
      along[r] = fmaf(x, da[m][n][i % 4], along[r]);
    }
    const Range range = Range::of_float();
    bool fine = true;
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) fine = fine && range.holds(sum[i]);
    if (__all_sync(~0u, fine)) return;
    const Degrees degrees(B::kind, squares);
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) along[i] *= range.change(unit[i], sum[i], degrees);
  }
  FOCI_DEVICE RowFacts facts(const Weigh& how, int i) const {
    const float whole = quad_sum(sum[i]), part = quad_sum(along[i]);
    const bool relu2 = B::kind == Kind::relu2;
    float by = how.rescale == Rescale::length ? float(seen[i]) : seen[i] > 0 ? 1.0f : 0.0f;
    if (how.rescale == Rescale::l1) by = whole;
    if (how.rescale == Rescale::l2) by = sqrtf(whole);
    RowFacts to;
    if (by == 0) return to;
    const float root = relu2 ? 1 / sqrtf(by) : 1 / by;
    to.rate = unit[i] * root;
    to.slope = relu2 ? 2 * to.rate : to.rate;
    if (!follows_scores(how)) return to;
    to.delta = part / by;
    if (seen[i] == 1) to.slope = 0;  // a lone weight is 1 or -1 whatever its score
    return to;
  }
};

/// dq of a tile of keys.
template <class B>
struct QuerySums {
  typename B::Sums dq;
  RowFacts row[2 * B::rows];

  FOCI_DEVICE QuerySums(const WeightsArgs& args, const Block& block, int first) {
    clear(dq);
    FOCI_UNROLL
    for (int i = 0; i < 2 * B::rows; ++i) {
      const int r = first + 8 * i + lane() / 4;
      if (r < block.at.N) row[i] = args.rows[block.row_at(args.shape, r)];
    }
  }
  /// s and da become weights and ds.
  FOCI_DEVICE void take(typename B::Scores& s, typename B::Scores& da, const Weigh& how,
                        const Sight<B>& sight) const {
    FOCI_UNROLL
    for (int i = 0; i < B::rows * B::keys / 2; ++i) {
      const int m = i / (B::keys / 2), n = i / 4 % (B::keys / 8), r = 2 * m + i % 4 / 2;
      s[m][n][i % 4] *= row[r].rate;
      pull<B::kind>(s[m][n][i % 4], da[m][n][i % 4], row[r], how.rescale == Rescale::l2);
    }
    if (B::kind == Kind::identity) sight.hide(da);
  }
  FOCI_DEVICE void write(const WeightsArgs& args, const Block& block, int first) const {
    FOCI_UNROLL
    for (int i = 0; i < B::rows * B::width / 4; ++i) {
      const int half = i % 2, n = i / 2 % (B::width / 8), m = i / 2 / (B::width / 8);
      const int r = first + 16 * m + 8 * half + lane() / 4, column = 8 * n + 2 * (lane() % 4);
      if (r >= block.at.N || column >= args.shape.D) continue;
      store_pair(args.to.dq, args.to.dq.offset(block.at.b, block.h, block.at.q0 + r, column),
                 block.scale * dq[m][n][2 * half], block.scale * dq[m][n][2 * half + 1]);
    }
  }
};

/// Every tile of keys that the block's queries see: calls each(q, k, facts, sight); lines are there
/// where scores are needed.
template <class B, class Each>
FOCI_DEVICE void walk(const WeightsArgs& args, const Block& block, int mine, const Each& each,
                      bool scored) {
  const Place& at = block.at;
  const int thread = int(threadIdx.x);
  const Address memory = shared_address();
  auto* facts = reinterpret_cast<typename B::Facts*>(shared_memory() + B::facts_at);
  const int most = args.shape.reach(at, min(block.first + B::queries, at.N) - 1);
  const int tiles = (most + B::keys - 1) / B::keys;
  const auto lines = [&](const Field& of, int head, bool asks, int width) {
    return Lines::of(of, at.b, head, asks ? at.q0 : at.k0, asks ? at.N : at.M, width);
  };
  const auto load = [&](int tile) {
    const Address to = memory + B::k_at + tile % 2 * B::stage;
    if (scored) {
      load_tile<typename B::K, B::threads>(to, lines(args.folded.k, block.g, false, args.shape.D),
                                           tile * B::keys);
      load_tile<typename B::K, B::threads>(
          to + B::K::bytes, lines(args.folded.v, block.g, false, args.shape.E), tile * B::keys);
    }
    const int j = thread < B::keys ? tile * B::keys + thread : -1;
    facts[tile % 2].write(KeyFacts(args.folded, at, block.h, block.g, j, block.scale), thread);
    commit_copies();
  };
  if (scored) {
    load_tile<typename B::Q, B::threads>(
        memory + B::q_at, lines(args.folded.q, block.h, true, args.shape.D), block.first);
    load_tile<typename B::Q, B::threads>(
        memory + B::d_o_at, lines(args.saved.d_o, block.h, true, args.shape.E), block.first);
  }
  if (tiles > 0) load(0);
  const Address q = memory + B::q_at + B::Q::along() + mine * B::Q::panel * 2;
  for (int tile = 0; tile < tiles; ++tile) {
    await_copies<0>();
    __syncthreads();
    if (tile + 1 < tiles) load(tile + 1);
    const Sight<B> sight(args.shape, at, block.first + mine, tile * B::keys,
                         facts[tile % 2].kept[0]);
    each(q, memory + B::k_at + tile % 2 * B::stage, facts[tile % 2], sight);
  }
}

/// s and da of a tile: products of q and k, of d_o and v.
template <class B>
FOCI_DEVICE void meet(typename B::Scores& s, typename B::Scores& da, Address q, Address k,
                      const typename B::Facts& facts, const Sight<B>& sight) {
  using Q = typename B::Q;
  cross<B::type, typename B::K>(s, k + B::K::across(), rows_at<Q>(q));
  cross<B::type, typename B::K>(da, k + B::K::bytes + B::K::across(),
                                rows_at<Q>(q + B::d_o_at - B::q_at));
  add_bias<B>(s, facts);
  sight.hide(s);
}

template <class B>
__global__ void __launch_bounds__(B::threads) weights_rows(WeightsArgs args) {
  const Block block(args, B::queries);
  if (block.first >= block.at.N) return;
  const int mine = int(threadIdx.x) / warp * 16 * B::rows;
  const bool scored = follows_scores(args.weigh);
  RowSums<B> sums;
  walk<B>(
      args, block, mine,
      [&](Address q, Address k, const typename B::Facts& facts, const Sight<B>& sight) {
        FOCI_UNROLL
        for (int i = 0; i < 2 * B::rows; ++i) sums.seen[i] += facts.count(sight.reach[i]);
        if (!scored) return;
        typename B::Scores s, da;
        meet<B>(s, da, q, k, facts, sight);
        sums.add(s, da, args.weigh);
      },
      scored);
  FOCI_UNROLL
  for (int i = 0; i < 2 * B::rows; ++i) {
    const RowFacts facts = sums.facts(args.weigh, i);
    const int r = block.first + mine + 8 * i + lane() / 4;
    if (lane() % 4 == 0 && r < block.at.N) args.rows[block.row_at(args.shape, r)] = facts;
  }
}

template <class B>
__global__ void __launch_bounds__(B::threads) weights_queries(WeightsArgs args) {
  const Block block(args, B::queries);
  if (block.first >= block.at.N) return;
  const int mine = int(threadIdx.x) / warp * 16 * B::rows;
  QuerySums<B> sums(args, block, block.first + mine);
  walk<B>(
      args, block, mine,
      [&](Address q, Address k, const typename B::Facts& facts, const Sight<B>& sight) {
        typename B::Scores s, ds;
        meet<B>(s, ds, q, k, facts, sight);
        sums.take(s, ds, args.weigh, sight);
        sum_up<B::type, typename B::K, B::keys / 16>(sums.dq, k + B::K::along(), 0,
                                                     rounded<B::type>(ds));
      },
      true);
  sums.write(args, block, block.first + mine);
}

template <DType type, int width, Kind kind>
void launch_queries(WeightsArgs args, bool rows, Stream stream) {
  using B = Queries<type, width, kind>;
  args.tiles = int(parts(args.shape.longest_n, B::queries));
  const std::int64_t blocks = std::int64_t(args.tiles) * args.shape.H * args.shape.sequences;
  const Grid grid{dim3(unsigned(blocks)), B::threads, B::bytes};
  if (rows) {
    launch("weights_mma_rows", weights_rows<B>, grid, stream, args);
  } else {
    launch("weights_mma_queries", weights_queries<B>, grid, stream, args);
  }
}

template <DType type, Kind kind>
void choose_width(const WeightsArgs& args, bool rows, Stream stream) {
  switch (args.width) {
    case 32:
      return launch_queries<type, 32, kind>(args, rows, stream);
    case 64:
      return launch_queries<type, 64, kind>(args, rows, stream);
    case 128:
      return launch_queries<type, 128, kind>(args, rows, stream);
    default:
      return launch_queries<type, 256, kind>(args, rows, stream);
  }
}

template <DType type>
void choose_kind(const WeightsArgs& args, bool rows, Stream stream) {
  if (args.weigh.kind == Kind::relu2) {
    choose_width<type, Kind::relu2>(args, rows, stream);
  } else {
    choose_width<type, Kind::identity>(args, rows, stream);
  }
}

void choose_type(const WeightsArgs& args, bool rows, Stream stream) {
  if (args.folded.q.dtype == DType::bf16) {
    choose_kind<DType::bf16>(args, rows, stream);
  } else {
    choose_kind<DType::f16>(args, rows, stream);
  }
}

}  // namespace

void weights_mma_rows(const WeightsArgs& args, Stream stream) { choose_type(args, true, stream); }
void weights_mma_queries(const WeightsArgs& args, Stream stream) {
  choose_type(args, false, stream);
}

}  // namespace foci::cuda
