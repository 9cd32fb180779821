// SPDX-License-Identifier: Apache-2.0
// The backward pass of every weighting over every score, in float. Weights are taken anew from what
// the forward pass left of each row. One kernel has keys and goes through queries (dk, dv,
// dkey_bias), one has queries and goes through keys (dq, dm): no sum is shared, so the same numbers
// come out every time.
#include "cuda/tile_score.cuh"
#include "cuda/tile_sight.cuh"

namespace foci::cuda {
namespace tile {
namespace {

struct Backward {
  Work work;
  Saved saved;
  Sinks to;
  Lines d_o, dq, dk, dv, dm;
};

/// Whether rows are divided by what depends on their scores: then delta is needed.
__host__ FOCI_DEVICE bool follows_divisor(const Weigh& how) {
  if (how.kind == Kind::softmax) return true;
  if (how.kind == Kind::decay || how.kind == Kind::decay_content) return false;
  return how.rescale == Rescale::l1 || how.rescale == Rescale::l2;
}

template <Score form, int W>
using BackwardTile = Tile<16, W == 256 ? 2 : 4,
                          form != Score::weighted ? (W == 256 ? 2 : 4)
                                                  : (W == 256   ? 1
                                                     : W == 128 ? 2
                                                                : 4),
                          W>;

/// What a tile knows of its queries and keys.
struct Notes {
  int *reach, *last_seen;  // of queries
  float *norm, *delta;     // of queries: lse, or by
  float* share;            // of queries: 1 over what lse makes a row of weights sum up to
  int* stands;             // of keys
  float* bias;             // of keys
};

/// Shared memory of a block: keys lie in rows and queries in columns, or the other way round.
template <class T, Score form, MetricOf whose>
struct Room {
  float *q, *d_o, *m, *k, *v, *weights;
  Notes notes;

  static constexpr bool rows_ask = whose == MetricOf::rows;
  static constexpr int asking = rows_ask ? T::rows : T::columns;
  static constexpr int asked = rows_ask ? T::columns : T::rows;
  static constexpr int metric_lines = form == Score::weighted ? asking : 0;
  static constexpr std::size_t bytes =
      sizeof(float) *
      ((2 * asking + metric_lines + 2 * asked) * T::pitch + T::weights + 5 * asking + 2 * asked);

