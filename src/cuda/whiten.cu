// SPDX-License-Identifier: Apache-2.0
// Products of lines with the triangular factors of full metrics, there and back. The triangle that
// is zero is not multiplied.
#include "cuda/whiten.cuh"

#include "cuda/product.cuh"

#include <algorithm>

namespace foci::cuda {

namespace {

/// Where a block of 64 tokens by 64 columns stands: blockIdx.x counts (s, head, chunk, tile),
/// blockIdx.y columns.
struct LinesAt {
  int s, head, g, chunk, tile, column;
  Place place;
  std::int64_t slot, first;  // first token's line in (chunks if keys,B,heads,tokens,D)

  FOCI_DEVICE LinesAt(const LineSet& of, int tiles) : column(int(blockIdx.y) * product_side) {
    const Shape& shape = of.slots.shape;
    const int heads = of.keys ? shape.G : shape.H;
    int index = int(blockIdx.x);
    tile = index % tiles, index /= tiles;
    const int ahead = index % of.chunks;
    index /= of.chunks;
    head = index % heads, s = index / heads;
    g = of.keys ? head : shape.key_head(head);
    chunk = of.first + ahead;
    place = shape.place(s);
    slot = of.slots.slot(s, g, chunk);
    const std::int64_t row =
        ((of.keys ? ahead : 0) * of.slots.B + place.b) * std::int64_t(heads) + head;
    const int tokens = of.room > 0 ? of.room : of.keys ? shape.M : shape.N;
    first = row * tokens + (of.keys ? place.k0 : place.q0);
  }
  FOCI_DEVICE Stretch tokens(const LineSet& of) const {
    if (of.keys) return {0, of.slots.looked_at(s, place, chunk)};
    return of.slots.queries(s, place, chunk);
  }
};

/// Columns of row `first` to row first + 63 of a triangular matrix that are not all 0.
FOCI_DEVICE Stretch reach_of_rows(int first, int D, bool lower) {
  const int last = first + product_side < D ? first + product_side : D;
  return lower ? Stretch{0, last} : Stretch{first, D};
}

struct WhitenArgs {
  LineSet lines;
  Field x;
  float* z;
  int tiles;  // blocks along a stretch of tokens
};

template <class Sum>
__global__ void __launch_bounds__(product_threads) whiten_tile(WhitenArgs args) {
  __shared__ ProductRoom<Sum> room;
  const LineSet& lines = args.lines;
  const LinesAt at(lines, args.tiles);
  if (lines.slots.multiplied(at.s, at.g)) return;
  const int D = lines.slots.shape.D;
  const Stretch of = at.tokens(lines), reach = reach_of_rows(at.column, D, lines.by.lower != 0);
  const HeadLines x(args.x, at.place.b, at.head, lines.keys ? at.place.k0 : at.place.q0);
  const float* W = lines.by.W + at.slot * D * D;
  const float* centre = lines.by.centre + at.slot * D;
  float* z = args.z + at.first * D;
  for (int t = of.begin + at.tile * product_side; t < of.end; t += args.tiles * product_side) {
    ProductTile<Sum> tile;
    tile.template add<Along::depth, Along::depth>(
        room, reach.begin, reach.end,
        [&](int i, int d) {
          const bool there = t + i < of.end && (!lines.keys || lines.slots.keeps(at.place, t + i));
          return there ? x(t + i, d) - centre[d] : 0.0f;
        },
        [&](int e, int d) { return at.column + e < D ? W[(at.column + e) * D + d] : 0.0f; });
    tile.each([&](int i, int e, Sum sum) {
      if (t + i < of.end && at.column + e < D)
        z[std::int64_t(t + i) * D + at.column + e] = float(sum);
    });
  }
}

struct UnwhitenArgs {
  LineSet lines;
  const float* dz;
  Field dq;   // queries
  float* dk;  // keys
  int adds;
  int tiles;
};

/// tile += dz W over the 64 tokens from t on.
template <class Sum>
FOCI_DEVICE void add_unwhitened(ProductTile<Sum>& tile, ProductRoom<Sum>& room,
                                const UnwhitenArgs& args, const LinesAt& at, int t, int end) {
  const int D = args.lines.slots.shape.D;
  // Column d of a lower W begins at row d.
  const Stretch reach = reach_of_rows(at.column, D, args.lines.by.lower == 0);
  const float* W = args.lines.by.W + at.slot * D * D;
  const float* dz = args.dz + at.first * D;
  tile.template add<Along::depth, Along::side>(
      room, reach.begin, reach.end,
      [&](int i, int e) { return t + i < end ? dz[std::int64_t(t + i) * D + e] : 0.0f; },
      [&](int d, int e) { return at.column + d < D ? W[e * D + at.column + d] : 0.0f; });
}

template <class Sum>
__global__ void __launch_bounds__(product_threads) unwhiten_query_tile(UnwhitenArgs args) {
  __shared__ ProductRoom<Sum> room;
  const LinesAt at(args.lines, args.tiles);
  if (args.lines.slots.multiplied(at.s, at.g)) return;
  const int D = args.lines.slots.shape.D;
  const Stretch of = at.tokens(args.lines);
  for (int t = of.begin + at.tile * product_side; t < of.end; t += args.tiles * product_side) {
    ProductTile<Sum> tile;
    add_unwhitened(tile, room, args, at, t, of.end);
    tile.each([&](int i, int d, Sum sum) {
      if (t + i < of.end && at.column + d < D)
        args.dq.store(float(sum), at.place.b, at.head, at.place.q0 + t + i, at.column + d);
    });
  }
}

/// A block sums up the chunks of its keys.
template <class Sum>
__global__ void __launch_bounds__(product_threads) unwhiten_key_tile(UnwhitenArgs args) {
  __shared__ ProductRoom<Sum> room;
  LineSet lines = args.lines;
  lines.chunks = 1;
  LinesAt at(lines, args.tiles);
  if (lines.slots.multiplied(at.s, at.g)) return;
  const Shape& shape = lines.slots.shape;
  const int D = shape.D, t = at.tile * product_side;
  const std::int64_t first = at.first;
  const std::int64_t step = std::int64_t(lines.slots.B) * shape.G * shape.M;
  ProductTile<Sum> tile;
  for (int ahead = 0; ahead < args.lines.chunks; ++ahead) {
    const int end = lines.slots.looked_at(at.s, at.place, at.chunk);
    if (t < end) add_unwhitened(tile, room, args, at, t, end);
    ++at.chunk, ++at.slot, at.first += step;
  }
  tile.each([&](int i, int d, Sum sum) {
    if (t + i >= at.place.M || at.column + d >= D) return;
    float& to = args.dk[(first + t + i) * D + at.column + d];
    to = float(args.adds ? Sum(to) + sum : sum);
  });
}

/// Few keys average nothing out: their products are summed up in double, which costs little there.
constexpr int few_keys = 512;
bool few(const LineSet& lines) { return lines.slots.shape.longest_m <= few_keys; }

/// Blocks along the tokens of a chunk: under prefix queries of one are few.
int tiles_of(const LineSet& lines) {
  const Shape& shape = lines.slots.shape;
  int tokens = lines.keys ? shape.longest_m : shape.longest_n;
  if (!lines.keys && lines.slots.prefix) tokens = std::min(tokens, lines.slots.period);
  return std::max(product_tiles(tokens), 1);
}

/// Where heads may have no lines, no more blocks than keep a large GPU busy.
int whitened_tiles(const LineSet& lines) {
  constexpr std::int64_t enough_blocks = 528;
  if (!lines.slots.by_mma) return tiles_of(lines);
  const std::int64_t heads = std::int64_t(lines.slots.shape.sequences) * lines.heads();
  const std::int64_t wanted = parts(enough_blocks, std::max<std::int64_t>(heads * lines.chunks, 1));
  return int(std::min<std::int64_t>(tiles_of(lines), wanted));
}

Grid grid_of(const LineSet& lines, int chunks, int tiles) {
  const Shape& shape = lines.slots.shape;
  const std::int64_t blocks = std::int64_t(shape.sequences) * lines.heads() * chunks * tiles;
  return {{unsigned(blocks), unsigned(product_tiles(shape.D))}, {product_threads}};
}

struct CopyArgs {
  const float* from;
  Field to;
  int sizes[4];
  std::int64_t count;  // of runs
  int run;             // neighbours that a thread copies
};

__global__ void __launch_bounds__(product_threads) copy_numbers(CopyArgs args) {
  const std::int64_t index = std::int64_t(blockIdx.x) * product_threads + threadIdx.x;
  if (index >= args.count) return;
  std::int64_t rest = index * args.run, at = 0;
  for (int axis = 3; axis >= 0; --axis) {
    at += rest % args.sizes[axis] * args.to.strides[axis];
    rest /= args.sizes[axis];
  }
  for (int i = 0; i < args.run; ++i)
    args.to.store_at(at + i * args.to.strides[3], args.from ? args.from[index * args.run + i] : 0);
}

}  // namespace

void whiten(float* z, const Field& x, const LineSet& lines, Stream stream) {
  const int tiles = whitened_tiles(lines);
  launch("full metric: lines", few(lines) ? whiten_tile<double> : whiten_tile<float>,
         grid_of(lines, lines.chunks, tiles), stream, WhitenArgs{lines, x, z, tiles});
}

void unwhiten_queries(const Field& dq, const float* dz, const LineSet& lines, Stream stream) {
  launch("full metric: dq", few(lines) ? unwhiten_query_tile<double> : unwhiten_query_tile<float>,
         grid_of(lines, lines.chunks, tiles_of(lines)), stream,
         UnwhitenArgs{lines, dz, dq, nullptr, 0, tiles_of(lines)});
}

void unwhiten_keys(float* dk, bool adds, const float* dz, const LineSet& lines, Stream stream) {
  launch("full metric: dk", few(lines) ? unwhiten_key_tile<double> : unwhiten_key_tile<float>,
         grid_of(lines, 1, tiles_of(lines)), stream,
         UnwhitenArgs{lines, dz, {}, dk, int(adds), tiles_of(lines)});
}

void copy_out(const View& to, const float* from, Stream stream) {
  CopyArgs args{from, Field(to), {1, 1, 1, 1}, 1, to.rank == 4 && to.shape[3] % 4 == 0 ? 4 : 1};
  for (int axis = 0; axis < to.rank; ++axis) {
    args.sizes[axis] = int(to.shape[axis]);
    args.count *= to.shape[axis];
  }
  args.count /= args.run;
  launch("full metric: copy", copy_numbers,
         {{unsigned(parts(args.count, product_threads))}, {product_threads}}, stream, args);
}

}  // namespace foci::cuda
