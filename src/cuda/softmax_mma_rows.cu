// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16, backward, what is done row by row around the products: delta and
// queries as keys meet them before, dq from its sums after.
#include "cuda/softmax_mma_backward.cuh"

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
};

constexpr int row_threads = 256;

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

FOCI_DEVICE float delta_piece(const Saved& saved, const Place& at, int h, int i, int piece) {
  const std::int64_t in_o[] = {saved.o.offset(at.b, h, at.q0 + i, 8 * piece)};
  const std::int64_t in_d_o[] = {saved.d_o.offset(at.b, h, at.q0 + i, 8 * piece)};
  float o[1][8], d_o[1][8], sum = 0;
  load_runs<8, 1>(o, saved.o, in_o);
  load_runs<8, 1>(d_o, saved.d_o, in_d_o);
  FOCI_UNROLL
  for (int n = 0; n < 8; ++n) sum = fmaf(o[0][n], d_o[0][n], sum);
  return sum;
}

template <DType type>
__global__ void __launch_bounds__(row_threads) softmax_rows(RowArgs args) {
  const Shape& shape = args.all.shape;
  const int index = int(blockIdx.x), tile = index % args.all.tiles;
  const int h = index / args.all.tiles % shape.H, s = index / args.all.tiles / shape.H;
  const Place at = shape.place(s);
  const int i = tile * (row_threads / args.lanes) + int(threadIdx.x) / args.lanes;
  const int piece = int(threadIdx.x) % args.lanes;
  if (args.q[0] && i < at.N && 8 * piece < shape.D) write_query<type>(args, at, s, h, i, piece);
  if (args.all.loud && i < at.N && piece == 0 && is_loud(saved_lse(args.all, at, h, at.q0 + i)))
    args.all.loud[s * shape.G + shape.key_head(h)] = 1;
  if (!args.has_delta) return;
  float sum = i < at.N && 8 * piece < shape.E ? delta_piece(args.all.saved, at, h, i, piece) : 0.0f;
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
  const float scale = scale_of(args.folded, shape, s, shape.key_head(h));
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

}  // namespace

void softmax_mma_rows(GradientArgs& args, const SoftmaxMmaScratch& scratch, bool has_delta,
                      Stream stream) {
  const Shape& shape = args.shape;
  const DType type = args.folded.v.dtype;
  const bool by_chunk = args.folded.spans != nullptr;
  RowArgs rows{args, {}, 1, has_delta};
  const bool folds = by_chunk ? type != DType::f16 : has_lines(args.folded);
  args.q = args.folded.q;
  if (by_chunk) args.q_rest = args.folded.q;
  if (folds) args.q = rows.q[0] = query_room(shape, type, scratch.q(0));
  if (folds && !by_chunk && softmax_mma_parts(shape, args.folded) == 2)
    args.q_rest = rows.q[1] = query_room(shape, type, scratch.q(1));
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
