// SPDX-License-Identifier: Apache-2.0
// A block has eight lines, a warp each, and goes through the lines that they meet 32 at a time, a
// lane each: queries through keys (o, dq, dm), and on the way back keys through queries (dk, dv,
// dkey_bias). Each pair's sums are taken in one order, so that both ways find the same weights.
#include "cuda/few_keys.cuh"

#include "cuda/chunked.cuh"
#include "cuda/runs.cuh"
#include "cuda/tile_sight.cuh"

namespace foci::cuda {
namespace few {
namespace {

using tile::Lines;
using tile::lines_of;
using tile::Seat;
using tile::Work;

constexpr int owners = 8, threads = owners * warp;  // lines of a block
constexpr int turns = few_keys / warp;              // keys of a lane
constexpr int most_width = 256, columns = most_width / warp;

struct Call {
  Work work;
  Rows rows;  // forward
  Lines o;
  Lines d_o, dq, dk, dv, dm;  // backward
  Sinks to;
  double* notes;  // (B,H,N,2)

  FOCI_DEVICE double* note(const Place& at, int h, int i) const {
    const Shape& shape = work.shape;
    return notes + ((std::int64_t(at.b) * shape.H + h) * shape.N + at.q0 + i) * 2;
  }
  FOCI_DEVICE bool has_metric() const { return work.folded.m.data != nullptr; }
  FOCI_DEVICE double c(const Seat& seat) const {
    const Folded& folded = work.folded;
    const int head = seat.s * work.shape.G + seat.g;
    return double(folded.scale) * (folded.scales ? double(folded.scales[head]) : 1.0);
  }
};

FOCI_DEVICE int my_warp() { return int(threadIdx.x) / warp; }

/// Shared memory: lines of one width, neighbours in different banks.
template <class T>
struct Shelf {
  T* at;
  int pitch;
  FOCI_DEVICE T* line(int n) const { return at + n * pitch; }
};

struct Room {
  double *a, *ds;       // (8, 64)
  Shelf<double> m;      // of queries: 8 or 32 lines
  Shelf<float> q, d_o;  // the same
  Shelf<float> k, v;    // of keys: 32 or 8

