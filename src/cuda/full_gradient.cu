// SPDX-License-Identifier: Apache-2.0
// The gradient of full metrics, all in double: G = sum of dz z' over queries and keys, dP and
// dSigma from it, and dk_j += sum over the slots that know key j of A (k_j - mean).
#include "cuda/whiten.cuh"

#include "cuda/product.cuh"

#include <algorithm>

namespace foci::cuda {

namespace {

struct OuterArgs {
  OuterSums to;
  LineSet lines;
  const float *dz, *z;
  int part_tokens;
};

/// One tile of G of one slot, over one stretch of its tokens.
__global__ void __launch_bounds__(product_threads) sum_outer_tile(OuterArgs args) {
  __shared__ ProductRoom<double> room;
  const LineSet& lines = args.lines;
  const Slots& slots = lines.slots;
  const Shape& shape = slots.shape;
  const int D = shape.D, tiles = product_tiles(D);
  const int row = int(blockIdx.y) / tiles * product_side,
            column = int(blockIdx.y) % tiles * product_side;
  int index = int(blockIdx.x);
  const int part = index % args.to.parts;
  index /= args.to.parts;
  const int ahead = index % lines.chunks, c = lines.first + ahead;
  index /= lines.chunks;
  const int g = index % shape.G, s = index / shape.G;
  const Place at = shape.place(s);
  if (slots.multiplied(s, g)) return;
  if (slots.prefix && slots.queries(s, at, c).empty()) return;
  const Stretch all = lines.keys ? Stretch{0, slots.looked_at(s, at, c)} : slots.queries(s, at, c);
  const Stretch of = all.part(part, args.part_tokens);
  const int heads = lines.keys ? 1 : slots.heads_per_key();
  ProductTile<double> tile;
  for (int r = 0; r < heads; ++r) {
    const std::int64_t line =
        lines.keys ? ((std::int64_t(ahead) * slots.B + at.b) * shape.G + g) * shape.M + at.k0
                   : (std::int64_t(at.b) * shape.H + g * heads + r) * shape.N + at.q0;
    const float *dz = args.dz + line * D, *z = args.z + line * D;
    tile.add<Along::side, Along::side>(
        room, of.begin, of.end,
        [&](int d, int t) { return row + d < D ? dz[std::int64_t(t) * D + row + d] : 0.0f; },
        [&](int e, int t) { return column + e < D ? z[std::int64_t(t) * D + column + e] : 0.0f; });
  }
  double* to = args.to.to + (slots.slot(s, g, c) * args.to.parts + part) * D * D;
  tile.each([&](int d, int e, double sum) {
    if (row + d >= D || column + e >= D) return;
    double& x = to[(row + d) * D + column + e];
    x = args.to.adds ? x + sum : sum;
  });
}

/// A matrix as a product reads it.
struct Matrix {
  const double* data;
  int down, along;
  FOCI_DEVICE double operator()(int i, int j) const { return data[i * down + j * along]; }
};

/// Tile `index` of room = G B (half 0), or f(i, j, entry) of by * B' room (half 1).
template <class Sum, class F>
FOCI_DEVICE void congruent_tile(const Matrix& B, const double* G, double by, int D, double* room,
                                int half, int index, const F& f) {
  __shared__ ProductRoom<Sum> factors;
  const int tiles = product_tiles(D);
  const int row = index / tiles * product_side, column = index % tiles * product_side;
  ProductTile<Sum> tile;
  tile.template add<Along::side, Along::side>(
      factors, 0, D,
      [&](int i, int l) {
        if (row + i >= D) return 0.0;
        return half == 0 ? G[l * D + row + i] : B(l, row + i);
      },
      [&](int j, int l) {
        if (column + j >= D) return 0.0;
        return half == 0 ? B(l, column + j) : room[l * D + column + j];
      });
  tile.each([&](int i, int j, Sum sum) {
    if (row + i >= D || column + j >= D) return;
    if (half == 0) {
      room[(row + i) * D + column + j] = sum;
    } else {
      f(row + i, column + j, by * sum);
    }
  });
}

/// f(i, j, entry) of by * B' G B; room (D,D).
template <class F>
FOCI_DEVICE void congruent(const Matrix& B, const double* G, double by, int D, double* room,
                           const F& f) {
  const int tiles = product_tiles(D);
  for (int half = 0; half < 2; ++half) {
    for (int index = 0; index < tiles * tiles; ++index)
      congruent_tile<double>(B, G, by, D, room, half, index, f);
    __syncthreads();
  }
}

/// Part 0 of G becomes the sum over parts and over sequences that share a metric, symmetric.
FOCI_DEVICE void sum_parts(const MetricGradient& of, double* G, bool used) {
  const int D = of.slots.shape.D, square = D * D;
  const std::int64_t step = std::int64_t(of.slots.shape.G) * of.parts * square;
  for (int index = int(threadIdx.x); index < square; index += product_threads) {
    const int i = index / D, j = index % D;
    if (j > i) continue;
    double sum = 0;
    for (int s = 0; s < of.joined && used; ++s) {
      for (int part = 0; part < of.parts; ++part) {
        const double* from = G + s * step + std::int64_t(part) * square;
        sum += 0.5 * (from[i * D + j] + from[j * D + i]);
      }
    }
    G[i * D + j] = G[j * D + i] = sum;
  }
  __syncthreads();
}

/// shift = A (mean - the mean of the last chunk).
FOCI_DEVICE void form_shift(const MetricGradient& of, const double* A, std::int64_t slot,
                            std::int64_t last) {
  const int D = of.slots.shape.D;
  for (int d = int(threadIdx.x); d < D; d += product_threads) {
    double sum = 0;
    for (int e = 0; e < D; ++e)
      sum += A[e * D + d] * (of.mean[slot * D + e] - of.mean[last * D + e]);
    of.shift[slot * D + d] = sum;
  }
}

/// Where scores are products G is dP itself, and A = -slope P dP P: half of that, a tile a block.
template <class Sum>
__global__ void __launch_bounds__(product_threads) follow_products(MetricGradient of, int half) {
  const std::int64_t slot = blockIdx.x;
  const int D = of.slots.shape.D, heads = of.slots.shape.G;
  const int head = int(slot / of.slots.chunks), s = head / heads;
  if (!of.slots.multiplied(s, head % heads)) return;
  if (of.slots.queries(s, of.slots.shape.place(s), int(slot % of.slots.chunks)).empty()) return;
  double* G = of.G + slot * of.parts * D * D;
  congruent_tile<Sum>({of.inverse + slot * D * D, D, 1}, G, -of.shrink.slope(of.count[slot]), D,
                      of.room + slot * D * D, half, int(blockIdx.y),
                      [&](int i, int j, double x) { G[i * D + j] = x; });
}

/// Their shifts, once A is there.
__global__ void __launch_bounds__(product_threads) form_shifts(MetricGradient of) {
  const Slots& slots = of.slots;
  const std::int64_t slot = blockIdx.x;
  const int head = int(slot / slots.chunks), D = slots.shape.D;
  const int s = head / slots.shape.G, g = head % slots.shape.G;
  if (!slots.multiplied(s, g)) return;
  const Place at = slots.shape.place(s);
  const int own = slots.own_chunks(at);
  if (!slots.queries(s, at, int(slot % slots.chunks)).empty())
    return form_shift(of, of.G + slot * of.parts * D * D, slot,
                      slots.slot(s, g, own > 0 ? own - 1 : 0));
  for (int d = int(threadIdx.x); d < D; d += product_threads) of.shift[slot * D + d] = 0;
}

__global__ void __launch_bounds__(product_threads) form_gradients(MetricGradient of) {
  const Slots& slots = of.slots;
  const int D = slots.shape.D, square = D * D;
  const std::int64_t count = of.joined > 1 ? slots.shape.G : slots.count();
  double* room = of.room + std::int64_t(blockIdx.x) * square;
  for (std::int64_t slot = blockIdx.x; slot < count; slot += gridDim.x) {
    const int c = int(slot % slots.chunks), head = int(slot / slots.chunks);
    const int s = head / slots.shape.G, g = head % slots.shape.G;
    const Place at = slots.shape.place(s);
    const int own = slots.own_chunks(at);
    const bool used = !slots.prefix || !slots.queries(s, at, c).empty();
    double* G = of.G + slot * of.parts * square;
    if (slots.multiplied(s, g) && of.formed) continue;
    sum_parts(of, G, used);
    const double* inverse = of.inverse + slot * square;
    if (slots.multiplied(s, g)) continue;
    if (of.dmetric && c < own) {
      const std::int64_t base = slots.prefix
                                    ? of.dmetric.offset(at.b, g, slots.chunks_before[s] + c)
                                    : of.dmetric.offset(s, g);
      const std::int64_t* strides = of.dmetric.strides + (slots.prefix ? 3 : 2);
      const auto store = [&](int i, int j, double x) {
        store_wide(of.dmetric, base + i * strides[0] + j * strides[1], x);
      };
      const Matrix back = of.lower ? Matrix{of.lower + slot * square, 1, D} : Matrix{inverse, D, 1};
      if (used) {
        congruent(back, G, 0.5, D, room, store);
      } else {
        for (int i = int(threadIdx.x); i < square; i += product_threads) store(i / D, i % D, 0.0);
      }
    }
    if (of.through && used) {
      const double by = -0.5 * of.shrink.slope(of.count[slot]);
      congruent({inverse, D, 1}, G, by, D, room, [&](int i, int j, double x) { G[i * D + j] = x; });
      form_shift(of, G, slot, slots.slot(s, g, own > 0 ? own - 1 : 0));
    } else if (of.through) {
      for (int d = int(threadIdx.x); d < D; d += product_threads) of.shift[slot * D + d] = 0;
    }
    __syncthreads();
  }
}

/// Under prefix a key feels every slot that knows it: A and shift of all later ones summed up.
__global__ void __launch_bounds__(product_threads) sum_later(MetricGradient of) {
  const int D = of.slots.shape.D, square = D * D, chunks = of.slots.chunks;
  const int index = int(blockIdx.y) * product_threads + int(threadIdx.x);
  if (index >= square + D) return;
  const bool matrix = index < square;
  double* data = matrix ? of.G + index : of.shift + (index - square);
  const std::int64_t step = matrix ? std::int64_t(of.parts) * square : D;
  constexpr int at_once = 8;  // read before the first of them is summed up
  double sum = 0;
  for (int end = chunks; end > 0; end -= at_once) {
    double x[at_once];
    const auto place = [&](int i) {
      return (std::int64_t(blockIdx.x) * chunks + end - 1 - i) * step;
    };
    FOCI_UNROLL
    for (int i = 0; i < at_once; ++i) x[i] = i < end ? data[place(i)] : 0.0;
    FOCI_UNROLL
    for (int i = 0; i < at_once; ++i) {
      sum += x[i];
      if (i < end) data[place(i)] = sum;
    }
  }
}

struct SpreadArgs {
  MetricGradient of;
  Field k, dk;
  const float* base;
  int tiles;
};

/// 64 keys that the same slots know, 64 columns.
template <class Sum>
__global__ void __launch_bounds__(product_threads) spread_tile(SpreadArgs args) {
  __shared__ ProductRoom<Sum> room;
  const MetricGradient& of = args.of;
  const Slots& slots = of.slots;
  const Shape& shape = slots.shape;
  const int D = shape.D, column = int(blockIdx.y) * product_side;
  int index = int(blockIdx.x);
  const int first = index % args.tiles * product_side;
  index /= args.tiles;
  const int c = index % slots.chunks;
  index /= slots.chunks;
  const int g = index % shape.G, s = index / shape.G;
  const Place at = shape.place(s);
  if (slots.multiplied(s, g) && !slots.prefix) return;
  const Stretch keys = slots.keys(s, at, c);
  const int knows = slots.prefix ? c + 1 : 0, own = slots.own_chunks(at);
  const bool pulled = of.through != 0 && knows < own;
  const std::int64_t slot = slots.slot(s, g, pulled ? knows : 0);
  const double* A = of.G + slot * of.parts * D * D;
  const double* mean = of.mean + slots.slot(s, g, own > 0 ? own - 1 : 0) * D;
  const HeadLines k(args.k, at.b, g, at.k0);
  const std::int64_t line = (std::int64_t(at.b) * shape.G + g) * shape.M + at.k0;
  for (int t = keys.begin + first; t < keys.end; t += args.tiles * product_side) {
    const auto kept = [&](int i) { return t + i < keys.end && slots.keeps(at, t + i); };
    ProductTile<Sum> tile;
    tile.template add<Along::depth, Along::side>(
        room, 0, pulled ? D : 0,
        [&](int i, int e) { return kept(i) ? double(k(t + i, e)) - mean[e] : 0.0; },
        [&](int d, int e) { return column + d < D ? A[e * D + column + d] : 0.0; });
    tile.each([&](int i, int d, Sum sum) {
      if (t + i >= keys.end || column + d >= D) return;
      double x = args.base[(line + t + i) * D + column + d];
      if (pulled && kept(i)) x += double(sum) - of.shift[slot * D + column + d];
      args.dk.store(float(x), at.b, g, at.k0 + t + i, column + d);
    });
  }
}

}  // namespace

void sum_outer(const OuterSums& to, const float* dz, const float* z, const LineSet& lines,
               Stream stream) {
  const Shape& shape = lines.slots.shape;
  const int tiles = product_tiles(shape.D);
  const int tokens = lines.keys ? shape.longest_m : shape.longest_n;
  const std::int64_t blocks = std::int64_t(shape.sequences) * shape.G * lines.chunks * to.parts;
  launch("full metric: outer sums", sum_outer_tile,
         {{unsigned(blocks), unsigned(tiles * tiles)}, {product_threads}}, stream,
         OuterArgs{to, lines, dz, z, int(parts(tokens, to.parts))});
}

void form_gradient(const MetricGradient& of, Stream stream) {
  const Shape& shape = of.slots.shape;
  const std::int64_t count = of.joined > 1 ? shape.G : of.slots.count();
  const std::int64_t rooms = of.slots.by_mma ? count : gradient_blocks;
  launch("full metric: dP", form_gradients, {{unsigned(std::min(count, rooms))}, {product_threads}},
         stream, of);
  const unsigned tiles = unsigned(product_tiles(shape.D));
  for (int half = 0; half < 2 && of.through && of.slots.by_mma && !of.formed; ++half)
    launch("full metric: dP to A",
           of.slots.prefix ? follow_products<float> : follow_products<double>,
           {{unsigned(of.slots.count()), tiles * tiles}, {product_threads}}, stream, of, half);
  if (!of.through || !of.slots.prefix) return;
  if (of.slots.by_mma && !of.formed)
    launch("full metric: shifts", form_shifts, {{unsigned(of.slots.count())}, {product_threads}},
           stream, of);
  const std::int64_t entries = std::int64_t(shape.D) * (shape.D + 1);
  launch("full metric: later chunks", sum_later,
         {{unsigned(shape.sequences * shape.G), unsigned(parts(entries, product_threads))},
          {product_threads}},
         stream, of);
}

void spread_to_keys(const Field& dk, const float* base, const Field& k, const MetricGradient& of,
                    Stream stream) {
  const Shape& shape = of.slots.shape;
  const int tokens = of.slots.prefix ? std::min(shape.longest_m, of.slots.period) : shape.longest_m;
  const int tiles = std::max(product_tiles(tokens), 1);
  const std::int64_t blocks = std::int64_t(shape.sequences) * shape.G * of.slots.chunks * tiles;
  // Where scores along the prefix may be products everything has 16 bits.
  const bool narrow = of.slots.by_mma && of.slots.prefix;
  launch("full metric: keys", narrow ? spread_tile<float> : spread_tile<double>,
         {{unsigned(blocks), unsigned(product_tiles(shape.D))}, {product_threads}}, stream,
         SpreadArgs{of, k, dk, base, tiles});
}

}  // namespace foci::cuda
