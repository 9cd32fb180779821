// SPDX-License-Identifier: Apache-2.0
// Softmax over short sequences, backward: a block has a key head whole, a warp 16 of its keys, and
// walks over the queries, 32 at a time, of every head that shares it. Scores lie key by query, so
// that weights are the left side of dv += p' d_o and dk += ds' q, and dkey_bias is a sum of rows; a
// tile's ds in shared memory is that of all keys, so that its dq is done with at once. delta is
// o . d_o; where rounding would show, it is a sum over keys that joins warps, as is that of
// weights, which what lse was rounded by comes off.
#include "cuda/memory.cuh"
#include "cuda/softmax_mma_backward.cuh"
#include "cuda/softmax_short_block.cuh"

namespace foci::cuda {
namespace {

constexpr int short_queries = 32;     // of a tile
constexpr int early_queries = 64;     // that are waited for first
constexpr int partial_pitch = 40;     // floats of a warp's sums: eight queries on, other banks
constexpr int most_threads = 512;     // a warp has 16 keys
constexpr int dq_units = 8;           // of a tile: 16 queries, 16 columns
constexpr float most_weight = 1e18f;  // what rounding of a large lse may leave: sums are finite

/// Where things lie in shared memory.
struct ShortRoom {
  Address k, v, q, rest, d_o, ds, ds_step, lse, delta, partial, facts, m, bytes;

  ShortRoom(const Shape& shape, bool folds) {
    const auto rows = [](int count, int step) {
      return Address((count + step - 1) / step * step) * short_line;
    };
    const Address keys = rows(shape.M, 16), queries = rows(shape.N, short_queries);
    k = 0, v = keys, q = 2 * keys, d_o = q + queries, rest = d_o + queries;
    ds = rest + (folds ? queries : 0), ds_step = keys / short_line * short_queries * 2;
    lse = ds + 2 * ds_step;  // as floats, of all queries
    delta = lse + queries / short_line * 4;
    partial = delta + queries / short_line * 4;
    facts = partial + 2 * (keys / short_line / 16) * partial_pitch * 4;
    m = facts + 2 * short_queries * 4;
    bytes = m + short_width * 4;
  }
};

struct ShortBackwardArgs {
  Shape shape;
  Folded folded;
  Saved saved;
  Sinks to;
  ShortMetric metric;
  ShortRoom room;
  int plain;  // gradients have the type of q and v, neighbours side by side in whole words
};

template <DType type_, bool biased_, bool folds_>
struct ShortBackward {
  static constexpr DType type = type_;
  static constexpr bool biased = biased_, folds = folds_;
};

using ShortDs = Tile<16, short_queries>;          // a warp's part of ds
using ShortScores = float[short_queries / 8][4];  // 16 keys by 32 queries
using ShortSums = float[short_width / 8][4];      // of 16 rows

FOCI_DEVICE float* floats_at(Address at) { return reinterpret_cast<float*>(shared_memory() + at); }

/// Pairs of neighbours of a gradient from a token and an even column on.
template <DType type>
struct PairsOf {
  const Field& to;
  const int plain;
  const std::int64_t from;

  FOCI_DEVICE PairsOf(const Field& all, int is_plain, int b, int head, int token, int column)
      : to(all), plain(is_plain), from(all.offset(b, head, token, column)) {}
  /// So many rows and columns on.
  FOCI_DEVICE void store(int rows, int columns, float x, float y) const {
    if (plain) {
      auto* line = static_cast<std::uint16_t*>(to.data) + from + rows * to.strides[2];
      *reinterpret_cast<unsigned*>(line + columns) = pack<type>(x, y);
    } else {
      store_pair(to, from + rows * to.strides[2] + columns * to.strides[3], x, y);
    }
  }
};

/// A block's key head.
struct ShortHead {
  Place at;
  int s, g;

