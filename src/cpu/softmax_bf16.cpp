// SPDX-License-Identifier: Apache-2.0
// One block of softmax attention over bf16: scores of a tile, weights, weights times values. The
// walk is that of softmax.cpp. Compiled for AVX512-BF16 and for AMX, whose tiles multiply while
// vectors exponentiate.
#include "cpu/bf16_isa.hpp"

namespace foci::cpu::FOCI_NARROW {

#include "cpu/bf16_softmax.hpp"

#include "cpu/bf16_finish.hpp"

static constexpr long score_room = tile_rows * panel;

/// Products of a tile's queries with its keys.
static void score(const Running& run, const ForwardBlock& block, const Tile& at, float* scores) {
  Product of;
  of.out = scores;
  of.a = run.q + at.row * run.D;
  of.b = block.keys + (at.key + at.column) * run.D / 2;
  of.rows = tile_rows;
  of.depth = block.D;
  of.a_step = run.D;
  of.parts = run.parts;
  of.a_part = run.rows * run.D;
  of.b_part = 0;
  product(of);
}

/// The tile after `at` in its key block that any of its rows sees: down the rows, then on to the
/// next panel of keys. column is `count` after the last.
static Tile after(const Running& run, Tile at, long count) {
  do {
    at.row += tile_rows;
    if (at.row < run.rows) continue;
    at.row = 0;
    at.column += panel;
  } while (at.column < count && run.sees[at.row + tile_rows - 1] <= at.key + at.column);
  return at;
}

/// Weights of `count` keys. Where tiles multiply aside, the products of the next tile are begun
/// before the weights of one are made. Their rooms lie in different halves of a page: a load would
/// wait for a store 4096 bytes away.
static void weigh_block(const Running& run, const ForwardBlock& block, long key, long count) {
  float *scores = run.scores, *others = run.scores + (multiplies_aside ? score_room : 0);
  Tile at = after(run, {key, -tile_rows, 0}, count);
  if (multiplies_aside) score(run, block, at, scores);
  while (at.column < count) {
    const Tile next = after(run, at, count);
    const Tile now = multiplies_aside ? next : at;
    if (now.column < count) score(run, block, now, others);
    weigh_tile(run, block, at, scores);
    float* const swap = scores;
    scores = others;
    others = swap;
    at = next;
  }
}

/// Weights of `count` keys times their values.
static void sum_block(const Running& run, const ForwardBlock& block, long key, long count) {
  Sum of;
  of.out_step = run.E;
  of.count = count;
  of.meets = block.causal ? Meets::before : Meets::all;
  of.origin = key;
  of.first = key == 0;
  for (long e = 0; e < block.E; e += panel) {
    of.lines = block.values + (e * padded(block.value_rows, panel) + key * panel) / 2;
    of.columns = block.E - e;
    for (long r = 0; r < run.rows; r += 32) {
      of.rows = run.rows - r < 32 ? run.rows - r : 32;
      of.out = run.o + r * run.E + e;
      of.a = run.weights + r * stride;
      of.bound = run.sees + r;
      sum(of);
    }
  }
}

static void softmax_forward(const NarrowForward& block) {
  const Running run = start(block, tile_rows, 2 * score_room);
  open_tiles();
  for (long key = 0; key < run.sees[run.rows - 1]; key += block_keys) {
    const long count = block.n - key < block_keys ? block.n - key : block_keys;
    weigh_block(run, block, key, count);
    sum_block(run, block, key, count);
  }
  close_tiles();
  finish(run, block);
}

static std::int64_t forward_scratch(std::int64_t D, std::int64_t E) {
  return scratch_of(D, E, 2 * score_room);
}

// softmax_bf16_backward.cpp
std::int64_t gradient_queries_room(std::int64_t D, std::int64_t E);
std::int64_t gradient_keys_room(std::int64_t D, std::int64_t E);
std::int64_t gradient_scratch();
int pack_gradient_queries(float* to, const NarrowQueries& from);
void pack_gradient_keys(float* to, const NarrowLines& k, const NarrowLines& v);
void softmax_deltas(const NarrowBackward& block);
void softmax_backward(const NarrowBackward& block);

#define FOCI_NAME_OF(isa) FOCI_QUOTED(isa)
#define FOCI_QUOTED(isa) #isa
#if defined(FOCI_AMX_EMULATED)
extern const NarrowKernels kernels;
#endif
const NarrowKernels kernels = {
    .name = FOCI_NAME_OF(FOCI_NARROW),
    .panel = panel,
    .forward_scratch = forward_scratch,
    .keys_room = keys_room,
    .values_room = values_room,
    .pack_keys = pack_keys,
    .pack_values = pack_values,
    .store_lines = store_lines,
    .softmax_forward = softmax_forward,
    .gradient_queries_room = gradient_queries_room,
    .gradient_keys_room = gradient_keys_room,
    .gradient_scratch = gradient_scratch,
    .pack_gradient_queries = pack_gradient_queries,
    .pack_gradient_keys = pack_gradient_keys,
    .softmax_deltas = softmax_deltas,
    .softmax_backward = softmax_backward,
};

}  // namespace foci::cpu::FOCI_NARROW
