// SPDX-License-Identifier: Apache-2.0
// Backward: dq from the state of earlier keys and the chunk's own; then dk, dv and the biases'
// gradient from the state of later rows and the chunk's own. With g = do over the row's divisor,
//   dq'_i = S_i g_i        dk_j = T_j v_j        dv_j = T_j' k_j        T_j = sum_i>=j q'_i g_i'
// and through phi for linear, whose divisor adds -delta_i / sum_i to every g_i . v_j.
#include "cuda/chunk_pairs.cuh"
#include "cuda/chunked_mma.cuh"

namespace foci::cuda {

namespace chunks {

namespace {

// Rows.

/// sums[s] += do times the state: features s * 64 and on. Ends with a barrier.
template <int Slices>
FOCI_DEVICE void pull_state(Sums (&sums)[Slices], const Call& call, const Rows64& rows,
                            Room& room) {
  const Lines d_o = gradient_lines(call, rows);
  const float* state = call.states + slot(call, rows.in, rows.state, rows.g) * call.state;
  FOCI_UNROLL
  for (int s = 0; s < Slices; ++s) {
    if (s * side >= call.D) break;
    for (int e = 0; e < call.shape.E; e += side) {
      load_tile(room.a, [&](int r, int x) { return gradient4(d_o, room.seen, r, e + x); });
      load_across(room.b, [&](int f, int x) { return state4(call, state, s * side + f, e + x); });
      __syncthreads();
      product(sums[s], room.a, room.b, min(side, call.shape.E - e));
      __syncthreads();
    }
  }
}

/// linear: sum_i = sum_j x_ij and delta_i = sum_j a_ij da_ij of each row, in double. room.p and
/// room.g hold those of the own keys. Ends with a barrier.
template <int Slices>
FOCI_DEVICE void find_deltas(const Sums (&sums)[Slices], const Call& call, const Rows64& rows,
                             Room& room) {
  Seen& seen = room.seen;
  if (rows.earlier) {
    const Lines q = query_lines(call, rows);
    const float* z =
        call.states + slot(call, rows.in, rows.state, rows.g) * call.state + call.F * call.shape.E;
    double by[4] = {}, delta[4] = {};
    FOCI_UNROLL
    for (int s = 0; s < Slices; ++s) {
      if (s * side >= call.D) break;
      FOCI_UNROLL
      for (int r = 0; r < 4; ++r) {
        const Four phi = query4(call, q, seen, row() + r, s * side + column());
        FOCI_UNROLL
        for (int c = 0; c < 4; ++c) {
          const int f = s * side + column() + c;
          if (f < call.D) by[r] += double(phi.at[c]) * double(z[f]);
          delta[r] += double(phi.at[c]) * double(sums[s].at[r][c]);
        }
      }
    }
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) {
      by[r] = row_sum(by[r]);
      delta[r] = row_sum(delta[r]);
      if (column() == 0) seen.by[row() + r] = by[r];
      if (column() == 0) seen.delta[row() + r] = delta[r];
    }
  }
  __syncthreads();
  for (int r = int(threadIdx.x) / warp; r < side; r += threads / warp) {
    double by = 0, delta = 0;
    for (int j = lane(); rows.own && j < side; j += warp) {
      if (!sees(seen, rows.below, r, j)) continue;
      by += double(room.p.at[r][j]);
      delta += double(room.p.at[r][j]) * double(room.g.at[r][j]);
    }
    for (int step = warp / 2; step > 0; step /= 2) {
      by += __shfl_xor_sync(~0u, by, step);
      delta += __shfl_xor_sync(~0u, delta, step);
    }
    if (lane() != 0) continue;
    seen.by[r] += by;
    seen.delta[r] = seen.by[r] == 0 ? 0 : (seen.delta[r] + delta) / seen.by[r];
  }
  __syncthreads();
}

/// room.g: from da to ds times the row's divisor, 0 where a row does not see a key; where
/// `divided`, ds, and room.p the weights. Ends with a barrier.
FOCI_DEVICE void weigh_pulls(const Call& call, const Rows64& rows, Room& room, bool divided) {
  const Seen& seen = room.seen;
  const int start = rows.in.start(rows.c);
  for (int index = int(threadIdx.x); index < side * side; index += threads) {
    const int r = index / side, j = index % side;
    float &x = room.p.at[r][j], &y = room.g.at[r][j];
    const float by = float(seen.by[r]);
    if (!sees(seen, rows.below, r, j) || by == 0) {
      x = y = 0;
      continue;
    }
    y = float(double(y) - seen.delta[r]);
    if (call.log2_rate != 0) y *= fade(call, seen.last[r] - start - j);
    if (divided) x /= by;
    if (divided) y /= by;
  }
  __syncthreads();
}

/// What keys far above the peaks add to d phi(q') phi'(q'), feature x of row r.
FOCI_DEVICE float pull_outgrown_keys(const Call& call, const Room& room, const Lines& q,
                                     const Lines& k, int r, int x) {
  float sum = 0;
  for (int j = 0; j < side; ++j) {
    if (!room.seen.outgrown[j] || room.g.at[r][j] == 0) continue;
    const float y = call.folded.scale * q.load(r, x);
    sum += room.g.at[r][j] * exp_sum(y, k.load(j, x), room.seen.shift[r]);
  }
  return sum;
}

/// dq of four features of a row, from d phi(q') times the row's divisor.
FOCI_DEVICE void write_query(const Call& call, const Rows64& rows, const Room& room, int r, int x,
                             Four y) {
  const Seen& seen = room.seen;
  if (rows.first + r >= rows.in.at.N || x >= call.shape.D) return;
  const Lines q = query_lines(call, rows), k = key_lines(call, rows.in, rows.g, rows.c);
  const Lines dq(call.sinks.dq, rows.in.at.b, rows.h, rows.in.at.q0 + rows.first, call.shape.D);
  const float by = float(seen.by[r]);
  const Four raw = call.map == Map::none ? Four{} : q.load4(r, x);
  const Four phi = call.map == Map::exp ? query4(call, q, seen, r, x) : Four{};
  FOCI_UNROLL
  for (int c = 0; c < 4; ++c) {
    const float slopes =
        call.map == Map::exp ? phi.at[c] : slope(call.map, call.folded.scale * raw.at[c]);
    y.at[c] *= slopes;
    if (call.map == Map::exp && seen.any_outgrown && x + c < call.D)
      y.at[c] += pull_outgrown_keys(call, room, q, k, r, x + c);
    y.at[c] = by == 0 || !call.content ? 0 : call.folded.scale * y.at[c] / by;
  }
  dq.store4(r, x, y);
}

/// A row of linear weights stays the same when its features grow together, so their gradient is at
/// right angles to them: what rounding left along them is taken off, for a small sum of a few
/// features divides it, and the slope of relu does not make up for that.
template <int Slices>
FOCI_DEVICE void straighten(Sums (&sums)[Slices], const Call& call, const Rows64& rows,
                            const Seen& seen) {
  const Lines q = query_lines(call, rows);
  FOCI_UNROLL
  for (int r = 0; r < 4; ++r) {
    double along = 0, length = 0;
    FOCI_UNROLL
    for (int s = 0; s < Slices; ++s) {
      const Four phi = query4(call, q, seen, row() + r, s * side + column());
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) {
        along += double(phi.at[c]) * double(sums[s].at[r][c]);
        length += double(phi.at[c]) * double(phi.at[c]);
      }
    }
    along = row_sum(along), length = row_sum(length);
    const double share = length > 0 ? along / length : 0.0;
    FOCI_UNROLL
    for (int s = 0; s < Slices; ++s) {
      const Four phi = query4(call, q, seen, row() + r, s * side + column());
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) {
        float& x = sums[s].at[r][c];
        x = float(double(x) - share * double(phi.at[c]));
      }
    }
  }
}

