// SPDX-License-Identifier: Apache-2.0
// One block of softmax attention over bf16, compiled for AVX512-BF16 and for AMX. The tiles of AMX
// multiply while vectors exponentiate: before the weights of one tile are made, the products of the
// next are begun, and between its rows the finished weights of rows before it meet their values.
#include "cpu/bf16_isa.hpp"

namespace foci::cpu::FOCI_NARROW {

#include "cpu/bf16_softmax.hpp"

#include "cpu/bf16_finish.hpp"

static constexpr long most_rows = 32;  // of a tile of weights
static constexpr long score_room = most_rows * panel;

/// Products of a tile's queries with its keys; `soon` will be wanted after it.
static void score(const Running& run, const ForwardBlock& block, const Tile& at, const Tile& soon,
                  float* scores) {
  Product of;
  of.out = scores;
  of.a = run.q + at.row * run.D;
  of.b = block.keys + (at.key + at.column) * run.D / 2;
  of.rows = at.rows;
  of.depth = block.D;
  of.a_step = run.D;
  of.parts = run.parts;
  of.a_part = run.rows * run.D;
  of.b_part = 0;
  of.soon = soon.key < block.n ? block.keys + (soon.key + soon.column) * run.D / 2 : nullptr;
  product(of);
}

/// Rows whose weights of a key block wait for their values, one panel of columns after the other.
struct Waiting {
  long key = 0, row = 0, rows = 0;
  long next = 0, end = 0;  // columns

  void one(const Running& run, const ForwardBlock& block) {
    if (next >= end) return;
    const long step = padded(block.value_rows, panel);
    Sum of;
    of.out = run.o + row * run.E + next;
    of.out_step = run.E;
    of.a = run.weights + row * stride;
    of.lines = block.values + (next * step + key * panel) / 2;
    of.rows = rows;
    of.count = block.n - key < block_keys ? block.n - key : block_keys;
    of.columns = block.E - next;
    of.meets = block.causal ? Meets::before : Meets::all;
    of.bound = run.sees + row;
    of.origin = key;
    of.first = key == 0;
    of.soon = next + panel < end ? of.lines + panel * step / 2 : nullptr;
    sum(of);
    next += panel;
  }
  void all(const Running& run, const ForwardBlock& block) {
    while (next < end) one(run, block);
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
    at.rows = run.rows - at.row < most_rows ? run.rows - at.row : most_rows;
    if (at.key < run.sees[at.row + at.rows - 1]) return at;
    if (at.key >= run.sees[run.rows - 1]) break;
  }
  at.key = block.n;
  return at;
}

/// Tiles that multiply on their own while vectors do something else.
static void walk_ahead(const Running& run, const ForwardBlock& block) {
  Waiting waiting;
  Tile at = after(run, block, {0, -most_rows, most_rows, block_keys});
  Tile next = after(run, block, at);
  float *scores = run.scores, *others = run.scores + score_room;
  if (at.key < block.n) score(run, block, at, next, scores);
  while (at.key < block.n) {
    const Tile later = after(run, block, next);
    weigh_tile(run, block, at, scores, [&](long i) {
      if (i == 0 && next.key < block.n) score(run, block, next, later, others);
      if (i == at.rows / 2) waiting.one(run, block);
    });
    if (next.row != at.row || next.key != at.key) {
      waiting.all(run, block);
      waiting = {at.key, at.row, at.rows, 0, block.E};
      if (next.row == at.row || next.key == block.n) waiting.all(run, block);
    }
    float* const swap = scores;
    scores = others;
    others = swap;
    at = next;
    next = later;
  }
}

/// Vectors that do everything: one after the other, what was written last read first.
static void walk_in_order(const Running& run, const ForwardBlock& block) {
  const Tile nothing = {block.n, 0, 0, 0};
  for (Tile at = {0, 0, tile_rows, 0}; at.key < run.sees[run.rows - 1]; at.key += block_keys) {
    const long end = block.n - at.key < block_keys ? block.n - at.key : block_keys;
    for (at.column = 0; at.column < end; at.column += panel) {
      for (at.row = 0; at.row < run.rows; at.row += tile_rows) {
        if (run.sees[at.row + tile_rows - 1] <= at.key + at.column) continue;
        score(run, block, at, nothing, run.scores);
        weigh_tile(run, block, at, run.scores, [](long) {});
      }
    }
    Waiting{at.key, 0, run.rows, 0, block.E}.all(run, block);
  }
}

static void softmax_forward(const NarrowForward& block) {
  const Running run = start(block, tile_rows, 2 * score_room);
  open_tiles();
  if (multiplies_aside) {
    walk_ahead(run, block);
  } else {
    walk_in_order(run, block);
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
void softmax_backward(const NarrowBackward& block);

#define FOCI_NAME_OF(isa) FOCI_QUOTED(isa)
#define FOCI_QUOTED(isa) #isa
extern const NarrowKernels kernels;
const NarrowKernels kernels = {
    .name = FOCI_NAME_OF(FOCI_NARROW),
    .panel = panel,
    .forward_scratch = forward_scratch,
    .keys_room = keys_room,
    .values_room = values_room,
    .pack_keys = pack_keys,
    .pack_values = pack_values,
    .softmax_forward = softmax_forward,
    .gradient_queries_room = gradient_queries_room,
    .gradient_keys_room = gradient_keys_room,
    .gradient_scratch = gradient_scratch,
    .pack_gradient_queries = pack_gradient_queries,
    .pack_gradient_keys = pack_gradient_keys,
    .softmax_backward = softmax_backward,
};

}  // namespace foci::cpu::FOCI_NARROW