  FOCI_DEVICE Room() {
    float* at = reinterpret_cast<float*>(shared_memory());
    const auto take = [&](int floats) {
      float* taken = at;
      at += floats;
      return taken;
    };
    q = take(asking * T::pitch);
    d_o = take(asking * T::pitch);
    m = take(metric_lines * T::pitch);
    k = take(asked * T::pitch);
    v = take(asked * T::pitch);
    weights = take(T::weights);
    notes.reach = reinterpret_cast<int*>(take(asking));
    notes.last_seen = reinterpret_cast<int*>(take(asking));
    notes.norm = take(asking);
    notes.delta = take(asking);
    notes.share = take(asking);
    notes.stands = reinterpret_cast<int*>(take(asked));
    notes.bias = take(asked);
  }
};

/// Queries of a tile.
struct Asking {
  Place at;
  int h, i0, count;
};

/// Their lines and notes, zeros and nothing to see beyond the last.
template <class T, class Room>
FOCI_DEVICE void load_queries(const Room& room, const Backward& args, const Asking& ask) {
  const Work& work = args.work;
  const int token = ask.at.q0 + ask.i0;
  const auto within = [&](int row) { return row < ask.count; };
  const auto load = [&](float* to, const Lines& lines) {
    load_lines<T, Room::asking>(to, lines, lines.of.offset(ask.at.b, ask.h, token), within);
  };
  load(room.d_o, args.d_o);
  if (work.scored()) load(room.q, work.q);
  if constexpr (Room::metric_lines > 0) load(room.m, work.m);
  if (work.fades()) find_last_seen(room.notes.last_seen, work, ask.at, ask.i0, ask.count);
  for (int i = int(threadIdx.x); i < Room::asking; i += T::threads) {
    int reach = 0;
    float norm = 0, delta = 0, share = 1;
    if (i < ask.count) {
      const std::int64_t line =
          (std::int64_t(ask.at.b) * work.shape.H + ask.h) * work.shape.N + token + i;
      const bool softmax = work.weigh.kind == Kind::softmax;
      norm = softmax ? args.saved.lse.load(ask.at.b, ask.h, token + i) : args.saved.by[line];
      const bool none = softmax ? norm == -INFINITY : norm == 0;  // a row of zeros
      reach = none ? 0 : work.shape.reach(ask.at, ask.i0 + i);
      if (follows_divisor(work.weigh)) delta = args.saved.delta[line];
      if (softmax && args.saved.share) share = args.saved.share[line];
    }
    room.notes.reach[i] = reach;
    room.notes.norm[i] = norm;
    room.notes.delta[i] = delta;
    room.notes.share[i] = share;
  }
}

/// A weight, and the gradient of its score, or its own.
struct Weighed {
  float a, ds;
};

/// What a query's row is known by.
struct Known {
  float norm, delta, share;
  int last_seen;
};

/// From a score and da to the weight and ds, for a key that stands where its query sees it.
FOCI_DEVICE Weighed weigh_back(const Weigh& how, float s, float da, const Known& row, int stands) {
  if (how.kind == Kind::softmax) {
    const float a = row.share * expf(s - row.norm);
    return {a, a * (da - row.delta)};
  }
  if (how.kind == Kind::decay || how.kind == Kind::decay_content) {
    const float w = power_of_two(float(row.last_seen - stands) * how.log2_rate) / row.norm;
    if (how.kind == Kind::decay) return {w, 0};
    return {w * s, w * da};
  }
  const float positive = s < 0 ? 0 : s;
  const float x = how.kind == Kind::relu2 ? positive * positive : s;
  const float slope = how.kind == Kind::relu2 ? 2 * positive : 1;
  const float a = x / row.norm;
  float through = 0;  // d by / d x, times the row's part along a
  if (how.rescale == Rescale::l1)
    through = how.features || a > 0 ? row.delta : a < 0 ? -row.delta : 0;
  if (how.rescale == Rescale::l2) through = a * row.delta;
  return {a, slope * ((da - through) / row.norm)};
}

/// s and da of a tile to weights and ds.
template <class T, MetricOf whose>
FOCI_DEVICE void weigh_tile(float (&s)[T::each_row][T::each_column],
                            float (&da)[T::each_row][T::each_column], const Weigh& how,
                            const Notes& notes, float scale) {
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) {
      const int row = ty() + r * T::down, column = tx() + c * across;
      const int i = whose == MetricOf::rows ? row : column;
      const int j = whose == MetricOf::rows ? column : row;
      const int stands = notes.stands[j];
      Weighed to{0, 0};
      if (stands < notes.reach[i]) {
        const Known known{notes.norm[i], notes.delta[i], notes.share[i], notes.last_seen[i]};
        to = weigh_back(how, scale * s[r][c] + notes.bias[j], da[r][c], known, stands);
      }
      s[r][c] = to.a;
      da[r][c] = to.ds;
    }
  }
}

/// to += weights (y - own), on the way to keys times the m of y's line; squares += weights
/// (y - own)^2 where there are some.
template <class T, bool weighted>
FOCI_DEVICE void gather_apart(Sums<T>& to, Sums<T>* squares, const float* weights, const float* y,
                              const float* own, const float* m) {
  float4 mine[T::each_row][T::quads];
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    FOCI_UNROLL
    for (int quad = 0; quad < T::quads; ++quad)
      mine[r][quad] = load4(quad_of<T>(own, ty() + r * T::down, quad));
  }
  over_columns<T>(weights, [&](const float* w, int column, int quad) {
    const float4 line = load4(quad_of<T>(y, column, quad));
    float4 by = make_float4(1, 1, 1, 1);
    if constexpr (weighted) by = load4(quad_of<T>(m, column, quad));
    FOCI_UNROLL
    for (int r = 0; r < T::each_row; ++r) {
      const float4 apart = minus(line, mine[r][quad]);
      add(to.at[r][quad], w[r], weighted ? times(by, apart) : apart);
      if (squares) add(squares->at[r][quad], w[r], times(apart, apart));
    }
  });
}