template <int Slices>
FOCI_DEVICE void finish_queries(Sums (&sums)[Slices], const Call& call, const Rows64& rows,
                                Room& room) {
  const Seen& seen = room.seen;
  const Lines k = key_lines(call, rows.in, rows.g, rows.c);
  const bool divides = call.divisor == Divisor::sum && rows.earlier;
  const float* z =
      call.states + slot(call, rows.in, rows.state, rows.g) * call.state + call.F * call.shape.E;
  FOCI_UNROLL
  for (int s = 0; s < Slices; ++s) {
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int f = s * side + column() + c;
      const float alone = divides && f < call.D ? z[f] : 0;
      FOCI_UNROLL
      for (int r = 0; r < 4; ++r) {
        float& x = sums[s].at[r][c];
        x = fmaf(-float(seen.delta[row() + r]), alone, x * seen.fading[row() + r]);
      }
    }
    if (rows.own && s * side < call.D) {
      load_tile(room.b, [&](int j, int x) { return own_key4(call, k, seen, j, s * side + x); });
      __syncthreads();
      if (rows.below) {
        product_below(sums[s], room.g, room.b);
      } else {
        product(sums[s], room.g, room.b, side);
      }
      __syncthreads();
    }
  }
  if (call.map == Map::relu) straighten(sums, call, rows, seen);
  FOCI_UNROLL
  for (int s = 0; s < Slices; ++s) {
    FOCI_UNROLL
    for (int r = 0; r < 4 && call.sinks.dq; ++r) {
      Four y;
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) y.at[c] = sums[s].at[r][c];
      write_query(call, rows, room, row() + r, s * side + column(), y);
    }
  }
}

