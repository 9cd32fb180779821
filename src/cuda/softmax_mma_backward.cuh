// SPDX-License-Identifier: Apache-2.0
// What the kernels of the backward pass of softmax on tensor cores share: their arguments, where
// the sums of dq lie, stores of pairs.
#pragma once

#include "cuda/softmax_rest.cuh"

namespace foci::cuda {

struct GradientArgs {
  Shape shape;
  Folded folded;      // as it was given
  Field q = {};       // (B,H,N,D) what keys meet: q of folded, or m in it and rounded to 16 bits
  Field q_rest = {};  // (B,H,N,D) what that rounding left over, in 16 bits, where it always shows
  Field k = {};       // along the prefix: keys of v's type; those of folded, and q_rest, are f16
  Saved saved;
  Sinks to;
  float* dq =
      nullptr;  // sums of dq, (H, dq_tiles) of (queries, width); absent: no one adds to them
  std::int64_t dq_tiles = 0;
  int* loud = nullptr;  // (sequences,G): 1 where a row is; only with m and without q_rest
  // (sequences,G,2) where ds meets q and k in f16, whatever the type of v: bits of the largest
  // numbers of d_o and of v
  int* largest = nullptr;
  int tiles = 0;    // of a kernel's own in the longest sequence
  int width = 0;    // columns that kernels have
  int queries = 0;  // of a tile
};

/// Of a tile of queries in the sums of dq.
constexpr int accumulated_queries(int width) { return width <= 128 ? 64 : 32; }

/// Columns that kernels have, of a tile of the sums of dq, and tiles that there is room for, of one
/// head.
struct DqRoom {
  int width, queries;
  std::int64_t tiles;
  DqRoom(const Shape& shape, int chunks);
};

/// Packed sequences begin at a tile of their own, which leaves at most one more a sequence.
FOCI_DEVICE std::int64_t dq_tile_at(const GradientArgs& args, int s, int h, int tile) {
  const Shape& shape = args.shape;
  // Chunks begin at one of their own as well: tiles are counted from / queries + chunk.
  const int chunks = args.folded.spans ? args.folded.most_chunks : 0, more = s * chunks;
  const std::int64_t before =
      shape.q_offsets ? shape.q_offsets[s] / args.queries + s + more
                      : std::int64_t(s) * ((shape.N + args.queries - 1) / args.queries) + more;
  return (h * args.dq_tiles + before + tile) * (args.queries * args.width);
}

FOCI_DEVICE std::int64_t delta_at(const Shape& shape, const Place& at, int h, int token) {
  return (std::int64_t(at.b) * shape.H + h) * shape.N + token;
}

/// lse of a row as the softmax had it, +inf where there is nothing to weigh.
FOCI_DEVICE float saved_lse(const GradientArgs& args, const Place& at, int h, int token) {
  const float lse = args.saved.lse.load(at.b, h, token);
  if (lse == nothing) return INFINITY;
  const Field& more = args.folded.row_bias;
  return more ? lse - more.load(at.b, h, token) : lse;
}

/// What the rounding of a row's lse left over, in powers of two, where that shows.
FOCI_DEVICE float saved_share(const GradientArgs& args, const Place& at, int h, int token) {
  return args.saved.share ? args.saved.share[delta_at(args.shape, at, h, token)] : 0.0f;
}

/// What becomes of that which rounding queries leaves over: there is none, it is added where a
/// row's lse is loud, or to every score.
enum class Rest { none, seldom, always };

/// Whether scores of a row with this lse show that queries were rounded.
FOCI_DEVICE bool is_loud(float lse) { return fabsf(lse) * log2_e > loud && lse != INFINITY; }

/// Whether q and k have one f16 number each, which a full metric left; v may be bf16.
inline bool has_narrow_lines(const Folded& folded) {
  return folded.row_bias.data && !folded.spans && folded.q.dtype == DType::f16 &&
         folded.k.dtype == DType::f16;
}

/// There ds is f16 as well, times this power of two. |ds| = p |d_o . (v - o)| stays below 2^14
/// then, however large numbers are, and what is above 2^-27 of that bound keeps all digits.
FOCI_DEVICE float ds_unit(const GradientArgs& args, int s, int g) {
  if (!args.largest) return 1;
  const int* largest = args.largest + 2 * (s * args.shape.G + g);
  const float d_o = __int_as_float(largest[0]), v = __int_as_float(largest[1]);
  if (!(d_o > 0 && v > 0 && d_o < INFINITY && v < INFINITY)) return 1;
  const float most = ceilf(log2f(d_o) + log2f(v) + log2f(float(args.shape.E)));
  return exp2f(fminf(fmaxf(12 - most, -100.0f), 100.0f));
}

/// By what dq of columns d and d + 1 is multiplied: c, and m where it goes to q.
FOCI_DEVICE float2 dq_factor(const GradientArgs& args, int s, int h, int token, int d,
                             float scale) {
  if (!args.to.dq_of_q || !args.folded.m) return make_float2(scale, scale);
  const Folded& folded = args.folded;
  const std::int64_t at =
      folded.m.offset(s, folded.key_head_m ? args.shape.key_head(h) : h, token, d);
  const float2 m = *reinterpret_cast<const float2*>(static_cast<const float*>(folded.m.data) + at);
  return make_float2(scale * m.x, scale * m.y);
}

/// The keys of a block.
struct KeyBlock {
  Place at;
  int s, g, first;
  float scale;

