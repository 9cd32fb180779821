// SPDX-License-Identifier: Apache-2.0
// A block differentiates one query: weights and centres in double, then J panel by panel in
// registers. Backwards a block has one query for dq, or a few keys and all queries for dk and dv.
#include "cuda/jacobian.cuh"

#include <algorithm>

namespace foci::cuda {

namespace {

constexpr int threads = 256;
constexpr int tile = 32, lanes_a_key = threads / tile;  // keys of a block at once, threads of each
constexpr int panel = 64, cell = 4;                     // J: 64 x 64 at once, 4 x 4 a thread
constexpr int few = 16, lanes_of_few = threads / few;   // keys of a block that sums over queries

template <int Lanes, class T>
FOCI_DEVICE T sum_of(T x) {
  FOCI_UNROLL
  for (int step = 1; step < Lanes; step *= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// One query and what it may see.
struct Query {
  Place at;
  int s, h, g, i, reach;
  std::int64_t slot;  // among those of the round

  FOCI_DEVICE bool exists() const { return i < at.N; }
  static FOCI_DEVICE Query of(const JacobianEstimate& of, int round) {
    const int head = int(blockIdx.x) / round, x = int(blockIdx.x) % round;
    return make(of, head / of.shape.H, head % of.shape.H, of.first + x,
                std::int64_t(head) * round + x);
  }
  static FOCI_DEVICE Query make(const JacobianEstimate& of, int s, int h, int i,
                                std::int64_t slot) {
    const Place place = of.shape.place(s);
    return {place, s, h, of.shape.key_head(h), i, of.shape.reach(place, i), slot};
  }
};

FOCI_DEVICE bool keeps(const JacobianEstimate& of, const Place& at, int j) {
  if (!of.mask) return true;
  return static_cast<const std::uint8_t*>(of.mask.data)[of.mask.offset(at.b, at.k0 + j)] != 0;
}

/// c q . k_j by Lanes neighbouring threads; q in shared memory. -infinity: not seen.
template <int Lanes>
FOCI_DEVICE double score_of(const JacobianEstimate& of, const Query& query, const float* q, int j) {
  const bool seen = j < query.reach && keeps(of, query.at, j);
  double sum = 0;
  for (int d = int(threadIdx.x) % Lanes; seen && d < of.shape.D; d += Lanes)
    sum += double(q[d]) * double(of.k.load(query.at.b, query.g, query.at.k0 + j, d));
  sum = sum_of<Lanes>(sum);
  return seen ? of.c * sum : -INFINITY;
}

/// k_j and v_j one after the other: number x of key j.
FOCI_DEVICE double number_of(const JacobianEstimate& of, const Query& query, int j, int x) {
  const int D = of.shape.D, token = query.at.k0 + j;
  return double(x < D ? of.k.load(query.at.b, query.g, token, x)
                      : of.v.load(query.at.b, query.g, token, x - D));
}

FOCI_DEVICE void load_query(const JacobianEstimate& of, const Query& query, float* q) {
  for (int d = int(threadIdx.x); d < of.shape.D; d += threads)
    q[d] = of.q.load(query.at.b, query.h, query.at.q0 + query.i, d);
}

/// What a block that differentiates keeps in shared memory.
template <class T>
struct Desk {
  double* centre;    // (D + E)
  double* weights;   // (32)
  double* most;      // (8) a warp's largest score
  T* size;           // (D)
  T *pulls, *apart;  // (32, 64)
  float* q;          // (D)

  static FOCI_DEVICE Desk of(const Shape& shape) {
    Desk desk;
    desk.centre = reinterpret_cast<double*>(shared_memory());
    desk.weights = desk.centre + shape.D + shape.E;
    desk.most = desk.weights + tile;
    desk.pulls = reinterpret_cast<T*>(desk.most + threads / warp);
    desk.apart = desk.pulls + tile * panel;
    desk.size = desk.apart + tile * panel;
    desk.q = reinterpret_cast<float*>(desk.size + shape.D);
    return desk;
  }
  static std::size_t bytes(const Shape& shape) {
    return sizeof(double) * std::size_t(shape.D + shape.E + tile + threads / warp) +
           sizeof(T) * std::size_t(2 * tile * panel + shape.D) +
           sizeof(float) * std::size_t(shape.D);
  }
};

/// NaN where there is one: a query that is no number shall not look like one that sees nothing.
FOCI_DEVICE double larger(double x, double y) { return x > y || x != x ? x : y; }

/// The largest score; -infinity: no key is seen.
template <class T>
FOCI_DEVICE double largest_score(const JacobianEstimate& of, const Query& query,
                                 const Desk<T>& desk) {
  double top = -INFINITY;
  for (int j0 = 0; j0 < query.reach; j0 += tile) {
    const double s = score_of<lanes_a_key>(of, query, desk.q, j0 + int(threadIdx.x) / lanes_a_key);
    top = larger(s, top);
  }
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) {
    top = larger(__shfl_xor_sync(~0u, top, step), top);
  }
  if (lane() == 0) desk.most[threadIdx.x / warp] = top;
  __syncthreads();
  for (int w = 0; w < threads / warp; ++w) top = larger(desk.most[w], top);
  return top;
}

/// weights_j = by exp(s_j - top) of the tile from j0 on. Callers put barriers around it.
FOCI_DEVICE void weigh_tile(const JacobianEstimate& of, const Query& query, const float* q, int j0,
                            double top, double by, double* weights) {
  const int x = int(threadIdx.x) / lanes_a_key;
  const double s = score_of<lanes_a_key>(of, query, q, j0 + x);
  if (int(threadIdx.x) % lanes_a_key == 0) weights[x] = by * exp(s - top);
}

/// kappa and omega; returns the sum of exp.
template <class T>
FOCI_DEVICE double find_centre(const JacobianEstimate& of, const Query& query, const Desk<T>& desk,
                               double top) {
  const int both = of.shape.D + of.shape.E;
  double sum = 0;
  for (int x = int(threadIdx.x); x < both; x += threads) desk.centre[x] = 0;
  for (int j0 = 0; j0 < query.reach; j0 += tile) {
    __syncthreads();
    weigh_tile(of, query, desk.q, j0, top, 1.0, desk.weights);
    __syncthreads();
    for (int n = 0; n < tile; ++n) sum += desk.weights[n];
    for (int x = int(threadIdx.x); x < both; x += threads) {
      for (int n = 0; n < tile; ++n) {
        if (desk.weights[n] > 0)
          desk.centre[x] += desk.weights[n] * number_of(of, query, j0 + n, x);
      }
    }
  }
  for (int x = int(threadIdx.x); x < both; x += threads) desk.centre[x] /= sum;
  __syncthreads();
  return sum;
}

/// The tile's lines: pulls = c a_j (k_j - kappa), apart = v_j - omega, 64 columns of each.
template <class T>
FOCI_DEVICE void centre_tile(const JacobianEstimate& of, const Query& query, const Desk<T>& desk,
                             int j0, int d0, int e0) {
  const int D = of.shape.D, E = of.shape.E;
  for (int x = int(threadIdx.x); x < tile * panel; x += threads) {
    const int n = x / panel, d = d0 + x % panel, e = e0 + x % panel;
    const double weight = desk.weights[n];
    T pull = 0, apart = 0;
    if (weight != 0 && d < D) pull = T(weight * (number_of(of, query, j0 + n, d) - desk.centre[d]));
    if (weight != 0 && e < E) apart = T(number_of(of, query, j0 + n, D + e) - desk.centre[D + e]);
    desk.pulls[x] = pull;
    desk.apart[x] = apart;
  }
}

/// J in 64 rows from d0 and columns from e0 on; this thread's rows 4 ty .. and columns 4 tx ..
template <class T>
FOCI_DEVICE void differentiate(T (&J)[cell][cell], const JacobianEstimate& of, const Query& query,
                               const Desk<T>& desk, int d0, int e0, double top, double sum) {
  const int ty = int(threadIdx.x) / (panel / cell), tx = int(threadIdx.x) % (panel / cell);
  for (int j0 = 0; j0 < query.reach; j0 += tile) {
    __syncthreads();
    weigh_tile(of, query, desk.q, j0, top, of.c / sum, desk.weights);
    __syncthreads();
    centre_tile(of, query, desk, j0, d0, e0);
    __syncthreads();
    for (int n = 0; n < tile; ++n) {
      const T* pull = desk.pulls + n * panel + cell * ty;
      const T* apart = desk.apart + n * panel + cell * tx;
      FOCI_UNROLL
      for (int r = 0; r < cell; ++r) {
        FOCI_UNROLL
        for (int x = 0; x < cell; ++x) J[r][x] += pull[r] * apart[x];
      }
    }
  }
}

/// Forward: sizes and counted. Backward (where there are signs): signs, centres, notes.
template <class T>
__global__ void __launch_bounds__(threads) differentiate_queries(JacobianEstimate of, int round) {
  const Query query = Query::of(of, round);
  if (!query.exists()) return;
  const Shape& shape = of.shape;
  const auto desk = Desk<T>::of(shape);
  const int D = shape.D, E = shape.E, token = query.at.q0 + query.i;
  const int ty = int(threadIdx.x) / (panel / cell), tx = int(threadIdx.x) % (panel / cell);
  load_query(of, query, desk.q);
  for (int d = int(threadIdx.x); d < D; d += threads) desk.size[d] = 0;
  __syncthreads();
  const double top = largest_score(of, query, desk);
  const bool last_keys = of.last_keys || query.at.N == query.at.M;
  const bool own = !last_keys || keeps(of, query.at, query.at.first_seen + query.i);
  const bool counts = top != -INFINITY && own;
  const double sum = counts ? find_centre(of, query, desk, top) : 0.0;
  for (int d0 = 0; counts && d0 < D; d0 += panel) {
    for (int e0 = 0; e0 < E; e0 += panel) {
      T J[cell][cell] = {};
      differentiate(J, of, query, desk, d0, e0, top, sum);
      for (int r = 0; r < cell; ++r) {
        const int d = d0 + cell * ty + r;
        T size = 0;
        for (int x = 0; x < cell; ++x) {
          const int e = e0 + cell * tx + x;
          size += fabs(J[r][x]);
          if (of.signs && d < D && e < E)
            of.signs[(query.slot * D + d) * E + e] = static_cast<signed char>(J[r][x] > 0   ? 1
                                                                              : J[r][x] < 0 ? -1
                                                                                            : 0);
        }
        size = sum_of<panel / cell>(size);
        if (tx == 0 && d < D) desk.size[d] += size;
      }
    }
  }
  __syncthreads();
  if (of.signs) {
    for (int x = int(threadIdx.x); counts && x < D + E; x += threads)
      of.centres[query.slot * (D + E) + x] = desk.centre[x];
    if (threadIdx.x == 0) {
      of.notes[3 * query.slot] = counts ? top : -INFINITY;
      of.notes[3 * query.slot + 1] = sum;
    }
    return;
  }
  const std::int64_t line = (std::int64_t(query.at.b) * shape.H + query.h) * shape.N + token;
  for (int d = int(threadIdx.x); d < D; d += threads)
    of.wide ? of.wide[line * D + d] = desk.size[d] : of.sizes[line * D + d] = float(desk.size[d]);
  if (query.h == 0 && threadIdx.x == 0)
    of.counted[std::int64_t(query.at.b) * shape.N + token] = counts;
}

using Gradient = JacobianEstimate::Gradient;

struct Pull {
  JacobianEstimate of;
  Gradient to;
  int round;
};

/// What the blocks of the way back keep in shared memory: a query and some keys.
template <class T>
struct Bench {
  double* centre;        // (D + E)
  double *weights, *da;  // (32): a_j; a_j da_j
  double* dq;            // (D)
  T *keys, *values;      // (keys, D) k_j - kappa, (keys, E) v_j - omega
  T *dk, *dv;            // (16, D) (16, E)
  float *q, *g;          // (D)
  signed char* signs;    // (D, step)
  int step;              // so that neighbouring rows lie in different banks

  static FOCI_HD int step_of(const Shape& shape) { return (shape.E + 3) / 4 * 4 + 4; }
  static FOCI_DEVICE Bench of(const Shape& shape, int keys, int sums) {
    Bench bench;
    bench.step = step_of(shape);
    bench.centre = reinterpret_cast<double*>(shared_memory());
    bench.weights = bench.centre + shape.D + shape.E;
    bench.da = bench.weights + tile;
    bench.dq = bench.da + tile;
    bench.keys = reinterpret_cast<T*>(bench.dq + shape.D);
    bench.values = bench.keys + keys * shape.D;
    bench.dk = bench.values + keys * shape.E;
    bench.dv = bench.dk + sums * shape.D;
    bench.q = reinterpret_cast<float*>(bench.dv + sums * shape.E);
    bench.g = bench.q + shape.D;
    bench.signs = reinterpret_cast<signed char*>(bench.g + shape.D);
    return bench;
  }
  static std::size_t bytes(const Shape& shape, int keys, int sums) {
    const auto D = std::size_t(shape.D), both = D + std::size_t(shape.E);
    return sizeof(double) * (both + 2 * tile + D) + sizeof(T) * std::size_t(keys + sums) * both +
           sizeof(float) * 2 * D + D * std::size_t(step_of(shape));
  }
};

/// A query's lines, centre and signs. Callers put barriers around it.
template <class T>
FOCI_DEVICE void load_bench(const Bench<T>& bench, const Pull& args, const Query& query) {
  const JacobianEstimate& of = args.of;
  const int D = of.shape.D, E = of.shape.E;
  load_query(of, query, bench.q);
  for (int d = int(threadIdx.x); d < D; d += threads)
    bench.g[d] = args.to.g.load(query.s, query.h, args.to.per_query ? query.at.q0 + query.i : 0, d);
  for (int x = int(threadIdx.x); x < D + E; x += threads)
    bench.centre[x] = of.centres[query.slot * (D + E) + x];
  for (int x = int(threadIdx.x); x < D * E; x += threads)
    bench.signs[x / E * bench.step + x % E] = of.signs[query.slot * D * E + x];
}

/// Keys j0 .. of those that have a weight, centred.
template <class T>
FOCI_DEVICE void centre_keys(const Bench<T>& bench, const JacobianEstimate& of, const Query& query,
                             int j0, int keys) {
  const int D = of.shape.D, E = of.shape.E;
  for (int x = int(threadIdx.x); x < keys * (D + E); x += threads) {
    const int n = x / (D + E), column = x % (D + E);
    T* to = column < D ? bench.keys + n * D + column : bench.values + n * E + column - D;
    *to = bench.weights[n] > 0 ? T(number_of(of, query, j0 + n, column) - bench.centre[column])
                               : T(0);
  }
}

/// g_d sum_e sign_de (v_je - omega_e) of key n
template <class T>
FOCI_DEVICE T pull_of_key(const Bench<T>& bench, int E, int n, int d) {
  T sum = 0;
  const signed char* signs = bench.signs + d * bench.step;
  for (int e = 0; e < E; ++e) sum += T(signs[e]) * bench.values[n * E + e];
  return T(bench.g[d]) * sum;
}

/// dq, and sum_j a_j da_j for the keys: dq = c sum_j a_j da_j (k_j - kappa).
template <class T>
__global__ void __launch_bounds__(threads) pull_queries(Pull args) {
  const JacobianEstimate& of = args.of;
  const Query query = Query::of(of, args.round);
  if (!query.exists()) return;
  const int D = of.shape.D, E = of.shape.E, token = query.at.q0 + query.i;
  const auto bench = Bench<T>::of(of.shape, tile, 0);
  const double top = of.notes[3 * query.slot], sum = of.notes[3 * query.slot + 1];
  const bool counts = top > -INFINITY;
  for (int d = int(threadIdx.x); d < D; d += threads) bench.dq[d] = 0;
  if (counts) load_bench(bench, args, query);
  const int n = int(threadIdx.x) / lanes_a_key, part = int(threadIdx.x) % lanes_a_key;
  double delta = 0;
  for (int j0 = 0; counts && j0 < query.reach; j0 += tile) {
    __syncthreads();
    weigh_tile(of, query, bench.q, j0, top, 1 / sum, bench.weights);
    __syncthreads();
    centre_keys(bench, of, query, j0, tile);
    __syncthreads();
    double da = 0;
    for (int d = part; d < D; d += lanes_a_key)
      da += double(bench.keys[n * D + d]) * double(pull_of_key(bench, E, n, d));
    da = sum_of<lanes_a_key>(da);
    if (part == 0) bench.da[n] = of.c * da * bench.weights[n];
    __syncthreads();
    for (int x = 0; x < tile; ++x) delta += bench.da[x];
    for (int d = int(threadIdx.x); d < D; d += threads) {
      for (int x = 0; x < tile; ++x) bench.dq[d] += bench.da[x] * double(bench.keys[x * D + d]);
    }
  }
  if (threadIdx.x == 0) of.notes[3 * query.slot + 2] = delta;
  for (int d = int(threadIdx.x); d < D && args.to.dq; d += threads) {
    const double before = double(args.to.dq_so_far.load(query.at.b, query.h, token, d));
    args.to.dq.store(float(before + of.c * bench.dq[d]), query.at.b, query.h, token, d);
  }
}

/// One query's share of dk and dv of the block's keys, a key 16 threads.
template <class T>
FOCI_DEVICE void pull_few(const Bench<T>& bench, const JacobianEstimate& of, const Query& query,
                          int j0) {
  const int D = of.shape.D, E = of.shape.E;
  const int n = int(threadIdx.x) / lanes_of_few, part = int(threadIdx.x) % lanes_of_few;
  const double top = of.notes[3 * query.slot], sum = of.notes[3 * query.slot + 1];
  const double delta = of.notes[3 * query.slot + 2];
  const double s = score_of<lanes_of_few>(of, query, bench.q, j0 + n);
  const double a = exp(s - top) / sum;
  if (part == 0) bench.weights[n] = a;
  __syncthreads();
  centre_keys(bench, of, query, j0, few);
  __syncthreads();
  double da = 0;
  const T by = T(of.c * a);
  for (int d = part; d < D; d += lanes_of_few) {
    const T pull = pull_of_key(bench, E, n, d);
    da += double(bench.keys[n * D + d]) * double(pull);
    bench.dk[n * D + d] += by * pull;
  }
  const double ds = a * (of.c * sum_of<lanes_of_few>(da) - delta);
  for (int d = part; d < D; d += lanes_of_few)
    bench.dk[n * D + d] += T(of.c * ds * double(bench.q[d]));
  for (int e = part; e < E; e += lanes_of_few) {
    T pull = 0;
    for (int d = 0; d < D; ++d)
      pull += T(bench.signs[d * bench.step + e]) * T(bench.g[d]) * bench.keys[n * D + d];
    bench.dv[n * E + e] += by * pull;
  }
}

/// A block 16 keys of a key head: the round's queries one after another.
template <class T>
__global__ void __launch_bounds__(threads) pull_keys(Pull args) {
  const JacobianEstimate& of = args.of;
  const Shape& shape = of.shape;
  const int D = shape.D, E = shape.E, blocks = (shape.longest_m + few - 1) / few;
  const int line = int(blockIdx.x) / blocks, j0 = int(blockIdx.x) % blocks * few;
  const int s = line / shape.G, g = line % shape.G, shared_by = shape.H / shape.G;
  const Place at = shape.place(s);
  const auto bench = Bench<T>::of(shape, few, few);
  for (int x = int(threadIdx.x); x < few * D; x += threads) bench.dk[x] = 0;
  for (int x = int(threadIdx.x); x < few * E; x += threads) bench.dv[x] = 0;
  for (int h = g * shared_by; h < (g + 1) * shared_by; ++h) {
    for (int i = of.first; i < min(of.first + args.round, at.N); ++i) {
      const std::int64_t slot = (std::int64_t(s) * shape.H + h) * args.round + i - of.first;
      const Query query = Query::make(of, s, h, i, slot);
      if (query.reach <= j0 || of.notes[3 * slot] == -INFINITY) continue;  // as for all threads
      __syncthreads();
      load_bench(bench, args, query);
      __syncthreads();
      pull_few(bench, of, query, j0);
    }
  }
  __syncthreads();
  for (int x = int(threadIdx.x); x < few * (D + E); x += threads) {
    const int n = x / (D + E), column = x % (D + E), token = at.k0 + j0 + n;
    if (j0 + n >= at.M) continue;
    const Field& to = column < D ? args.to.dk : args.to.dv;
    const int d = column < D ? column : column - D;
    const T more = column < D ? bench.dk[n * D + d] : bench.dv[n * E + d];
    if (to) to.store(float(T(to.load(at.b, g, token, d)) + more), at.b, g, token, d);
  }
}

}  // namespace

void JacobianEstimate::take(metric::Arena& arena, const metric::Problem& p, const Shape& of_shape,
                            bool exact, bool back) {
  const auto& z = p.size;
  shape = of_shape;
  q = Field(p.from.q);
  k = Field(p.from.k);
  v = Field(p.from.v);
  mask = Field(p.from.key_mask);
  c = std::holds_alternative<Linear>(p.how.weighting) ? 1 / std::sqrt(double(z.D)) : p.c;
  if (exact) {
    wide = arena.take<double>(z.B, z.H, z.N, z.D).data();
  } else {
    sizes = arena.take<float>(z.B, z.H, z.N, z.D).data();
  }
  counted = arena.take<std::uint8_t>(z.B, z.N).data();
  if (!back) return;
  const std::int64_t heads = p.sequences * z.H,
                     bytes = std::max<std::int64_t>(1, heads * z.D * z.E);
  round = int(std::clamp<std::int64_t>(most_signs / bytes, 1, std::max(1, shape.longest_n)));
  signs = arena.take<signed char>(heads, round, z.D, z.E).data();
  centres = arena.take<double>(heads, round, z.D + z.E).data();
  notes = arena.take<double>(heads, round, 3).data();
}

Terms JacobianEstimate::terms(const metric::Problem& p) const {
  Terms terms;
  const auto& z = p.size;
  terms.x = Field::of(sizes, {z.B, z.H, z.N, z.D});
  if (wide) terms.x = Field(View(wide, {z.B, z.H, z.N, z.D}));
  if (counted) terms.mask = Field(View(counted, {p.size.B, p.size.N}));
  terms.heads = shape.H;
  terms.of_queries = 1;
  return terms;
}

void JacobianEstimate::measure(Stream stream) const {
  JacobianEstimate of = *this;
  of.signs = nullptr;
  const auto queries = std::int64_t(shape.sequences) * shape.H * shape.longest_n;
  launch("jacobian metric", wide ? differentiate_queries<double> : differentiate_queries<float>,
         {{unsigned(queries)},
          {threads},
          wide ? Desk<double>::bytes(shape) : Desk<float>::bytes(shape)},
         stream, of, std::max(1, shape.longest_n));
}

template <class T>
void JacobianEstimate::pull_back(const Gradient& to, Stream stream) const {
  JacobianEstimate of = *this;
  const auto queries = std::int64_t(shape.sequences) * shape.H * round;
  const auto keys = std::int64_t(shape.sequences) * shape.G * parts(shape.longest_m, few);
  for (of.first = 0; of.first < shape.longest_n; of.first += round) {
    const Pull args{of, to, round};
    launch("jacobian metric", differentiate_queries<T>,
           {{unsigned(queries)}, {threads}, Desk<T>::bytes(shape)}, stream, of, int(round));
    launch("jacobian metric", pull_queries<T>,
           {{unsigned(queries)}, {threads}, Bench<T>::bytes(shape, tile, 0)}, stream, args);
    if (!to.dk.data && !to.dv.data) continue;
    launch("jacobian metric", pull_keys<T>,
           {{unsigned(keys)}, {threads}, Bench<T>::bytes(shape, few, few)}, stream, args);
  }
}

void JacobianEstimate::backward(const Gradient& to, Stream stream) const {
  wide ? pull_back<double>(to, stream) : pull_back<float>(to, stream);
}

}  // namespace foci::cuda