  /// `asking` queries and `asked` keys.
  FOCI_DEVICE Room(const Shape& shape, int asking, int asked) {
    a = reinterpret_cast<double*>(shared_memory());
    ds = a + owners * few_keys;
    m = {ds + owners * few_keys, shape.D + 1};
    float* free = reinterpret_cast<float*>(m.line(asking));
    const auto take = [&](int lines, int width) {
      const Shelf<float> shelf{free, width + 1};
      free += lines * shelf.pitch;
      return shelf;
    };
    q = take(asking, shape.D);
    d_o = take(asking, shape.E);
    k = take(asked, shape.D);
    v = take(asked, shape.E);
  }
  static std::size_t bytes(const Shape& shape, int asking, int asked) {
    const std::size_t D = std::size_t(shape.D) + 1, E = std::size_t(shape.E) + 1;
    const std::size_t floats = std::size_t(asking + asked) * (D + E);
    return sizeof(double) * (2 * owners * few_keys + std::size_t(asking) * D) +
           sizeof(float) * floats;
  }
};

/// `count` lines from offset `from` on, zeros behind them; a warp a line.
template <class T>
FOCI_DEVICE void load(const Shelf<T>& to, const Lines& lines, std::int64_t from, int room,
                      int count) {
  for (int n = my_warp(); n < room; n += owners) {
    for (int d = lane(); d < lines.width; d += warp)
      to.line(n)[d] =
          n < count ? number_at<T>(lines.of, from + n * lines.token + d * lines.coordinate) : T(0);
  }
}

/// A warp's line of sums, or what is added to it; lane x has columns x, x + 32, ...
FOCI_DEVICE void store(const Lines& to, std::int64_t from, const double (&x)[columns], bool onto) {
  FOCI_UNROLL
  for (int n = 0; n < columns; ++n) {
    const int d = lane() + n * warp;
    if (d >= to.width) continue;
    const std::int64_t at = from + d * to.coordinate;
    to.of.store_at(at, float(onto ? double(to.of.load_at(at)) + x[n] : x[n]));
  }
}

/// What a query and a key have to do with each other, but for c. m: nullptr where there is none.
FOCI_DEVICE double meet(Score form, const float* q, const float* k, const double* m, int D) {
  double sum = 0;
  for (int d = 0; d < D; ++d) {
    const double x = q[d], y = k[d], by = m ? m[d] : 1.0;
    sum = form == Score::product ? fma(by * x, y, sum) : fma(by * (x - y), x - y, sum);
  }
  return sum;
}

FOCI_DEVICE double score(const Call& call, const Seat& seat, const Room& room, int query, int key,
                         int j) {
  const Work& work = call.work;
  const Score form = work.folded.score;
  const double c = call.c(seat);
  const double* m = call.has_metric() ? room.m.line(query) : nullptr;
  const double sum = meet(form, room.q.line(query), room.k.line(key), m, work.shape.D);
  return (form == Score::product ? c : -0.5 * c) * sum +
         double(tile::bias_of(work, seat.at, seat.h, seat.g, j));
}

FOCI_DEVICE double pull(const Call& call, const Room& room, int query, int key) {
  return meet(Score::product, room.d_o.line(query), room.v.line(key), nullptr, call.work.shape.E);
}

/// x of a score, its slope.
struct Value {
  double x, slope;
};
FOCI_DEVICE Value value_of(const Weigh& how, double s) {
  if (how.kind != Kind::relu2) return {s, 1};
  const double positive = s < 0 ? 0 : s;  // NaN stays NaN
  return {positive * positive, 2 * positive};
}

FOCI_DEVICE double warp_largest(double x) {
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) x = fmax(x, __shfl_xor_sync(~0u, x, step));
  return x;
}

/// What the weights of a row follow from: lse of softmax, else what x is divided by; n keys seen.
struct Norm {
  double by;
  int n;
  FOCI_DEVICE bool none(const Weigh& how) const {
    return how.kind == Kind::softmax ? by == -INFINITY : by == 0;
  }
};

/// By a warp: a lane has the scores of keys lane(), lane() + 32.
FOCI_DEVICE Norm norm_of(const Weigh& how, const double (&s)[turns], const bool (&seen)[turns]) {
  double top = -INFINITY, sum = 0, squares = 0, count = 0;
  FOCI_UNROLL
  for (int t = 0; t < turns; ++t) {
    top = seen[t] ? fmax(top, s[t]) : top;
    count += seen[t] ? 1 : 0;
  }
  const int n = int(warp_total(count));
  if (how.kind == Kind::softmax) {
    top = warp_largest(top);
    const double from = top == -INFINITY ? 0 : top;  // -inf - -inf would be NaN
    FOCI_UNROLL
    for (int t = 0; t < turns; ++t) sum += seen[t] ? exp(s[t] - from) : 0;
    sum = warp_total(sum);
    return {sum == 0 ? -INFINITY : from + log(sum), n};
  }
  FOCI_UNROLL
  for (int t = 0; t < turns; ++t) {
    const double x = seen[t] ? value_of(how, s[t]).x : 0;
    sum += fabs(x);
    squares += x * x;
  }
  if (how.rescale == Rescale::l1) return {warp_total(sum), n};
  if (how.rescale == Rescale::l2) return {sqrt(warp_total(squares)), n};
  return {how.rescale == Rescale::length ? double(n) : n > 0 ? 1.0 : 0.0, n};
}

FOCI_DEVICE double weight_of(const Weigh& how, double s, const Norm& norm) {
  if (norm.none(how)) return 0;
  return how.kind == Kind::softmax ? exp(s - norm.by) : value_of(how, s).x / norm.by;
}

/// ds, from a weight and its gradient.
FOCI_DEVICE double pull_back(const Weigh& how, double s, double a, double da, const Norm& norm,
                             double delta) {
  if (norm.none(how)) return 0;
  if (how.kind == Kind::softmax) return a * (da - delta);
  double through = 0;  // d by / d x, times the row's part along a
  if (how.rescale == Rescale::l1) through = a > 0 ? delta : a < 0 ? -delta : 0;
  if (how.rescale == Rescale::l2) through = a * delta;
  return value_of(how, s).slope * ((da - through) / norm.by);
}

/// The largest of a row and the first place it is at; NaN is larger than anything.
struct Best {
  double size = 0;
  int at = -1;
  FOCI_DEVICE void take(const Best& other) {
    const bool more = other.size > size || (other.size != other.size && size == size);
    const bool same = other.size == size || (other.size != other.size && size != size);
    if (other.at < 0 || !(at < 0 || more || (same && other.at < at))) return;
    *this = other;
  }
};

/// What a row of weights says about itself; by a warp.
FOCI_DEVICE void write_facts(const Call& call, const Seat& seat, int i, const double (&a)[turns],
                             const bool (&seen)[turns], const Norm& norm) {
  double sum = 0, squares = 0, entropy = 0;
  Best best;
  FOCI_UNROLL
  for (int t = 0; t < turns; ++t) {
    if (!seen[t]) continue;
    best.take({fabs(a[t]), lane() + t * warp});
  }
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2)
    best.take({__shfl_xor_sync(~0u, best.size, step), __shfl_xor_sync(~0u, best.at, step)});
  FOCI_UNROLL
  for (int t = 0; t < turns; ++t) {
    if (!seen[t] || a[t] == 0) continue;
    sum += fabs(a[t]) / best.size;  // squares of squares leave the range early
    squares += a[t] / best.size * (a[t] / best.size);
    entropy -= a[t] * log(a[t]);
  }
  sum = warp_total(sum), squares = warp_total(squares), entropy = warp_total(entropy);
  if (lane() > 0) return;
  const Rows& to = call.rows;
  const auto put = [&](const Field& field, double x) {
    if (field) field.store(float(x), seat.at.b, seat.h, seat.at.q0 + i);
  };
  const double concentration = best.size == 0 ? 0 : sum / sqrt(double(norm.n) * squares);
  put(to.lse, norm.by);
  put(to.concentration, concentration);
  put(to.effective_keys, double(norm.n) * concentration * concentration);
  put(to.entropy, entropy);
  put(to.largest, best.size);
  if (!to.largest_at) return;
  const std::int64_t at = to.largest_at.offset(seat.at.b, seat.h, seat.at.q0 + i);
  static_cast<std::int64_t*>(to.largest_at.data)[at] = best.at;
}

/// The queries of one block.
struct Asking {
  Seat seat;
  int i0, count;
  FOCI_DEVICE int mine() const { return i0 + my_warp(); }
  FOCI_DEVICE bool works() const { return my_warp() < count; }
};

/// Calls f for every eight queries of the block's chunk.
template <class F>
FOCI_DEVICE void each_eight(const Call& call, const F& f) {
  const Seat seat = tile::seat_of(call.work);
  const tile::Span span = tile::span_of(call.work, seat.at, seat.s, seat.c);
  for (int i0 = span.first + seat.part * owners; i0 < span.last; i0 += call.work.parts * owners)
    f(Asking{seat, i0, min(owners, span.last - i0)});
}

FOCI_DEVICE void load_queries(const Room& room, const Call& call, const Seat& seat, int i0,
                              int lines, int count, bool back) {
  const Work& work = call.work;
  const std::int64_t token = seat.at.q0 + i0;
  load(room.q, work.q, work.q.of.offset(seat.at.b, seat.h, token), lines, count);
  if (call.has_metric()) {
    const int head = work.folded.key_head_m ? seat.g : seat.h;
    load(room.m, work.m, work.m.of.offset(seat.s, head, token), lines, count);
  }
  if (back) load(room.d_o, call.d_o, call.d_o.of.offset(seat.at.b, seat.h, token), lines, count);
}

/// Keys j0 ... j0 + lines - 1, or their values.
FOCI_DEVICE void load_keys(const Room& room, const Call& call, const Seat& seat, int j0,
                           int lines) {
  const Work& work = call.work;
  load(room.k, work.k, tile::key_offset(work, work.k.of, seat.at, seat.c, seat.g, j0), lines,
       min(lines, seat.at.M - j0));
}
FOCI_DEVICE void load_values(const Room& room, const Call& call, const Seat& seat, int j0,
                             int lines) {
  const Work& work = call.work;
  load(room.v, work.v, work.v.of.offset(seat.at.b, seat.g, seat.at.k0 + j0), lines,
       min(lines, seat.at.M - j0));
}

/// What a warp's query finds of the keys.
struct Found {
  double s[turns], da[turns];
  bool seen[turns];
  unsigned lanes[turns];  // that see their key: what is not seen may be NaN
};

/// Loads keys 32 at a time, values with them on the way back, and meets them.
FOCI_DEVICE void meet_keys(Found& to, const Call& call, const Asking& ask, const Room& room,
                           bool back) {
  const Work& work = call.work;
  const Seat& seat = ask.seat;
  const int reach = ask.works() ? work.shape.reach(seat.at, ask.mine()) : 0;
  FOCI_UNROLL
  for (int t = 0; t < turns; ++t) {
    const int j = lane() + t * warp;
    to.s[t] = to.da[t] = 0;
    to.seen[t] = j < reach && tile::keeps(work, seat.at, j);
    to.lanes[t] = __ballot_sync(~0u, to.seen[t]);
    if (t * warp >= seat.at.M) continue;  // as for all threads
    __syncthreads();
    load_keys(room, call, seat, t * warp, warp);
    if (back) load_values(room, call, seat, t * warp, warp);
    __syncthreads();
    if (!to.seen[t]) continue;
    to.s[t] = score(call, seat, room, my_warp(), lane(), j);
    if (back) to.da[t] = pull(call, room, my_warp(), lane());
  }
}

__global__ void __launch_bounds__(threads) attend_few(Call call) {
  const Room room(call.work.shape, owners, warp);
  each_eight(call, [&](const Asking& ask) {
    const Seat& seat = ask.seat;
    const Weigh& how = call.work.weigh;
    __syncthreads();
    load_queries(room, call, seat, ask.i0, owners, ask.count, false);
    Found found;
    meet_keys(found, call, ask, room, false);
    const Norm norm = norm_of(how, found.s, found.seen);
    double a[turns];
    FOCI_UNROLL
    for (int t = 0; t < turns; ++t) {
      a[t] = found.seen[t] ? weight_of(how, found.s[t], norm) : 0;
      room.a[my_warp() * few_keys + lane() + t * warp] = a[t];
    }
    if (ask.works()) write_facts(call, seat, ask.mine(), a, found.seen, norm);
    double o[columns] = {};
    for (int j0 = 0; call.rows.o && j0 < seat.at.M; j0 += warp) {
      __syncthreads();
      load_values(room, call, seat, j0, warp);
      __syncthreads();
      for (int n = 0; n < min(warp, seat.at.M - j0); ++n) {
        if ((found.lanes[j0 / warp] >> n & 1) == 0) continue;
        const double by = room.a[my_warp() * few_keys + j0 + n];
        FOCI_UNROLL
        for (int x = 0; x < columns; ++x) {
          const int e = lane() + x * warp;
          if (e < call.work.shape.E) o[x] = fma(by, double(room.v.line(n)[e]), o[x]);
        }
      }
    }
    if (call.rows.o && ask.works())
      store(call.o, call.o.of.offset(seat.at.b, seat.h, seat.at.q0 + ask.mine()), o, false);
  });
}

/// dq and dm from ds of the warp's query.
FOCI_DEVICE void pull_query(const Call& call, const Asking& ask, const Room& room,
                            const unsigned (&seen)[turns]) {
  const Seat& seat = ask.seat;
  const Score form = call.work.folded.score;
  const int D = call.work.shape.D, w = my_warp();
  const float* q = room.q.line(w);
  const double* m = room.m.line(w);
  double dq[columns] = {}, dm[columns] = {};
  for (int j0 = 0; j0 < seat.at.M; j0 += warp) {
    __syncthreads();
    load_keys(room, call, seat, j0, warp);
    __syncthreads();
    for (int n = 0; n < min(warp, seat.at.M - j0); ++n) {
      if ((seen[j0 / warp] >> n & 1) == 0) continue;
      const double ds = room.ds[w * few_keys + j0 + n];
      FOCI_UNROLL
      for (int x = 0; x < columns; ++x) {
        const int d = lane() + x * warp;
        if (d >= D) continue;
        const double y = room.k.line(n)[d], apart = form == Score::product ? y : y - double(q[d]);
        dq[x] = fma(ds, apart, dq[x]);
        dm[x] = fma(ds * apart, apart, dm[x]);
      }
    }
  }
  if (!ask.works()) return;
  const double c = call.c(seat);
  FOCI_UNROLL
  for (int x = 0; x < columns; ++x) {
    const int d = lane() + x * warp;
    if (d >= D) continue;
    dm[x] = form == Score::product ? c * double(q[d]) * dq[x] : -0.5 * c * dm[x];
    dq[x] *= c * (call.has_metric() ? m[d] : 1.0);
  }
  const std::int64_t token = seat.at.q0 + ask.mine();
  if (call.to.dq) store(call.dq, call.dq.of.offset(seat.at.b, seat.h, token), dq, false);
  if (call.to.dm) store(call.dm, call.dm.of.offset(seat.at.b, seat.h, token), dm, false);
}

/// Each row's norm and delta for those who come after, dq and dm.
__global__ void __launch_bounds__(threads) queries_of_few(Call call) {
  const Room room(call.work.shape, owners, warp);
  each_eight(call, [&](const Asking& ask) {
    const Weigh& how = call.work.weigh;
    __syncthreads();
    load_queries(room, call, ask.seat, ask.i0, owners, ask.count, true);
    Found found;
    meet_keys(found, call, ask, room, true);
    const Norm norm = norm_of(how, found.s, found.seen);
    double a[turns], delta = 0;
    FOCI_UNROLL
    for (int t = 0; t < turns; ++t) {
      a[t] = found.seen[t] ? weight_of(how, found.s[t], norm) : 0;
      delta += a[t] * found.da[t];
    }
    delta = warp_total(delta);
    FOCI_UNROLL
    for (int t = 0; t < turns; ++t) {
      room.ds[my_warp() * few_keys + lane() + t * warp] =
          found.seen[t] ? pull_back(how, found.s[t], a[t], found.da[t], norm, delta) : 0;
    }
    if (ask.works() && lane() == 0) {
      double* note = call.note(ask.seat.at, ask.seat.h, ask.mine());
      note[0] = norm.by, note[1] = delta;
    }
    if (call.to.dq || call.to.dm) pull_query(call, ask, room, found.lanes);
  });
}

/// What gathers for a warp's key.
struct KeySums {
  double dk[columns] = {}, dv[columns] = {}, dbias = 0;
};

/// 32 queries of one head give the warp's key j their part.
FOCI_DEVICE void pull_key(KeySums& to, const Call& call, const Room& room, const Seat& seat, int i0,
                          int count, int j) {
  const Work& work = call.work;
  const Shape& shape = work.shape;
  const Score form = work.folded.score;
  const int w = my_warp(), i = i0 + lane();
  __syncthreads();
  load_queries(room, call, seat, i0, warp, count, true);
  __syncthreads();
  double a = 0, ds = 0;
  const bool sees = lane() < count && tile::keeps(work, seat.at, j) && j < shape.reach(seat.at, i);
  const unsigned lanes = __ballot_sync(~0u, sees);
  if (sees) {
    const double* note = call.note(seat.at, seat.h, i);
    const Norm norm{note[0], 0};
    const double s = score(call, seat, room, lane(), w, j);
    a = weight_of(work.weigh, s, norm);
    ds = pull_back(work.weigh, s, a, pull(call, room, lane(), w), norm, note[1]);
  }
  to.dbias += ds;
  room.a[w * few_keys + lane()] = a;
  room.ds[w * few_keys + lane()] = ds;
  __syncwarp();
  const float* k = room.k.line(w);
  for (int n = 0; n < count; ++n) {
    if ((lanes >> n & 1) == 0) continue;
    const double by = room.a[w * few_keys + n], pulls = room.ds[w * few_keys + n];
    FOCI_UNROLL
    for (int x = 0; x < columns; ++x) {
      const int d = lane() + x * warp;
      if (d < shape.E) to.dv[x] = fma(by, double(room.d_o.line(n)[d]), to.dv[x]);
      if (d >= shape.D) continue;
      const double y = double(room.q.line(n)[d]) - (form == Score::product ? 0.0 : double(k[d]));
      to.dk[x] = fma(pulls, call.has_metric() ? room.m.line(n)[d] * y : y, to.dk[x]);
    }
  }
}

/// dkey_bias of the warp's key, and a new beginning.
FOCI_DEVICE void store_bias(KeySums& sums, const Call& call, const Place& at, int head, int j) {
  const Field& to = call.to.dkey_bias;
  double sum = warp_total(sums.dbias);
  sums.dbias = 0;
  if (!to || lane() > 0 || j >= at.M) return;
  if (call.work.folded.spans) sum += double(to.load(at.b, head, at.k0 + j));
  to.store(float(sum), at.b, head, at.k0 + j);
}

/// Eight keys of one key head: the queries of every chunk and of every head that shares them.
__global__ void __launch_bounds__(threads) keys_of_few(Call call) {
  const Work& work = call.work;
  const Shape& shape = work.shape;
  const Room room(shape, warp, owners);
  const int blocks = (shape.longest_m + owners - 1) / owners;
  const int line = int(blockIdx.x) / blocks, j0 = int(blockIdx.x) % blocks * owners;
  Seat seat{line / shape.G, 0, line % shape.G, 0, 0, shape.place(line / shape.G)};
  const Place& at = seat.at;
  if (j0 >= at.M) return;
  const int j = j0 + my_warp(), heads = work.heads_per_key();
  const int first = shape.causal ? max(0, j0 - at.first_seen) : 0;  // that sees key j0
  load_values(room, call, seat, j0, owners);
  KeySums sums;
  const double c = call.c(seat);
  for (seat.c = 0; seat.c < work.chunks(); ++seat.c) {
    const tile::Span span = tile::span_of(work, at, seat.s, seat.c);
    __syncthreads();
    load_keys(room, call, seat, j0, owners);
    for (int n = 0; n < heads; ++n) {
      seat.h = seat.g * heads + n;
      for (int i0 = max(span.first, first); i0 < span.last; i0 += warp)
        pull_key(sums, call, room, seat, i0, min(warp, span.last - i0), j);
      if (!work.folded.key_head_bias) store_bias(sums, call, at, seat.h, j);
    }
    FOCI_UNROLL
    for (double& x : sums.dk) x *= c;
    if (call.to.dk && j < at.M)
      store(call.dk, tile::key_offset(work, call.dk.of, at, seat.c, seat.g, j), sums.dk, false);
    FOCI_UNROLL
    for (double& x : sums.dk) x = 0;
  }
  if (work.folded.key_head_bias) store_bias(sums, call, at, seat.g, j);
  if (call.to.dv && j < at.M)
    store(call.dv, call.dv.of.offset(at.b, seat.g, at.k0 + j), sums.dv,
          work.folded.spans != nullptr);
}

}  // namespace
}  // namespace few

