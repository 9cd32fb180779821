// SPDX-License-Identifier: Apache-2.0
// What the forward blocks of all weightings share: packed queries, a tile of weights, weights times
// values, and the largest weight. Included inside the namespace of one instruction set, after
// tile.hpp.

static constexpr long stride = weight_stride;

/// A query block at work, between key blocks.
struct Queries {
  float* q;        // slivers of tile_rows rows: [row/tile_rows][D][tile_rows]
  float* m;        // likewise, where scores are distances; else q_rest where there is one
  float* weights;  // (block_rows, stride)
  float* o;        // (block_rows, padded E)
  long rows;       // padded to tiles
  long E;          // padded
};

/// Hands out the block's scratch piece by piece.
struct Scratch {
  float* room;
  float* take(long count) {
    float* piece = room;
    room += count;
    return piece;
  }
};

/// Slivers of `scale` times the rows; padded rows are zero. A line is stored as a whole vector:
/// what lies behind its tile_rows numbers is written next, and behind the last are `lanes` to
/// spare.
static void pack_queries(float* to, const float* from, float scale, long rows, long D) {
  for (long r = 0; r < rows; r += tile_rows) {
    const float* lines = from + r * D;
    const long count = rows - r < tile_rows ? rows - r : tile_rows;
    float* out = to + r * D;
    long d = 0;
    for (; d + lanes <= D; d += lanes) {
      V x[lanes];
#pragma GCC unroll 16
      for (long i = 0; i < lanes; ++i)
        x[i] = i < count ? mul(all(scale), load(lines + i * D + d)) : all(0.0f);
      transpose(x);
#pragma GCC unroll 16
      for (long i = 0; i < lanes; ++i) store(out + (d + i) * tile_rows, x[i]);
    }
    for (; d < D; ++d) {
      for (long i = 0; i < tile_rows; ++i)
        out[d * tile_rows + i] = i < count ? scale * lines[i * D + d] : 0;
    }
  }
}

/// Floats that begin() takes.
static inline long query_scratch(long D, long E) {
  return block_rows * (2 * D + stride + padded(E, panel)) + 2 * lanes;
}

/// Queries packed, outputs at 0.
static void begin(Queries& run, const ForwardBlock& block, Scratch& scratch) {
  run.rows = padded(block.rows, tile_rows);
  run.E = padded(block.E, panel);
  run.weights = scratch.take(block_rows * stride);
  run.o = scratch.take(block_rows * run.E);
  run.q = scratch.take(block_rows * block.D + lanes);
  run.m = scratch.take(block_rows * block.D + lanes);
  pack_queries(run.q, block.q, block.scale, block.rows, block.D);
  const float* beside = block.m ? block.m : block.q_rest;
  if (beside) pack_queries(run.m, beside, 1, block.rows, block.D);
  for (long i = 0; i < run.rows * run.E; i += lanes) store(run.o + i, all(0.0f));
}

/// c += q . k of a tile, or weighted distances; of half a panel or few rows only products.
template <int Rows, int Vectors>
FOCI_INLINE void score(V (&c)[Rows][Vectors], const Queries& run, const ForwardBlock& block,
                       long r0, long key) {
  const float *q = run.q + r0 * block.D, *keys = block.keys + key * block.D;
  if (Vectors == 1 || Rows < tile_rows || __builtin_expect(block.m == nullptr, 1)) {
    multiply<Rows, Vectors, 1, tile_rows>(c, q, keys, panel, block.D);
    return;
  }
  float tile[tile_rows * panel];
  for (int t = 0; t < 2 * tile_rows; ++t) store(tile + t * lanes, c[t / 2][t % 2]);
  const auto add =
      block.n <= gradient_keys ? add_distances_wide<1, tile_rows> : add_distances<1, tile_rows>;
  add(tile, q, run.m + r0 * block.D, keys, block.D);
  for (int t = 0; t < 2 * tile_rows; ++t) c[t / 2][t % 2] = load(tile + t * lanes);
}

/// Keys that some row of a tile sees: rows see more and more.
static inline long last_sees(const ForwardBlock& block, long r0) {
  return block.sees[(r0 + tile_rows < block.rows ? r0 + tile_rows : block.rows) - 1];
}

/// o += weights x values for one tile of rows and `Vectors` vectors of columns. Causal rows stop
/// where they see no further: an unseen value is not even multiplied with 0, for it may be
/// infinite.
template <int Rows, int Vectors>
FOCI_INLINE void gather(const Queries& run, const ForwardBlock& block, long r0, long e, long key,
                        long count) {
  long common = count;  // keys that every row of the tile sees
  if (block.causal) {
    const long seen = block.sees[r0] - key;
    common = seen < 0 ? 0 : seen < count ? seen : count;
  }
  V c[Rows][Vectors];
  float* o = run.o + r0 * run.E + e;
  const float* values = block.values + e * block.value_rows + key * panel;
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t)
    c[t / Vectors][t % Vectors] = load(o + (t / Vectors) * run.E + (t % Vectors) * lanes);
  multiply<Rows, Vectors, stride, 1>(c, run.weights + r0 * stride, values, panel, common);
#pragma GCC unroll 32
  for (int t = 0; t < Rows * Vectors; ++t)
    store(o + (t / Vectors) * run.E + (t % Vectors) * lanes, c[t / Vectors][t % Vectors]);
  if (common == count) return;
  for (int i = 0; i < Rows && r0 + i < block.rows; ++i) {
    const long seen = block.sees[r0 + i] - key;
    for (long j = common; j < (seen < count ? seen : count); ++j) {
      const V p = all(run.weights + (r0 + i) * stride + j);
      for (int x = 0; x < Vectors; ++x) {
        store(o + i * run.E + x * lanes,
              fma(p, load(values + j * panel + x * lanes), load(o + i * run.E + x * lanes)));
      }
    }
  }
}

static void gather_block(const Queries& run, const ForwardBlock& block, long key, long count) {
  for (long e = 0; e < block.E; e += panel) {
    for (long r = 0; r < run.rows; r += tile_rows) {
      if (block.E - e <= lanes) {
        gather<tile_rows, 1>(run, block, r, e, key, count);
      } else if (block.rows - r <= few_rows) {
        gather<few_rows, 2>(run, block, r, e, key, count);
      } else {
        gather<tile_rows, 2>(run, block, r, e, key, count);
      }
    }
  }
}

struct Largest {
  float value;
  long at;  // -1 where every lane holds -infinity
};

/// The lowest key among the lanes that hold the largest value; at: the key of each vector's lane 0.
static Largest largest_of(const float* value, const float* at) {
  Largest best = {-INFINITY, -1};
  for (long l = 0; l < lanes; ++l) {
    const long key = long(at[l]) + l;
    if (value[l] > best.value || (value[l] == best.value && key < best.at)) best = {value[l], key};
  }
  return best;
}