template <int Slices>
__global__ void __launch_bounds__(threads, Slices > 1 ? 1 : 2) pull_rows(Call call, int tiles) {
  Room& room = *reinterpret_cast<Room*>(shared_memory());
  const Rows64 rows = rows_of_block(call, tiles);
  if (rows.first >= rows.in.at.N) return;
  Seen& seen = room.seen;
  begin_rows(call, rows, seen);
  Sums sums[Slices] = {};
  if (call.content) {
    if (rows.earlier) pull_state(sums, call, rows, room);
    if (rows.own) pull(call, rows, room);
    if (rows.own && call.divisor == Divisor::sum) score(call, rows, room, rows.c, rows.below);
    if (call.divisor == Divisor::sum) find_deltas(sums, call, rows, room);
    if (rows.own) weigh_pulls(call, rows, room, false);
  }
  finish_queries(sums, call, rows, room);
  const int r = int(threadIdx.x);
  if (r >= side || rows.first + r >= rows.in.at.N) return;
  call.by[rows.line(call, r)] = float(seen.by[r]);
  if (call.deltas) call.deltas[rows.line(call, r)] = seen.delta[r];
  if (call.shifts) call.shifts[rows.line(call, r)] = seen.shift[r];
}

/// What pull_rows found out about the rows. Threads 0 to 63; barriers are the caller's.
FOCI_DEVICE void recall_rows(const Call& call, const Rows64& rows, Seen& seen) {
  const int r = int(threadIdx.x);
  if (r >= side) return;
  const bool inside = rows.first + r < rows.in.at.N;
  seen.by[r] = inside ? double(call.by[rows.line(call, r)]) : 0;
  seen.delta[r] = inside && call.deltas ? call.deltas[rows.line(call, r)] : 0;
  if (call.shifts) seen.shift[r] = inside ? call.shifts[rows.line(call, r)] : 0;
  if (seen.by[r] == 0) seen.count[r] = 0;  // it pulls nothing
}

// The states of rows.

/// Features of a row, those of the biases among them, fading from the last key before the chunk.
FOCI_DEVICE Four whole_query4(const Call& call, const Rows64& rows, const Lines& q,
                              const Seen& seen, int r, int x) {
  if (seen.count[r] == 0) return {};
  const int line = call.folded.key_head_bias || !call.content
                       ? 0
                       : rows.h - rows.g * (call.shape.H / call.shape.G);
  Four y = query4(call, q, seen, r, x);
  FOCI_UNROLL
  for (int c = 0; c < 4; ++c) {
    if (x + c >= call.D) y.at[c] = call.biases && x + c == call.D + line ? 1 : 0;
    y.at[c] *= seen.fading[r];
  }
  return y;
}

