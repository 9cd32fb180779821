// SPDX-License-Identifier: Apache-2.0
// One block of softmax attention: scores tile by tile, running maximum, weights, weights times
// values. The maximum follows lazily: a row is rescaled only when its scores outgrow it by e^16.
// Compiled once per instruction set.
#include "cpu/decode_row.hpp"
#include "cpu/isa.hpp"

#include <math.h>

namespace foci::cpu::FOCI_ISA {

#include "cpu/tile.hpp"

#include "cpu/forward_tile.hpp"

static constexpr float hidden = -1e29f;

/// What a block keeps between key blocks.
struct Running : Queries {
  float* low;      // (block_rows) minus the maximum
  float* sum;      // (block_rows, lanes)
  float* squares;  // (block_rows, lanes)
  float* scored;   // (block_rows, lanes)
  float* best;     // (block_rows, lanes) largest score so far, measured from the maximum
  float* best_at;  // (block_rows, lanes) its key
  float* fresh;    // (block_rows) 1 until a row has seen its first score
  float* unseen;   // (block_rows / tile_rows) how many of a tile's rows are fresh
};

/// Rows that the tile at r0 works on.
static inline int rows_of_tile(const ForwardBlock& block, long r0) {
  return block.rows - r0 <= few_rows && !block.m ? few_rows : tile_rows;
}

// softmax_short.cpp
std::int64_t short_scratch(std::int64_t D);
void softmax_short(const ForwardBlock& block);

// softmax_short_backward.cpp
std::int64_t short_backward_scratch(std::int64_t n, std::int64_t D, std::int64_t E);
void softmax_short_backward(const ShortBackward& block);

static std::int64_t forward_scratch(std::int64_t D, std::int64_t E) {
  const long usual = query_scratch(D, E) + block_rows * (3 + 5 * lanes), few = short_scratch(D);
  return usual > few ? usual : few;
}

/// Scores of one tile once more, before anything was subtracted from them.
static __attribute__((noinline)) void score_again(float* tile, const Running& run,
                                                  const ForwardBlock& block, long r0, long key) {
  V c[tile_rows][2];
  for (int i = 0; i < tile_rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  score(c, run, block, r0, key);
  for (int i = 0; i < tile_rows; ++i) {
    for (int j = 0; j < 2; ++j) {
      const float count = block.causal ? float(block.sees[r0 + i] - key - j * lanes) : float(lanes);
      const V s = add(c[i][j], load(block.bias + key + j * lanes));
      store(tile + (2 * i + j) * lanes,
            keep_first(key + panel > block.n || block.biased ? s : c[i][j], count, 10 * hidden));
    }
  }
}

/// Brings the rows of a tile of scores up to a new maximum where theirs has outgrown the old one:
/// weights of this key block, sums and outputs shrink. The maximum is a score itself, so that the
/// backward pass finds the same differences.
static __attribute__((noinline)) void raise_maximum(const Running& run, long r0, int rows,
                                                    const float* tile, long done) {
  for (long r = r0; r < r0 + rows; ++r) {
    const float* scores = tile + (r - r0) * panel;
    const V tops = max(load(scores + lanes), max(load(scores), all(-INFINITY)));
    float lane[lanes], top = -INFINITY;
    store(lane, tops);
    for (long j = 0; j < lanes; ++j) top = lane[j] > top ? lane[j] : top;
    // By this row's own scores alone: bits must not depend on its neighbours.
    if (run.fresh[r] != 0) {
      if (!(top > hidden)) continue;
      run.fresh[r] = 0;
      run.unseen[r0 / tile_rows] -= 1;
      run.low[r] = -top;
      continue;
    }
    const float by = top + run.low[r];
    if (!(by > exp_table.line[12][0])) continue;
    run.low[r] = -top;
    const float shrink = expf(-by);
    for (long j = 0; j < done; ++j) run.weights[r * stride + j] *= shrink;
    for (long e = 0; e < run.E; ++e) run.o[r * run.E + e] *= shrink;
    for (long l = r * lanes; l < (r + 1) * lanes; ++l) {
      run.scored[l] = shrink * (run.scored[l] - by * run.sum[l]);
      run.squares[l] *= shrink * shrink;
      run.sum[l] *= shrink;
      run.best[l] -= by;
    }
  }
}

/// Scores that have outgrown their maximum are measured from the next.
template <int Rows, int Vectors>
FOCI_INLINE void follow(V (&c)[Rows][Vectors], const Running& run, const ForwardBlock& block,
                        long r0, long key, long column) {
  float tile[tile_rows * panel];
  if (run.unseen[r0 / tile_rows] == Rows) {  // nothing was subtracted yet
    for (int t = 0; t < 2 * Rows; ++t)
      store(tile + t * lanes, t % 2 < Vectors ? c[t / 2][t % Vectors] : all(10 * hidden));
  } else {
    score_again(tile, run, block, r0, key);
  }
  raise_maximum(run, r0, Rows, tile, column);
  for (int i = 0; i < Rows; ++i) {
    for (int j = 0; j < Vectors; ++j)
      c[i][j] = add(load(tile + (2 * i + j) * lanes), all(run.low + r0 + i));
  }
}

/// Scores of Rows queries against one panel of keys, or the first half of one, then their
/// weights.
template <int Rows, int Vectors, bool Biased, bool Causal, bool Statistics>
FOCI_INLINE void weigh(const Running& run, const ForwardBlock& block, long r0, long key,
                       long column) {
  V c[Rows][Vectors];
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t) c[t / Vectors][t % Vectors] = all(0.0f);
  score(c, run, block, r0, key);
  const float* constants = exp_constants();
  V top = all(hidden);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    // What is subtracted comes last: small differences keep their digits.
    const V low = all(run.low + r0 + i);
    const float count = Causal ? float(block.sees[r0 + i] - key) : 0.0f;
#pragma GCC unroll 2
    for (int j = 0; j < Vectors; ++j) {
      if constexpr (Biased) c[i][j] = add(c[i][j], load(block.bias + key + j * lanes));
      if constexpr (Causal) c[i][j] = keep_first(c[i][j], count - float(j * lanes), 10 * hidden);
      c[i][j] = add(c[i][j], low);
      top = max(top, c[i][j]);
    }
  }
  const bool fresh = run.unseen[r0 / tile_rows] != 0;
  if (__builtin_expect(fresh || any_above(top, load(constants + outgrown)), 0))
    follow(c, run, block, r0, key, column);
#pragma GCC unroll 16
  for (int i = 0; i < Rows; ++i) {
    float* weights = run.weights + (r0 + i) * stride + column;
    const long l = (r0 + i) * lanes;
    V sum = load(run.sum + l), squares = sum, scored = sum, best = sum, best_at = sum;
    if constexpr (Statistics) {
      squares = load(run.squares + l);
      scored = load(run.scored + l);
      best = load(run.best + l);
      best_at = load(run.best_at + l);
    }
#pragma GCC unroll 2
    for (int j = 0; j < Vectors; ++j) {
      const V p = exp(c[i][j], constants);
      store(weights + j * lanes, p);
      sum = add(sum, p);
      if constexpr (Statistics) {
        squares = fma(p, p, squares);
        // max() as exp() has it: one instruction for both
        scored = fma(max(load(constants + lowest_exponent), c[i][j]), p, scored);
        best_at = where_above(c[i][j], best, all(float(key + j * lanes)), best_at);
        best = max(best, c[i][j]);
      }
    }
    store(run.sum + l, sum);
    if constexpr (Statistics) {
      store(run.squares + l, squares);
      store(run.scored + l, scored);
      store(run.best + l, best);
      store(run.best_at + l, best_at);
    }
  }
}

