// SPDX-License-Identifier: Apache-2.0
// A sequence cut into chunks, so that rows and keys of the same positions share one; what rows of a
// tile see; their features and those of keys; scores and pulls of a chunk's rows and keys.
#pragma once

#include "cuda/chunk_tile.cuh"
#include "cuda/chunked.cuh"

namespace foci::cuda::chunks {

inline constexpr int most_width = 256;    // D and E
inline constexpr int stretch_chunks = 8;  // chunks summed up by one block where rows see everything

/// Chunk c holds positions [64 c - pad, 64 c - pad + 64).
struct Sequence {
  Place at;
  int pad = 0, chunks = 0;
  int row_chunk = 0;      // causal: the chunk of the first rows; below 0 where they see nothing
  std::int64_t base = 0;  // its first chunk among those of all sequences
  std::int64_t rows = 0;  // not causal: its first stretch of rows likewise

  FOCI_DEVICE int start(int c) const { return side * c - pad; }
  FOCI_DEVICE int row_tiles() const { return (at.N + side - 1) / side; }
};

FOCI_DEVICE Sequence sequence(const Shape& shape, int s) {
  Sequence in;
  in.at = shape.place(s);
  if (shape.causal) {
    in.pad = (side - (in.at.first_seen % side + side) % side) % side;
    in.row_chunk = (in.at.first_seen + in.pad) / side;
  }
  in.chunks = in.at.M > 0 ? (in.at.M + in.pad + side - 1) / side : 0;
  const std::int64_t before = shape.q_offsets ? in.at.k0 : std::int64_t(s) * shape.M;
  in.base = before / side + 3 * std::int64_t(s);
  const std::int64_t rows_before = shape.q_offsets ? in.at.q0 : std::int64_t(s) * shape.N;
  in.rows = rows_before / (side * stretch_chunks) + s;
  return in;
}

/// Chunks of all sequences, one more each for what comes after the last; stretches of rows.
inline std::int64_t chunks_of_all(const Shape& shape, std::int64_t batch) {
  return batch * shape.M / side + 3 * std::int64_t(shape.sequences);
}
inline std::int64_t stretches_of_all(const Shape& shape, std::int64_t batch) {
  return batch * shape.N / (side * stretch_chunks) + shape.sequences;
}
inline dim3 blocks(std::int64_t count) { return dim3(unsigned(count)); }

FOCI_DEVICE std::int64_t slot(const Call& call, const Sequence& in, int c, int g) {
  return (in.base + c) * call.shape.G + g;
}

/// Of the rows after a chunk, or of a stretch of rows.
FOCI_DEVICE std::int64_t later_slot(const Call& call, const Sequence& in, int c, int g) {
  return ((call.shape.causal ? in.base : in.rows) + c) * call.shape.G + g;
}

FOCI_DEVICE bool keeps(const Call& call, const Sequence& in, int j) {
  if (j < 0 || j >= in.at.M) return false;
  const Field& mask = call.folded.key_mask;
  return !mask ||
         static_cast<const std::uint8_t*>(mask.data)[mask.offset(in.at.b, in.at.k0 + j)] != 0;
}

/// Sum of rate^0 .. rate^(n - 1)
FOCI_DEVICE double powers_sum(const Call& call, int n) {
  if (call.log2_rate == 0) return n;
  const double log = double(call.log2_rate) * 0.6931471805599453;
  return expm1(n * log) / expm1(log);
}

FOCI_DEVICE float fade(const Call& call, int gap) {
  return power_of_two(call.log2_rate * float(gap));
}

FOCI_DEVICE Facts facts_before(const Call& call, const Sequence& in, int c) {
  if (call.facts) return call.facts[in.base + c];
  const int n = max(0, min(in.start(c), in.at.M));
  return {n, n - 1, call.divisor == Divisor::powers ? powers_sum(call, n) : 0};
}

/// Where rows see everything: so few keys that a state would cost more than it saves.
FOCI_DEVICE bool direct(const Call& call, const Sequence& in) {
  return !call.shape.causal && in.at.M <= side;
}

/// Rows of one tile and the keys of one chunk, as a block knows them.
struct Seen {
  int count[side], last[side];  // keys a row sees, the last of them
  float fading[side];           // rate^(last - last key before the chunk)
  double by[side], delta[side];
  float shift[side];       // exp
  int outgrown[side];      // exp: keys far above the peaks
  float peak[most_width];  // exp: what the chunk's features are measured from
  unsigned keep[2];        // a bit a key
  int any_outgrown;
};

struct Room {
  Tile a, b, p, g;
  Seen seen;
};

FOCI_DEVICE bool bit(const unsigned (&bits)[2], int j) { return (bits[j / 32] >> j % 32 & 1) != 0; }
/// The bits up to j.
FOCI_DEVICE unsigned upto(unsigned bits, int j) {
  return j < 0 ? 0 : j >= 31 ? bits : bits & ((2u << j) - 1);
}

/// Which keys of chunk c are kept. Barriers before and after are the caller's.
FOCI_DEVICE void find_keys(const Call& call, const Sequence& in, int c, unsigned (&keep)[2]) {
  if (threadIdx.x >= side) return;
  const unsigned bits = __ballot_sync(~0u, keeps(call, in, in.start(c) + int(threadIdx.x)));
  if (lane() == 0) keep[threadIdx.x / warp] = bits;
}

/// A tile of rows.
struct Rows64 {
  Sequence in;
  int s = 0, h = 0, g = 0, first = 0;  // first row
  int c = 0;                           // chunk of its own keys
  bool own = false;                    // whether it meets them one by one
  bool below = false;                  // row r then sees keys up to r alone
  bool earlier = false;                // whether it sees a state
  int state = 0;                       // which

