// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16, backward, what is done row by row around the products: delta and
// queries as keys meet them before, dq from its sums after.
#include "cuda/softmax_mma_backward.cuh"

#include "cuda/largest.cuh"

#include <algorithm>

namespace foci::cuda {
namespace {

/// What a row is told before the products: delta = d_o . o, and its query made into what keys meet.
/// A piece of 16 bytes a thread, neighbouring lanes a row.
struct RowArgs {
  GradientArgs all;
  Field q[2];  // where the parts of queries go; absent: nowhere
  int lanes;   // of a row, a power of 2
  int has_delta;
  const int* only = nullptr;  // (sequences,G) heads that have any of it; absent: all
};

constexpr int row_threads = 256;

FOCI_DEVICE void grow(float& most, float x) {
  if (x > most || x != x) most = x;  // NaN stays
}

template <DType type>
FOCI_DEVICE void write_query(const RowArgs& args, const Place& at, int s, int h, int i, int piece) {
  float x[1][8];
  QueryPiece(args.all.folded, args.all.shape, at, s, h).load<1>(x, {i}, {piece});
  uint4 words[2];
  split<type, 2>(words, x[0]);
  FOCI_UNROLL
  for (int part = 0; part < 2 && args.q[part]; ++part) {
    auto* to = static_cast<std::uint16_t*>(args.q[part].data);
    *reinterpret_cast<uint4*>(to + args.q[part].offset(at.b, h, at.q0 + i, 8 * piece)) =
        words[part];
  }
}

FOCI_DEVICE float delta_piece(float& most, const Saved& saved, const Place& at, int h, int i,
                              int piece) {
  const std::int64_t in_o[] = {saved.o.offset(at.b, h, at.q0 + i, 8 * piece)};
  const std::int64_t in_d_o[] = {saved.d_o.offset(at.b, h, at.q0 + i, 8 * piece)};
  float o[1][8], d_o[1][8], sum = 0;
  load_runs<8, 1>(o, saved.o, in_o);
  load_runs<8, 1>(d_o, saved.d_o, in_d_o);
  FOCI_UNROLL
  for (int n = 0; n < 8; ++n) {
    sum = fmaf(o[0][n], d_o[0][n], sum);
    grow(most, fabsf(d_o[0][n]));
  }
  return sum;
}

/// The largest number of v, of a block's share of the rows of a key head.
FOCI_DEVICE void look_at_values(const RowArgs& args, const Place& at, int s, int g, int tile,
                                int piece) {
  float most = 0;
  const int rows = row_threads / args.lanes;
  for (int j = tile * rows + int(threadIdx.x) / args.lanes; j < at.M; j += args.all.tiles * rows) {
    if (8 * piece >= args.all.shape.E) break;
    const std::int64_t from[] = {args.all.folded.v.offset(at.b, g, at.k0 + j, 8 * piece)};
    float v[1][8];
    load_runs<8, 1>(v, args.all.folded.v, from);
    FOCI_UNROLL
    for (int n = 0; n < 8; ++n) grow(most, fabsf(v[0][n]));
  }
  raise(args.all.largest + 2 * (s * args.all.shape.G + g) + 1, most);
}

template <DType type>
__global__ void __launch_bounds__(row_threads) softmax_rows(RowArgs args) {
  const Shape& shape = args.all.shape;
  const int index = int(blockIdx.x), tile = index % args.all.tiles;
  const int h = index / args.all.tiles % shape.H, s = index / args.all.tiles / shape.H;
  const Place at = shape.place(s);
  const int i = tile * (row_threads / args.lanes) + int(threadIdx.x) / args.lanes;
  const int piece = int(threadIdx.x) % args.lanes, g = shape.key_head(h);
  if (args.only && !args.only[s * shape.G + g]) return;
  if (args.q[0] && i < at.N && 8 * piece < shape.D) write_query<type>(args, at, s, h, i, piece);
  if (args.all.loud && i < at.N && piece == 0 && is_loud(saved_lse(args.all, at, h, at.q0 + i)))
    args.all.loud[s * shape.G + g] = 1;
  if (args.all.largest && i < at.N && piece == 0)
    args.all.saved.share[delta_at(shape, at, h, at.q0 + i)] = saved_lse(args.all, at, h, at.q0 + i);
  if (!args.has_delta) return;
  const bool there = i < at.N && 8 * piece < shape.E;
  float most = 0, sum = there ? delta_piece(most, args.all.saved, at, h, i, piece) : 0.0f;
  if (args.all.largest && !is_left(args.all.folded, shape, s, g)) {
    raise(args.all.largest + 2 * (s * shape.G + g), most);
    if (h % (shape.H / shape.G) == 0) look_at_values(args, at, s, g, tile, piece);
  }
  for (int step = 1; step < args.lanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
  if (i < at.N && piece == 0) args.all.saved.delta[delta_at(shape, at, h, at.q0 + i)] = sum;
}

/// dq from its sums: a block a tile of queries.
__global__ void __launch_bounds__(256) softmax_dq(GradientArgs args) {
  const Shape& shape = args.shape;
  const int index = int(blockIdx.x), tile = index % args.tiles, h = index / args.tiles % shape.H;
  const int s = index / args.tiles / shape.H;
  int first = tile * args.queries, place = tile;
  Place at = shape.place(s);
  if (is_left(args.folded, shape, s, shape.key_head(h))) return;
  if (args.folded.spans) {
    const int rounds = args.tiles / args.folded.most_chunks, chunk = tile / rounds;
    const ChunkSpan span(args.folded, s, chunk);
    first = span.begin + tile % rounds * args.queries, at.N = span.end;
    place = first / args.queries + chunk;
    if (first >= at.N) return;
  }
  const int g = shape.key_head(h);
  const float scale = scale_of(args.folded, shape, s, g) / ds_unit(args, s, g);
  const float* from = args.dq + dq_tile_at(args, s, h, place);
  const int pairs = shape.D / 2;
  for (int i = int(threadIdx.x); i < args.queries * pairs; i += 256) {
    const int r = i / pairs, column = i % pairs * 2;
    if (first + r >= at.N) break;
    const int at_block = (r / 16 * (args.width / 8) + column / 8) * 128;
    const int at_lane = (r % 8 * 4 + column % 8 / 2) * 4 + r % 16 / 8 * 2;
    const float2 x = *reinterpret_cast<const float2*>(from + at_block + at_lane);
    const float2 by = dq_factor(args, s, h, at.q0 + first + r, column, scale);
    store_pair(args.to.dq, args.to.dq.offset(at.b, h, at.q0 + first + r, column), by.x * x.x,
               by.y * x.y);
  }
}

/// Room for queries, (B,H,N,D) row by row.
Field query_room(const Shape& shape, DType dtype, std::uint16_t* data) {
  Field field;
  field.data = data;
  field.dtype = dtype;
  field.strides[0] = std::int64_t(shape.H) * shape.N * shape.D;
  field.strides[1] = std::int64_t(shape.N) * shape.D;
  field.strides[2] = shape.D;
  field.strides[3] = 1;
  return field;
}

/// Whether sequences are packed; where sizes are only counted there are no offsets yet.
bool may_be_packed(const Shape& shape) { return shape.q_offsets || shape.N != shape.longest_n; }

}  // namespace

DqRoom::DqRoom(const Shape& shape, int chunks) : width(softmax_mma_width(shape.D, shape.E)) {
  if (chunks > 0) width = width <= 64 ? 64 : 128;  // along the prefix there are two
  queries = accumulated_queries(width);
  const std::int64_t more = std::int64_t(shape.sequences) * chunks;
  tiles = shape.N / queries + shape.sequences + more;
  if (!may_be_packed(shape))
    tiles = std::max(parts(shape.N, queries) * shape.sequences + more, tiles);
}

SoftmaxMmaScratch::SoftmaxMmaScratch(Arena& arena, const Shape& shape, Order order, int parts,
                                     int chunks) {
  const DqRoom room(shape, chunks);
  if (order == Order::any)
    dq_ = arena.take<float>(room.tiles * shape.H * room.queries * room.width).data();
  if (parts > 0) loud_ = arena.take<int>(shape.sequences, shape.G).data();
  if (parts > 0) largest_ = arena.take<int>(shape.sequences, shape.G, 2).data();
  const int batch = may_be_packed(shape) ? 1 : shape.sequences;
  for (int part = 0; part < parts; ++part)
    q_[part] = arena.take<std::uint16_t>(batch, shape.H, shape.N, shape.D).data();
}

void softmax_mma_rows(GradientArgs& args, const SoftmaxMmaScratch& scratch, bool has_delta,
                      Stream stream) {
  const Shape& shape = args.shape;
  const DType type = args.folded.v.dtype;
  const bool by_chunk = args.folded.spans != nullptr;
  RowArgs rows{args, {}, 1, has_delta};
  if (!has_delta) rows.only = args.folded.by_mma;
  const bool folds = by_chunk ? type != DType::f16 : has_lines(args.folded);
  args.q = args.folded.q;
  if (by_chunk) args.q_rest = args.folded.q;
  if (folds) args.q = rows.q[0] = query_room(shape, type, scratch.q(0));
  if (folds && !by_chunk && softmax_mma_parts(shape, args.folded) == 2)
    args.q_rest = rows.q[1] = query_room(shape, type, scratch.q(1));
  if (args.largest)
    fill(args.largest, 0, 2 * std::size_t(shape.sequences) * shape.G * sizeof(int), stream);
  if (folds && args.folded.m.data && !by_chunk && !args.q_rest.data) {
    args.loud = rows.all.loud = scratch.loud();
    fill(args.loud, 0, std::size_t(shape.sequences) * shape.G * sizeof(int), stream);
  }
  if (!folds && !has_delta) return;
  const int pieces = std::max(folds ? shape.D : 8, has_delta ? shape.E : 8) / 8;
  while (rows.lanes < pieces) rows.lanes *= 2;
  rows.all.tiles = int(parts(shape.longest_n, row_threads / rows.lanes));
  const std::int64_t blocks = std::int64_t(rows.all.tiles) * shape.H * shape.sequences;
  launch("softmax_rows", type == DType::bf16 ? softmax_rows<DType::bf16> : softmax_rows<DType::f16>,
         {dim3(unsigned(blocks)), row_threads}, stream, rows);
}

void softmax_mma_gather(GradientArgs args, Stream stream) {
  const Folded& folded = args.folded;
  const int longest =
      folded.spans ? std::min(folded.chunks, args.shape.longest_n) : args.shape.longest_n;
  args.tiles = int(parts(longest, args.queries)) * (folded.spans ? folded.most_chunks : 1);
  const std::int64_t blocks = std::int64_t(args.tiles) * args.shape.H * args.shape.sequences;
  launch("softmax_dq", softmax_dq, {dim3(unsigned(blocks)), 256}, stream, args);
}

}  // namespace foci::cuda
