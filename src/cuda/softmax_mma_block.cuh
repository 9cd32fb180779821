// SPDX-License-Identifier: Apache-2.0
// Which queries a block of the forward pass of softmax on tensor cores has: a tile of them, or
// along the prefix of a full metric a tile of one chunk in each half.
#pragma once

#include "cuda/softmax_rest.cuh"

namespace foci::cuda {

struct ForwardArgs {
  Shape shape;
  Folded folded;
  Rows to;
  int tiles;       // of queries in the longest sequence; or pairs of chunks times rounds
  int rounds = 1;  // blocks that a pair of chunks may need
  int blocks = 0;  // in all
};

/// Which of them the block is at now.
template <class F>
FOCI_DEVICE int block_of() {
  if constexpr (!F::has_rest) return block_index();
  return *reinterpret_cast<volatile int*>(shared_memory() + F::index_at);
}

/// What a block works on, or half of it where halves have chunks of their own: then at.N ends the
/// queries of the chunk, and the half's first row is query first + half_rows of the halves before.
struct Block {
  Place at;
  int s, h, g, first;  // of its queries
  int chunk = 0;
  float scale;  // c

  template <class F>
  FOCI_DEVICE static Block of(const ForwardArgs& args, int half) {
    Block block(args, block_of<F>(), F::queries);
    if constexpr (F::by_chunk) block.take_chunk(args, half, F::half_rows);
    return block;
  }
  /// This thread's.
  template <class F>
  FOCI_DEVICE static Block of(const ForwardArgs& args) {
    return of<F>(args, F::by_chunk ? int(threadIdx.x) / (F::threads / F::halves) : 0);
  }
  FOCI_DEVICE void take_chunk(const ForwardArgs& args, int half, int rows) {
    const int tile = block_index() % args.tiles;
    chunk = (args.tiles - 1 - tile) / args.rounds * 2 + half;
    const ChunkSpan span(args.folded, s, chunk);
    first = span.begin + (tile % args.rounds - half) * rows;
    at.N = span.end;
  }

  FOCI_DEVICE Block(const ForwardArgs& args, int index, int queries) {
    const Folded& folded = args.folded;
    first = (args.tiles - 1 - index % args.tiles) * queries;  // causal: the longest first
    h = index / args.tiles % args.shape.H;
    g = args.shape.key_head(h);
    s = index / args.tiles / args.shape.H;
    at = args.shape.place(s);
    scale = scale_of(folded, args.shape, s, g);
  }
};

/// How many keys a half's last query sees.
template <class F>
FOCI_DEVICE int reach_of(const ForwardArgs& args, const Block& block, int half) {
  const int last = min(block.first + (half + 1) * F::half_rows, block.at.N) - 1;
  return last < block.first + half * F::half_rows ? 0 : args.shape.reach(block.at, last);
}

/// The same of the whole block, of which `block` is this half.
template <class F>
FOCI_DEVICE int most_keys(const ForwardArgs& args, const Block& block, int half) {
  const int own = reach_of<F>(args, block, half);
  if constexpr (!F::by_chunk) return own;
  return max(own, reach_of<F>(args, Block::of<F>(args, 1 - half), 1 - half));
}

/// Whether any half has some.
template <class F>
FOCI_DEVICE bool has_queries(const ForwardArgs& args) {
  bool any = false;
  FOCI_UNROLL
  for (int half = 0; half < F::halves; ++half) {
    const Block block = Block::of<F>(args, half);
    any = any || block.first + half * F::half_rows < block.at.N;
  }
  return any;
}

/// Queries of both halves, on their way to shared memory.
template <class F>
FOCI_DEVICE void load_halves(const ForwardArgs& args) {
  constexpr int pieces = F::width / 8, rounds = F::half_rows * pieces / F::threads;
  const Field& q = args.folded.q;
#ifndef FOCI_EMULATED
#pragma unroll 1  // once a block
#endif
  for (int half = 0; half < F::halves; ++half) {
    const Block block = Block::of<F>(args, half);
    const auto* from = static_cast<const std::uint16_t*>(q.data);
    for (int round = 0; round < rounds; ++round) {
      const int i = int(threadIdx.x) + round * F::threads, piece = i % pieces;
      const int row = half * F::half_rows + i / pieces, token = block.first + row;
      const bool there = token < block.at.N && 8 * piece < args.shape.D;
      const std::int64_t at =
          there ? q.offset(block.at.b, block.h, block.at.q0 + token, 8 * piece) : 0;
      copy_async(shared_address() + F::q_at + F::Q::at(row, piece), from + at, there);
    }
  }
}

}  // namespace foci::cuda
