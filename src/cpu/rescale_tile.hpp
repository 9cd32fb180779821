// SPDX-License-Identifier: Apache-2.0
// One block of attention whose weights are x_ij = f(s_ij) over what the row is divided by: scores
// tile by tile, x, sums of the x each row sees, x times values. A kernel names f by an overload of
// value(Kind, score, place). Included inside the namespace of one instruction set, after
// forward_tile.hpp.

/// Rows are kept between these by a power of two of their own, so that squares of x and x times
/// values stay within the range of float wherever x does.
static constexpr float narrow = 0x1p-50f, wide = 0x1p50f;

/// What a block keeps between key blocks.
struct Rescaled : Queries {
  float* r;        // (block_rows)
  float* scale;    // (block_rows) the power of two, 1 almost always; of o and of the sums
  float* nan_at;   // (block_rows) the first key whose x is NaN, -1 where there is none
  float* sum;      // (block_rows, lanes) |x|
  float* squares;  // (block_rows, lanes) x^2
  float* best;     // (block_rows, lanes) largest |x| so far, -1 before the first
  float* best_at;  // (block_rows, lanes) its key
  bool few;        // whether scores are taken in double
  bool shifted;    // whether any b or r is not 0 that score() leaves out
};

/// Where a vector of scores stands: f may look at positions.
struct Place {
  const Fading* fading;
  long row, key;
  const float* constants;  // of exp
};

/// Whether the row is divided by a sum over its x.
static inline bool divides_by_sum(const ForwardBlock& block) {
  return !block.fading.at && (block.divisor == Divisor::l1 || block.divisor == Divisor::l2);
}

static inline long keys_seen(const ForwardBlock& block, long row) {
  return block.causal ? block.sees[row] : block.n;
}

/// Scores of one tile in double, with b and r: few keys are soon done, and average nothing out.
static __attribute__((noinline)) void score_few(float* tile, const Rescaled& run,
                                                const ForwardBlock& block, long r0, long key) {
  const float *q = run.q + r0 * block.D, *beside = run.m + r0 * block.D;
  for (long i = 0; i < tile_rows; ++i) {
    double sum[panel];
    for (long j = 0; j < panel; ++j)
      sum[j] = double(run.r[r0 + i]) + (block.biased ? double(block.bias[key + j]) : 0.0);
    for (long d = 0; d < block.D; ++d) {
      const long at = d * tile_rows + i;
      const float* k = block.keys + key * block.D + d * panel;
      if (block.m) {
        const double x = double(q[at]), by = double(beside[at]);
        for (long j = 0; j < panel; ++j) {
          const double apart = x - double(k[j]);
          sum[j] += by * apart * apart;
        }
      } else {
        const double x = double(q[at]) + (block.q_rest ? double(beside[at]) : 0.0);
        for (long j = 0; j < panel; ++j) sum[j] += x * double(k[j]);
      }
    }
    for (long j = 0; j < panel; ++j) tile[i * panel + j] = float(sum[j]);
  }
}

/// Scores of tile_rows queries against one panel of keys, then x. What a row does not see is
/// computed all the same, whatever it is, and looked at by nobody. b and r come last: q . k is
/// often far smaller, and would be rounded as they are.
template <class Kind, bool Shifted>
FOCI_INLINE void weigh(const Rescaled& run, const ForwardBlock& block, long r0, long key,
                       long column) {
  V c[tile_rows][2];
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) c[i][0] = c[i][1] = all(0.0f);
  if (__builtin_expect(run.few, 0)) {
    float tile[tile_rows * panel];
    score_few(tile, run, block, r0, key);
    for (int t = 0; t < 2 * tile_rows; ++t) c[t / 2][t % 2] = load(tile + t * lanes);
  } else {
    score(c, run, block, r0, key);
  }
  const float* constants = exp_constants();