/// A block's keys and what gathers for them.
template <class T>
struct KeySums {
  Sums<T> dk, dv;
  float dbias[T::each_row];
};

/// One tile of queries gives the block's keys their part.
template <Score form, int W, class Room>
FOCI_DEVICE void pull_keys(KeySums<BackwardTile<form, W>>& to, const Room& room,
                           const Backward& args, const Asking& ask, float scale) {
  using T = BackwardTile<form, W>;
  const Work& work = args.work;
  __syncthreads();
  load_queries<T>(room, args, ask);
  __syncthreads();
  float s[T::each_row][T::each_column] = {}, da[T::each_row][T::each_column] = {};
  if (work.scored()) {
    score_lines<T, form, MetricOf::columns>(s, room.k, room.q, room.m, work.shape);
    score<T, Score::product>(da, room.v, room.d_o, room.v, work.shape.E);
  }
  weigh_tile<T, MetricOf::columns>(s, da, work.weigh, room.notes, scale);
  put<T>(room.weights, s);
  __syncthreads();
  gather<T>(to.dv, room.weights, room.d_o);
  if (!work.scored()) return;
  __syncthreads();
  put<T>(room.weights, da);
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    FOCI_UNROLL
    for (int c = 0; c < T::each_column; ++c) to.dbias[r] += da[r][c];
  }
  __syncthreads();
  if constexpr (form == Score::product) {
    gather<T>(to.dk, room.weights, room.q);
  } else {
    gather_apart<T, form == Score::weighted>(to.dk, nullptr, room.weights, room.q, room.k, room.m);
  }
}

/// dkey_bias of the block's keys, and a new beginning.
template <class T>
FOCI_DEVICE void store_bias(const Backward& args, const Place& at, int head, int j0,
                            float (&dbias)[T::each_row]) {
  const Field& to = args.to.dkey_bias;
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    const int j = j0 + ty() + r * T::down;
    float sum = sum_across(dbias[r]);
    dbias[r] = 0;
    if (!to || tx() != 0 || j >= at.M) continue;
    if (args.work.folded.spans) sum += to.load(at.b, head, at.k0 + j);
    to.store(sum, at.b, head, at.k0 + j);
  }
}

/// Keys j0 ... of one key head: the queries of every chunk and of every head that shares them.
template <Score form, int W>
__global__ void __launch_bounds__(16 * across, W == 64 ? 2 : 1) keys_kernel(Backward args) {
  using T = BackwardTile<form, W>;
  const Room<T, form, MetricOf::columns> room;
  const Work& work = args.work;
  const unsigned tiles = unsigned((work.shape.longest_m + T::rows - 1) / T::rows);
  const int j0 = int(blockIdx.x % tiles) * T::rows;
  const int g = int(blockIdx.x / tiles % unsigned(work.shape.G));
  const int s = int(blockIdx.x / tiles / unsigned(work.shape.G));
  const Place at = work.shape.place(s);
  if (j0 >= at.M || elsewhere(work, s, g)) return;
  const int count = min(T::rows, at.M - j0), heads = work.heads_per_key();
  const auto kept = [&](int row) { return keeps(work, at, j0 + row); };
  // The first query that sees key j0.
  const int first = work.shape.causal ? max(0, j0 - at.first_seen) : 0;
  load_lines<T, T::rows>(room.v, work.v, work.v.of.offset(at.b, g, at.k0 + j0), kept);
  for (int row = int(threadIdx.x); row < T::rows; row += T::threads)
    room.notes.stands[row] = stand_of(work, at, j0 + row);
  KeySums<T> sums;
  sums.dv.clear();
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) sums.dbias[r] = 0;
  for (int c = 0; c < work.chunks(); ++c) {
    const Span span = span_of(work, at, s, c);
    const int seen = span.first < span.last ? work.shape.reach(at, span.last - 1) : 0;
    const auto known = [&](int row) { return j0 + row < seen && kept(row); };  // in this chunk
    __syncthreads();
    if (work.scored())
      load_lines<T, T::rows>(room.k, work.k, key_offset(work, work.k.of, at, c, g, j0), known);
    sums.dk.clear();
    for (int h = g * heads; h < (g + 1) * heads; ++h) {
      for (int row = int(threadIdx.x); row < T::rows; row += T::threads)
        room.notes.bias[row] = bias_of(work, at, h, g, j0 + row);
      for (int i0 = max(span.first, first); i0 < span.last; i0 += T::columns) {
        const Asking ask{at, h, i0, min(T::columns, span.last - i0)};
        pull_keys<form, W>(sums, room, args, ask, work.template scale<form>(s, g));
      }
      if (!work.folded.key_head_bias) store_bias<T>(args, at, h, j0, sums.dbias);
    }
    FOCI_UNROLL
    for (int r = 0; r < T::each_row; ++r) sums.dk.scale_row(r, work.c(s, g));
    if (args.to.dk)
      store_lines<T>(args.dk, key_offset(work, args.dk.of, at, c, g, j0), count, sums.dk, room.k);
  }
  if (work.folded.key_head_bias) store_bias<T>(args, at, g, j0, sums.dbias);
  if (args.to.dv)
    store_lines<T>(args.dv, args.dv.of.offset(at.b, g, at.k0 + j0), count, sums.dv, room.v,
                   work.folded.spans != nullptr);
}

