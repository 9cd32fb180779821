// SPDX-License-Identifier: Apache-2.0
// The softmax of a block over bf16, from products in float to weights in bf16, in powers of two:
//   y_ij = log2(e) (scale c_ij + b_j) - top_i      p_ij = 2^y_ij
// The maximum is that of the first keys, then follows lazily in whole powers of two, so that
// following it rounds nothing.
// Included inside the namespace of one instruction set, after bf16_vector.hpp.

static constexpr int unit = 4;           // rows weighed at a time
static constexpr float unset = 1e29f;    // minus the maximum of a row that saw nothing yet
static constexpr float unseen = -1e30f;  // the score of a key a row does not see
static constexpr float outgrown = 8.0f;  // how far scores may outgrow their maximum
static constexpr float limit = 256.0f;   // 2^outgrown
static constexpr float log2_of_e = 1.4426950408889634f;
static constexpr float ln_of_2 = 0.6931471805599453f;

/// What a block keeps between key blocks. Rows are padded to whole tiles.
struct Running {
  std::uint16_t* q;        // (parts, block_rows, D), as the products want it
  std::uint16_t* weights;  // (block_rows, stride)
  float* scores;           // products of a tile of rows with a panel of keys
  float* o;                // (block_rows, E), set by the first key block
  float* low;              // (block_rows) minus the maximum
  float* sum;              // (block_rows, lanes)
  float* rounded;          // (block_rows, lanes) sum of the weights in bf16
  float* squares;          // (block_rows, lanes)
  float* scored;           // (block_rows, lanes) sum of p y
  float* best;             // (block_rows, lanes) largest y so far
  float* best_at;          // (block_rows, lanes) its key
  std::int64_t* sees;      // (block_rows)
  float scale;             // log2(e) times the block's
  int parts;               // of q: more than one where it has more bits than bf16
  long rows, D, E;         // padded
};

/// tile_rows rows from `row` on and the panel of keys at `column` of the key block that starts at
/// key.
struct Tile {
  long key, row, column;
};

/// y of one row and one panel of keys. key: the panel's first.
template <bool Biased, bool Causal>
FOCI_INLINE void shift(V (&y)[2], const Running& run, const ForwardBlock& block, long r,
                       const float* scores, long key) {
  const V low = all(run.low + r), scale = all(run.scale);
  const long seen = Causal ? run.sees[r] - key : 0;
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) {
    const V from = Biased ? fma(load(block.bias + key + j * lanes), all(log2_of_e), low) : low;
    y[j] = fma(load(scores + j * lanes), scale, from);
    if constexpr (Causal) y[j] = keep(y[j], first_lanes(seen - j * lanes), unseen);
  }
}

/// Brings one row up to a new maximum: its weights of this key block, its sums and outputs shrink.
static void shrink_row(const Running& run, long r, float top, long done) {
  const float shrink = exp2f(-top);
  for (std::uint16_t* p = run.weights + r * stride; done > 0; --done, ++p)
    *p = narrow(widen(*p) * shrink);
  for (long e = 0; e < run.E; ++e) run.o[r * run.E + e] *= shrink;
  for (long l = r * lanes; l < (r + 1) * lanes; ++l) {
    run.scored[l] = shrink * (run.scored[l] - top * run.sum[l]);
    run.squares[l] *= shrink * shrink;
    run.sum[l] *= shrink;
    run.rounded[l] *= shrink;
  }
}

/// Raises the maximum of the rows of a unit that outgrew theirs or saw their first key. By each
/// row's own scores alone: bits must not depend on its neighbours.
template <bool Biased, bool Causal>
static __attribute__((noinline)) void raise_maximum(const Running& run, const ForwardBlock& block,
                                                    long r0, const float* scores, long key,
                                                    long done) {
  for (long r = r0; r < r0 + unit; ++r, scores += panel) {
    const bool fresh = run.low[r] == unset;
    if (fresh) run.low[r] = 0;
    V y[2];
    shift<Biased, Causal>(y, run, block, r, scores, key);
    float top = largest(max(y[1], max(y[0], all(-INFINITY))));  // of what is a number
    if (!(top > (fresh ? -unset : outgrown))) {
      if (fresh) run.low[r] = unset;
      continue;
    }
    if (!fresh) top = ceilf(top);
    run.low[r] -= top;
    for (long l = r * lanes; l < (r + 1) * lanes; ++l) run.best[l] -= top;
    if (!fresh) shrink_row(run, r, top, done);
  }
}

/// Sums of one row's statistics.
FOCI_INLINE void count(const Running& run, long r, long key, const V (&y)[2], const V (&p)[2]) {
  const long l = r * lanes;
  V squares = load(run.squares + l), scored = load(run.scored + l);
  V best = load(run.best + l), best_at = load(run.best_at + l);
#pragma GCC unroll 2
  for (int j = 0; j < 2; ++j) {
    squares = fma(p[j], p[j], squares);
    scored = fma(max(y[j], all(-126.0f)), p[j], scored);
    best_at = where_above(y[j], best, all(float(key + j * lanes)), best_at);
    best = max(best, y[j]);
  }
  store(run.squares + l, squares);
  store(run.scored + l, scored);
  store(run.best + l, best);
  store(run.best_at + l, best_at);
}

