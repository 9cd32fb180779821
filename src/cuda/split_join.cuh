// SPDX-License-Identifier: Apache-2.0
// What the passes over split keys share: where a block stands, where it leaves what it found, and
// how that is joined, always in the same order.
#pragma once

#include "cuda/split_keys.cuh"

#include <type_traits>

namespace foci::cuda::split {

inline constexpr int threads = 128;  // of a block
inline constexpr int fan = 16;       // splits that one block joins

struct Args {
  Shape shape;
  Folded folded;
  Rows to;
  Splits by;
  float* o;       // (B,H,N,splits,E)
  float2* notes;  // (B,H,N,splits)
  int* arrived;  // (sequences,G,tiles,1 + groups of splits), 0 between launches; absent: no joining
  StepTokens tokens;
};

/// Where a block stands.
struct Stand {
  int s, g, tile, split;
  Place at;
  int first, last;  // keys
  int rows;         // of the sequence
  int own;          // of them a tile has

  FOCI_DEVICE explicit Stand(const Args& args) : own(args.by.tile) {
    unsigned index = blockIdx.x;
    split = int(index % unsigned(args.by.splits)), index /= unsigned(args.by.splits);
    tile = int(index % unsigned(args.by.tiles)), index /= unsigned(args.by.tiles);
    g = int(index % unsigned(args.shape.G)), s = int(index / unsigned(args.shape.G));
    at = args.shape.place(s);
    first = split * args.by.keys;
    last = min(first + args.by.keys, at.M);
    rows = args.shape.H / args.shape.G * at.N;
  }
  /// Head and query of the tile's row r.
  FOCI_DEVICE int head(const Args& args, int r) const {
    return g * (args.shape.H / args.shape.G) + (tile * own + r) / max(at.N, 1);
  }
  FOCI_DEVICE int query(int r) const { return (tile * own + r) % max(at.N, 1); }
  /// Its line in (B,H,N).
  FOCI_DEVICE std::int64_t line(const Args& args, int r) const {
    return (std::int64_t(at.b) * args.shape.H + head(args, r)) * args.shape.N + at.q0 + query(r);
  }
  FOCI_DEVICE bool has(int r) const { return r < own && tile * own + r < rows; }
  FOCI_DEVICE bool has_work() const { return first < last && has(0); }

  /// Those of a step's tokens that are keys of this block join the cache.
  FOCI_DEVICE void append(const Args& args) const {
    if (!args.tokens.to_k) return;
    for (int j = max(first, at.M - args.tokens.n); j < last; ++j)
      args.tokens.append(at.b, g, j - (at.M - args.tokens.n));
    __syncthreads();
  }
};

/// e^(x - top), 0 where there is no x.
FOCI_DEVICE float below(float x, float top) { return x == -INFINITY ? 0 : expf(x - top); }

/// Rows of a tile that some splits found: every step-th of `count` slots from `first` on.
struct Found {
  int first, step, count;
};

/// Shares of those slots in a row whose slots begin at `slot`: into shared memory, by a warp, which
/// gets the largest score and the sum.
FOCI_DEVICE float2 share_out(const Args& args, std::int64_t slot, const Found& found,
                             float* shares) {
  const float2* notes = args.notes + slot + found.first;
  float top = -INFINITY, sum = 0;
  for (int x = lane(); x < found.count; x += warp) top = fmaxf(top, notes[x * found.step].x);
  top = warp_max(top);
  for (int x = lane(); x < found.count; x += warp) {
    const float2 note = notes[x * found.step];
    shares[x] = below(note.x, top);
    sum += note.y * shares[x];
  }
  return make_float2(top, warp_sum(sum));
}

/// Columns e to e + W - 1 of such a row, eight slots at a time.
template <int W>
FOCI_DEVICE void join_columns(float (&o)[W], const Args& args, std::int64_t slot,
                              const Found& found, const float* shares, int e) {
  using Run = std::conditional_t<W == 4, float4, float>;
  const std::int64_t step = std::int64_t(found.step) * args.shape.E / W;
  const auto* lines =
      reinterpret_cast<const Run*>(args.o + (slot + found.first) * args.shape.E + e);
  for (int x = 0; x < found.count; x += 8) {
    Run some[8];
    FOCI_UNROLL
    for (int n = 0; n < 8; ++n) some[n] = lines[min(x + n, found.count - 1) * step];
    FOCI_UNROLL
    for (int n = 0; n < 8; ++n) {
      if (x + n >= found.count) break;
      const float share = shares[x + n];
      const auto* from = reinterpret_cast<const float*>(&some[n]);
      FOCI_UNROLL
      for (int w = 0; w < W; ++w) o[w] = fmaf(share, from[w], o[w]);
    }
  }
}

/// Whether this block is the last of `all` that come here; what the others wrote can then be read.
FOCI_DEVICE bool comes_last(int* arrived, int all) {
  __threadfence();
  __syncthreads();
  int last = 0;
  if (threadIdx.x == 0) {
    last = atomicAdd(arrived, 1) == all - 1;
    if (last) *arrived = 0;  // for the next launch
  }
  last = __syncthreads_or(last);
  __threadfence();
  return last != 0;
}

/// What was found for the tile's rows, joined: into the first of the slots, or out; W columns a
/// thread.
template <int W>
FOCI_DEVICE void join_rows(const Args& args, const Stand& stand, const Found& found, bool out) {
  const int E = args.shape.E;
  auto* sums = reinterpret_cast<float2*>(shared_memory());    // (R)
  auto* shares = reinterpret_cast<float*>(sums + stand.own);  // (R, count)
  for (int r = int(threadIdx.x) / warp; r < stand.own && stand.has(r); r += threads / warp) {
    const float2 all =
        share_out(args, stand.line(args, r) * args.by.splits, found, shares + r * found.count);
    if (lane() == 0) sums[r] = all;
  }
  __syncthreads();
  for (int at = int(threadIdx.x); at < stand.own * E / W; at += threads) {
    const int r = at * W / E, e = at * W % E;
    if (!stand.has(r)) break;
    const std::int64_t slot = stand.line(args, r) * args.by.splits;
    float o[W] = {};
    join_columns(o, args, slot, found, shares + r * found.count, e);
    const float2 all = sums[r];
    const int h = stand.head(args, r), i = stand.at.q0 + stand.query(r);
    FOCI_UNROLL
    for (int w = 0; w < W; ++w) {
      if (out) {
        args.to.o.store(all.y == 0 ? 0 : o[w] / all.y, stand.at.b, h, i, e + w);
      } else {
        args.o[(slot + found.first) * E + e + w] = o[w];
      }
    }
    if (e != 0) continue;
    if (!out) args.notes[slot + found.first] = all;
    if (out && args.to.lse)
      args.to.lse.store(all.y == 0 ? -INFINITY : all.x + logf(all.y), stand.at.b, h, i);
  }
}

/// The last block of a group of splits joins them, the last of those the groups.
template <int W>
FOCI_DEVICE void join_at_last(const Args& args, const Stand& stand) {
  const int splits = args.by.splits, groups = (splits + fan - 1) / fan;
  const int tile = (stand.s * args.shape.G + stand.g) * args.by.tiles + stand.tile;
  int* arrived = args.arrived + std::int64_t(tile) * (groups + 1);
  const int group = stand.split / fan, first = group * fan;
  Found found{first, 1, min(fan, splits - first)};
  bool out = groups == 1;
  while (comes_last(out ? arrived : arrived + 1 + group, found.count)) {
    join_rows<W>(args, stand, found, out);
    if (out) return;
    found = {0, fan, groups};
    out = true;
  }
}

}  // namespace foci::cuda::split