/// What gathers for a block's queries.
template <class T, Score form>
struct QuerySums {
  Sums<T> dq;
};
template <class T>
struct QuerySums<T, Score::weighted> {
  Sums<T> dq, dm;
};

/// dq and dm of a tile of queries, c and m in them.
template <class T, Score form, class Room>
FOCI_DEVICE void store_queries(QuerySums<T, form>& sums, const Room& room, const Backward& args,
                               const Asking& ask, float c) {
  const std::int64_t token = ask.at.q0 + ask.i0;
  FOCI_UNROLL
  for (int r = 0; r < T::each_row; ++r) {
    sums.dq.scale_row(r, c);
    if constexpr (form == Score::weighted) {
      sums.dm.scale_row(r, -0.5f * c);
      FOCI_UNROLL
      for (int quad = 0; quad < T::quads; ++quad) {
        const float4 m = load4(quad_of<T>(room.m, ty() + r * T::down, quad));
        sums.dq.at[r][quad] = times(sums.dq.at[r][quad], m);
      }
    }
  }
  if (args.to.dq)
    store_lines<T>(args.dq, args.dq.of.offset(ask.at.b, ask.h, token), ask.count, sums.dq, room.q);
  if constexpr (form == Score::weighted) {
    if (args.to.dm)
      store_lines<T>(args.dm, args.dm.of.offset(ask.at.b, ask.h, token), ask.count, sums.dm,
                     room.d_o);
  }
}

/// The queries of one tile, from i0 on.
template <Score form, int W>
FOCI_DEVICE void pull_queries(const Backward& args, const Seat& seat, int i0, int last) {
  using T = BackwardTile<form, W>;
  const Room<T, form, MetricOf::rows> room;
  const Work& work = args.work;
  const Asking ask{seat.at, seat.h, i0, min(T::rows, last - i0)};
  const auto kept = [&](int column) { return room.notes.stands[column] != nowhere; };
  const auto note_keys = [&](int j0) {
    for (int j = int(threadIdx.x); j < T::columns; j += T::threads) {
      room.notes.stands[j] = stand_of(work, seat.at, j0 + j);
      room.notes.bias[j] = bias_of(work, seat.at, seat.h, seat.g, j0 + j);
    }
  };
  __syncthreads();  // the tile before is done
  load_queries<T>(room, args, ask);
  note_keys(0);
  QuerySums<T, form> sums;
  sums.dq.clear();
  if constexpr (form == Score::weighted) sums.dm.clear();
  const int keys = work.scored() ? work.shape.reach(seat.at, i0 + ask.count - 1) : 0;
  for (int j0 = 0; j0 < keys; j0 += T::columns) {
    __syncthreads();
    load_lines<T, T::columns>(room.k, work.k,
                              key_offset(work, work.k.of, seat.at, seat.c, seat.g, j0), kept);
    load_lines<T, T::columns>(room.v, work.v, work.v.of.offset(seat.at.b, seat.g, seat.at.k0 + j0),
                              kept);
    __syncthreads();
    float s[T::each_row][T::each_column] = {}, da[T::each_row][T::each_column] = {};
    score_lines<T, form>(s, room.q, room.k, room.m, work.shape);
    score<T, Score::product>(da, room.d_o, room.v, room.v, work.shape.E);
    weigh_tile<T, MetricOf::rows>(s, da, work.weigh, room.notes,
                                  work.template scale<form>(seat.s, seat.g));
    put<T>(room.weights, da);
    __syncthreads();
    note_keys(j0 + T::columns);
    if constexpr (form == Score::product) {
      gather<T>(sums.dq, room.weights, room.k);
    } else if constexpr (form == Score::difference) {
      gather_apart<T, false>(sums.dq, nullptr, room.weights, room.k, room.q, nullptr);
    } else {
      gather_apart<T, false>(sums.dq, &sums.dm, room.weights, room.k, room.q, nullptr);
    }
  }
  store_queries<T>(sums, room, args, ask, work.c(seat.s, seat.g));
}

