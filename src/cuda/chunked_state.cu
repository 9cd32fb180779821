// SPDX-License-Identifier: Apache-2.0
// What comes before a chunk: how many keys are kept and where, the largest of their coordinates,
// and the states S = sum_j phi(k_j) v_j'. Each of a chunk alone first, then joined along the
// sequence, in an order that depends on nothing else. Powers of the rate are of gaps, never
// negative.
#include "cuda/chunk_pairs.cuh"

namespace foci::cuda::chunks {

namespace {

// Facts, where keys are masked.

FOCI_DEVICE Facts facts_of_chunk(const Call& call, const Sequence& in, int c) {
  Facts of;
  for (int j = in.start(c); j < in.start(c) + side; ++j) {
    if (!keeps(call, in, j)) continue;
    const double gap = of.count > 0 ? j - of.last : 0;
    of.weight = exp2(double(call.log2_rate) * gap) * of.weight + 1;
    of.last = j;
    ++of.count;
  }
  return of;
}

/// Facts of both, the second later.
FOCI_DEVICE Facts joined(const Call& call, const Facts& first, const Facts& second) {
  if (second.count == 0) return first;
  if (first.count == 0) return second;
  const double by = exp2(double(call.log2_rate) * double(second.last - first.last));
  return {first.count + second.count, second.last, by * first.weight + second.weight};
}

/// A block a sequence.
__global__ void __launch_bounds__(threads) find_facts(Call call) {
  auto* room = reinterpret_cast<Facts*>(shared_memory());  // (threads)
  const Sequence in = sequence(call.shape, int(blockIdx.x));
  Facts before;
  for (int first = 0; first <= in.chunks; first += threads) {
    const int c = first + int(threadIdx.x);
    if (c < in.chunks) room[threadIdx.x] = facts_of_chunk(call, in, c);
    __syncthreads();
    for (int i = 0; threadIdx.x == 0 && i < threads && first + i <= in.chunks; ++i) {
      call.facts[in.base + first + i] = before;
      if (first + i < in.chunks) before = joined(call, before, room[i]);
    }
    __syncthreads();
  }
}

// Peaks, where phi is exp.

/// The largest of each chunk, to where the next looks.
__global__ void __launch_bounds__(threads) find_chunk_peaks(Call call, int most) {
  const Spot at = spot_of(call, blockIdx.x, most);
  if (at.c >= at.in.chunks) return;
  const Lines k = key_lines(call, at.in, at.g, at.c);
  for (int d = int(threadIdx.x); d < call.D; d += threads) {
    float top = far_below;
    for (int j = 0; j < side; ++j)
      if (keeps(call, at.in, at.in.start(at.c) + j)) top = fmaxf(top, k.load(j, d));
    call.peaks[slot(call, at.in, at.c + 1, at.g) * call.D + d] = top;
  }
}

__global__ void __launch_bounds__(threads) join_peaks(Call call) {
  const Spot at = spot_of(call, blockIdx.x, 1);
  for (int d = int(threadIdx.x); d < call.D; d += threads) {
    float top = far_below;
    call.peaks[slot(call, at.in, 0, at.g) * call.D + d] = top;
    for (int c = 1; c <= at.in.chunks; ++c) {
      float& here = call.peaks[slot(call, at.in, c, at.g) * call.D + d];
      here = top = fmaxf(top, here);
    }
  }
}

// States.

struct SumRoom {
  Tile keys, values;
  unsigned keep[2];
};

/// A tile (f, e) of a chunk's state, of several chunks' where rows see everything.
__global__ void __launch_bounds__(threads, 3) sum_chunks(Call call, int most) {
  SumRoom& room = *reinterpret_cast<SumRoom*>(shared_memory());
  const int f_tiles = (call.F + side - 1) / side, e_tiles = (call.shape.E + side - 1) / side;
  const int tile = int(blockIdx.x) % (f_tiles * e_tiles);
  const int f = tile / e_tiles * side, e = tile % e_tiles * side;
  Spot at = spot_of(call, blockIdx.x / unsigned(f_tiles * e_tiles), most);
  const bool causal = call.shape.causal != 0;
  const int part = at.c, span = causal ? 1 : stretch_chunks;
  const int begin = part * span, end = min(begin + span, at.in.chunks - causal);
  if (begin >= end || direct(call, at.in)) return;
  const float* peak = nullptr;
  if (call.map == Map::exp)
    peak = call.peaks + slot(call, at.in, causal ? begin + 1 : at.in.chunks, at.g) * call.D;
  Sums sums{};
  double alone = 0;  // of phi alone
  for (at.c = begin; at.c < end; ++at.c) {
    const Lines k = key_lines(call, at.in, at.g, at.c), v = value_lines(call, at.in, at.g, at.c);
    const int last = call.log2_rate != 0 ? facts_before(call, at.in, at.c + 1).last : 0;
    find_keys(call, at.in, at.c, room.keep);
    __syncthreads();
    load_tile(room.keys, [&](int j, int x) {
      return bit(room.keep, j) ? whole_key4(call, at, k, peak, last, j, f + x) : Four{};
    });
    load_tile(room.values,
              [&](int j, int x) { return bit(room.keep, j) ? v.load4(j, e + x) : Four{}; });
    __syncthreads();
    product_across(sums, room.keys, room.values);
    if (call.divisor == Divisor::sum && threadIdx.x < side) {
      for (int j = 0; j < side; ++j) alone += double(room.keys.at[j][threadIdx.x]);
    }
    __syncthreads();
  }
  float* state = call.states + slot(call, at.in, part, at.g) * call.state;
  write_state(call, state, sums, f, e);
  const int x = f + int(threadIdx.x);
  if (call.divisor == Divisor::sum && e == 0 && threadIdx.x < side && x < call.F)
    state[call.F * call.shape.E + x] = float(alone);
}

/// By what a state shrinks from before chunk c to before the next: of feature f where phi is exp.
FOCI_DEVICE float shrinks(const Call& call, const Spot& at, int c, int f) {
  if (call.map == Map::exp) {
    const std::int64_t here = slot(call, at.in, c, at.g) * call.D + f;
    return expf(call.peaks[here] - call.peaks[here + std::int64_t(call.shape.G) * call.D]);
  }
  if (call.log2_rate == 0) return 1;
  return fade(call, facts_before(call, at.in, c + 1).last - facts_before(call, at.in, c).last);
}

FOCI_DEVICE int feature_of(const Call& call, int x) {
  const int matrix = call.F * call.shape.E;
  return x < matrix ? x / call.shape.E : x - matrix;
}

/// A thread a number of the state. Causal: the sum of the chunks before each; else of all.
__global__ void __launch_bounds__(threads) join_chunks(Call call) {
  const int blocks = (call.state + threads - 1) / threads;
  const Spot at = spot_of(call, blockIdx.x / unsigned(blocks), 1);
  const int x = int(blockIdx.x) % blocks * threads + int(threadIdx.x);
  if (x >= call.state || direct(call, at.in)) return;
  const int f = feature_of(call, x);
  const auto number = [&](int c) -> float& {
    return call.states[slot(call, at.in, c, at.g) * call.state + x];
  };
  float sum = 0;
  if (!call.shape.causal) {
    const int parts = (at.in.chunks + stretch_chunks - 1) / stretch_chunks;
    for (int part = 0; part < parts; ++part) sum += number(part);
    if (parts > 0) number(0) = sum;
    return;
  }
  for (int c = 0; c < at.in.chunks; ++c) {
    const float here = c + 1 < at.in.chunks ? number(c) : 0;
    number(c) = sum;
    sum = fmaf(shrinks(call, at, c, f), sum, here);
  }
}

/// The same from the end: the sum of the rows of the chunks after each.
__global__ void __launch_bounds__(threads) join_later(Call call) {
  const int blocks = (call.state + threads - 1) / threads;
  const Spot at = spot_of(call, blockIdx.x / unsigned(blocks), 1);
  const int x = int(blockIdx.x) % blocks * threads + int(threadIdx.x);
  if (x >= call.state || direct(call, at.in)) return;
  const int f = feature_of(call, x);
  const auto number = [&](int c) -> float& {
    return call.later[later_slot(call, at.in, c, at.g) * call.state + x];
  };
  float sum = 0;
  if (!call.shape.causal) {
    const int parts = (at.in.row_tiles() + stretch_chunks - 1) / stretch_chunks;
    for (int part = 0; part < parts; ++part) sum += number(part);
    number(0) = sum;
    return;
  }
  for (int c = at.in.chunks - 1; c >= 0; --c) {
    const float here = c > 0 ? number(c) : 0;
    number(c) = sum;
    sum = fmaf(shrinks(call, at, c, f), sum, here);
  }
}

}  // namespace

void sum_keys(const Call& call, int most_chunks, Stream stream) {
  const Shape& shape = call.shape;
  const std::int64_t heads = std::int64_t(shape.sequences) * shape.G;
  if (call.facts) {
    launch("facts of keys", find_facts,
           {blocks(shape.sequences), {threads}, threads * sizeof(Facts)}, stream, call);
  }
  if (call.map == Map::exp) {
    launch("peaks of keys", find_chunk_peaks, {blocks(heads * most_chunks), {threads}}, stream,
           call, most_chunks);
    launch("peaks before keys", join_peaks, {blocks(heads), {threads}}, stream, call);
  }
  if (most_chunks <= 1) return;
  const std::int64_t tiles = parts(call.F, side) * parts(shape.E, side);
  const int most = shape.causal ? most_chunks : int(parts(most_chunks, stretch_chunks));
  launch("states of chunks", sum_chunks, {blocks(heads * most * tiles), {threads}, sizeof(SumRoom)},
         stream, call, most);
  launch("states before chunks", join_chunks,
         {blocks(heads * parts(call.state, threads)), {threads}}, stream, call);
}

void join_rows(const Call& call, int most_chunks, Stream stream) {
  if (most_chunks <= 1) return;
  const std::int64_t heads = std::int64_t(call.shape.sequences) * call.shape.G;
  launch("states after chunks", join_later, {blocks(heads * parts(call.state, threads)), {threads}},
         stream, call);
}

}  // namespace foci::cuda::chunks
