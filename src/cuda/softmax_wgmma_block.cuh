// SPDX-License-Identifier: Apache-2.0
// A block of the forward pass on Hopper: how its shared memory is laid out, who waits for whom, and
// which tile of queries it has.
#pragma once

#include "cuda/hopper.cuh"
#include "cuda/softmax_rest.cuh"

namespace foci::cuda {

#ifndef FOCI_EMULATED

struct WgmmaArgs {
  CUtensorMap q, k, v, o;
  Shape shape;
  Folded folded;
  Rows to;
  int* room;          // a counter, and marks of key heads
  int tiles, pieces;  // of queries: a head's, all
  int heads;          // causal: of so many together the longest tiles go first
  int dynamic;        // blocks take the next tile from `room`, else every gridDim.x-th
};

/// How a block goes about it. `groups`: warpgroups that compute; `folds`: queries become m q.
template <DType type_, DType score_type_, int width_, int groups_, bool biased_, bool folds_,
          bool statistics_ = false>
struct Work {
  static constexpr DType type = type_, score_type = score_type_;  // of v and o; of q and k
  static constexpr int width = width_, groups = groups_;
  static constexpr bool biased = biased_, folds = folds_, statistics = statistics_;
  static constexpr int rows = 64, queries = groups * rows, keys = 128, stages = 2, slots = 2;
  static constexpr int threads = (groups + 1) * warpgroup;
  // Three warpgroups have no registers left for queries.
  static constexpr bool q_in_registers = groups == 2;
  // Of a block's 65536 registers, or 64512 where it is three warpgroups.
  static constexpr int bringing = groups == 3 ? 32 : statistics ? 24 : 40;
  static constexpr int computing = groups == 3 ? 160 : statistics ? 240 : 232;
  static_assert(bringing + groups * computing <= (groups == 3 ? 512 : 504));

  static constexpr int panels = width / 64, line = 128;  // 64 columns in 128 bytes a row
  static constexpr int q_panel = rows * line, k_panel = keys * line;
  static constexpr int q_bytes = panels * q_panel, k_bytes = panels * k_panel;
  static constexpr int bias_bytes = biased ? keys * 32 : 0;
  // Tiles begin at multiples of 1024.
  static constexpr Address q_at = 0, o_at = groups * q_bytes, k_at = 2 * groups * q_bytes;
  static constexpr Address v_at = k_at + stages * k_bytes, ones_at = v_at + stages * k_bytes;
  static constexpr Address bias_at = ones_at + (biased ? rows * 32 : 0);
  static constexpr Address barriers_at = bias_at + stages * bias_bytes;
  static constexpr Address turns_at = barriers_at + 8 * (2 + 4 * stages + 2 * slots);
  static constexpr std::size_t bytes = turns_at + 4 * slots;
};

#ifdef FOCI_HOPPER

/// Who waits for what; `full` and `empty` of the same stage end in turn.
template <class W>
struct Barriers {
  Address at;
  FOCI_DEVICE explicit Barriers(Address memory) : at(memory + W::barriers_at) {}
  FOCI_DEVICE Address q_full() const { return at; }
  FOCI_DEVICE Address q_empty() const { return at + 8; }
  FOCI_DEVICE Address k_full(int stage) const { return at + 8 * (2 + stage); }
  FOCI_DEVICE Address k_empty(int stage) const { return at + 8 * (2 + W::stages + stage); }
  FOCI_DEVICE Address v_full(int stage) const { return at + 8 * (2 + 2 * W::stages + stage); }
  FOCI_DEVICE Address v_empty(int stage) const { return at + 8 * (2 + 3 * W::stages + stage); }

  /// A slot has the number of a tile of queries.
  FOCI_DEVICE Address slot_full(int slot) const { return at + 8 * (2 + 4 * W::stages + slot); }
  FOCI_DEVICE Address slot_empty(int slot) const { return slot_full(slot) + 8 * W::slots; }

  FOCI_DEVICE void set_up() const {
    constexpr int one = warp_arrivals, warps = one * W::groups * warpgroup / warp;
    set_up_barrier(q_full(), 1);
    set_up_barrier(q_empty(), warps);
    for (int stage = 0; stage < W::stages; ++stage) {
      set_up_barrier(k_full(stage), 1 + one * W::biased);
      set_up_barrier(k_empty(stage), warps);
      set_up_barrier(v_full(stage), 1);
      set_up_barrier(v_empty(stage), warps);
    }
    for (int slot = 0; slot < W::slots; ++slot) {
      set_up_barrier(slot_full(slot), 1);
      set_up_barrier(slot_empty(slot), warps + one * W::biased);
    }
    show_barriers();
  }
};

/// Which tile of queries is next: one thread says so, all others read it and then let go.
template <class W>
struct Slots {
  Address memory;
  FOCI_DEVICE static volatile int* at(int round) {
    return reinterpret_cast<volatile int*>(tile_memory() + W::turns_at) + round % W::slots;
  }
  FOCI_DEVICE void write(int index, int round) const {
    const Barriers<W> barriers(memory);
    await(barriers.slot_empty(round % W::slots), round / W::slots % 2 ^ 1);
    *at(round) = index;
    arrive(barriers.slot_full(round % W::slots));
  }
  FOCI_DEVICE int read(int round) const {
    await(Barriers<W>(memory).slot_full(round % W::slots), round / W::slots % 2);
    return *at(round);
  }
  FOCI_DEVICE void release(int round) const {
    __syncwarp();
    arrive_as_warp(Barriers<W>(memory).slot_empty(round % W::slots));
  }
};

/// Counts tiles of keys: their stage, and the parity of its phase.
template <class W>
struct Turn {
  int count = 0;
  FOCI_DEVICE int stage() const { return count % W::stages; }
  FOCI_DEVICE int parity() const { return count / W::stages % 2; }
};

/// A tile of queries.
template <class W>
struct Piece {
  Place at;
  int s, h, g, first, walk;  // walk: tiles of keys
  bool there = false;

  FOCI_DEVICE Piece(const WgmmaArgs& args, int index) {
    if (index >= args.pieces) return;
    there = true;
    int head = index / args.tiles, tile = index % args.tiles;
    if (args.shape.causal) {
      const int together = args.heads * args.tiles, rest = index % together;
      tile = args.tiles - 1 - rest / args.heads;
      head = index / together * args.heads + rest % args.heads;
    }
    s = head / args.shape.H, h = head % args.shape.H;
    g = args.shape.key_head(h);
    at = {s, 0, args.shape.N, 0, args.shape.M, args.shape.M - args.shape.N};
    first = tile * W::queries;
    walk = walk_of(args.shape, first + W::queries);
  }
  /// Tiles of keys that queries before `end` see; one at least.
  FOCI_DEVICE int walk_of(const Shape& shape, int end) const {
    const int reach = shape.reach(at, min(end, at.N) - 1);
    return max((reach + W::keys - 1) / W::keys, 1);
  }
};

#endif  // FOCI_HOPPER
#endif  // FOCI_EMULATED

}  // namespace foci::cuda
