// SPDX-License-Identifier: Apache-2.0
// One query block against one key block over bf16, backwards. Everything stands on its side, keys
// down, queries across, so that weights come out as the products want them:
//   S' = K Q'   P' = exp(S' - lse)   dS' = P' (V dO' - delta)   dv += P' do   dk += dS' q
// and dq += dS k after dS' was turned. Compiled for AVX512-BF16 and for AMX.
#include "cpu/bf16_isa.hpp"

namespace foci::cpu::FOCI_NARROW {

static constexpr long tall = 32;  // keys of a tile
static constexpr long tile_size = 2 * tall * panel;
static constexpr float log2_of_e = 1.4426950408889634f;
static constexpr float nothing = -1e30f;  // minus the lse of a row that sees nothing

/// Where the parts of packed queries begin, in floats.
struct QueryLayout {
  long part, lines, d_o, d_o_lines, rows, size;

  QueryLayout(std::int64_t D, std::int64_t E) {
    part = keys_room(block_rows, D);  // panels that keys meet, most_parts times
    lines = most_parts * part;
    d_o = lines + values_room(block_rows, D);
    d_o_lines = d_o + keys_room(block_rows, E);
    rows = d_o_lines + values_room(block_rows, E);  // on their way
    size = rows + most_parts * part;
  }
};

/// The same of keys: rows of keys, rows of values, lines of keys.
struct KeyLayout {
  long values, lines, size;

