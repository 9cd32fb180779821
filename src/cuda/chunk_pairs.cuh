// SPDX-License-Identifier: Apache-2.0
// Which rows or keys a block works on; rows of a tile and keys of a chunk pair by pair: their
// scores, and the pulls do . v on the way back.
#pragma once

#include "cuda/chunk.cuh"

namespace foci::cuda::chunks {

FOCI_DEVICE Rows64 rows_of_block(const Call& call, int tiles) {
  const int index = int(blockIdx.x);
  return rows_at(call, index / tiles / call.shape.H, index / tiles % call.shape.H, index % tiles);
}

/// The chunk of a block, one of `most` for each key head.
struct Spot {
  Sequence in;
  int s, g, c;
};
FOCI_DEVICE Spot spot_of(const Call& call, std::int64_t index, int most) {
  const int c = int(index % most), g = int(index / most % call.shape.G),
            s = int(index / most / call.shape.G);
  return {sequence(call.shape, s), s, g, c};
}

/// Features f to f + 3 of a kept key of chunk c, biases among them, fading towards the last key of
/// the chunk.
FOCI_DEVICE Four whole_key4(const Call& call, const Spot& at, const Lines& k, const float* peak,
                            int last, int j, int f) {
  const int position = at.in.start(at.c) + j;
  Four y = key4(call, k, peak, j, f);
  FOCI_UNROLL
  for (int c = 0; c < 4; ++c) {
    if (f + c >= call.D && f + c < call.F)
      y.at[c] = bias_of(call, at.in, at.g, f + c - call.D, position);
    if (call.log2_rate != 0) y.at[c] *= fade(call, last - position);
  }
  return y;
}

/// A tile of a state to its place, from feature f and column e on.
FOCI_DEVICE void write_state(const Call& call, float* state, const Sums& sums, int f, int e) {
  FOCI_UNROLL
  for (int r = 0; r < 4; ++r) {
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) {
      if (f + row() + r < call.F && e + column() + c < call.shape.E)
        state[(f + row() + r) * call.shape.E + e + column() + c] = sums.at[r][c];
    }
  }
}

/// phi(q') . phi(k) of a key far above the peaks.
FOCI_DEVICE float score_one(const Call& call, const Lines& q, const Lines& k, float shift, int r,
                            int j) {
  float sum = 0;
  for (int d = 0; d < call.D; ++d)
    sum += exp_sum(call.folded.scale * q.load(r, d), k.load(j, d), shift);
  return sum;
}

/// Whether row r sees the chunk's key j.
FOCI_DEVICE bool sees(const Seen& seen, bool below, int r, int j) {
  return seen.count[r] > 0 && bit(seen.keep, j) && (!below || j <= r);
}

/// Products of the rows' features with those of the keys of chunk c, in the order of
/// column_by_lines(). Uses room.a and room.b; ends with a barrier.
FOCI_DEVICE Sums feature_products(const Call& call, const Rows64& rows, Room& room, int c) {
  const Seen& seen = room.seen;
  const Lines q = query_lines(call, rows), k = key_lines(call, rows.in, rows.g, c);
  Sums x{};
  for (int f = 0; f < call.D; f += side) {
    load_tile(room.a, [&](int r, int d) { return query4(call, q, seen, r, f + d); });
    load_tile(room.b, [&](int j, int d) { return own_key4(call, k, seen, j, f + d); });
    __syncthreads();
    product_by_lines(x, room.a, room.b, min(side, call.D - f));
    __syncthreads();
  }
  if (call.map != Map::exp || !seen.any_outgrown) return x;
  FOCI_UNROLL
  for (int r = 0; r < 4; ++r) {
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const int j = column_by_lines(i);
      if (seen.outgrown[j] && seen.count[row() + r] > 0)
        x.at[r][i] = score_one(call, q, k, seen.shift[row() + r], row() + r, j);
    }
  }
  return x;
}

/// room.p: what a row is divided by times its weights of the keys of chunk c, 0 where it does not
/// see one. seen.keep says which keys there are. Ends with a barrier.
FOCI_DEVICE void score(const Call& call, const Rows64& rows, Room& room, int c, bool below) {
  const Seen& seen = room.seen;
  const Sums x = feature_products(call, rows, room, c);
  const int start = rows.in.start(c);
  const int line = call.folded.key_head_bias ? 0 : rows.h - rows.g * (call.shape.H / call.shape.G);
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int j = column_by_lines(i);
    const float bias =
        call.biases && bit(seen.keep, j) ? bias_of(call, rows.in, rows.g, line, start + j) : 0.0f;
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) {
      float y = x.at[r][i] + bias;
      if (call.log2_rate != 0) y *= fade(call, seen.last[row() + r] - start - j);
      room.p.at[row() + r][j] = sees(seen, below, row() + r, j) ? y : 0;
    }
  }
  __syncthreads();
}

FOCI_DEVICE Lines gradient_lines(const Call& call, const Rows64& rows) {
  return Lines(call.d_o, rows.in.at.b, rows.h, rows.in.at.q0 + rows.first, call.shape.E);
}
/// do, 0 in rows that see nothing.
FOCI_DEVICE Four gradient4(const Lines& d_o, const Seen& seen, int r, int x) {
  return seen.count[r] > 0 ? d_o.load4(r, x) : Four{};
}
FOCI_DEVICE Four value4(const Lines& v, const Seen& seen, int j, int x) {
  return bit(seen.keep, j) ? v.load4(j, x) : Four{};
}

/// room.g = do . v of the own keys, whether seen or not. Ends with a barrier.
FOCI_DEVICE void pull(const Call& call, const Rows64& rows, Room& room) {
  const Seen& seen = room.seen;
  const Lines d_o = gradient_lines(call, rows), v = value_lines(call, rows.in, rows.g, rows.c);
  Sums x{};
  for (int e = 0; e < call.shape.E; e += side) {
    load_tile(room.a, [&](int r, int y) { return gradient4(d_o, seen, r, e + y); });
    load_tile(room.b, [&](int j, int y) { return value4(v, seen, j, e + y); });
    __syncthreads();
    product_by_lines(x, room.a, room.b, min(side, call.shape.E - e));
    __syncthreads();
  }
  FOCI_UNROLL
  for (int r = 0; r < 4; ++r) {
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) room.g.at[row() + r][column_by_lines(i)] = x.at[r][i];
  }
  __syncthreads();
}

/// A number a row, summed over the 16 threads that share it.
FOCI_DEVICE double row_sum(double x) {
  FOCI_UNROLL
  for (int step = 8; step > 0; step /= 2) x += __shfl_xor_sync(~0u, x, step);
  return x;
}

/// What every block over rows begins with. Ends with a barrier.
FOCI_DEVICE void begin_rows(const Call& call, const Rows64& rows, Seen& seen) {
  find_keys(call, rows.in, rows.c, seen.keep);
  if (threadIdx.x == 0) seen.any_outgrown = 0;
  __syncthreads();
  find_row(call, rows, seen);
  __syncthreads();
  find_peaks(call, rows, seen);
  find_shifts(call, rows, seen);
}

}  // namespace foci::cuda::chunks