/// Products (unit, panel) to weights, at `column` of the key block.
template <bool Biased, bool Causal, bool Statistics>
FOCI_INLINE void weigh(const Running& run, const ForwardBlock& block, long r0, const float* scores,
                       long key, long column) {
  V y[unit][2], p[unit][2], sum[unit];
  const auto exponentiate = [&]() __attribute__((always_inline)) {
#pragma GCC unroll 4
    for (int i = 0; i < unit; ++i) {
      shift<Biased, Causal>(y[i], run, block, r0 + i, scores + i * panel, key);
      p[i][0] = exp2(y[i][0]);
      p[i][1] = exp2(y[i][1]);
      sum[i] = add(p[i][0], p[i][1]);
    }
  };
  if (key == 0) raise_maximum<Biased, Causal>(run, block, r0, scores, key, column);
  exponentiate();
  const __m512bh ones = (__m512bh)_mm512_set1_epi16(0x3f80);
  const V most = max(max(sum[0], sum[1]), max(sum[2], sum[3]));
  if (__builtin_expect(any_above(most, all(limit)), 0)) {
    raise_maximum<Biased, Causal>(run, block, r0, scores, key, column);
    exponentiate();
  }
#pragma GCC unroll 4
  for (int i = 0; i < unit; ++i) {
    const long r = r0 + i;
    const __m512bh weights = _mm512_cvtne2ps_pbh(p[i][1], p[i][0]);
    _mm512_storeu_si512(run.weights + r * stride + column, (__m512i)weights);
    store(run.sum + r * lanes, add(load(run.sum + r * lanes), sum[i]));
    store(run.rounded + r * lanes, _mm512_dpbf16_ps(load(run.rounded + r * lanes), weights, ones));
    if constexpr (Statistics) count(run, r, key, y[i], p[i]);
  }
}

template <bool Biased, bool Causal, bool Statistics>
static void weigh_units(const Running& run, const ForwardBlock& block, const Tile& at,
                        const float* scores) {
  for (long i = 0; i < tile_rows; i += unit)
    weigh<Biased, Causal, Statistics>(run, block, at.row + i, scores + i * panel,
                                      at.key + at.column, at.column);
}

template <bool Statistics>
static void weigh_rows(const Running& run, const ForwardBlock& block, const Tile& at,
                       const float* scores) {
  const long end = at.key + at.column + panel;
  if (block.causal && run.sees[at.row] < end) {
    weigh_units<true, true, Statistics>(run, block, at, scores);
  } else if (block.biased || end > block.n) {
    weigh_units<true, false, Statistics>(run, block, at, scores);
  } else {
    weigh_units<false, false, Statistics>(run, block, at, scores);
  }
}

/// Weights of a tile from its products.
static void weigh_tile(const Running& run, const ForwardBlock& block, const Tile& at,
                       const float* scores) {
  if (block.statistics) {
    weigh_rows<true>(run, block, at, scores);
  } else {
    weigh_rows<false>(run, block, at, scores);
  }
}

/// What a block starts from; its scratch begins at a page and is cut in lines of 64 bytes.
/// tile: rows of a tile.
static Running start(const NarrowForward& block, long tile, long scores) {
  Running run;
  run.rows = padded(block.rows, tile);
  run.D = padded(block.D, 32);
  run.E = padded(block.E, panel);
  run.scale = block.scale * log2_of_e;
  Room room(block.scratch, 4096);
  room.take(run.scores, scores);
  room.take(run.weights, block_rows * stride);
  room.take(run.o, block_rows * run.E);
  room.take(run.sum, block_rows * lanes);
  room.take(run.rounded, block_rows * lanes);
  room.take(run.squares, block_rows * lanes);
  room.take(run.scored, block_rows * lanes);
  room.take(run.best, block_rows * lanes);
  room.take(run.best_at, block_rows * lanes);
  room.take(run.low, block_rows);
  room.take(run.sees, block_rows);
  room.take(run.q, most_parts * block_rows * run.D);
  for (long i = 0; i < run.rows * lanes; ++i) run.sum[i] = run.rounded[i] = 0;
  for (long i = 0; i < run.rows * lanes && block.statistics; ++i) {
    run.squares[i] = run.scored[i] = run.best_at[i] = 0;
    run.best[i] = -INFINITY;
  }
  for (long r = 0; r < run.rows; ++r) {
    const long last = r < block.rows ? r : block.rows - 1;
    run.low[r] = unset;
    run.sees[r] = block.causal ? block.sees[last] : block.n;
  }
  run.parts = pack_rows(run.q, block.narrow_q ? nullptr : block.q,
                        {block.narrow_q, block.narrow_step, block.rows, block.D}, run.rows,
                        block.split ? most_parts : 1);
  return run;
}

/// floats of start()
static std::int64_t scratch_of(std::int64_t D, std::int64_t E, long scores) {
  return 1024 + 16 * 13 + scores + block_rows * (stride / 2 + padded(E, panel) + 6 * lanes + 4) +
         most_parts * block_rows * padded(D, 32) / 2;
}