bool few_keys_serve(const Problem& p) {
  const Weighting& how = p.how.weighting;
  return p.longest_m <= few_keys && p.from.q.dtype == DType::f32 && !chunked_serves(p) &&
         !std::holds_alternative<Decay>(how) && !std::holds_alternative<Linear>(how);
}

void few_keys_forward(const Shape& shape, const Folded& folded, const Weigh& weigh, const Rows& to,
                      Stream stream) {
  few::Call call{};
  call.work = tile::work_of(shape, folded, weigh, few::owners);
  call.rows = to;
  if (to.o.data) call.o = tile::lines_of(to.o, 4, shape.E);
  launch("few keys: forward", few::attend_few,
         {dim3(unsigned(tile::query_blocks(call.work))), dim3(few::threads),
          few::Room::bytes(shape, few::owners, warp)},
         stream, call);
}

void few_keys_backward(const Shape& shape, const Folded& folded, const Weigh& weigh,
                       const Field& d_o, const Sinks& to, double* notes, Stream stream) {
  using tile::lines_of;
  few::Call call{};
  call.work = tile::work_of(shape, folded, weigh, few::owners);
  call.d_o = lines_of(d_o, 4, shape.E);
  call.dq = lines_of(to.dq, 4, shape.D);
  call.dk = lines_of(to.dk, folded.spans ? 5 : 4, shape.D);
  call.dv = lines_of(to.dv, 4, shape.E);
  call.dm = lines_of(to.dm, 4, shape.D);
  call.to = to;
  call.notes = notes;
  launch("few keys: queries", few::queries_of_few,
         {dim3(unsigned(tile::query_blocks(call.work))), dim3(few::threads),
          few::Room::bytes(shape, few::owners, warp)},
         stream, call);
  const std::int64_t blocks =
      std::int64_t(shape.sequences) * shape.G * parts(shape.longest_m, few::owners);
  launch("few keys: keys", few::keys_of_few,
         {dim3(unsigned(blocks)), dim3(few::threads), few::Room::bytes(shape, warp, few::owners)},
         stream, call);
}

}  // namespace foci::cuda