template <int Rows, int Vectors, bool Statistics>
FOCI_INLINE void weigh_tile(const Running& run, const ForwardBlock& block, long r, long key,
                            long column) {
  if (block.causal && block.sees[r] < key + panel) {
    if (last_sees(block, r) > key)
      weigh<Rows, Vectors, true, true, Statistics>(run, block, r, key, column);
  } else if (block.biased || key + panel > block.n) {
    weigh<Rows, Vectors, true, false, Statistics>(run, block, r, key, column);
  } else {
    weigh<Rows, Vectors, false, false, Statistics>(run, block, r, key, column);
  }
}

template <int Vectors, bool Statistics>
static void weigh_panel(const Running& run, const ForwardBlock& block, long key, long column) {
  for (long r = 0; r < run.rows; r += tile_rows) {
    if (rows_of_tile(block, r) == few_rows) {
      weigh_tile<few_rows, Vectors, Statistics>(run, block, r, key, column);
    } else {
      weigh_tile<tile_rows, Vectors, Statistics>(run, block, r, key, column);
    }
  }
}

/// The last half panel is left out where no key stands there.
template <bool Statistics>
static void weigh_block(const Running& run, const ForwardBlock& block, long key, long count) {
  for (long column = 0; column < count; column += panel) {
    if (count - column <= lanes && !block.m) {
      weigh_panel<1, Statistics>(run, block, key + column, column);
    } else {
      weigh_panel<2, Statistics>(run, block, key + column, column);
    }
  }
}

/// What the row's largest weight is, over `sum`.
static void find_largest(const Running& run, const ForwardBlock& block, long r, double sum) {
  const Largest best = run.fresh[r] != 0
                           ? Largest{-INFINITY, -1}
                           : largest_of(run.best + r * lanes, run.best_at + r * lanes);
  block.largest[r] = best.at < 0 ? float(0 * sum) : float(::exp(double(best.value)) / sum);
  block.largest_at[r] = best.at;
}

