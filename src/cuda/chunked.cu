// SPDX-License-Identifier: Apache-2.0
// Forward: rows of a tile from the state before their chunk and the keys of the chunk they see;
// where every row sees everything, from the state of all keys. Then, when asked, every weight once
// more for what rows say about themselves.
#include "cuda/chunk_pairs.cuh"
#include "cuda/chunked_mma.cuh"

#include <cmath>

namespace foci::cuda {

namespace chunks {

namespace {

/// linear: seen.by += the own keys' part. Barriers are the caller's.
FOCI_DEVICE void sum_own(const Call& call, const Rows64& rows, Room& room) {
  if (call.divisor != Divisor::sum || !rows.own) return;
  for (int r = int(threadIdx.x) / warp; r < side; r += threads / warp) {
    double sum = double(room.p.at[r][lane()]) + double(room.p.at[r][lane() + warp]);
    FOCI_UNROLL
    for (int step = warp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane() == 0) room.seen.by[r] += sum;
  }
}

/// Features of the rows times columns e to e + 63 of the state; on the way what linear divides by,
/// where e is 0. Ends with a barrier.
FOCI_DEVICE Sums meet_state(const Call& call, const Rows64& rows, Room& room, int e) {
  Seen& seen = room.seen;
  const int E = call.shape.E;
  const float* state = call.states + slot(call, rows.in, rows.state, rows.g) * call.state;
  const Lines q = query_lines(call, rows);
  const bool divides = call.divisor == Divisor::sum && e == 0;
  Sums sums{};
  double by[4] = {};
  for (int f = 0; f < call.D; f += side) {
    load_tile(room.a, [&](int r, int x) { return query4(call, q, seen, r, f + x); });
    load_tile(room.b, [&](int x, int y) { return state4(call, state, f + x, e + y); });
    __syncthreads();
    product(sums, room.a, room.b, min(side, call.D - f));
    for (int x = column(); divides && x < column() + 4 && f + x < call.D; ++x) {
      const double z = double(state[call.F * E + f + x]);
      for (int r = 0; r < 4; ++r) by[r] += z * double(room.a.at[row() + r][x]);
    }
    __syncthreads();
  }
  for (int r = 0; divides && r < 4; ++r) {
    by[r] = row_sum(by[r]);
    if (column() == 0) seen.by[row() + r] += by[r];
  }
  __syncthreads();
  const int line = call.folded.key_head_bias ? 0 : rows.h - rows.g * (call.shape.H / call.shape.G);
  const Four bias =
      call.biases ? state4(call, state, call.D + (call.content ? line : 0), e + column()) : Four{};
  FOCI_UNROLL
  for (int r = 0; r < 4; ++r) {
    FOCI_UNROLL
    for (int c = 0; c < 4; ++c)
      sums.at[r][c] = (sums.at[r][c] + bias.at[c]) * seen.fading[row() + r];
  }
  return sums;
}

__global__ void __launch_bounds__(threads, 2) attend_rows(Call call, int tiles) {
  Room& room = *reinterpret_cast<Room*>(shared_memory());
  const Rows64 rows = rows_of_block(call, tiles);
  if (rows.first >= rows.in.at.N) return;
  Seen& seen = room.seen;
  begin_rows(call, rows, seen);
  if (rows.own) score(call, rows, room, rows.c, rows.below);
  sum_own(call, rows, room);
  __syncthreads();
  const Lines v = value_lines(call, rows.in, rows.g, rows.c);
  const Lines o(call.rows.o, rows.in.at.b, rows.h, rows.in.at.q0 + rows.first, call.shape.E);
  for (int e = 0; e < call.shape.E; e += side) {
    Sums sums{};
    if (rows.earlier) sums = meet_state(call, rows, room, e);
    if (rows.own) {
      load_tile(room.b, [&](int j, int x) { return value4(v, seen, j, e + x); });
      __syncthreads();
      if (rows.below) {
        product_below(sums, room.p, room.b);
      } else {
        product(sums, room.p, room.b, side);
      }
      __syncthreads();
    }
    for (int r = 0; r < 4 && rows.first + row() + r < rows.in.at.N; ++r) {
      const float by = float(seen.by[row() + r]);
      Four y;
      FOCI_UNROLL
      for (int c = 0; c < 4; ++c) y.at[c] = by == 0 ? 0 : sums.at[r][c] / by;
      if (call.rows.o) o.store4(row() + r, e + column(), y);
    }
  }
  const int r = int(threadIdx.x);
  if (call.by && r < side && rows.first + r < rows.in.at.N)
    call.by[rows.line(call, r)] = float(seen.by[r]);
}

// Statistics.

/// What a row's weights say about themselves.
struct Tally {
  double sizes = 0, squares = 0, entropy = 0;
  float largest = 0;
  int at = -1;

