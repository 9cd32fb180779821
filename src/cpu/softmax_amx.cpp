// SPDX-License-Identifier: Apache-2.0
// One block of softmax attention over bf16 with AMX. Tiles multiply while vectors exponentiate:
// before the weights of one tile are made, the products of the next are begun, and between its
// rows the finished weights of rows before it meet their values.
#include "cpu/narrow.hpp"
#include "cpu/vec_avx512.hpp"

#include <math.h>

#if defined(FOCI_AMX_EMULATED)
#define FOCI_AMX amx_emulated
#else
#define FOCI_AMX amx
#endif

namespace foci::cpu::FOCI_AMX {

#include "cpu/bf16_vector.hpp"

#include "cpu/amx_tile.hpp"

#include "cpu/bf16_pack.hpp"

#include "cpu/bf16_softmax.hpp"

#include "cpu/bf16_finish.hpp"

static constexpr long tile_rows = 16;
static constexpr long pair_rows = 2 * tile_rows;  // of two tiles, one above the other
static constexpr long score_room = pair_rows * panel;
static constexpr long line_bytes = panel * sizeof(float);

/// Products of the rows of one or two tiles with a panel of keys, into scores (rows, panel).
template <int Tiles>
FOCI_INLINE void score(const Running& run, const ForwardBlock& block, const Tile& at,
                       float* scores) {
  tile_zero<0>();
  tile_zero<1>();
  if constexpr (Tiles == 2) {
    tile_zero<2>();
    tile_zero<3>();
  }
  const long step = run.D * sizeof run.q[0];
  for (int part = run.parts - 1; part >= 0; --part) {  // the smallest first
    const std::uint16_t* q = run.q + (part * run.rows + at.row) * run.D;
    const float* keys = block.keys + (at.key + at.column) * run.D / 2;
    for (long d = 0; d < run.D; d += 32, q += 32, keys += 16 * panel) {
      tile_load<4>(q, step);
      tile_load<6>(keys, line_bytes);
      tile_load<7>(keys + lanes, line_bytes);
      tile_multiply<0, 4, 6>();
      tile_multiply<1, 4, 7>();
      if constexpr (Tiles == 2) {
        tile_load<5>(q + tile_rows * run.D, step);
        tile_multiply<2, 5, 6>();
        tile_multiply<3, 5, 7>();
      }
    }
  }
  tile_store<0>(scores, line_bytes);
  tile_store<1>(scores + lanes, line_bytes);
  if constexpr (Tiles == 2) {
    tile_store<2>(scores + tile_rows * panel, line_bytes);
    tile_store<3>(scores + tile_rows * panel + lanes, line_bytes);
  }
}

static void score(const Running& run, const ForwardBlock& block, const Tile& at, float* scores) {
  if (at.rows > tile_rows) {
    score<2>(run, block, at, scores);
  } else {
    score<1>(run, block, at, scores);
  }
}

/// Whether 32 lines of a panel of values hold nothing infinite and no NaN.
static bool all_finite(const float* values) {
  const __m512i exponent = _mm512_set1_epi16(0x7f80);
  __mmask32 bad = 0;
  for (long i = 0; i < 16 * panel; i += lanes) {
    const __m512i x = _mm512_and_si512(_mm512_loadu_si512(values + i), exponent);
    bad |= _mm512_cmpeq_epi16_mask(x, exponent);
  }
  return bad == 0;
}

/// Rows of one tile times one panel of values into tiles 0 and 1: o (16, panel) += weights values.
struct Gather {
  const std::uint16_t* weights;  // (16, stride)
  const float* values;           // column panel at the key block's first key
  const std::int64_t* sees;      // (16)
  long key, count;               // keys [key, key + count) at most
};

FOCI_INLINE void gather_chunk(const Gather& of, const float* values, long k) {
  tile_load<4>(of.weights + k, stride * sizeof of.weights[0]);
  tile_load<6>(values, line_bytes);
  tile_load<7>(values + lanes, line_bytes);
  tile_multiply<0, 4, 6>();
  tile_multiply<1, 4, 7>();
}

/// A chunk of 32 keys of which some rows do not see all, and not all values are finite: each row by
/// itself with what it does not see cleared, in the same order of sums, so that the bits are those
/// of finite values.
static __attribute__((noinline)) void gather_apart(const Gather& of, long k) {
  alignas(64) float from[tile_rows * panel], to[tile_rows * panel], cleared[16 * panel];
  tile_store<0>(from, line_bytes);
  tile_store<1>(from + lanes, line_bytes);
  alignas(64) float rows[tile_rows * panel];
  for (long i = 0; i < tile_rows; ++i) {
    const long seen = of.sees[i] - of.key - k;
    for (long j = 0; j < 16 * panel; j += lanes) {
      const long left = seen - j / panel * 2;  // of this pair of lines
      const int mask = left >= 2 ? -1 : left == 1 ? 0xffff : 0;
      const __m512i pair = _mm512_loadu_si512(of.values + k / 2 * panel + j);
      _mm512_storeu_si512(cleared + j, _mm512_and_si512(pair, _mm512_set1_epi32(mask)));
    }
    tile_load<0>(from, line_bytes);
    tile_load<1>(from + lanes, line_bytes);
    gather_chunk(of, cleared, k);
    tile_store<0>(to, line_bytes);
    tile_store<1>(to + lanes, line_bytes);
    store(rows + i * panel, load(to + i * panel));
    store(rows + i * panel + lanes, load(to + i * panel + lanes));
  }
  tile_load<0>(rows, line_bytes);
  tile_load<1>(rows + lanes, line_bytes);
}

/// Weights of one tile of rows times one panel of columns, onto what earlier keys gave. A row's
/// weight of a key it does not see is 0; 0 times a finite value changes nothing.
static void gather(const Gather& of, float* o, long step) {
  if (of.key == 0) {
    tile_zero<0>();
    tile_zero<1>();
  } else {
    tile_load<0>(o, step);
    tile_load<1>(o + lanes, step);
  }
  const long most = of.sees[tile_rows - 1] - of.key;
  for (long k = 0; k < (most < of.count ? most : of.count); k += 32) {
    const float* values = of.values + k / 2 * panel;
    const long end = k + 32 < of.count ? k + 32 : of.count;
    if (of.sees[0] - of.key >= end || all_finite(values)) {
      gather_chunk(of, values, k);
    } else {
      gather_apart(of, k);
    }
  }
  tile_store<0>(o, step);
  tile_store<1>(o + lanes, step);
}

/// The weights of a row of tiles that wait for their values, one tile and one panel of columns
/// after the other.
struct Waiting {
  long key = 0, row = 0, tiles = 0;
  long next = 0, count = 0;  // of tiles x panels