  KeyLayout(std::int64_t D, std::int64_t E) {
    values = gradient_keys * padded(D, 32) / 2;
    lines = values + gradient_keys * padded(E, 32) / 2;
    size = lines + values_room(gradient_keys, D);
  }
};

std::int64_t gradient_queries_room(std::int64_t D, std::int64_t E) {
  return QueryLayout(D, E).size;
}
std::int64_t gradient_keys_room(std::int64_t D, std::int64_t E) { return KeyLayout(D, E).size; }

int pack_gradient_queries(float* to, const NarrowQueries& from) {
  const QueryLayout at(from.q.width, from.d_o.width);
  int parts = 1;
  NarrowLines q = from.q;
  if (from.wide) {
    const long step = padded(q.width, 32), rows = padded(q.count, tall);
    auto* narrow = reinterpret_cast<std::uint16_t*>(to + at.rows);
    parts = pack_rows(narrow, from.wide, {nullptr, 0, q.count, q.width}, rows, most_parts);
    for (int part = 1; part < parts; ++part)
      pack_keys(to + part * at.part, {narrow + part * rows * step, step, q.count, q.width}, 0);
    q.from = narrow;
    q.step = step;
  }
  pack_keys(to, q, 0);
  pack_keys(to + at.d_o, from.d_o, 0);
  if (!from.sums) return parts;
  pack_values(to + at.lines, q, 0, block_rows);
  pack_values(to + at.d_o_lines, from.d_o, 0, block_rows);
  return parts;
}

void pack_gradient_keys(float* to, const NarrowLines& k, const NarrowLines& v) {
  const KeyLayout at(k.width, v.width);
  const long rows = padded(k.count, tall);
  pack_rows(reinterpret_cast<std::uint16_t*>(to), nullptr, k, rows, 1);
  pack_rows(reinterpret_cast<std::uint16_t*>(to + at.values), nullptr, v, rows, 1);
  pack_values(to + at.lines, k, 0, gradient_keys);
}

/// What a block needs while it is at it.
struct Desk {
  float* products;         // (2, 2, tall, panel) S' and V dO' of two tiles
  std::uint16_t* weights;  // (tall, stride) P'
  std::uint16_t* scaled;   // (tall, stride) dS' times the scale
  std::uint16_t* turned;   // (block_rows, stride) dS
  float* low;              // (block_rows) minus lse, in powers of two
  float* minus_delta;      // (block_rows); softmax_deltas: delta
  std::int64_t* from;      // (gradient_keys) the first query that sees a key
  std::int64_t* sees;      // (block_rows)
  float* bias;             // (gradient_keys) in powers of two
};

static Desk set_desk(float* scratch) {
  Desk desk;
  Room room(scratch, 64);
  room.take(desk.products, 2 * tile_size);
  room.take(desk.weights, tall * stride);
  room.take(desk.scaled, tall * stride);
  room.take(desk.turned, block_rows * stride);
  room.take(desk.low, block_rows);
  room.take(desk.minus_delta, block_rows);
  room.take(desk.from, gradient_keys);
  room.take(desk.sees, block_rows);
  room.take(desk.bias, gradient_keys);
  return desk;
}

std::int64_t gradient_scratch() {
  return 16 * 10 + 2 * tile_size + (2 * tall + block_rows) * stride / 2 + 4 * block_rows +
         3 * gradient_keys;
}

/// from is looked at where queries see different keys, alone.
static void copy_rows(const Desk& desk, const NarrowBackward& block) {
  const long rows = block.rows;
  for (long i = 0; i < rows; ++i)
    desk.low[i] = block.low[i] > -nothing ? nothing : block.low[i] * log2_of_e;
  for (long i = rows; i < block_rows; ++i) desk.low[i] = nothing;
  for (long i = 0; i < block_rows; ++i) desk.minus_delta[i] = 0;
  for (long i = 0; i < rows && block.minus_delta; ++i) desk.minus_delta[i] = block.minus_delta[i];
  for (long j = 0; j < block.n; ++j) desk.bias[j] = block.bias[j] * log2_of_e;
  for (long j = block.n; j < gradient_keys; ++j) desk.bias[j] = nothing;
  if (!block.causal) return;
  for (long i = 0; i < block_rows; ++i) desk.sees[i] = block.sees[i < rows ? i : rows - 1];
  long from = 0;
  for (long j = 0; j < gradient_keys; ++j) {
    while (from < rows && block.sees[from] <= block.key + j) ++from;
    desk.from[j] = from;
  }
}

/// `tall` keys from j on and a panel of queries from i on.
struct Tile {
  long j, i;
};

/// S' and V dO' of a tile.
static void multiply_tile(const NarrowBackward& block, const Tile& at, float* to) {
  const QueryLayout queries(block.D, block.E);
  const KeyLayout keys(block.D, block.E);
  Product of;
  of.rows = tall;
  of.a_part = 0;
  of.b_part = queries.part;
  of.depth = block.D;
  of.a_step = padded(block.D, 32);
  of.parts = block.parts;
  of.a = reinterpret_cast<const std::uint16_t*>(block.keys) + at.j * of.a_step;
  of.b = block.queries + at.i * of.a_step / 2;
  of.out = to;
  product(of);
  of.depth = block.E;
  of.a_step = padded(block.E, 32);
  of.parts = 1;
  of.a = reinterpret_cast<const std::uint16_t*>(block.keys + keys.values) + at.j * of.a_step;
  of.b = block.queries + queries.d_o + at.i * of.a_step / 2;
  of.out = to + tall * panel;
  product(of);
}

/// Row j of a tile: P' and scaled dS' to their places, dS' as 32 bf16 given back.
template <bool Causal>
FOCI_INLINE __m512i differentiate(const Desk& desk, const NarrowBackward& block, const Tile& tile,
                                  const float* products, long j, const V (&low)[2],
                                  const V (&minus_delta)[2]) {
  const long key = tile.j + j, unseen = Causal ? desk.from[key] - tile.i : 0;
  const V bias = all(desk.bias + key), scale = all(block.scale * log2_of_e);
  V p[2], ds[2];
#pragma GCC unroll 2
  for (int h = 0; h < 2; ++h) {
    const __mmask16 seen = __mmask16(~first_lanes(unseen - h * lanes));
    const long at = j * panel + h * lanes;
    p[h] = exp2(fma(load(products + at), scale, add(low[h], bias)));
    if constexpr (Causal) p[h] = keep(p[h], seen, 0.0f);
    ds[h] = mul(add(load(products + tall * panel + at), minus_delta[h]), p[h]);
    if constexpr (Causal) ds[h] = keep(ds[h], seen, 0.0f);
  }
  if (block.dbias && key < block.n) block.dbias[key] += total(add(ds[0], ds[1]));
  const V by = all(block.scale);
  store_pairs(desk.weights + j * stride + tile.i, p[0], p[1]);
  store_pairs(desk.scaled + j * stride + tile.i, mul(ds[0], by), mul(ds[1], by));
  return (__m512i)_mm512_cvtne2ps_pbh(ds[1], ds[0]);
}

/// A whole tile, dS turned as well.
template <bool Causal>
static void differentiate_tile(const Desk& desk, const NarrowBackward& block, const Tile& tile,
                               const float* products) {
  const __m512i spread = _mm512_setr_epi64(0, 4, 1, 5, 2, 6, 3, 7);
  V low[2], minus_delta[2];
  for (int h = 0; h < 2; ++h) {
    low[h] = load(desk.low + tile.i + h * lanes);
    minus_delta[h] = load(desk.minus_delta + tile.i + h * lanes);
  }
  __m512i pairs[2][16];  // of keys, for 16 queries each
  for (long j = 0; j < tall; j += 2) {
    __m512i a = differentiate<Causal>(desk, block, tile, products, j, low, minus_delta);
    __m512i b = differentiate<Causal>(desk, block, tile, products, j + 1, low, minus_delta);
    a = _mm512_maskz_permutexvar_epi64(0xff, spread, a);
    b = _mm512_maskz_permutexvar_epi64(0xff, spread, b);
    pairs[0][j / 2] = _mm512_unpacklo_epi16(a, b);
    pairs[1][j / 2] = _mm512_unpackhi_epi16(a, b);
  }
  for (int h = 0; h < 2; ++h) {
    transpose(pairs[h]);
    for (long i = 0; i < 16; ++i)
      _mm512_storeu_si512(desk.turned + (tile.i + h * lanes + i) * stride + tile.j, pairs[h][i]);
  }
}

/// out += `rows` rows of a times lines, one panel of columns after the other.
static void sum_up(Sum of, long out_panel, long line_panel, long width) {
  for (long d = 0; d < width; d += panel) {
    of.columns = width - d;
    sum(of);
    of.out += out_panel;
    of.lines += line_panel;
  }
}

/// dv and dk of a tile of keys.
static void sum_queries(const Desk& desk, const NarrowBackward& block, long j) {
  const QueryLayout queries(block.D, block.E);
  Sum of;
  of.out_step = panel;
  of.rows = tall;
  of.count = block.rows;
  of.meets = block.causal ? Meets::after : Meets::all;
  of.bound = desk.from + j;
  of.origin = 0;
  of.first = false;
  of.a = desk.weights;
  of.out = block.dv + j * panel;
  of.lines = block.queries + queries.d_o_lines;
  sum_up(of, gradient_keys * panel, block_rows * panel / 2, block.E);
  of.a = desk.scaled;
  of.out = block.dk + j * panel;
  of.lines = block.queries + queries.lines;
  sum_up(of, gradient_keys * panel, block_rows * panel / 2, block.D);
}

static void sum_keys(const Desk& desk, const NarrowBackward& block) {
  Sum of;
  of.out_step = panel;
  of.count = block.n;
  of.meets = block.causal ? Meets::before : Meets::all;
  of.origin = block.key;
  of.first = false;
  of.lines = block.keys + KeyLayout(block.D, block.E).lines;
  for (long i = 0; i < block.rows; i += tall) {
    of.rows = padded(block.rows - i < tall ? block.rows - i : tall, tile_rows);
    of.bound = desk.sees + i;
    of.a = desk.turned + i * stride;
    of.out = block.dq + i * panel;
    sum_up(of, block_rows * panel, gradient_keys * panel / 2, block.D);
  }
}

/// The tile after `at` that anybody sees: on through the queries, then down the keys. j is past
/// the last key after the last.
static Tile after(const Desk& desk, const NarrowBackward& block, Tile at) {
  while (at.j < block.n) {
    at.i += panel;
    if (at.i >= block.rows) at = {at.j + tall, 0};
    if (at.j < block.n && (!block.causal || desk.from[at.j] < at.i + panel)) break;
  }
  return at;
}

/// Calls f(tile, products, whether some of its queries do not see some of its keys, whether it is
/// the last of its keys) for every tile that anybody sees. Where tiles multiply aside, the products
/// of the next are begun before.
template <class F>
FOCI_INLINE void each_tile(const Desk& desk, const NarrowBackward& block, const F& f) {
  open_tiles();
  Tile at = after(desk, block, {-tall, block_rows});
  float *products = desk.products, *others = desk.products + (multiplies_aside ? tile_size : 0);
  if (multiplies_aside && at.j < block.n) multiply_tile(block, at, products);
  while (at.j < block.n) {
    const Tile next = after(desk, block, at);
    const Tile now = multiplies_aside ? next : at;
    if (now.j < block.n) multiply_tile(block, now, others);
    f(at, products, block.causal && desk.from[at.j + tall - 1] > at.i, next.j != at.j);
    float* const swap = products;
    products = others;
    others = swap;
    at = next;
  }
}

/// delta of a tile's queries: += sum_j p_ij da_ij.
template <bool Causal>
static void weigh_tile(const Desk& desk, const NarrowBackward& block, const Tile& tile,
                       const float* products) {
  const V scale = all(block.scale * log2_of_e);
  V low[2], delta[2];
  for (int h = 0; h < 2; ++h) {
    low[h] = load(desk.low + tile.i + h * lanes);
    delta[h] = load(desk.minus_delta + tile.i + h * lanes);
  }
  for (long j = 0; j < tall; ++j) {
    const long unseen = Causal ? desk.from[tile.j + j] - tile.i : 0;
    const V bias = all(desk.bias + tile.j + j);
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __mmask16 seen = __mmask16(~first_lanes(unseen - h * lanes));
      const long at = j * panel + h * lanes;
      V p = exp2(fma(load(products + at), scale, add(low[h], bias)));
      V pull = load(products + tall * panel + at);
      if constexpr (Causal) p = keep(p, seen, 0.0f);
      if constexpr (Causal) pull = keep(pull, seen, 0.0f);
      delta[h] = fma(p, pull, delta[h]);
    }
  }
  for (int h = 0; h < 2; ++h) store(desk.minus_delta + tile.i + h * lanes, delta[h]);
}

