// SPDX-License-Identifier: Apache-2.0
// Moments of keys: where chunks begin, sums over stretches of keys around one of them, and
// stretches joined, in a fixed order.
#include "cuda/key_covariance.cuh"

#include "cuda/product.cuh"
#include "cuda/two_parts.cuh"

namespace foci::cuda {

namespace {

constexpr int scan_threads = 256;
constexpr int scan_warps = scan_threads / warp;

__global__ void __launch_bounds__(scan_threads) count_kept(Slots slots) {
  __shared__ int warps[scan_warps];
  const Place at = slots.shape.place(int(blockIdx.x));
  int* kept = slots.kept + std::int64_t(at.b) * slots.shape.M + at.k0;
  const int mine = int(threadIdx.x) / warp;
  int before = 0;
  for (int first = 0; first < at.M; first += scan_threads) {
    const int j = first + int(threadIdx.x);
    const unsigned bits = __ballot_sync(~0u, int(j < at.M && slots.keeps(at, j)));
    if (lane() == 0) warps[mine] = __popc(bits);
    __syncthreads();
    int sum = before + __popc(bits & ((1u << lane()) - 1));
    for (int w = 0; w < scan_warps; ++w) {
      if (w < mine) sum += warps[w];
      before += warps[w];
    }
    if (j < at.M) kept[j] = sum;
    __syncthreads();
  }
}

/// The first of [0, n) where `holds`, which stays true from there on; n where it never does.
template <class F>
FOCI_DEVICE int first_where(int n, const F& holds) {
  int low = 0, high = n;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (holds(middle)) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

__global__ void __launch_bounds__(scan_threads) find_spans(Slots slots) {
  const int s = int(blockIdx.x), entries = slots.chunks + 1;
  const Place at = slots.shape.place(s);
  const int* kept = slots.kept + std::int64_t(at.b) * slots.shape.M + at.k0;
  for (int c = int(threadIdx.x); c < entries; c += scan_threads) {
    const std::int64_t known = std::int64_t(c) * slots.period;
    slots.spans[std::int64_t(s) * entries + c] = first_where(at.N, [&](int i) {
      const int t = at.first_seen + i;
      return (t <= 0 ? 0 : kept[t]) >= known;
    });
    slots.key_spans[std::int64_t(s) * entries + c] = c == 0 ? 0 : first_where(at.M, [&](int j) {
      return kept[j] + int(slots.keeps(at, j)) > known;
    });
  }
  if (threadIdx.x != 0) return;
  int before = 0;
  for (int other = 0; other < s && slots.shape.q_offsets; ++other)
    before += slots.own_chunks(slots.shape.place(other));
  slots.chunks_before[s] = before;
}

/// How many keys of a stretch are unmasked, and the first of them. For a whole block.
struct Found {
  int n, first;
};
FOCI_DEVICE Found find_kept(const Slots& slots, const Place& at, const Stretch& of) {
  __shared__ Found found;
  if (int(threadIdx.x) < warp) {
    Found mine{0, of.end};
    for (int first = of.begin; first < of.end; first += warp) {
      const int j = first + lane();
      const unsigned bits = __ballot_sync(~0u, int(j < of.end && slots.keeps(at, j)));
      if (mine.n == 0 && bits != 0) mine.first = first + __ffs(int(bits)) - 1;
      mine.n += __popc(bits);
    }
    if (lane() == 0) found = mine;
  }
  __syncthreads();
  return found;
}

/// Where a block of `sum_moments` stands.
struct MomentsAt {
  int s, g, c, part;
  FOCI_DEVICE explicit MomentsAt(const Moments& to) {
    int index = int(blockIdx.x);
    part = index % to.parts, index /= to.parts;
    c = index % to.slots.chunks, index /= to.slots.chunks;
    g = index % to.slots.shape.G, s = index / to.slots.shape.G;
  }
  FOCI_DEVICE Stretch keys(const Moments& to, const Place& at) const {
    if (!to.slots.prefix) return Stretch{0, at.M}.part(part, to.part_keys);
    return c == 0 ? Stretch{0, 0} : to.slots.keys(s, at, c - 1);
  }
};

/// sums[i] = sum over kept keys of x_d - pivot_d for the block's rows, then for its columns.
struct BlockSums {
  double pivot[2 * product_side];
  double halves[2][2 * product_side];
  FOCI_DEVICE double sum(int i) const { return halves[0][i] + halves[1][i]; }
};
FOCI_DEVICE void sum_keys(BlockSums& to, const Slots& slots, const Place& at, const Stretch& of,
                          const HeadLines& x, int first, int row, int column) {
  const int i = int(threadIdx.x) % (2 * product_side), half = int(threadIdx.x) / (2 * product_side);
  const int d = i < product_side ? row + i : column + i - product_side;
  const bool there = d < slots.shape.D && first < of.end;
  const double pivot = there ? double(x(first, d)) : 0.0;
  double sum = 0;
  for (int j = of.begin + half; j < of.end && there; j += 2) {
    if (slots.keeps(at, j)) sum += double(x(j, d)) - pivot;
  }
  if (half == 0) to.pivot[i] = pivot;
  to.halves[half][i] = sum;
}

/// One tile of the scatter of one stretch of keys, measured from the first: what that adds is taken
/// off again, which costs at most the bits of the number of keys.
__global__ void __launch_bounds__(product_threads) sum_moments(Moments to) {
  __shared__ ProductRoom<double> room;
  __shared__ BlockSums sums;
  const Slots& slots = to.slots;
  const int D = slots.shape.D;
  int row = to.scatter ? 0 : int(blockIdx.y), column = int(blockIdx.y);
  while (column > row) column -= ++row;  // tiles of the lower triangle, row by row
  row *= product_side, column *= product_side;
  const MomentsAt is(to);
  if (slots.multiplied(is.s, is.g)) return;
  const Place at = slots.shape.place(is.s);
  const Stretch of = is.keys(to, at);
  const HeadLines x(to.k, at.b, is.g, at.k0);
  const Found found = find_kept(slots, at, of);
  sum_keys(sums, slots, at, of, x, found.first, row, column);
  __syncthreads();
  const std::int64_t index = slots.slot(is.s, is.g, is.c) * to.parts + is.part;
  const int i = int(threadIdx.x);
  if (row == column && i < product_side && row + i < D) {
    to.part_mean[index * D + row + i] =
        found.n == 0 ? 0.0 : sums.pivot[i] + sums.sum(i) / double(found.n);
  }
  if (blockIdx.y == 0 && i == 0) to.part_count[index] = found.n;
  if (!to.scatter) return;
  const auto gap = [&](int d0, const double* pivot) {
    return [&slots, &at, &x, D, d0, pivot](int d, int j) {
      return d0 + d < D && slots.keeps(at, j) ? double(x(j, d0 + d)) - pivot[d] : 0.0;
    };
  };
  ProductTile<double> tile;
  tile.add<Along::side, Along::side>(room, of.begin, of.end, gap(row, sums.pivot),
                                     gap(column, sums.pivot + product_side));
  tile.each([&](int d, int e, double sum) {
    if (row + d >= D || column + e >= D) return;
    const double both = sums.sum(d) * sums.sum(product_side + e);
    to.scatter[(index * D + row + d) * D + column + e] =
        sum - (found.n == 0 ? 0.0 : both / double(found.n));
  });
}

/// sums += x'x over a tile of 64 keys, rows of sums from column 16 `rows` of x on; and `ones` the
/// sums of those columns, the same in every row.
template <DType type, int width>
FOCI_DEVICE void add_squares(RowSums<width>& sums, float (&ones)[2][4], Address x, int rows) {
  using X = Tile<64, width>;
  constexpr unsigned pair = type == DType::bf16 ? 0x3f803f80 : 0x3c003c00;  // 1 and 1
  const unsigned one[4] = {pair, pair, pair, pair};
  const Address left = X::beside(x + shared_address() + X::across(), rows);
  const Address right = x + shared_address() + X::along();
  FOCI_UNROLL
  for (int step = 0; step < 4; ++step) {
    unsigned a[4], b[4];
    X::template operands<true>(a, left, 16 * step);
    X::template operands<true>(b, X::beside(right, rows), 16 * step);
    multiply_both<type>(ones[0], ones[1], one, b);
    FOCI_UNROLL
    for (int n = 0; n < width / 16; ++n) {
      X::template operands<true>(b, X::beside(right, n), 16 * step);
      multiply_both<type>(sums[2 * n], sums[2 * n + 1], a, b);
    }
  }
}

/// The whole scatter of one stretch of keys as they are, a warp to 16 rows: what is far from the
/// origin loses digits.
template <DType type, int width>
__global__ void __launch_bounds__(2 * width) sum_moments_by_mma(Moments to) {
  using X = Tile<64, width>;
  __shared__ double column[width];
  const Slots& slots = to.slots;
  const int D = slots.shape.D, rows = int(threadIdx.x) / warp;
  const MomentsAt is(to);
  const Place at = slots.shape.place(is.s);
  const Stretch of = is.keys(to, at);
  const Lines lines = Lines::of(to.k, at.b, is.g, at.k0, of.end, D);
  const auto load = [&](int slot, int t) {
    load_tile<X, 2 * width>(shared_address() + slot * X::bytes, lines, t);
    commit_copies();
  };
  if (!of.empty()) load(0, of.begin);
  const Found found = find_kept(slots, at, of);
  RowSums<width> sums;
  float ones[2][4] = {};
  clear<width>(sums);
  for (int t = of.begin, slot = 0; t < of.end; t += X::rows, slot ^= 1) {
    await_copies<0>();
    __syncthreads();
    if (slots.key_mask) forget_masked<X, 2 * width>(slot * X::bytes, slots, at, t, of.end);
    if (t + X::rows < of.end) load(slot ^ 1, t + X::rows);
    add_squares<type, width>(sums, ones, slot * X::bytes, rows);
  }
  if (lane() < 4) {
    for (int i = 0; i < 4; ++i)
      column[16 * rows + 8 * (i / 2) + 2 * lane() + i % 2] = double(ones[i / 2][i % 2]);
  }
  __syncthreads();
  const std::int64_t index = slots.slot(is.s, is.g, is.c) * to.parts + is.part;
  const double share = found.n == 0 ? 0.0 : 1 / double(found.n);
  if (threadIdx.x == 0) to.part_count[index] = found.n;
  for (int d = int(threadIdx.x); d < D; d += 2 * width)
    to.part_mean[index * D + d] = share * column[d];
  FOCI_UNROLL
  for (int i = 0; i < width / 2; ++i) {
    const int d = 16 * rows + lane() / 4 + 8 * (i % 4 / 2),
              e = i / 4 * 8 + 2 * (lane() % 4) + i % 2;
    if (!to.scatter || d >= D || e > d) continue;
    to.scatter[(index * D + d) * D + e] =
        double(sums[i / 4][i % 4]) - share * column[d] * column[e];
  }
}

/// Stretches join by Chan's formula, one after the other. Under prefix every slot keeps what is
/// known up to it; else part 0 gets the whole. A thread has one element of the lower triangle.
__global__ void __launch_bounds__(scan_threads) join_moments(Moments to) {
  const int D = to.slots.shape.D, index = int(blockIdx.y) * scan_threads + int(threadIdx.x);
  const int d = index / D, e = index % D;
  if (d >= D || e > d || (e > 0 && !to.scatter)) return;
  if (to.slots.multiplied(int(blockIdx.x) / to.slots.shape.G, int(blockIdx.x) % to.slots.shape.G))
    return;
  const bool prefix = to.slots.prefix != 0;
  const int steps = prefix ? to.slots.chunks : to.parts;
  const std::int64_t first = std::int64_t(blockIdx.x) * steps, square = std::int64_t(D) * D;
  constexpr int at_once = 8;  // read before the first of them is joined
  double n = 0, mean_d = 0, mean_e = 0, sum = 0;
  for (int begin = 0; begin < steps; begin += at_once) {
    double counts[at_once], means_d[at_once], means_e[at_once], scatters[at_once];
    FOCI_UNROLL
    for (int i = 0; i < at_once; ++i) {
      const std::int64_t part = first + (begin + i < steps ? begin + i : begin);
      counts[i] = begin + i < steps ? to.part_count[part] : 0;
      means_d[i] = to.part_mean[part * D + d], means_e[i] = to.part_mean[part * D + e];
      scatters[i] = to.scatter ? to.scatter[part * square + index] : 0.0;
    }
    FOCI_UNROLL
    for (int i = 0; i < at_once; ++i) {
      const double more = counts[i];
      if (more > 0) {
        const double gap_d = means_d[i] - mean_d, gap_e = means_e[i] - mean_e;
        const double share = more / (n + more);
        sum += scatters[i] + gap_d * gap_e * n * share;
        mean_d += share * gap_d, mean_e += share * gap_e;
        n += more;
      }
      const int step = begin + i;
      if (step >= steps || (!prefix && step + 1 < steps)) continue;
      const std::int64_t slot = prefix ? first + step : std::int64_t(blockIdx.x);
      if (to.scatter) to.scatter[(prefix ? slot : first) * square + index] = sum;
      if (e == 0) to.mean[slot * D + d] = mean_d;
      if (index == 0) to.count[slot] = int(n);
    }
  }
}

void join(const Moments& to, Stream stream) {
  if (to.count == to.part_count) return;
  const int D = to.slots.shape.D;
  launch("key-covariance: joining", join_moments,
         {{unsigned(to.slots.shape.sequences * to.slots.shape.G),
           unsigned(parts(std::int64_t(D) * D, scan_threads))},
          {scan_threads}},
         stream, to);
}

template <DType type>
void sum_by_mma(const Moments& to, Stream stream) {
  const bool narrow = to.slots.shape.D <= 64;
  const unsigned width = narrow ? 64 : 128;
  launch("key-covariance: moments on tensor cores",
         narrow ? sum_moments_by_mma<type, 64> : sum_moments_by_mma<type, 128>,
         {{unsigned(to.slots.count() * to.parts)}, {2 * width}, 2 * 64 * 2 * width}, stream, to);
}

}  // namespace

void place_chunks(const Slots& slots, Stream stream) {
  const Grid grid{{unsigned(slots.shape.sequences)}, {scan_threads}};
  launch("key-covariance: counting keys", count_kept, grid, stream, slots);
  launch("key-covariance: chunks", find_spans, grid, stream, slots);
}

void gather_moments(const Moments& to, Stream stream) {
  const int D = to.slots.shape.D, tiles = product_tiles(D);
  const int shown = to.scatter ? tiles * (tiles + 1) / 2 : tiles;
  launch("key-covariance: moments", sum_moments,
         {{unsigned(to.slots.count() * to.parts), unsigned(shown)}, {product_threads}}, stream, to);
  join(to, stream);
}

void estimate_moments(const Moments& to, Stream stream) {
  to.k.dtype == DType::bf16 ? sum_by_mma<DType::bf16>(to, stream)
                            : sum_by_mma<DType::f16>(to, stream);
  join(to, stream);
}

}  // namespace foci::cuda