#pragma GCC unroll 16
  for (int i = 0; i < tile_rows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      V s = c[i][j];
      if constexpr (Shifted)
        s = add(s, add(load(block.bias + key + j * lanes), all(run.r + r0 + i)));
      const V x = value(Kind{}, s, Place{&block.fading, r0 + i, key + j * lanes, constants});
      store(run.weights + (r0 + i) * stride + column + j * lanes, x);
    }
  }
}

template <class Kind>
static void weigh_panel(const Rescaled& run, const ForwardBlock& block, long key, long column) {
  for (long r = 0; r < run.rows; r += tile_rows) {
    if (block.causal && last_sees(block, r) <= key) continue;
    if (run.shifted) {
      weigh<Kind, true>(run, block, r, key, column);
    } else {
      weigh<Kind, false>(run, block, r, key, column);
    }
  }
}

struct Sums {
  V sum, squares, best, best_at;
};

FOCI_INLINE void add_one(Sums& to, V x, float key) {
  const V size = magnitude(x);
  to.sum = add(to.sum, size);
  to.squares = fma(x, x, to.squares);
  to.best_at = where_above(size, to.best, all(key), to.best_at);
  to.best = max(to.best, size);
}

/// Sums of a row's first `seen` x of a key block, beside those of the blocks before.
FOCI_INLINE Sums measured(const Rescaled& run, long r, long key, long seen) {
  const long l = r * lanes;
  Sums to = {load(run.sum + l), load(run.squares + l), load(run.best + l), load(run.best_at + l)};
  const float* x = run.weights + r * stride;
  long j = 0;
  for (; j + lanes <= seen; j += lanes) add_one(to, load(x + j), float(key + j));
  if (j < seen) add_one(to, keep_first(load(x + j), float(seen - j), 0.0f), float(key + j));
  return to;
}

/// Finds the row a power of two that keeps it between narrow and wide, and brings its x, its sums
/// and its outputs there.
static __attribute__((noinline)) void scale_row(const Rescaled& run, long r, long seen) {
  float* x = run.weights + r * stride;
  float top = 0;
  for (long l = r * lanes; l < (r + 1) * lanes; ++l) {
    const float size = run.best[l] / run.scale[r];
    if (size > top && size < INFINITY) top = size;
  }
  for (long j = 0; j < seen; ++j) {
    const float size = fabsf(x[j]);
    if (size > top && size < INFINITY) top = size;
  }
  const float size = top * run.scale[r];
  if (top > 0 && !(size > narrow && size <= wide)) {
    int exponent = 0;
    frexpf(top, &exponent);
    const int power = exponent > 126 ? -126 : exponent < -126 ? 126 : -exponent;
    const float scale = ldexpf(1, power);
    const float ratio = scale / run.scale[r];
    run.scale[r] = scale;
    for (long e = 0; e < run.E; ++e) run.o[r * run.E + e] *= ratio;
    for (long l = r * lanes; l < (r + 1) * lanes; ++l) {
      run.sum[l] *= ratio;
      run.squares[l] = run.squares[l] * ratio * ratio;
      if (run.best[l] > 0) run.best[l] *= ratio;
    }
  }
  for (long j = 0; j < seen; ++j) x[j] *= run.scale[r];
}

static void measure(const Rescaled& run, long r, long key, long seen) {
  Sums sums;
  bool within = run.scale[r] == 1;
  if (within) {
    sums = measured(run, r, key, seen);
    within = any_above(sums.best, all(narrow)) && !any_above(sums.best, all(wide));
  }
  if (__builtin_expect(!within, 0)) {
    scale_row(run, r, seen);
    sums = measured(run, r, key, seen);
  }
  const float sum = total(sums.sum);
  for (long j = 0; j < seen && sum != sum && run.nan_at[r] < 0; ++j) {
    const float x = run.weights[r * stride + j];
    if (x != x) run.nan_at[r] = float(key + j);
  }
  const long l = r * lanes;
  store(run.sum + l, sums.sum);
  store(run.squares + l, sums.squares);
  store(run.best + l, sums.best);
  store(run.best_at + l, sums.best_at);
}