  FOCI_DEVICE KeyBlock(const GradientArgs& args, int index, int keys) {
    first = index % args.tiles * keys;  // causal: the longest first
    g = index / args.tiles % args.shape.G;
    s = index / args.tiles / args.shape.G;
    at = args.shape.place(s);
    scale = scale_of(args.folded, args.shape, s, g);
  }
};

/// Tiles of queries along the prefix that see a key, none of two chunks, for every head that shares
/// it: queries from `from` on, which end before `end`.
struct ChunkCursor {
  const Folded& folded;
  int s, seen_from, queries;
  int h, last_head;  // h == last_head: no more
  int chunk = 0, from = 0, end = 0;

  FOCI_DEVICE ChunkCursor(const GradientArgs& args, const KeyBlock& block)
      : folded(args.folded),
        s(block.s),
        seen_from(max(block.first - block.at.first_seen, 0)),
        queries(args.queries),
        h(block.g * (args.shape.H / args.shape.G)),
        last_head(h + args.shape.H / args.shape.G) {
    begin();
  }
  FOCI_DEVICE bool done() const { return h == last_head; }
  FOCI_DEVICE void advance() {
    from += queries;
    find();
  }

 private:
  /// The first chunk that ends behind the first query.
  FOCI_DEVICE void begin() {
    const int* ends = folded.spans + std::int64_t(s) * (folded.most_chunks + 1) + 1;
    int low = 0, high = folded.most_chunks;
    while (low < high) {
      const int middle = (low + high) / 2;
      ends[middle] > seen_from ? high = middle : low = middle + 1;
    }
    chunk = low;
    const ChunkSpan span(folded, s, chunk);
    from = span.begin + max(seen_from - span.begin, 0) / queries * queries;
    end = span.end;
    if (chunk == folded.most_chunks) h = last_head;
  }
  FOCI_DEVICE void find() {
    while (from >= end) {
      if (++chunk == folded.most_chunks) {
        if (++h < last_head) begin();
        return;
      }
      const ChunkSpan span(folded, s, chunk);
      from = span.begin, end = span.end;
    }
  }
};

/// to[0..3] += x, in any order with others.
FOCI_DEVICE void add_four(float* to, const float (&x)[4]) {
#if defined(FOCI_EMULATED) || __CUDA_ARCH__ < 900
  for (int i = 0; i < 4; ++i) atomicAdd(to + i, x[i]);
#else
  asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(to), "f"(x[0]), "f"(x[1]),
               "f"(x[2]), "f"(x[3])
               : "memory");
#endif
}

/// Two neighbours at an even column, in one store where they lie so.
FOCI_DEVICE void store_pair(const Field& to, std::int64_t at, float x, float y) {
  const std::size_t size = to.dtype == DType::f32 ? 4 : 2;
  const auto address = reinterpret_cast<std::uintptr_t>(to.data) + std::uintptr_t(at) * size;
  if (to.strides[3] != 1 || address % (2 * size) != 0) {
    to.store_at(at, x);
    to.store_at(at + to.strides[3], y);
  } else if (to.dtype == DType::f32) {
    *reinterpret_cast<float2*>(address) = make_float2(x, y);
  } else {
    *reinterpret_cast<unsigned*>(address) =
        to.dtype == DType::bf16 ? pack<DType::bf16>(x, y) : pack<DType::f16>(x, y);
  }
}

/// delta, and queries that a metric folded, in one launch where both are wanted so. With
/// GradientArgs::largest it is written, and saved.share has the lse of products alone.
void softmax_mma_rows(GradientArgs& args, const SoftmaxMmaScratch& scratch, bool has_delta,
                      Stream stream);
/// saved.delta from weights and values as the other kernels make them, of loud heads where those
/// are told apart.
void softmax_mma_deltas(const GradientArgs& args, Stream stream);
/// dq from its sums, which blocks of keys have added to.
void softmax_mma_gather(GradientArgs args, Stream stream);
/// dq alone, each from one block that walks over the keys in order.
void softmax_mma_queries(const GradientArgs& args, Stream stream);

}  // namespace foci::cuda