  FOCI_DEVICE explicit ShortHead(const Shape& shape)
      : at(shape.place(int(blockIdx.x))), s(int(blockIdx.x)), g(int(blockIdx.y)) {}
};

/// s += x y' over all columns: x (16 keys), y (32 queries)
template <DType type>
FOCI_DEVICE void add_cross(ShortScores& s, Address x, Address y) {
  FOCI_UNROLL
  for (int step = 0; step < short_width / 16; ++step) {
    unsigned a[4];
    ShortRows::operands<false>(a, ShortRows::beside(x, step), 0);
    const Address y_here = ShortRows::beside(y, step);
    FOCI_UNROLL
    for (int n = 0; n < short_queries / 16; ++n) {
      unsigned b[4];
      ShortRows::operands<false>(b, y_here, 16 * n);
      multiply<type>(s[2 * n], a, b[0], b[1]);
      multiply<type>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// sums += x y, y (32 queries)
template <DType type>
FOCI_DEVICE void add_outer(ShortSums& sums, const ShortScores& x, Address y) {
  FOCI_UNROLL
  for (int step = 0; step < short_queries / 16; ++step) {
    unsigned a[4];
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float* pair = x[2 * step + i / 2] + 2 * (i % 2);
      a[i] = pack<type>(pair[0], pair[1]);
    }
    FOCI_UNROLL
    for (int n = 0; n < short_width / 16; ++n) {
      unsigned b[4];
      ShortRows::operands<true>(b, ShortRows::beside(y, n), 16 * step);
      multiply<type>(sums[2 * n], a, b[0], b[1]);
      multiply<type>(sums[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// Scores become weights, as far as lse has digits: 2^(unit s + bias - lse), lse of the tile.
template <bool biased>
FOCI_DEVICE void weigh(ShortScores& s, const float* lse, const float (&bias)[2], float unit) {
  float off[short_queries / 8][2];
  bool any_far = false;
  FOCI_UNROLL
  for (int n = 0; n < short_queries / 8; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(lse + 8 * n + 2 * (lane() % 4));
    off[n][0] = pair.x, off[n][1] = pair.y;
    any_far = any_far || is_far(pair.x) || is_far(pair.y);
  }
  const auto each = [&](const auto& weight) {
    FOCI_UNROLL
    for (int i = 0; i < short_queries / 2; ++i) {
      float& x = s[i / 4][i % 4];
      x = weight(x, biased ? bias[i % 4 / 2] : 0.0f, off[i / 4][i % 2]);
    }
  };
  if (any_far) {
    each([=](float x, float b, float l) {
      return fminf(far_weight_of<biased>(x, unit, b, l, 0), most_weight);
    });
  } else {
    each([=](float x, float b, float l) { return weight_of<biased>(x, unit, b, l, 0); });
  }
}

/// No weight where a query does not see a key. first_key and first_query of this lane's.
FOCI_DEVICE void hide(ShortScores& p, const Shape& shape, int first_key, int first_query) {
  const ShortHead head(shape);
  FOCI_UNROLL
  for (int i = 0; i < short_queries / 2; ++i) {
    const int reach = shape.reach(head.at, first_query + 8 * (i / 4) + i % 2);
    if (first_key + 8 * (i % 4 / 2) >= reach) p[i / 4][i % 4] = 0;
  }
}

/// Sums over the warp's lanes of a column: eight of them become one a lane, of query
/// 8 (lane / 8) + 2 (lane % 4) + lane / 4 % 2.
FOCI_DEVICE float sum_columns(float (&x)[8]) {
  FOCI_UNROLL
  for (int count = 4; count > 0; count /= 2) {
    const bool upper = (lane() / 4 & count) != 0;
    FOCI_UNROLL
    for (int i = 0; i < count; ++i) {
      const float own = upper ? x[count + i] : x[i], other = upper ? x[i] : x[count + i];
      x[i] = own + __shfl_xor_sync(~0u, other, 4 * count);
    }
  }
  return x[0];
}

/// The warp's part of the sums of weights, and of weights times what they get, of every query.
FOCI_DEVICE void write_partial(float* partial, const ShortScores& p, const ShortScores& da) {
  const int warps = int(blockDim.x) / warp, mine = int(threadIdx.x) / warp;
  float sum[8], delta[8];
  FOCI_UNROLL
  for (int i = 0; i < 8; ++i) {
    const int n = i / 2, c = i % 2;
    sum[i] = p[n][c] + p[n][2 + c];
    delta[i] = fmaf(p[n][c], da[n][c], p[n][2 + c] * da[n][2 + c]);
  }
  const int query = 8 * (lane() / 8) + 2 * (lane() % 4) + lane() / 4 % 2;
  partial[mine * partial_pitch + query] = sum_columns(sum);
  partial[(warps + mine) * partial_pitch + query] = sum_columns(delta);
}

/// One over the sums of weights, and delta; by the first four warps, four lanes a query.
FOCI_DEVICE void join_partial(float* facts, const float* partial) {
  const int thread = int(threadIdx.x), warps = int(blockDim.x) / warp, query = thread / 4;
  if (thread >= 4 * short_queries) return;
  float sum = 0, delta = 0;
  for (int part = thread % 4; part < warps; part += 4) {
    sum += partial[part * partial_pitch + query];
    delta += partial[(warps + part) * partial_pitch + query];
  }
  sum = quad_sum(sum), delta = quad_sum(delta);
  if (thread % 4 != 0) return;
  const float share = sum > 0 ? 1 / sum : 0;
  facts[query] = share;
  facts[short_queries + query] = delta * share;
}

/// da becomes ds = p (da - delta), where lse made weights add up to 1 as it is.
FOCI_DEVICE void pull(const ShortScores& p, ShortScores& da, const float* delta) {
  FOCI_UNROLL
  for (int n = 0; n < short_queries / 8; ++n) {
    const float2 off = *reinterpret_cast<const float2*>(delta + 8 * n + 2 * (lane() % 4));
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) da[n][i] = p[n][i] * (da[n][i] - (i % 2 ? off.y : off.x));
  }
}
/// The same where weights are to add up to 1; dbias gets its sums.
FOCI_DEVICE void pull(ShortScores& p, ShortScores& da, const float* facts, float (&dbias)[2]) {
  FOCI_UNROLL
  for (int n = 0; n < short_queries / 8; ++n) {
    const float* here = facts + 8 * n + 2 * (lane() % 4);
    const float2 share = *reinterpret_cast<const float2*>(here);
    const float2 delta = *reinterpret_cast<const float2*>(here + short_queries);
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      p[n][i] *= i % 2 ? share.y : share.x;
      da[n][i] = p[n][i] * (da[n][i] - (i % 2 ? delta.y : delta.x));
      dbias[i / 2] += da[n][i];
    }
  }
}

/// ds of the warp's keys rounded into the tile at `to`.
template <DType type>
FOCI_DEVICE void put(Address to, const ShortScores& ds) {
  const int row = int(threadIdx.x) / warp * 16 + lane() / 4;
  FOCI_UNROLL
  for (int i = 0; i < short_queries / 4; ++i) {
    const int half = i % 2, n = i / 2;
    const Address here = to + ShortDs::at(row + 8 * half, n) + 4 * (lane() % 4);
    *reinterpret_cast<unsigned*>(shared_memory() + here) =
        pack<type>(ds[n][2 * half], ds[n][2 * half + 1]);
  }
}

/// dq of 16 queries and 16 columns, a unit, of the tile from query `first` on.
template <class B>
FOCI_DEVICE void write_dq(const ShortBackwardArgs& args, int h, int first, int unit, Address ds) {
  const int row = first + unit / 4 * 16, column = unit % 4 * 16 + 2 * (lane() % 4);
  const ShortHead head(args.shape);
  if (row >= head.at.N) return;
  const Address left = ShortDs::beside(shared_address() + ds + ShortDs::across(), unit / 4);
  const Address right =
      ShortRows::beside(shared_address() + args.room.k + ShortRows::along(), unit % 4);
  float dq[2][4] = {};
  const int steps = int(blockDim.x) / warp;
#ifndef FOCI_EMULATED
#pragma unroll 4
#endif
  for (int step = 0; step < steps; ++step) {
    unsigned a[4], b[4];
    ShortDs::operands<true>(a, left, 16 * step);
    ShortRows::operands<true>(b, right, 16 * step);
    multiply<B::type>(dq[0], a, b[0], b[1]);
    multiply<B::type>(dq[1], a, b[2], b[3]);
  }
  const float* m = floats_at(args.room.m);
  const float scale = args.folded.scale;
  const PairsOf<B::type> to(args.to.dq, args.plain, head.at.b, h, head.at.q0 + row + lane() / 4,
                            column);
  FOCI_UNROLL
  for (int n = 0; n < 2; ++n) {
    const bool by_m = B::folds && args.to.dq_of_q;
    const float x = by_m ? scale * m[column + 8 * n] : scale;
    const float y = by_m ? scale * m[column + 8 * n + 1] : scale;
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (row + 8 * half + lane() / 4 < head.at.N)
        to.store(8 * half, 8 * n, x * dq[n][2 * half], y * dq[n][2 * half + 1]);
    }
  }
}

/// The units that this warp has. Every fourth warp has none: one of the multiprocessor's quarters
/// has a warp more than others.
template <class B>
FOCI_DEVICE void write_dq(const ShortBackwardArgs& args, int h, int tile) {
  const int warps = int(blockDim.x) / warp, mine = int(threadIdx.x) / warp;
  if (mine % 4 == 0 || !args.to.dq) return;
  const Address ds = args.room.ds + tile % 2 * args.room.ds_step;
  for (int unit = mine - mine / 4 - 1; unit < dq_units; unit += warps - (warps + 3) / 4)
    write_dq<B>(args, h, tile * short_queries, unit, ds);
}

/// What a warp holds of its keys.
struct ShortKeys {
  ShortSums dk, dv;
  float bias[2], dbias[2];

  FOCI_DEVICE ShortKeys() {
    FOCI_UNROLL
    for (int i = 0; i < short_width / 2; ++i) dk[i / 4][i % 4] = dv[i / 4][i % 4] = 0;
    dbias[0] = dbias[1] = bias[0] = bias[1] = 0;
  }
};

/// Whether any query of the tile shows how m q was rounded, or all do.
FOCI_DEVICE bool shows_rounding(const Shape& shape, const float* lse) {
  return shape.M <= short_two_parts || __any_sync(~0u, is_loud(lse[lane()]));
}
/// Whether sums over keys join warps for the tile: a bias's gradient shows every bit of delta, and
/// so do loud queries' of a metric; a large lse was rounded.
template <class B>
FOCI_DEVICE bool joins(const ShortBackwardArgs& args, const float* lse) {
  if (B::biased || !args.saved.o) return true;
  if (B::folds) return shows_rounding(args.shape, lse);
  return __any_sync(~0u, is_far(lse[lane()]));
}

/// A tile of queries: all that follows from it but its dq, and dq of the tile before.
template <class B>
FOCI_DEVICE void meet(ShortKeys& sums, const ShortBackwardArgs& args, int h, int tile) {
  const ShortRoom& room = args.room;
  const Address memory = shared_address(), below = tile * short_queries * short_line;
  const int mine = int(threadIdx.x) / warp;
  const Address own = memory + ShortRows::along() + mine * 16 * short_line;
  const float* lse = floats_at(room.lse) + tile * short_queries;
  ShortScores p = {}, da = {};
  add_cross<B::type>(p, own + room.k, memory + room.q + below + ShortRows::across());
  if constexpr (B::folds) {
    if (shows_rounding(args.shape, lse))
      add_cross<B::type>(p, own + room.k, memory + room.rest + below + ShortRows::across());
  }
  add_cross<B::type>(da, own + room.v, memory + room.d_o + below + ShortRows::across());
  weigh<B::biased>(p, lse, sums.bias, args.folded.scale * log2_e);
  if (args.shape.causal || mine * 16 + 16 > args.shape.M)
    hide(p, args.shape, mine * 16 + lane() / 4, tile * short_queries + 2 * (lane() % 4));
  if (joins<B>(args, lse)) {
    write_partial(floats_at(room.partial), p, da);
    __syncthreads();
    join_partial(floats_at(room.facts), floats_at(room.partial));
    __syncthreads();
    pull(p, da, floats_at(room.facts), sums.dbias);
  } else {
    __syncthreads();  // the last tile's ds is there
    pull(p, da, floats_at(room.delta) + tile * short_queries);
  }
  put<B::type>(room.ds + tile % 2 * room.ds_step, da);
  add_outer<B::type>(sums.dv, p, memory + room.d_o + below + ShortRows::along());
  add_outer<B::type>(sums.dk, da, memory + room.q + below + ShortRows::along());
  if (tile > 0) write_dq<B>(args, h, tile - 1);
}

/// Queries [first, last) in shared memory times m, rounded, and what that left over.
template <class B>
FOCI_DEVICE void fold_queries(const ShortRoom& room, int first, int last) {
  const int thread = int(threadIdx.x), piece = thread % 8;
  float2 m[4];
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i)
    m[i] = reinterpret_cast<const float2*>(floats_at(room.m))[4 * piece + i];
  for (int i = thread; i < (last - first) * 8; i += int(blockDim.x)) {
    uint4& here = piece_at(room.q, first + i / 8, piece);
    const uint4 q = here;
    here = make_uint4(folded_pair<B::type>(q.x, m[0]), folded_pair<B::type>(q.y, m[1]),
                      folded_pair<B::type>(q.z, m[2]), folded_pair<B::type>(q.w, m[3]));
    piece_at(room.rest, first + i / 8, piece) =
        make_uint4(rest_of_pair<B::type>(q.x, m[0]), rest_of_pair<B::type>(q.y, m[1]),
                   rest_of_pair<B::type>(q.z, m[2]), rest_of_pair<B::type>(q.w, m[3]));
  }
}

/// delta of queries [first, last), whose d_o is in shared memory once wait() is over.
template <class B, class Wait>
FOCI_DEVICE void take_deltas(const ShortBackwardArgs& args, int h, int first, int last,
                             const Wait& wait) {
  if (B::biased || !args.saved.o) return wait();
  constexpr int batch = 4;  // on their way
  const ShortHead head(args.shape);
  const Place& at = head.at;
  const int thread = int(threadIdx.x), step = int(blockDim.x) / 8, piece = thread % 8;
  const Lines o = Lines::of(args.saved.o, at.b, h, at.q0, at.N, short_width);
  float* to = floats_at(args.room.delta);
  for (int begin = first; begin < last; begin += batch * step) {
    uint4 some[batch];
    const auto row = [&](int n) { return begin + thread / 8 + n * step; };
    FOCI_UNROLL
    for (int n = 0; n < batch; ++n)
      some[n] =
          *reinterpret_cast<const uint4*>(o.data + min(row(n), at.N - 1) * o.stride + 8 * piece);
    if (begin == first) wait();
    FOCI_UNROLL
    for (int n = 0; n < batch; ++n) {
      const bool there = row(n) < last;
      float x[8], y[8], sum = 0;
      unpack(x, some[n], B::type);
      unpack(y, piece_at(args.room.d_o, there ? row(n) : first, piece), B::type);
      FOCI_UNROLL
      for (int w = 0; w < 8; ++w) sum = fmaf(x[w], y[w], sum);
      FOCI_UNROLL
      for (int lanes = 1; lanes < 8; lanes *= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
      if (there && piece == 0) to[row(n)] = sum;
    }
  }
}

/// Queries [first, last) of a head and their d_o on their way.
FOCI_DEVICE void bring_queries(const ShortBackwardArgs& args, int h, int first, int last) {
  const ShortHead head(args.shape);
  const Place& at = head.at;
  const Address below = shared_address() + first * short_line;
  const int thread = int(threadIdx.x), threads = int(blockDim.x);
  bring(below + args.room.q, Lines::of(args.folded.q, at.b, h, at.q0, at.N, short_width), first,
        last - first, thread, threads);
  bring(below + args.room.d_o, Lines::of(args.saved.d_o, at.b, h, at.q0, at.N, short_width), first,
        last - first, thread, threads);
}

/// lse of a head's queries, +inf where there is nothing to weigh.
FOCI_DEVICE void take_lse(const ShortBackwardArgs& args, int h, int count) {
  const ShortHead head(args.shape);
  float* to = floats_at(args.room.lse);
  for (int i = int(threadIdx.x); i < count; i += int(blockDim.x)) {
    const float lse = i < head.at.N ? args.saved.lse.load(head.at.b, h, head.at.q0 + i) : nothing;
    to[i] = lse == nothing ? INFINITY : lse;
  }
}

/// dkey_bias of the warp's keys, which begins anew.
FOCI_DEVICE void write_dbias(ShortKeys& sums, const ShortBackwardArgs& args, int h) {
  const ShortHead head(args.shape);
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float sum = quad_sum(sums.dbias[half]);
    const int j = int(threadIdx.x) / warp * 16 + 8 * half + lane() / 4;
    if (lane() % 4 == 0 && j < head.at.M)
      args.to.dkey_bias.store(sum, head.at.b, args.folded.key_head_bias ? head.g : h,
                              head.at.k0 + j);
    sums.dbias[half] = 0;
  }
}

/// All queries of a head, whose first ones are on their way, then the rest.
template <class B>
FOCI_DEVICE void walk(ShortKeys& sums, const ShortBackwardArgs& args, int h) {
  const int tiles = (args.shape.N + short_queries - 1) / short_queries;
  const int all = tiles * short_queries, early = min(early_queries, all);
#ifndef FOCI_EMULATED
#pragma unroll 1
#endif
  for (int tile = 0; tile < tiles; ++tile) {
    const int first = tile * short_queries;
    if (first == 0 || first == early_queries) {
      const int last = first == 0 ? early : all;
      take_deltas<B>(args, h, first, last, [&] {
        first == 0 ? await_copies<1>() : await_copies<0>();
        __syncthreads();
      });
      if constexpr (B::folds) fold_queries<B>(args.room, first, last);
      __syncthreads();
    }
    meet<B>(sums, args, h, tile);
  }
  __syncthreads();
  write_dq<B>(args, h, tiles - 1);
}

/// Two numbers of each row of the warp's.
template <DType type>
FOCI_DEVICE void write_sums(const Field& to, int plain, const ShortSums& sums,
                            const ShortHead& head, float scale) {
  if (!to) return;
  const int j = int(threadIdx.x) / warp * 16 + lane() / 4;
  const PairsOf<type> pairs(to, plain, head.at.b, head.g, head.at.k0 + j, 2 * (lane() % 4));
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (j + 8 * half >= head.at.M) continue;
    FOCI_UNROLL
    for (int n = 0; n < short_width / 8; ++n)
      pairs.store(8 * half, 8 * n, scale * sums[n][2 * half], scale * sums[n][2 * half + 1]);
  }
}

/// Keys, values and the first queries on their way, in three groups; m.
template <class B>
FOCI_DEVICE void begin(const ShortBackwardArgs& args, int h, int early, int all) {
  const ShortHead head(args.shape);
  const Place& at = head.at;
  const int threads = int(blockDim.x), rows = threads / warp * 16;
  const auto copy = [&](const Field& from, Address to) {
    bring(shared_address() + to, Lines::of(from, at.b, head.g, at.k0, at.M, short_width), 0, rows,
          int(threadIdx.x), threads);
  };
  copy(args.folded.v, args.room.v);
  commit_copies();
  copy(args.folded.k, args.room.k);
  bring_queries(args, h, 0, early);
  commit_copies();
  bring_queries(args, h, early, all);
  commit_copies();
  if constexpr (B::folds) {
    auto* room = reinterpret_cast<double*>(shared_memory() + args.room.ds);  // free as yet
    take_metric<B::type>(floats_at(args.room.m), args.metric, args.folded, at, head.s, head.g,
                         args.room.v, room, [] {
                           await_copies<2>();
                           __syncthreads();
                         });
  }
}

template <class B>
__global__ void __launch_bounds__(most_threads, 1) softmax_short_back(ShortBackwardArgs args) {
  const Shape& shape = args.shape;
  const int heads = shape.H / shape.G, first_head = int(blockIdx.y) * heads;
  const int all = (shape.N + short_queries - 1) / short_queries * short_queries;
  const int early = min(early_queries, all);
  begin<B>(args, first_head, early, all);
  ShortKeys sums;
  for (int h = first_head; h < first_head + heads; ++h) {
    if (h > first_head) {
      __syncthreads();
      bring_queries(args, h, 0, early);
      commit_copies();
      bring_queries(args, h, early, all);
      commit_copies();
    }
    take_lse(args, h, all);
    if constexpr (B::biased) {
      const ShortHead head(shape);
      FOCI_UNROLL
      for (int half = 0; half < 2; ++half)
        sums.bias[half] = KeyBias(args.folded, head.at, h, head.g,
                                  int(threadIdx.x) / warp * 16 + 8 * half + lane() / 4)
                              .bias;
    }
    walk<B>(sums, args, h);
    if (B::biased && args.to.dkey_bias &&
        (!args.folded.key_head_bias || h == first_head + heads - 1))
      write_dbias(sums, args, h);
  }
  const ShortHead head(shape);
  write_sums<B::type>(args.to.dk, args.plain, sums.dk, head, args.folded.scale);
  write_sums<B::type>(args.to.dv, args.plain, sums.dv, head, 1);
}

template <class B>
void launch_short(const ShortBackwardArgs& args, Stream stream) {
  const Shape& shape = args.shape;
  const unsigned threads = unsigned(parts(shape.M, 16)) * warp;
  launch("softmax_short_back", softmax_short_back<B>,
         {dim3(unsigned(shape.sequences), unsigned(shape.G)), threads, args.room.bytes}, stream,
         args);
}

template <DType type>
void choose_short(const ShortBackwardArgs& args, Stream stream) {
  if (args.folded.key_bias.data || args.folded.key_mask.data) {
    args.folded.m.data ? launch_short<ShortBackward<type, true, true>>(args, stream)
                       : launch_short<ShortBackward<type, true, false>>(args, stream);
  } else {
    args.folded.m.data ? launch_short<ShortBackward<type, false, true>>(args, stream)
                       : launch_short<ShortBackward<type, false, false>>(args, stream);
  }
}

}  // namespace

bool softmax_short_serves(const Shape& shape, const Folded& folded, const Saved& saved,
                          const TokenMean* mean) {
  return saved.lse.data && short_shape(shape, folded, mean) &&
         softmax_mma_serves(shape, folded, saved.d_o) &&
         ShortRoom(shape, folded.m.data != nullptr).bytes <= block_memory();
}

void softmax_short_backward(const Shape& shape, const Folded& folded, const Saved& saved,
                            const Sinks& to, const TokenMean* mean, Stream stream) {
  ShortBackwardArgs args{shape, folded, saved, to, {}, {shape, folded.m.data != nullptr}, 1};
  for (const Field* field : {&to.dq, &to.dk, &to.dv}) {
    if (!field->data) continue;
    bool plain = field->dtype == folded.v.dtype && field->strides[3] == 1;
    plain = plain && reinterpret_cast<std::uintptr_t>(field->data) % 4 == 0;
    for (int axis = 0; axis < 3; ++axis) plain = plain && field->strides[axis] % 2 == 0;
    args.plain = args.plain && plain;
  }
  if (mean) args.metric = {*mean, 1};
  folded.v.dtype == DType::bf16 ? choose_short<DType::bf16>(args, stream)
                                : choose_short<DType::f16>(args, stream);
}

}  // namespace foci::cuda