/// Adds one tile of rows.
FOCI_DEVICE void sum_tile(Sums& sums, double& alone, const Call& call, const Rows64& rows,
                          Room& room, int f, int e) {
  Seen& seen = room.seen;
  find_keys(call, rows.in, rows.c, seen.keep);
  __syncthreads();
  find_row(call, rows, seen);
  find_state_peaks(call, rows, seen);
  recall_rows(call, rows, seen);
  __syncthreads();
  const Lines q = query_lines(call, rows), d_o = gradient_lines(call, rows);
  load_tile(room.a, [&](int r, int x) { return whole_query4(call, rows, q, seen, r, f + x); });
  load_tile(room.b, [&](int r, int x) {
    Four y = gradient4(d_o, seen, r, e + x);
    FOCI_UNROLL
    for (int c = 0; c < 4 && seen.count[r] > 0; ++c) y.at[c] /= float(seen.by[r]);
    return y;
  });
  __syncthreads();
  product_across(sums, room.a, room.b);
  if (call.divisor == Divisor::sum && threadIdx.x < side) {
    for (int r = 0; r < side; ++r) {
      if (seen.count[r] > 0)
        alone -= double(room.a.at[r][threadIdx.x]) * seen.delta[r] / seen.by[r];
    }
  }
  __syncthreads();
}

/// A tile (f, e) of the sum over a chunk's rows, over several chunks' where rows see everything.
__global__ void __launch_bounds__(threads, 2) sum_rows(Call call, int most) {
  Room& room = *reinterpret_cast<Room*>(shared_memory());
  const int f_tiles = (call.F + side - 1) / side, e_tiles = (call.shape.E + side - 1) / side;
  const int tile = int(blockIdx.x) % (f_tiles * e_tiles);
  const int f = tile / e_tiles * side, e = tile % e_tiles * side;
  const Spot at = spot_of(call, blockIdx.x / unsigned(f_tiles * e_tiles), most);
  const bool causal = call.shape.causal != 0;
  const int first = causal ? at.c - at.in.row_chunk : at.c * stretch_chunks;
  const int last = min(first + (causal ? 1 : stretch_chunks), at.in.row_tiles());
  if (direct(call, at.in) || (causal ? at.c == 0 || at.c >= at.in.chunks : first >= last)) return;
  Sums sums{};
  double alone = 0;
  const int heads = call.shape.H / call.shape.G;
  for (int h = at.g * heads; h < (at.g + 1) * heads; ++h) {
    for (int row_tile = max(first, 0); row_tile < last; ++row_tile) {
      const Rows64 rows = rows_at(call, at.s, h, row_tile);
      if (rows.earlier) sum_tile(sums, alone, call, rows, room, f, e);
    }
  }
  float* state = call.later + later_slot(call, at.in, at.c, at.g) * call.state;
  write_state(call, state, sums, f, e);
  const int x = f + int(threadIdx.x);
  if (call.divisor == Divisor::sum && e == 0 && threadIdx.x < side && x < call.F)
    state[call.F * call.shape.E + x] = float(alone);
}

// Keys.

/// What keys far above the peaks get from the own rows, in place of the product.
FOCI_DEVICE void pull_outgrown(Sums& sums, const Call& call, const Rows64& rows, const Room& room,
                               int x) {
  const Lines q = query_lines(call, rows), k = key_lines(call, rows.in, rows.g, rows.c);
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int j = row() + i;
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) {
      const int d = x + column() + c;
      if (!room.seen.outgrown[j]) continue;
      float sum = 0;
      for (int r = 0; r < side && d < call.D; ++r) {
        if (room.g.at[r][j] == 0) continue;
        const float y = call.folded.scale * q.load(r, d);
        sum += room.g.at[r][j] * exp_sum(y, k.load(j, d), room.seen.shift[r]);
      }
      sums.at[i][c] = sum;
    }
  }
}

FOCI_DEVICE void add(Sums& to, const Sums& x) {
  FOCI_UNROLL
  for (int r = 0; r < 4; ++r) {
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c) to.at[r][c] += x.at[r][c];
  }
}