template <Score form, int W>
__global__ void __launch_bounds__(16 * across, W == 64 ? 2 : 1) queries_kernel(Backward args) {
  const Seat seat = seat_of(args.work);
  if (elsewhere(args.work, seat.s, seat.g)) return;
  const Span span = span_of(args.work, seat.at, seat.s, seat.c);
  const int rows = BackwardTile<form, W>::rows;
  for (int i0 = span.first + seat.part * rows; i0 < span.last; i0 += args.work.parts * rows)
    pull_queries<form, W>(args, seat, i0, span.last);
}

/// A weight and da of one key, summed in the order of the tiles.
FOCI_DEVICE Weighed along(const Backward& args, const Seat& seat, int i, int j, float norm) {
  const Work& work = args.work;
  const Score form = work.folded.score;
  const int b = seat.at.b, token = seat.at.q0 + i;
  const Field &q = work.folded.q, &k = work.folded.k, &v = work.folded.v, &m = work.folded.m;
  const std::int64_t q_at = q.offset(b, seat.h, token), m_at = m.offset(b, seat.h, token);
  const std::int64_t k_at = key_offset(work, k, seat.at, seat.c, seat.g, j);
  const std::int64_t d_o_at = args.saved.d_o.offset(b, seat.h, token);
  const std::int64_t v_at = v.offset(b, seat.g, seat.at.k0 + j);
  const bool exactly = form == Score::difference && work.shape.longest_m <= few;
  float s = 0, da = 0;
  double sum = 0;
  for (int d = 0; d < work.shape.D; ++d) {
    const float x = q.load_at(q_at + d * work.q.coordinate);
    const float y = k.load_at(k_at + d * work.k.coordinate);
    if (exactly) {
      meet_exactly(sum, x, y);
    } else if (form == Score::product) {
      meet<Score::product>(s, x, y, 1);
    } else if (form == Score::weighted && m) {
      meet<Score::weighted>(s, x, y, m.load_at(m_at + d * work.m.coordinate));
    } else {
      meet<Score::difference>(s, x, y, 1);
    }
  }
  for (int e = 0; e < work.shape.E; ++e)
    da = fmaf(args.saved.d_o.load_at(d_o_at + e * args.d_o.coordinate),
              v.load_at(v_at + e * work.v.coordinate), da);
  const float scale = form == Score::product ? work.scale<Score::product>(seat.s, seat.g)
                                             : work.scale<Score::difference>(seat.s, seat.g);
  s = scale * (exactly ? float(sum) : s) + bias_of(work, seat.at, seat.h, seat.g, j);
  return {weigh_back(work.weigh, s, da, {norm, 0, 1, 0}, j).a, da};
}