static double wide_total(const float* line) {
  double sums[4] = {};  // independent: that hides the latency
  for (long l = 0; l < lanes; l += 4) {
    for (long i = 0; i < 4; ++i) sums[i] += double(line[l + i]);
  }
  return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/// Concentration and entropy are small differences and ratios of large sums: in double.
static void find_statistics(const Running& run, const ForwardBlock& block, long r, bool empty) {
  const double sum = wide_total(run.sum + r * lanes);
  find_largest(run, block, r, empty ? 1.0 : sum);
  block.sizes[r] = empty ? 0.0f : 1.0f;
  block.squares[r] = empty ? 0.0f : float(wide_total(run.squares + r * lanes) / (sum * sum));
  const double scored = wide_total(run.scored + r * lanes);
  block.entropy[r] = empty ? 0.0f : float(::log(sum) - scored / sum);
}

/// Divides by the sums; a row that saw nothing is zero.
static void finish(const Running& run, const ForwardBlock& block) {
  for (long r = 0; r < block.rows; ++r) {
    const float sum = total(load(run.sum + r * lanes));
    const bool empty = run.fresh[r] != 0 && sum == sum;  // a NaN is something seen
    const float inverse = empty ? 0.0f : 1.0f / sum;
    for (long e = 0; e < block.E; ++e)
      block.o[r * block.E + e] = empty ? 0.0f : run.o[r * run.E + e] * inverse;
    block.shift[r] = -run.low[r];
    block.sum[r] = empty ? 0.0f : sum;
    const double lse = double(logf(sum)) - double(run.low[r]) + double(block.r[r]);
    block.by[r] = empty ? -INFINITY : float(lse);
    if (block.statistics) find_statistics(run, block, r, empty);
  }
}

static void softmax_forward(const ForwardBlock& block) {
  Running run;
  Scratch scratch = {block.scratch};
  begin(run, block, scratch);
  run.sum = scratch.take(block_rows * lanes);
  run.squares = scratch.take(block_rows * lanes);
  run.scored = scratch.take(block_rows * lanes);
  run.best = scratch.take(block_rows * lanes);
  run.best_at = scratch.take(block_rows * lanes);
  run.low = scratch.take(block_rows);
  run.fresh = scratch.take(block_rows);
  run.unseen = scratch.take(block_rows);
  for (long i = 0; i < run.rows * lanes; ++i) {
    run.sum[i] = run.squares[i] = run.scored[i] = run.best_at[i] = 0;
    run.best[i] = -INFINITY;
  }
  for (long r = 0; r < run.rows; ++r) {
    run.low[r] = 0;
    run.fresh[r] = 1;
    run.unseen[r / tile_rows] = float(rows_of_tile(block, r / tile_rows * tile_rows));
  }
  const long last = block.causal ? block.sees[block.rows - 1] : block.n;
  // A row of weights holds a few more keys than a block: better one block than a rest of few.
  const long step = block.n <= stride && !block.m ? stride : block_keys;
  for (long key = 0; key < last; key += step) {
    const long count = block.n - key < step ? block.n - key : step;
    block.statistics ? weigh_block<true>(run, block, key, count)
                     : weigh_block<false>(run, block, key, count);
    gather_block(run, block, key, count);
  }
  finish(run, block);
}

// each in the file of its name
void softmax_backward(const BackwardBlock& block);
void relu2_forward(const ForwardBlock& block);
void relu2_backward(const BackwardBlock& block);
void identity_forward(const ForwardBlock& block);
void identity_backward(const BackwardBlock& block);

// pack.cpp
void pack_keys(float* to, const float* from, std::int64_t n, std::int64_t D);
void row_dots(float* to, const float* a, const float* b, std::int64_t rows, std::int64_t E);

// whiten.cpp
std::int64_t whitening_room(std::int64_t D);
void whiten_panels(const WhitenedPanels& of);
void unwhiten_panels(const UnwhitenedPanels& of);
void scatter_lines(const ScatteredLines& of);

#define FOCI_NAME_OF(isa) FOCI_QUOTED(isa)
#define FOCI_QUOTED(isa) #isa
const Kernels kernels = {.name = FOCI_NAME_OF(FOCI_ISA),
                         .panel = panel,
                         .tile_rows = tile_rows,
                         .forward_scratch = forward_scratch,
                         .pack_keys = pack_keys,
                         .pack_columns = pack_columns,
                         .row_dots = row_dots,
                         .softmax_forward = softmax_forward,
                         .softmax_short = softmax_short,
                         .short_backward_scratch = short_backward_scratch,
                         .softmax_short_backward = softmax_short_backward,
                         .softmax_backward = softmax_backward,
                         .relu2_forward = relu2_forward,
                         .relu2_backward = relu2_backward,
                         .identity_forward = identity_forward,
                         .identity_backward = identity_backward,
                         .whitening_room = whitening_room,
                         .whiten_panels = whiten_panels,
                         .unwhiten_panels = unwhiten_panels,
                         .scatter_lines = scatter_lines,
                         .matrix = &matrix_kernels,
                         .jacobian = &jacobian_kernels,
                         .chunk = &chunk_kernels,
                         .decode = &decode_kernels};

}  // namespace foci::cpu::FOCI_ISA