/// What one tile of rows that meet the keys one by one gives them: dv, dk before phi, and a
/// thread's sum of ds over its key.
template <int Slices>
FOCI_DEVICE void meet_rows(Sums (&dk)[Slices], Sums (&dv)[Slices], double& bias, const Call& call,
                           const Rows64& rows, Room& room) {
  Seen& seen = room.seen;
  find_row(call, rows, seen);
  __syncthreads();
  find_peaks(call, rows, seen);
  recall_rows(call, rows, seen);
  __syncthreads();
  score(call, rows, room, rows.c, rows.below);
  if (call.content) pull(call, rows, room);
  weigh_pulls(call, rows, room, true);
  const Lines q = query_lines(call, rows), d_o = gradient_lines(call, rows);
  FOCI_UNROLL
  for (int s = 0; s < Slices; ++s) {
    if (s * side >= call.shape.E) break;
    load_tile(room.b, [&](int r, int x) { return gradient4(d_o, seen, r, s * side + x); });
    __syncthreads();
    rows.below ? product_after(dv[s], room.p, room.b) : product_across(dv[s], room.p, room.b);
    __syncthreads();
  }
  FOCI_UNROLL
  for (int s = 0; s < Slices; ++s) {
    if (s * side >= call.D) break;
    load_tile(room.b, [&](int r, int x) { return query4(call, q, seen, r, s * side + x); });
    __syncthreads();
    Sums sums{};
    rows.below ? product_after(sums, room.g, room.b) : product_across(sums, room.g, room.b);
    if (call.map == Map::exp && seen.any_outgrown) pull_outgrown(sums, call, rows, room, s * side);
    add(dk[s], sums);
    __syncthreads();
  }
  for (int r = 0; call.sinks.dkey_bias && threadIdx.x < side && r < side; ++r)
    bias += double(room.g.at[r][threadIdx.x]);
  __syncthreads();
}

/// The keys of one chunk.
struct Keys64 {
  Spot at;
  bool later = false;  // whether rows see all of it through a state
  bool met = false;    // whether rows met it one by one
  const float* state = nullptr;
  const float* peak = nullptr;  // exp: of the state
  int last = 0;                 // its last kept key, or the last before
};

FOCI_DEVICE float key_fade(const Call& call, const Keys64& keys, int j) {
  return call.log2_rate == 0 ? 1 : fade(call, keys.last - keys.at.in.start(keys.at.c) - j);
}

template <int Slices>
FOCI_DEVICE void write_values(const Sums (&dv)[Slices], const Call& call, const Keys64& keys,
                              Room& room) {
  const Spot& at = keys.at;
  const int start = at.in.start(at.c);
  const Lines k = key_lines(call, at.in, at.g, at.c);
  const Lines to(call.sinks.dv, at.in.at.b, at.g, at.in.at.k0 + start, call.shape.E);
  FOCI_UNROLL
  for (int s = 0; s < Slices; ++s) {
    if (s * side >= call.shape.E) break;
    Sums sums = dv[s];
    for (int f = 0; keys.later && f < call.F; f += side) {
      load_tile(room.a, [&](int j, int x) {
        return bit(room.seen.keep, j) ? whole_key4(call, at, k, keys.peak, keys.last, j, f + x)
                                      : Four{};
      });
      load_tile(room.b,
                [&](int x, int y) { return state4(call, keys.state, f + x, s * side + y); });
      __syncthreads();
      product(sums, room.a, room.b, min(side, call.F - f));
      __syncthreads();
    }
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int j = row() + r;
      const bool kept = bit(room.seen.keep, j);
      Four y;
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) y.at[c] = kept ? sums.at[r][c] : 0;
      if (start + j >= 0 && start + j < at.in.at.M) to.store4(j, s * side + column(), y);
    }
  }
}