/// delta = sum_j a_ij da_ij = o . d_o, a warp a row.
__global__ void __launch_bounds__(256) delta_kernel(Backward args) {
  const Work& work = args.work;
  const Seat seat = seat_of(work);
  if (elsewhere(work, seat.s, seat.g)) return;
  const Span span = span_of(work, seat.at, seat.s, seat.c);
  const Field &o = args.saved.o, &d_o = args.saved.d_o;
  const int rows = int(blockDim.x) / warp, b = seat.at.b, h = seat.h;
  for (int i = span.first + seat.part * rows + int(threadIdx.x) / warp; i < span.last;
       i += work.parts * rows) {
    const int token = seat.at.q0 + i, reach = work.shape.reach(seat.at, i);
    const std::int64_t line = (std::int64_t(b) * work.shape.H + h) * work.shape.N + token;
    float sum = 0, whole = 0;
    // o . d_o and lse are rounded, and where few keys share a row ds is the small rest of a
    // difference: a and a da are added up key by key.
    if (reach <= few) {
      const float norm = args.saved.lse ? args.saved.lse.load(b, h, token) : args.saved.by[line];
      const bool none = args.saved.lse ? norm == -INFINITY : norm == 0;
      for (int j = lane(); j < reach && !none; j += warp) {
        if (!keeps(work, seat.at, j)) continue;
        const Weighed of = along(args, seat, i, j, norm);
        sum += of.a * of.ds;
        whole += of.a;
      }
    } else {
      const std::int64_t o_at = o.offset(b, h, token), d_o_at = d_o.offset(b, h, token);
      for (int e = lane(); e < work.shape.E; e += warp)
        sum += o.load_at(o_at + e * o.strides[3]) * d_o.load_at(d_o_at + e * d_o.strides[3]);
    }
    sum = warp_sum(sum);
    whole = warp_sum(whole);
    if (lane() > 0) continue;
    const float share = whole > 0 && work.weigh.kind == Kind::softmax ? 1 / whole : 1;
    args.saved.delta[line] = share * sum;
    if (args.saved.share) args.saved.share[line] = share;
  }
}

template <Score form, int W>
void launch_backward(Backward args, Stream stream) {
  using T = BackwardTile<form, W>;
  using Keys = Room<T, form, MetricOf::columns>;
  using Queries = Room<T, form, MetricOf::rows>;
  static_assert(Keys::bytes <= 160 * 1024 && Queries::bytes <= 160 * 1024);
  const Shape& shape = args.work.shape;
  args.work = work_of(shape, args.work.folded, args.work.weigh, T::rows);
  const std::int64_t key_blocks =
      std::int64_t(shape.sequences) * shape.G * parts(shape.longest_m, T::rows);
  const auto any = [](const Field& a, const Field& b, const Field& c) {
    return a.data || b.data || c.data;
  };
  if (any(args.to.dk, args.to.dv, args.to.dkey_bias)) {
    launch("tile_backward: keys", keys_kernel<form, W>,
           {dim3(unsigned(key_blocks)), dim3(T::threads), Keys::bytes}, stream, args);
  }
  if (any(args.to.dq, args.to.dm, {})) {
    launch("tile_backward: queries", queries_kernel<form, W>,
           {dim3(unsigned(query_blocks(args.work))), dim3(T::threads), Queries::bytes}, stream,
           args);
  }
}

}  // namespace
}  // namespace tile

void tile_backward(const Shape& shape, const Folded& folded, const Weigh& weigh, const Saved& saved,
                   const Sinks& to, Stream stream) {
  using tile::lines_of;
  tile::Backward args{{shape, folded, weigh, {}, {}, {}, {}, 1}, saved, to, {}, {}, {}, {}, {}};
  args.d_o = lines_of(saved.d_o, 4, shape.E);
  args.dq = lines_of(to.dq, 4, shape.D);
  args.dk = lines_of(to.dk, folded.spans ? 5 : 4, shape.D);
  args.dv = lines_of(to.dv, 4, shape.E);
  args.dm = lines_of(to.dm, 4, shape.D);
  if (tile::follows_divisor(weigh)) {
    constexpr int threads = 256;
    args.work = tile::work_of(shape, folded, weigh, threads / warp);
    launch("tile_backward: delta", tile::delta_kernel,
           {dim3(unsigned(tile::query_blocks(args.work))), dim3(threads)}, stream, args);
  }
  tile::with_form(shape, folded, [&](auto form, auto width) {
    tile::launch_backward<form(), width()>(args, stream);
  });
}

}  // namespace foci::cuda