  FOCI_DEVICE int bias_head(const Call& call) const { return call.folded.key_head_bias ? g : h; }
  FOCI_DEVICE std::int64_t line(const Call& call, int r) const {
    return (std::int64_t(in.at.b) * call.shape.H + h) * call.shape.N + in.at.q0 + first + r;
  }
};

FOCI_DEVICE Rows64 rows_at(const Call& call, int s, int h, int tile) {
  Rows64 rows;
  rows.in = sequence(call.shape, s);
  rows.s = s;
  rows.h = h;
  rows.g = call.shape.key_head(h);
  rows.first = tile * side;
  const bool causal = call.shape.causal != 0, few = direct(call, rows.in);
  rows.c = causal ? rows.in.row_chunk + tile : 0;
  rows.own = (causal || few) && rows.c >= 0 && rows.c < rows.in.chunks;
  rows.below = causal;
  const int before = causal ? rows.c : few ? 0 : rows.in.chunks;
  rows.state = causal ? rows.c : 0;
  rows.earlier = before > 0 && facts_before(call, rows.in, before).count > 0;
  return rows;
}

/// What comes before the own keys.
FOCI_DEVICE Facts facts_of(const Call& call, const Rows64& rows) {
  if (!rows.earlier) return {};
  return facts_before(call, rows.in, call.shape.causal ? rows.c : rows.in.chunks);
}

/// seen.keep holds the own keys, where there are some. Threads 0 to 63.
FOCI_DEVICE void find_row(const Call& call, const Rows64& rows, Seen& seen) {
  const int r = int(threadIdx.x), start = rows.in.start(rows.c);
  if (r >= side) return;
  const Facts before = facts_of(call, rows);
  const int most = rows.below ? r : side - 1;
  const bool inside = rows.first + r < rows.in.at.N, here = rows.own && inside;
  const unsigned low = here ? upto(seen.keep[0], most) : 0,
                 high = here ? upto(seen.keep[1], most - 32) : 0;
  const int own_last = high ? 63 - __clz(high) : low ? 31 - __clz(low) : -1;
  const int n = inside ? before.count + __popc(low) + __popc(high) : 0;
  const int last = own_last >= 0 ? start + own_last : before.last;
  const float fading = fade(call, last - before.last);
  double by = call.divisor == Divisor::length ? n : n > 0;
  if (call.divisor == Divisor::powers && n > 0) {
    by = powers_sum(call, n);
    if (call.facts) {
      by = double(fading) * before.weight;
      for (int j = 0; j <= own_last; ++j)
        if (bit(seen.keep, j)) by += double(fade(call, own_last - j));
    }
  }
  seen.count[r] = n;
  seen.last[r] = last;
  seen.fading[r] = rows.earlier ? fading : 0;
  seen.by[r] = call.divisor == Divisor::sum ? 0 : by;
  seen.delta[r] = 0;
}

FOCI_DEVICE Lines query_lines(const Call& call, const Rows64& rows) {
  return Lines(call.folded.q, rows.in.at.b, rows.h, rows.in.at.q0 + rows.first, call.D);
}
FOCI_DEVICE Lines key_lines(const Call& call, const Sequence& in, int g, int c) {
  return Lines(call.folded.k, in.at.b, g, in.at.k0 + in.start(c), call.D);
}
FOCI_DEVICE Lines value_lines(const Call& call, const Sequence& in, int g, int c) {
  return Lines(call.folded.v, in.at.b, g, in.at.k0 + in.start(c), call.shape.E);
}

/// phi(q'), 0 in rows that see nothing.
FOCI_DEVICE Four query4(const Call& call, const Lines& q, const Seen& seen, int r, int x) {
  if (seen.count[r] == 0 || x >= call.D) return {};
  Four y = q.load4(r, x);
  FOCI_UNROLL
  for (int c = 0; c < 4; ++c) {
    const float scaled = call.folded.scale * y.at[c];
    y.at[c] = call.map == Map::exp ? exp_sum(scaled, seen.peak[x + c], seen.shift[r])
                                   : phi(call.map, scaled);
    if (x + c >= call.D) y.at[c] = 0;
  }
  return y;
}

/// phi(k), measured from `peak` where phi is exp; no bias.
FOCI_DEVICE Four key4(const Call& call, const Lines& k, const float* peak, int j, int x) {
  if (x >= call.D) return {};
  Four y = k.load4(j, x);
  FOCI_UNROLL
  for (int c = 0; c < 4; ++c) {
    if (x + c < call.D)
      y.at[c] = call.map == Map::exp ? expf(y.at[c] - peak[x + c]) : phi(call.map, y.at[c]);
  }
  return y;
}

/// The chunk's own keys, as rows meet them.
FOCI_DEVICE Four own_key4(const Call& call, const Lines& k, const Seen& seen, int j, int x) {
  if (!bit(seen.keep, j) || (call.map == Map::exp && seen.outgrown[j])) return {};
  return key4(call, k, seen.peak, j, x);
}

/// Bias line `line` of a key: 1 without content.
FOCI_DEVICE float bias_of(const Call& call, const Sequence& in, int g, int line, int j) {
  if (!call.content) return 1;
  const int heads = call.shape.H / call.shape.G;
  const int head = call.folded.key_head_bias ? g : g * heads + line;
  return call.folded.key_bias.load(in.at.b, head, in.at.k0 + j);
}

/// Columns e to e + 3 of line f of a state.
FOCI_DEVICE Four state4(const Call& call, const float* state, int f, int e) {
  Four y{};
  const int E = call.shape.E;
  if (f >= call.F) return y;
  if (E % 4 == 0 && call.state % 4 == 0 && e < E) return four(state + f * E + e);
  FOCI_UNROLL
  for (int c = 0; c < 4; ++c)
    if (e + c < E) y.at[c] = state[f * E + e + c];
  return y;
}

// Over several lines, for exp: what features are measured from.

/// seen.peak where there is a state. Barriers are the caller's.
FOCI_DEVICE void find_state_peaks(const Call& call, const Rows64& rows, Seen& seen) {
  const int before = rows.below ? rows.c : rows.in.chunks;
  for (int d = int(threadIdx.x); call.map == Map::exp && d < call.D; d += threads)
    seen.peak[d] = call.peaks[slot(call, rows.in, before, rows.g) * call.D + d];
}

/// seen.peak, seen.outgrown of the own keys. Every thread; ends with a barrier.
FOCI_DEVICE void find_peaks(const Call& call, const Rows64& rows, Seen& seen) {
  if (call.map != Map::exp) return;
  const Sequence& in = rows.in;
  const Lines k = key_lines(call, in, rows.g, rows.c);
  const int first = seen.keep[0] ? __ffs(seen.keep[0]) - 1 : 31 + __ffs(seen.keep[1]);
  const bool stored = (rows.earlier || !rows.below) && in.chunks > 0;
  if (stored) find_state_peaks(call, rows, seen);
  for (int d = int(threadIdx.x); !stored && d < call.D; d += threads)
    seen.peak[d] = rows.own && first < side ? fmaxf(k.load(first, d), far_below) : far_below;
  __syncthreads();
  int found = 0;
  for (int j = int(threadIdx.x) / warp; j < side; j += threads / warp) {
    int above = 0;
    for (int d = lane(); d < call.D && rows.own && bit(seen.keep, j); d += warp)
      above |= k.load(j, d) > seen.peak[d] + outgrown;
    above = __any_sync(~0u, above);
    if (lane() == 0) seen.outgrown[j] = above;
    found |= above;
  }
  found = __syncthreads_or(found);
  if (threadIdx.x == 0) seen.any_outgrown = found;
  __syncthreads();
}

/// seen.shift: a row's largest exponent. Every thread; ends with a barrier.
FOCI_DEVICE void find_shifts(const Call& call, const Rows64& rows, Seen& seen) {
  if (call.map != Map::exp) return;
  const Lines q = query_lines(call, rows), k = key_lines(call, rows.in, rows.g, rows.c);
  for (int r = int(threadIdx.x) / warp; r < side; r += threads / warp) {
    float top = 2 * far_below;
    for (int d = lane(); d < call.D && seen.count[r] > 0; d += warp) {
      const float x = call.folded.scale * q.load(r, d);
      top = fmaxf(top, x + seen.peak[d]);
      for (int j = 0; seen.any_outgrown && j <= (rows.below ? r : side - 1); ++j)
        if (seen.outgrown[j]) top = fmaxf(top, x + k.load(j, d));
    }
    top = warp_max(top);
    if (lane() == 0) seen.shift[r] = top;
  }
  __syncthreads();
}

}  // namespace foci::cuda::chunks