  void one(const Running& run, const ForwardBlock& block) {
    if (next == count) return;
    const long r = row + next % tiles * tile_rows, e = next / tiles * panel;
    ++next;
    const long keys = block.n - key < block_keys ? block.n - key : block_keys;
    const float* values = block.values + (e * padded(block.value_rows, panel) + key * panel) / 2;
    gather({run.weights + r * stride, values, run.sees + r, key, keys}, run.o + r * run.E + e,
           run.E * sizeof run.o[0]);
  }
  void all(const Running& run, const ForwardBlock& block) {
    while (next < count) one(run, block);
  }
};

/// The tile after `at` that any of its rows sees: along the keys of a block, then down the rows,
/// then on to the next block of keys. key is block.n after the last.
static Tile after(const Running& run, const ForwardBlock& block, Tile at) {
  const long end = block.n - at.key < block_keys ? block.n - at.key : block_keys;
  at.column += panel;
  if (at.column < end && at.key + at.column < run.sees[at.row + at.rows - 1]) return at;
  at.column = 0;
  while (at.key < block.n) {
    at.row += at.rows;
    if (at.row >= run.rows) {
      at.row = 0;
      at.key += block_keys;
    }
    at.rows = run.rows - at.row < pair_rows ? run.rows - at.row : pair_rows;
    if (at.key < run.sees[at.row + at.rows - 1]) return at;
    if (at.key >= run.sees[run.rows - 1]) break;
  }
  at.key = block.n;
  return at;
}

static void softmax_forward(const NarrowForward& block) {
  const Running run = start(block, tile_rows, 2 * score_room);
  open_tiles();
  Waiting waiting;
  Tile at = {0, -pair_rows, pair_rows, block_keys};
  at = after(run, block, at);
  float *scores = run.scores, *others = run.scores + score_room;
  if (at.key < block.n) score(run, block, at, scores);
  while (at.key < block.n) {
    const Tile next = after(run, block, at);
    const long slots = block_keys / panel;
    const long each = (waiting.count + slots - 1) / slots;
    weigh_tile(run, block, at, scores, [&](long i) {
      if (i == 0 && next.key < block.n) score(run, block, next, others);
      if (i == at.rows / 2) {
        for (long s = 0; s < each; ++s) waiting.one(run, block);
      }
    });
    if (next.row != at.row || next.key != at.key) {
      waiting.all(run, block);
      waiting = {at.key, at.row, at.rows / tile_rows, 0, at.rows / tile_rows * run.E / panel};
      if (next.row == at.row || next.key == block.n) waiting.all(run, block);
    }
    float* const swap = scores;
    scores = others;
    others = swap;
    at = next;
  }
  close_tiles();
  finish(run, block);
}

static std::int64_t forward_scratch(std::int64_t D, std::int64_t E) {
  return scratch_of(D, E, 2 * score_room);
}

#define FOCI_NAME_OF(isa) FOCI_QUOTED(isa)
#define FOCI_QUOTED(isa) #isa
extern const NarrowKernels kernels;
const NarrowKernels kernels = {
    FOCI_NAME_OF(FOCI_AMX), panel, forward_scratch, keys_room, values_room, pack_keys, pack_values,
    softmax_forward};

}  // namespace foci::cpu::FOCI_AMX