/// dk of four features of a key: `own` from rows met one by one, `through` from the state.
FOCI_DEVICE Four through_phi(const Call& call, const Keys64& keys, const Seen& seen, int j, int x,
                             const Four& own, const Four& through) {
  const Spot& at = keys.at;
  const Lines k = key_lines(call, at.in, at.g, at.c);
  const Four raw = call.map == Map::none ? Four{} : k.load4(j, x);
  const bool exp = call.map == Map::exp;
  const Four of_own =
      exp && keys.met && !seen.outgrown[j] ? key4(call, k, seen.peak, j, x) : Four{{1, 1, 1, 1}};
  const Four of_state = exp && keys.later ? key4(call, k, keys.peak, j, x) : Four{};
  const float fading = key_fade(call, keys, j);
  Four y;
  FOCI_UNROLL
  for (int c = 0; c < 4; ++c) {
    const float slopes = exp ? 1 : slope(call.map, raw.at[c]);
    y.at[c] = own.at[c] * (exp ? of_own.at[c] : slopes);
    if (keys.later) y.at[c] += through.at[c] * fading * (exp ? of_state.at[c] : slopes);
  }
  return y;
}

template <int Slices>
FOCI_DEVICE void write_keys(const Sums (&dk)[Slices], const Call& call, const Keys64& keys,
                            Room& room) {
  const Spot& at = keys.at;
  const int start = at.in.start(at.c), D = call.shape.D;
  const Lines v = value_lines(call, at.in, at.g, at.c);
  const Lines to(call.sinks.dk, at.in.at.b, at.g, at.in.at.k0 + start, D);
  FOCI_UNROLL
  for (int s = 0; s < Slices; ++s) {
    if (s * side >= D) break;
    Sums sums{};
    for (int e = 0; keys.later && call.content && e < call.shape.E; e += side) {
      load_tile(room.a, [&](int j, int x) { return value4(v, room.seen, j, e + x); });
      load_across(room.b,
                  [&](int f, int x) { return state4(call, keys.state, s * side + f, e + x); });
      __syncthreads();
      product(sums, room.a, room.b, min(side, call.shape.E - e));
      __syncthreads();
    }
    const int x = s * side + column();
    const float* alone = keys.state + call.F * call.shape.E;
    FOCI_UNROLL
    for (int r = 0; r < 4; ++r) {
      const int j = row() + r;
      Four own, through, y{};
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) {
        const bool adds = keys.later && call.divisor == Divisor::sum && x + c < D;
        own.at[c] = dk[s].at[r][c];
        through.at[c] = sums.at[r][c] + (adds ? alone[x + c] : 0);
      }
      if (start + j < 0 || start + j >= at.in.at.M || x >= D) continue;
      if (bit(room.seen.keep, j) && call.content)
        y = through_phi(call, keys, room.seen, j, x, own, through);
      to.store4(j, x, y);
    }
  }
}

/// The gradient of bias line `line`: `sum` a thread, of the key of its number, and what later rows
/// send.
FOCI_DEVICE void write_bias(const Call& call, const Keys64& keys, Room& room, int line,
                            double sum) {
  const Spot& at = keys.at;
  const int start = at.in.start(at.c), E = call.shape.E, heads = call.shape.H / call.shape.G;
  const Lines v = value_lines(call, at.in, at.g, at.c);
  float* sent = &room.p.at[0][0];  // (side)
  for (int j = int(threadIdx.x) / warp; j < side; j += threads / warp) {
    float x = 0;
    for (int e = lane(); keys.later && bit(room.seen.keep, j) && e < E; e += warp)
      x = fmaf(keys.state[(call.D + line) * E + e], v.load(j, e), x);
    x = warp_sum(x);
    if (lane() == 0) sent[j] = x;
  }
  __syncthreads();
  const int j = int(threadIdx.x);
  if (j < side && start + j >= 0 && start + j < at.in.at.M) {
    const int head = call.folded.key_head_bias ? at.g : at.g * heads + line;
    const float x = float(sum + double(sent[j] * key_fade(call, keys, j)));
    call.sinks.dkey_bias.store(bit(room.seen.keep, j) ? x : 0.0f, at.in.at.b, head,
                               at.in.at.k0 + start + j);
  }
  __syncthreads();
}