  FOCI_DEVICE void take(float size, int j) {
    if (at >= 0 && !(size > largest || (size == largest && j < at))) return;
    largest = size;
    at = j;
  }
  FOCI_DEVICE void add(float a, int j) {
    const float size = fabsf(a);
    sizes += double(size);
    squares += double(size) * double(size);
    if (a > 0) entropy -= double(a * logf(a));
    take(size, j);
  }
};

FOCI_DEVICE void write_tally(const Call& call, const Rows64& rows, int r, const Tally& of, int n) {
  const Rows& to = call.rows;
  const std::int64_t b = rows.in.at.b, i = rows.in.at.q0 + rows.first + r;
  const double S = of.squares > 0 ? of.sizes / sqrt(double(n) * of.squares) : 0;
  if (to.concentration) to.concentration.store(float(S), b, rows.h, i);
  if (to.effective_keys) to.effective_keys.store(float(double(n) * S * S), b, rows.h, i);
  if (to.entropy) to.entropy.store(float(of.entropy), b, rows.h, i);
  if (to.largest) to.largest.store(of.largest, b, rows.h, i);
  if (to.largest_at) {
    const std::int64_t at = to.largest_at.offset(b, rows.h, i);
    static_cast<std::int64_t*>(to.largest_at.data)[at] = of.at;
  }
}

/// The weights of the keys of a chunk, which room.p holds; four threads share a row.
FOCI_DEVICE void tally_chunk(Tally& to, const Rows64& rows, const Room& room, int c, bool below) {
  const int r = int(threadIdx.x) / 4;
  const float by = float(room.seen.by[r]);
  for (int j = int(threadIdx.x) % 4; j < side; j += 4) {
    if (!sees(room.seen, below, r, j)) continue;
    to.add(by == 0 ? 0 : room.p.at[r][j] / by, rows.in.start(c) + j);
  }
}

__global__ void __launch_bounds__(threads, 2) tally_rows(Call call, int tiles) {
  Room& room = *reinterpret_cast<Room*>(shared_memory());
  const Rows64 rows = rows_of_block(call, tiles);
  if (rows.first >= rows.in.at.N) return;
  Seen& seen = room.seen;
  begin_rows(call, rows, seen);
  if (threadIdx.x < side && rows.first + int(threadIdx.x) < rows.in.at.N)
    seen.by[threadIdx.x] = double(call.by[rows.line(call, int(threadIdx.x))]);
  __syncthreads();
  Tally tally;
  if (rows.own) {
    score(call, rows, room, rows.c, rows.below);
    tally_chunk(tally, rows, room, rows.c, rows.below);
  }
  const int earlier = rows.below ? rows.c : rows.own ? 0 : rows.in.chunks;
  for (int c = 0; rows.earlier && c < earlier; ++c) {
    __syncthreads();
    find_keys(call, rows.in, c, seen.keep);
    if (threadIdx.x < side) seen.outgrown[threadIdx.x] = 0;
    if (threadIdx.x == 0) seen.any_outgrown = 0;
    __syncthreads();
    score(call, rows, room, c, false);
    tally_chunk(tally, rows, room, c, false);
  }
  for (int step = 1; step < 4; step *= 2) {
    tally.sizes += __shfl_xor_sync(~0u, tally.sizes, step);
    tally.squares += __shfl_xor_sync(~0u, tally.squares, step);
    tally.entropy += __shfl_xor_sync(~0u, tally.entropy, step);
    const float largest = __shfl_xor_sync(~0u, tally.largest, step);
    const int at = __shfl_xor_sync(~0u, tally.at, step);
    if (at >= 0) tally.take(largest, at);
  }
  const int r = int(threadIdx.x) / 4;
  if (threadIdx.x % 4 == 0 && rows.first + r < rows.in.at.N)
    write_tally(call, rows, r, tally, seen.count[r]);
}

Map map_of(const Weighting& weighting) {
  const auto* how = std::get_if<Linear>(&weighting);
  if (!how) return Map::none;
  switch (how->feature) {
    case Feature::elu1:
      return Map::elu1;
    case Feature::relu:
      return Map::relu;
    case Feature::exp:
      return Map::exp;
  }
  return Map::none;
}

Divisor divisor_of(const Weighting& weighting) {
  if (std::holds_alternative<Linear>(weighting)) return Divisor::sum;
  if (std::holds_alternative<Decay>(weighting)) return Divisor::powers;
  const auto* how = std::get_if<Identity>(&weighting);
  return how && how->rescale == Rescale::length ? Divisor::length : Divisor::nothing;
}

bool without_content(const Weighting& weighting) {
  const auto* how = std::get_if<Decay>(&weighting);
  return how && !how->content;
}

/// nullptr where it is not needed.
template <class T, class... Sizes>
T* taken(Arena& arena, bool needed, Sizes... sizes) {
  return needed ? arena.take<T>(sizes...).data() : nullptr;
}

}  // namespace

How how_of(const Weighting& weighting) {
  return {map_of(weighting), divisor_of(weighting), !without_content(weighting)};
}

bool wants_tally(const Rows& to) {
  return to.concentration.data || to.effective_keys.data || to.entropy.data || to.largest.data ||
         to.largest_at.data;
}

}  // namespace chunks

bool chunked_serves(const Problem& problem) {
  const Weighting& weighting = problem.how.weighting;
  if (problem.size.D > chunks::most_width || problem.size.E > chunks::most_width) return false;
  if (chunks::without_content(weighting)) return true;
  if (problem.full || metric::form_of(problem.how.metric) != Form::product) return false;
  if (const auto* how = std::get_if<Identity>(&weighting))
    return how->rescale == Rescale::length || how->rescale == Rescale::none;
  return std::holds_alternative<Linear>(weighting) || std::holds_alternative<Decay>(weighting);
}

ChunkedPass::ChunkedPass(Arena& arena, const Problem& problem, const Shape& shape, Pass pass) {
  using namespace chunks;
  const Weighting& weighting = problem.how.weighting;
  Call& call = call_;
  call.shape = shape;
  call.map = map_of(weighting);
  call.divisor = divisor_of(weighting);
  call.content = !without_content(weighting);
  if (const auto* how = std::get_if<Decay>(&weighting))
    call.log2_rate = float(std::log2(how->rate));
  call.D = call.content ? shape.D : 0;
  if (problem.from.key_bias && call.content)
    call.biases = problem.from.key_bias.shape[1] == shape.H ? shape.H / shape.G : 1;
  if (!call.content) call.biases = 1;
  call.F = call.D + call.biases;
  call.state = call.F * shape.E + (call.divisor == Divisor::sum ? call.F : 0);
  // The rest of a chunk that rows and keys share: where sequences are packed, any.
  const int first = shape.M - shape.N;
  const int pad = !shape.causal      ? 0
                  : problem.packed() ? side - 1
                                     : (side - (first % side + side) % side) % side;
  most_chunks_ = int(parts(shape.longest_m + pad, side));
  row_tiles_ = int(parts(shape.longest_n, side));
  const std::int64_t batch = problem.size.B, all = chunks_of_all(shape, batch);
  const std::int64_t rows = batch * shape.H * shape.N;
  const bool backward = pass == Pass::backward, divides = call.divisor == Divisor::sum;
  const bool many = most_chunks_ > 1;
  const std::int64_t slots = shape.causal ? all : stretches_of_all(shape, batch);
  call.facts = taken<Facts>(arena, bool(problem.from.key_mask), all);
  call.peaks = taken<float>(arena, call.map == Map::exp, all * shape.G, call.D);
  call.states = taken<float>(arena, many, all * shape.G, call.state);
  call.by = taken<float>(arena, true, rows);
  call.later = taken<float>(arena, backward && many, slots * shape.G, call.state);
  call.deltas = taken<double>(arena, backward && divides, rows);
  call.shifts = taken<float>(arena, backward && call.map == Map::exp, rows);
}

void ChunkedPass::prepare(const Folded& folded, Stream stream) {
  call_.folded = folded;
  chunks::sum_keys(call_, most_chunks_, stream);
}

void ChunkedPass::forward(const Folded& folded, const Rows& to, Stream stream) {
  using namespace chunks;
  Call call = call_;
  call.folded = folded, call.rows = to;
  if (chunked_mma_serves_rows(call)) return chunked_mma_forward(call, stream);
  prepare(folded, stream);
  if (to.by) call.by = to.by;
  const Shape& shape = call.shape;
  const Grid grid{
      blocks(std::int64_t(shape.sequences) * shape.H * row_tiles_), {threads}, sizeof(Room)};
  launch("rows by chunks", attend_rows, grid, stream, call, row_tiles_);
  if (wants_tally(to)) launch("statistics of rows", tally_rows, grid, stream, call, row_tiles_);
}

}  // namespace foci::cuda