void softmax_deltas(const NarrowBackward& block);
void softmax_deltas(const NarrowBackward& block) {
  const Desk desk = set_desk(block.scratch);
  copy_rows(desk, block);
  for (long i = 0; i < block_rows; ++i) desk.minus_delta[i] = i < block.rows ? block.delta[i] : 0;
  each_tile(desk, block, [&](const Tile& at, const float* products, bool causal, bool) {
    if (causal) {
      weigh_tile<true>(desk, block, at, products);
    } else {
      weigh_tile<false>(desk, block, at, products);
    }
  });
  close_tiles();
  for (long i = 0; i < block.rows; ++i) block.delta[i] = desk.minus_delta[i];
}

void softmax_backward(const NarrowBackward& block);
void softmax_backward(const NarrowBackward& block) {
  const Desk desk = set_desk(block.scratch);
  copy_rows(desk, block);
  each_tile(desk, block, [&](const Tile& at, const float* products, bool causal, bool last) {
    if (causal) {
      differentiate_tile<true>(desk, block, at, products);
    } else {
      differentiate_tile<false>(desk, block, at, products);
    }
    if (last) sum_queries(desk, block, at.j);
  });
  sum_keys(desk, block);
  close_tiles();
}

}  // namespace foci::cpu::FOCI_NARROW