FOCI_DEVICE Keys64 keys_at(const Call& call, std::int64_t index, int most) {
  Keys64 keys;
  keys.at = spot_of(call, index, most);
  const Sequence& in = keys.at.in;
  const bool causal = call.shape.causal != 0;
  const int c = keys.at.c, g = keys.at.g;
  keys.later = causal ? c + 1 < in.chunks : !direct(call, in);
  if (keys.later) keys.state = call.later + later_slot(call, in, causal ? c : 0, g) * call.state;
  if (call.map == Map::exp)
    keys.peak = call.peaks + slot(call, in, causal ? c + 1 : in.chunks, g) * call.D;
  keys.last = call.log2_rate != 0 ? facts_before(call, in, c + 1).last : 0;
  return keys;
}

template <int Slices>
__global__ void __launch_bounds__(threads, 1) pull_keys(Call call, int most) {
  Room& room = *reinterpret_cast<Room*>(shared_memory());
  Keys64 keys = keys_at(call, blockIdx.x, most);
  const Sequence& in = keys.at.in;
  if (keys.at.c >= in.chunks) return;
  find_keys(call, in, keys.at.c, room.seen.keep);
  if (threadIdx.x == 0) room.seen.any_outgrown = 0;
  __syncthreads();
  const int own = keys.at.c - in.row_chunk, few = direct(call, in);
  const int first = few ? 0 : max(own, 0);
  const int last = few ? in.row_tiles() : call.shape.causal ? min(own + 1, in.row_tiles()) : 0;
  const int heads = call.shape.H / call.shape.G, g = keys.at.g;
  Sums dk[Slices] = {}, dv[Slices] = {};
  double bias = 0;
  for (int r = 0; r < heads; ++r) {
    for (int tile = first; tile < last; ++tile) {
      meet_rows(dk, dv, bias, call, rows_at(call, keys.at.s, g * heads + r, tile), room);
      keys.met = true;
    }
    const bool shared = call.folded.key_head_bias != 0;
    if (!call.sinks.dkey_bias || (shared && r + 1 < heads)) continue;
    write_bias(call, keys, room, shared ? 0 : r, bias);
    bias = 0;
  }
  if (call.sinks.dv) write_values(dv, call, keys, room);
  if (call.sinks.dk) write_keys(dk, call, keys, room);
}

template <int Slices>
void run_rows(const Call& call, int tiles, Stream stream) {
  const Shape& shape = call.shape;
  const Grid grid{blocks(std::int64_t(shape.sequences) * shape.H * tiles), {threads}, sizeof(Room)};
  launch("dq by chunks", pull_rows<Slices>, grid, stream, call, tiles);
}
template <int Slices>
void run_keys(const Call& call, int most, Stream stream) {
  const Shape& shape = call.shape;
  const Grid grid{blocks(std::int64_t(shape.sequences) * shape.G * most), {threads}, sizeof(Room)};
  launch("dk and dv by chunks", pull_keys<Slices>, grid, stream, call, most);
}

}  // namespace

}  // namespace chunks

void ChunkedPass::backward(const Folded& folded, const Field& d_o, const Sinks& to, Stream stream) {
  using namespace chunks;
  Call call = call_;
  call.folded = folded, call.d_o = d_o, call.sinks = to;
  if (chunked_mma_serves_gradients(call)) return chunked_mma_backward(call, stream);
  prepare(folded, stream);
  const Shape& shape = call.shape;
  (shape.D <= side       ? run_rows<1>
   : shape.D <= 2 * side ? run_rows<2>
                         : run_rows<4>)(call, row_tiles_, stream);
  if (most_chunks_ > 1) {
    const std::int64_t tiles = parts(call.F, side) * parts(shape.E, side);
    const int most = shape.causal ? most_chunks_ : int(parts(row_tiles_, stretch_chunks));
    const Grid grid{
        blocks(std::int64_t(shape.sequences) * shape.G * most * tiles), {threads}, sizeof(Room)};
    launch("states of rows", sum_rows, grid, stream, call, most);
    join_rows(call, most_chunks_, stream);
  }
  const int widest = shape.D > shape.E ? shape.D : shape.E;
  (widest <= side       ? run_keys<1>
   : widest <= 2 * side ? run_keys<2>
                        : run_keys<4>)(call, most_chunks_, stream);
}

}  // namespace foci::cuda