static void measure_block(const Rescaled& run, const ForwardBlock& block, long key, long count) {
  for (long r = 0; r < block.rows; ++r) {
    const long seen = keys_seen(block, r) - key;
    if (seen > 0) measure(run, r, key, seen < count ? seen : count);
  }
}

/// a = x / by for the true x, x / divisor * unscale for the scaled ones.
struct Divided {
  float by, divisor, unscale;
};

static Divided divide(const Rescaled& run, const ForwardBlock& block, long r) {
  const float scale = run.scale[r];
  if (divides_by_sum(block)) {
    const float sum = block.divisor == Divisor::l1 ? total(load(run.sum + r * lanes))
                                                   : sqrtf(total(load(run.squares + r * lanes)));
    return {sum / scale, sum, 1};
  }
  float by = 1;
  if (block.fading.at) {
    by = block.by[r];  // sum_powers
  } else if (block.divisor == Divisor::length) {
    by = float(keys_seen(block, r));
  }
  return {by, by, 1 / scale};
}

static void write_statistics(const Rescaled& run, const ForwardBlock& block, long r,
                             const Divided& row) {
  const long l = r * lanes;
  block.sizes[r] = total(load(run.sum + l));
  block.squares[r] = total(load(run.squares + l));
  Largest best = largest_of(run.best + l, run.best_at + l);
  if (row.by != row.by) {
    best = {NAN, 0};
  } else if (run.nan_at[r] >= 0) {
    best = {NAN, long(run.nan_at[r])};
  }
  block.largest[r] = row.by == 0 ? 0.0f : best.value / row.divisor * row.unscale;
  block.largest_at[r] = best.at;
}

/// Divides; a row that saw nothing is zero.
static void finish(const Rescaled& run, const ForwardBlock& block) {
  for (long r = 0; r < block.rows; ++r) {
    const bool empty = keys_seen(block, r) <= 0;
    const Divided row = empty ? Divided{0, 0, 0} : divide(run, block, r);
    block.by[r] = row.by;
    for (long e = 0; e < block.E; ++e) {
      const float sum = run.o[r * run.E + e];
      block.o[r * block.E + e] = row.by == 0 ? 0.0f : sum / row.divisor * row.unscale;
    }
    if (!block.statistics) continue;
    if (empty) {
      block.sizes[r] = block.squares[r] = block.largest[r] = 0;
      block.largest_at[r] = -1;
    } else {
      write_statistics(run, block, r, row);
    }
  }
}

template <class Kind>
static void rescaled_forward(const ForwardBlock& block) {
  Rescaled run;
  Scratch scratch = {block.scratch};
  begin(run, block, scratch);
  run.sum = scratch.take(block_rows * lanes);
  run.squares = scratch.take(block_rows * lanes);
  run.best = scratch.take(block_rows * lanes);
  run.best_at = scratch.take(block_rows * lanes);
  run.r = scratch.take(block_rows);
  run.scale = scratch.take(block_rows);
  run.nan_at = scratch.take(block_rows);
  for (long i = 0; i < run.rows * lanes; ++i) {
    run.sum[i] = run.squares[i] = run.best_at[i] = 0;
    run.best[i] = -1;
  }
  run.shifted = block.biased;
  for (long r = 0; r < run.rows; ++r) {
    run.r[r] = r < block.rows ? block.r[r] : 0;
    if (run.r[r] != 0) run.shifted = true;
    run.scale[r] = 1;
    run.nan_at[r] = -1;
  }
  run.few = block.n <= gradient_keys;
  run.shifted = run.shifted && !run.few;
  const long last = block.causal ? block.sees[block.rows - 1] : block.n;
  for (long key = 0; key < last; key += block_keys) {
    const long count = block.n - key < block_keys ? block.n - key : block_keys;
    for (long column = 0; column < count; column += panel)
      weigh_panel<Kind>(run, block, key + column, column);
    if (block.statistics || divides_by_sum(block)) measure_block(run, block, key, count);
    gather_block(run, block, key, count);
  }
  finish(run, block);
}
