// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16 on Hopper, forward. A block stays and takes one tile of queries after
// the other. Its first warpgroup brings: one thread sends for tiles, a warp makes key biases into
// an operand of one more step of the product. The others compute, 64 queries each: while the
// weights of one tile of keys meet its values, the next tile's scores are on their way, and the
// warpgroups take turns at the tensor cores.
#include "cuda/softmax_wgmma.cuh"

#include "cuda/softmax_wgmma_statistics.cuh"

#include <algorithm>
#include <type_traits>

namespace foci::cuda {

#ifdef FOCI_EMULATED
bool softmax_wgmma_serves(const Shape&, const Folded&, const Rows&, const int*) { return false; }
void softmax_wgmma_forward(const Shape&, const Folded&, const Rows&, int*, Stream) {}
#else

namespace {

std::atomic<signed char> known[64];

#ifdef FOCI_HOPPER

/// The thread that sends for tiles.
template <class W>
FOCI_DEVICE void bring_tiles(const WgmmaArgs& args, Address memory) {
  const Barriers<W> barriers(memory);
  Turn<W> turn;
  const auto fetch = [&](Address to, const CUtensorMap& map, Address full, int panel_bytes,
                         int token, int head, int b) {
    for (int panel = 0; panel < W::panels; ++panel)
      fetch_tile(to + panel * panel_bytes, map, full, 64 * panel, token, head, b);
  };
  for (int round = 0, next = int(blockIdx.x);; next += int(gridDim.x)) {
    const int index = args.dynamic ? atomicAdd(args.room, 1) : next;
    const Piece<W> piece(args, index);
    if (piece.there && is_left(args.folded, args.shape, piece.s, piece.g)) continue;
    Slots<W>{memory}.write(index, round);
    if (!piece.there) return;
    await(barriers.q_empty(), round++ & 1 ^ 1);
    arrive_expecting(barriers.q_full(), W::groups * W::q_bytes);
#pragma unroll 1  // few registers
    for (int group = 0; group < W::groups; ++group)
      fetch(memory + W::q_at + group * W::q_bytes, args.q, barriers.q_full(), W::q_panel,
            piece.first + group * W::rows, piece.h, piece.s);
#pragma unroll 1
    for (int tile = 0; tile < piece.walk; ++tile, ++turn.count) {
      const int stage = turn.stage(), before = turn.parity() ^ 1;
      await(barriers.k_empty(stage), before);
      arrive_expecting(barriers.k_full(stage), W::k_bytes);
      fetch(memory + W::k_at + stage * W::k_bytes, args.k, barriers.k_full(stage), W::k_panel,
            tile * W::keys, piece.g, piece.s);
      await(barriers.v_empty(stage), before);
      arrive_expecting(barriers.v_full(stage), W::k_bytes);
      fetch(memory + W::v_at + stage * W::k_bytes, args.v, barriers.v_full(stage), W::k_panel,
            tile * W::keys, piece.g, piece.s);
    }
  }
}

/// b over c of some keys of a head, a warp apart, -inf where they are masked or not there.
template <int count>
struct RawBiases {
  float x[count];

  FOCI_DEVICE void load(const Folded& folded, int M, int b, int head, int j, float by) {
    const Field &bias = folded.key_bias, &mask = folded.key_mask;
    FOCI_UNROLL
    for (int i = 0; i < count; ++i) x[i] = 0;
    if (bias) {
      const std::int64_t line = bias.offset(b, head);
      const auto at = [&](int i) { return line + min(j + i * warp, M - 1) * bias.strides[2]; };
      if (bias.dtype == DType::f32) {  // all on their way at once
        FOCI_UNROLL
        for (int i = 0; i < count; ++i) x[i] = static_cast<const float*>(bias.data)[at(i)];
      } else {
        for (int i = 0; i < count; ++i) x[i] = bias.load_at(at(i));
      }
    }
    if (mask) {
      FOCI_UNROLL
      for (int i = 0; i < count; ++i) {
        const std::int64_t at = mask.offset(b, min(j + i * warp, M - 1));
        if (!static_cast<const std::uint8_t*>(mask.data)[at]) x[i] = nothing;
      }
    }
    FOCI_UNROLL
    for (int i = 0; i < count; ++i) {
      constexpr float most = 3e38f;
      const bool shows = j + i * warp < M && x[i] != nothing;
      x[i] = shows ? fminf(fmaxf(x[i] * by, -most), most) : nothing;
    }
  }
};

/// x as three bf16 numbers that add up to it, five zeros beside them.
FOCI_DEVICE uint4 in_three(float x) {
  const unsigned high = pack<DType::bf16>(x, 0);
  const float rest = x == nothing ? 0.0f : x - __uint_as_float(high << 16);
  const unsigned middle = pack<DType::bf16>(rest, 0);
  const unsigned low = pack<DType::bf16>(rest - __uint_as_float(middle << 16), 0);
  return make_uint4((high & 0xffff) | middle << 16, low & 0xffff, 0, 0);
}

/// The warp that makes biases into 16 columns of a right side: three numbers a key, which meet
/// ones.
template <class W>
FOCI_DEVICE void bring_biases(const WgmmaArgs& args, Address memory) {
  const Barriers<W> barriers(memory);
  const Slots<W> slots{memory};
  Turn<W> turn;
  for (int round = 0;; ++round) {
    const Piece<W> piece(args, slots.read(round));
    slots.release(round);
    if (!piece.there) return;
    const float by = 1 / scale_of(args.folded, args.shape, piece.s, piece.g);
    const int head = args.folded.key_head_bias ? piece.g : piece.h;
    RawBiases<W::keys / warp> next;
    next.load(args.folded, piece.at.M, piece.s, head, lane(), by);
#pragma unroll 1
    for (int tile = 0; tile < piece.walk; ++tile, ++turn.count) {
      const int stage = turn.stage();
      await(barriers.k_empty(stage), turn.parity() ^ 1);
      auto* to = reinterpret_cast<uint4*>(tile_memory() + W::bias_at + stage * W::bias_bytes);
      FOCI_UNROLL
      for (int i = 0; i < W::keys / warp; ++i) to[i * warp + lane()] = in_three(next.x[i]);
      show_writes();
      __syncwarp();
      arrive_as_warp(barriers.k_full(stage));
      if (tile + 1 < piece.walk)
        next.load(args.folded, piece.at.M, piece.s, head, (tile + 1) * W::keys + lane(), by);
    }
  }
}

/// What does not change: the ones that biases meet, and zeros beside the biases.
template <class W>
FOCI_DEVICE void lay_ones() {
  constexpr unsigned one = 0x3f80;  // bf16
  auto* ones = reinterpret_cast<uint4*>(tile_memory() + W::ones_at);
  for (int i = int(threadIdx.x); i < 2 * W::rows; i += W::threads)
    ones[i] = i < W::rows ? make_uint4(one | one << 16, one, 0, 0) : make_uint4(0, 0, 0, 0);
  for (int i = int(threadIdx.x); i < W::stages * W::keys; i += W::threads) {
    auto* bias = reinterpret_cast<uint4*>(tile_memory() + W::bias_at + i / W::keys * W::bias_bytes);
    bias[W::keys + i % W::keys] = make_uint4(0, 0, 0, 0);
  }
}

/// A warpgroup that computes. A thread has rows lane / 4 and 8 below of its warp's 16.
template <class W>
struct Group {
  const WgmmaArgs& args;
  const Address memory;
  const int group;
  float s[W::keys / 2], o[W::width / 2];
  unsigned p[W::keys / 4], q[W::q_in_registers ? W::width / 4 : 1];
  float top[2], sum[2], shrink[2];  // sum: this lane's part
  std::conditional_t<W::statistics, RowStatistics, NoStatistics> statistics;
  bool rounded = false;  // m q, of this lane's words
  const unsigned ones = lane() % 4 == 0 ? 0x3f803f80u : lane() % 4 == 1 ? 0x3f80u : 0u;  // bf16

  FOCI_DEVICE Group(const WgmmaArgs& all, Address at, int index)
      : args(all), memory(at), group(index) {}
  /// Looked up again each time: places made from it need not stay in registers.
  FOCI_DEVICE static int thread() {
    int x;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
    return x % warpgroup;
  }
  /// The first of the lane's rows in the warpgroup's 64.
  FOCI_DEVICE static int row() { return thread() / 4 % 8 + thread() / warp * 16; }
  // Turns at the tensor cores.
  FOCI_DEVICE void begin_turn() const { meet(1 + group, 2 * warpgroup); }
  FOCI_DEVICE void end_turn() const { pass(1 + (group + 1) % W::groups, 2 * warpgroup); }
  FOCI_DEVICE void meet_own() const { meet(1 + W::groups + group, warpgroup); }

  /// s = q k' + b, under way
  FOCI_DEVICE void score(int stage) {
    const std::uint64_t q_left = operand(memory + W::q_at + group * W::q_bytes, 16, 1024);
    const std::uint64_t k = operand(memory + W::k_at + stage * W::k_bytes, 16, 1024);
    begin_products();
    FOCI_UNROLL
    for (int step = 0; step < W::width / 16; ++step) {
      const int panel = step / 4, column = step % 4 * 32;
      const std::uint64_t right = on(k, panel * W::k_panel + column);
      if constexpr (W::q_in_registers) {
        multiply<W::score_type>(s, q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3],
                                right, step > 0);
      } else {
        multiply<W::score_type>(s, on(q_left, panel * W::q_panel + column), right, step > 0);
      }
    }
    if constexpr (W::biased) {  // last: what is large is rounded once
      const Address at = memory + W::bias_at + stage * W::bias_bytes;
      const std::uint64_t biases = operand(at, W::keys * 16, 128, false);
      if constexpr (W::q_in_registers) {
        multiply<DType::bf16>(s, ones, ones, 0u, 0u, biases, 1);
      } else {
        multiply<DType::bf16>(s, operand(memory + W::ones_at, W::rows * 16, 128, false), biases, 1);
      }
    }
    commit_products();
  }

  /// o += p v, under way
  FOCI_DEVICE void gather(int stage) {
    const std::uint64_t v = operand(memory + W::v_at + stage * W::k_bytes, W::k_panel, 1024);
    begin_products();
    FOCI_UNROLL
    for (int step = 0; step < W::keys / 16; ++step)
      multiply<W::type, true>(o, p[4 * step], p[4 * step + 1], p[4 * step + 2], p[4 * step + 3],
                              on(v, 16 * step * W::line), 1);
    commit_products();
  }

  FOCI_DEVICE int reach(int token) const {
    const int N = args.shape.N, M = args.shape.M;
    return args.shape.reach({0, 0, N, 0, M, M - N}, token);
  }
  /// Hides the keys that rows do not reach: `first` is the warpgroup's first query.
  FOCI_DEVICE void hide(int first, int key) {
    if (key + W::keys <= reach(first)) return;
    const int column = key + 2 * (lane() % 4), row = this->row();
    const int one = reach(first + row) - column, two = reach(first + row + 8) - column;
    FOCI_UNROLL
    for (int n = 0; n < W::keys / 8; ++n) {
      if (8 * n >= one) s[4 * n] = nothing;
      if (8 * n + 1 >= one) s[4 * n + 1] = nothing;
      if (8 * n >= two) s[4 * n + 2] = nothing;
      if (8 * n + 1 >= two) s[4 * n + 3] = nothing;
    }
  }

  FOCI_DEVICE void find_tops(float (&next)[2]) const {
    next[0] = top[0], next[1] = top[1];
    FOCI_UNROLL
    for (int n = 0; n < W::keys / 8; ++n) {
      next[0] = fmaxf(next[0], fmaxf(s[4 * n], s[4 * n + 1]));
      next[1] = fmaxf(next[1], fmaxf(s[4 * n + 2], s[4 * n + 3]));
    }
    next[0] = quad_max(next[0]), next[1] = quad_max(next[1]);
  }

  /// Where a maximum that grew first stands in the tile that begins at `key`.
  FOCI_DEVICE void find_places(const float (&next)[2], int key) {
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      const bool grew = next[half] > top[half];
      if (!__any_sync(~0u, grew)) continue;
      int place = W::keys;
      FOCI_UNROLL
      for (int n = W::keys / 4 - 1; n >= 0; --n) {
        if (s[n / 2 * 4 + 2 * half + n % 2] == next[half]) place = n / 2 * 8 + n % 2;
      }
      place += 2 * (lane() % 4);
      place = min(place, __shfl_xor_sync(~0u, place, 1));
      place = min(place, __shfl_xor_sync(~0u, place, 2));
      if (grew) statistics.place[half] = key + place;
    }
  }

  /// Takes the maximum from the scores of rows far from 0.
  FOCI_DEVICE void lower(float (&low)[2]) {
    if (fmaxf(fabsf(low[0]), fabsf(low[1])) <= far) return;
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      if (fabsf(low[half]) <= far) continue;
      low[half] = 0;
      FOCI_UNROLL
      for (int n = 0; n < W::keys / 4; ++n) s[n / 2 * 4 + 2 * half + n % 2] -= top[half];
    }
  }

  /// Scores of the tile that begins at `key` become weights.
  FOCI_DEVICE void weigh(float unit, int key) {
    float next[2], low[2];
    find_tops(next);
    if constexpr (W::statistics) find_places(next, key);
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      low[half] = next[half] == nothing ? 0.0f : next[half] * unit;
      const float grown = fabsf(low[half]) > far ? (top[half] - next[half]) * unit
                                                 : __fmul_rn(top[half], unit) - low[half];
      shrink[half] = power_of_two(grown);
      if constexpr (W::statistics) statistics.raise(half, grown, shrink[half], sum[half]);
      top[half] = next[half];
    }
    lower(low);
    float more[2] = {0, 0};
    PartStatistics of_tile[2];
    FOCI_UNROLL
    for (int n = 0; n < W::keys / 8; ++n) {
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float power = fmaf(s[4 * n + i], unit, -low[i / 2]);
        s[4 * n + i] = power_of_two(power);
        if constexpr (W::statistics) of_tile[i / 2].add(s[4 * n + i], power);
      }
      more[0] += s[4 * n] + s[4 * n + 1];
      more[1] += s[4 * n + 2] + s[4 * n + 3];
    }
    sum[0] = fmaf(sum[0], shrink[0], more[0]);
    sum[1] = fmaf(sum[1], shrink[1], more[1]);
    if constexpr (W::statistics) statistics.add(of_tile);
  }

  /// Sums lie as a left side does.
  FOCI_DEVICE void round_weights() {
    FOCI_UNROLL
    for (int i = 0; i < W::keys / 4; ++i) p[i] = pack<W::type>(s[2 * i], s[2 * i + 1]);
  }
  FOCI_DEVICE void shrink_sums() {
    FOCI_UNROLL
    for (int i = 0; i < W::width / 2; ++i) o[i] *= shrink[i / 2 % 2];
    pin(o);
  }

  /// Queries of the warpgroup, made into m q, and into registers, when they arrive. Word i of a
  /// thread is that of a left side: step i / 4.
  FOCI_DEVICE void take_queries(const Piece<W>& piece, int round) {
    const Barriers<W> barriers(memory);
    float2 by[W::folds ? W::width / 4 : 1];
    if constexpr (W::folds) load_metric(by, piece);
    rounded = false;
    await(barriers.q_full(), round & 1);
    if constexpr (!W::q_in_registers && !W::folds) return;
    std::byte* at = tile_memory() + W::q_at + group * W::q_bytes;
    const int row = this->row();
    FOCI_UNROLL
    for (int i = 0; i < W::width / 4; ++i) {
      const int r = row + i % 2 * 8, part = i / 4 % 4 * 2 + i / 2 % 2;  // of 8 columns
      auto* word = reinterpret_cast<unsigned*>(at + i / 16 * W::q_panel + r * W::line +
                                               (part ^ (r % 8)) * 16 + lane() % 4 * 4);
      unsigned two = *word;
      if constexpr (W::folds) {
        const float x = wide_of(std::uint16_t(two), W::score_type) * by[i].x;
        const float y = wide_of(std::uint16_t(two >> 16), W::score_type) * by[i].y;
        two = pack<W::score_type>(x, y);
        rounded = rounded || wide_of(std::uint16_t(two), W::score_type) != x ||
                  wide_of(std::uint16_t(two >> 16), W::score_type) != y;
      }
      if constexpr (W::q_in_registers) {
        q[i] = two;
      } else {
        *word = two;
      }
    }
    if constexpr (W::q_in_registers) {
      __syncwarp();
      arrive_as_warp(barriers.q_empty());
    } else {
      show_writes();
      meet_own();
    }
  }
  /// m of a thread's words, where queries may have a line each.
  FOCI_DEVICE void load_metric(float2 (&by)[W::width / 4], const Piece<W>& piece) const {
    const Field& m = args.folded.m;
    const int token = piece.first + group * W::rows + row();
    const float* lines[2];
    FOCI_UNROLL
    for (int i = 0; i < 2; ++i)
      lines[i] = static_cast<const float*>(m.data) +
                 m.offset(piece.s, args.folded.key_head_m ? piece.g : piece.h,
                          min(token + 8 * i, piece.at.N - 1), lane() % 4 * 2);
    FOCI_UNROLL
    for (int i = 0; i < W::width / 4; ++i)
      by[i] = *reinterpret_cast<const float2*>(lines[i % 2] + i / 2 * 8);
  }
  /// Every tile of keys that the piece's queries see.
  FOCI_DEVICE void walk(int first, int own, Turn<W>& turn, float unit) {
    const Barriers<W> barriers(memory);
    await(barriers.k_full(turn.stage()), turn.parity());
    begin_turn();
    score(turn.stage());
    end_turn();
    await_products<0>();
    pin(s);
    arrive_as_warp(barriers.k_empty(turn.stage()));
    hide(first, 0);
    weigh(unit, 0);
    round_weights();
    // Scores of a tile and what the one before gathers go together.
    for (int tile = 1; tile < own; ++tile) {
      const Turn<W> before = turn;
      ++turn.count;
      await(barriers.k_full(turn.stage()), turn.parity());
      begin_turn();
      score(turn.stage());
      if (tile > 1) shrink_sums();
      pin(o);
      await(barriers.v_full(before.stage()), before.parity());
      gather(before.stage());
      end_turn();
      await_products<1>();
      pin(s);
      arrive_as_warp(barriers.k_empty(turn.stage()));
      hide(first, tile * W::keys);
      weigh(unit, tile * W::keys);
      await_products<0>();
      pin(o);
      arrive_as_warp(barriers.v_empty(before.stage()));
      round_weights();
    }
    if constexpr (!W::q_in_registers) arrive_as_warp(barriers.q_empty());
    if (own > 1) shrink_sums();
    pin(o);
    await(barriers.v_full(turn.stage()), turn.parity());
    gather(turn.stage());
    await_products<0>();
    pin(o);
    arrive_as_warp(barriers.v_empty(turn.stage()));
    ++turn.count;
  }
  /// A tile that the others see.
  FOCI_DEVICE void skip(const Turn<W>& turn) const {
    const Barriers<W> barriers(memory);
    await(barriers.k_full(turn.stage()), turn.parity());
    begin_turn();
    end_turn();
    arrive_as_warp(barriers.k_empty(turn.stage()));
    await(barriers.v_full(turn.stage()), turn.parity());
    arrive_as_warp(barriers.v_empty(turn.stage()));
  }

  /// log2 of the largest weight: 0 but for how the maximum was rounded before it went off.
  FOCI_DEVICE float high_of(int half, float unit) const {
    const float low = __fmul_rn(top[half], unit);
    return fabsf(low) > far ? 0.0f : fmaf(top[half], unit, -low);
  }

  /// o, lse and statistics; o by way of shared memory.
  FOCI_DEVICE void finish(const Piece<W>& piece) {
    const float scale = scale_of(args.folded, args.shape, piece.s, piece.g);
    const int first = piece.first + group * W::rows;
    std::byte* to = tile_memory() + W::o_at + group * W::q_bytes;
    if (thread() == 0) await_reads<0>();  // the tile before has left o's place
    meet_own();
    const int row = this->row();
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = row + 8 * half, token = first + r;
      const float all = quad_sum(sum[half]), share = all > 0 ? 1 / all : 0;
      if (args.to.lse && lane() % 4 == 0 && token < piece.at.N) {
        const Field& more = args.folded.row_bias;
        const float high = more ? more.load(piece.s, piece.h, token) : 0.0f;
        const float lse = all > 0 ? fmaf(top[half], scale, logf(all)) + high : nothing;
        args.to.lse.store(lse, piece.s, piece.h, token);
      }
      if constexpr (W::statistics) {
        statistics.write(args.to, half, all, high_of(half, scale * log2_e), reach(token), piece.s,
                         piece.h, token, lane() % 4 == 0 && token < piece.at.N);
      }
      if (W::folds && __any_sync(~0u, rounded) && token < piece.at.N && all > 0 &&
          fabsf(top[half] * scale * log2_e) > loud)
        args.room[1 + piece.s * args.shape.G + piece.g] = 1;
      FOCI_UNROLL
      for (int n = 0; n < W::width / 8; ++n) {
        const float x = o[4 * n + 2 * half] * share, y = o[4 * n + 2 * half + 1] * share;
        *reinterpret_cast<unsigned*>(to + n / 8 * W::q_panel + r * W::line + (n % 8 ^ r % 8) * 16 +
                                     lane() % 4 * 4) = all > 0 ? pack<W::type>(x, y) : 0u;
      }
    }
    show_writes();
    meet_own();
    if (thread() != 0) return;
    for (int panel = 0; panel < W::panels; ++panel)
      store_tile(args.o, memory + W::o_at + group * W::q_bytes + panel * W::q_panel, 64 * panel,
                 first, piece.h, piece.s);
    commit_stores();
  }

  FOCI_DEVICE void run() {
    const Slots<W> slots{memory};
    Turn<W> turn;
    if (group == W::groups - 1) end_turn();  // the first one's turn
    for (int round = 0;; ++round) {
      const Piece<W> piece(args, slots.read(round));
      if (!piece.there) break;
      FOCI_UNROLL
      for (int i = 0; i < W::width / 2; ++i) o[i] = 0;
      top[0] = top[1] = nothing;
      sum[0] = sum[1] = 0;
      if constexpr (W::statistics) statistics.begin();
      const float scale = scale_of(args.folded, args.shape, piece.s, piece.g);
      take_queries(piece, round);
      const int first = piece.first + group * W::rows;
      walk(first, piece.walk_of(args.shape, first + W::rows), turn, scale * log2_e);
      const Piece<W> again(args, *Slots<W>::at(round));  // did not have to stay in registers
      finish(again);
      const int own = again.walk_of(args.shape, again.first + (group + 1) * W::rows);
      for (int tile = own; tile < again.walk; ++tile, ++turn.count) skip(turn);
      slots.release(round);
    }
    if (group == 0) begin_turn();  // nobody leaves a turn behind
    if (thread() == 0) await_stores<0>();
  }
};

#endif  // FOCI_HOPPER

template <class W>
__global__ void __launch_bounds__(W::threads, 1)
    softmax_forward_wgmma(const __grid_constant__ WgmmaArgs args) {
#ifdef FOCI_HOPPER
  const Address memory = Address(__cvta_generic_to_shared(tile_memory()));
  const int thread = int(threadIdx.x);
  if (thread == 0) Barriers<W>(memory).set_up();
  if constexpr (W::biased) lay_ones<W>();
  show_writes();
  __syncthreads();
  if (thread < warpgroup) {
    leave_registers<W::bringing>();
    if (thread == 0) bring_tiles<W>(args, memory);
    if (W::biased && thread / warp == 1) bring_biases<W>(args, memory);
  } else {
    take_registers<W::computing>();
    Group<W>(args, memory, thread / warpgroup - 1).run();
  }
#endif
}

template <class W>
void launch_forward(WgmmaArgs args, Stream stream) {
  const Shape& shape = args.shape;
  const Folded& from = args.folded;
  const int B = shape.sequences, H = shape.H, G = shape.G;
  args.q = tensor_map({from.q, B, H, shape.N, W::width, W::rows});
  args.k = tensor_map({from.k, B, G, shape.M, W::width, W::keys});
  args.v = tensor_map({from.v, B, G, shape.M, W::width, W::keys});
  args.o = tensor_map({args.to.o, B, H, shape.N, W::width, W::rows});
  args.tiles = int(parts(shape.N, W::queries));
  args.pieces = args.tiles * B * H;
  constexpr std::int64_t near = 24 << 20;  // bytes of keys and values that stay in the L2 cache
  args.dynamic = shape.causal && args.room;
  poison({args.to.o, B, H, shape.N, W::width, W::rows}, stream);
  const int numbers = W::folds ? 1 + B * G : args.dynamic ? 1 : 0;
  if (numbers > 0) fill(args.room, 0, sizeof(int) * std::size_t(numbers), stream);
  args.heads = 1;
  for (int heads = 1; heads <= B * H; ++heads) {
    if (B * H % heads == 0 && std::int64_t(heads) * shape.M * W::width * 4 <= near)
      args.heads = heads;
  }
  const int processors = multiprocessors("softmax_wgmma_forward");
  launch("softmax_wgmma_forward", softmax_forward_wgmma<W>,
         {dim3(unsigned(std::min(processors, args.pieces))), dim3(W::threads), W::bytes}, stream,
         args);
}

template <DType type, int width, int groups, bool folds>
void choose_biased(const WgmmaArgs& args, Stream stream) {
  const bool biased = args.folded.key_bias.data || args.folded.key_mask.data;
  biased ? launch_forward<Work<type, type, width, groups, true, folds> >(args, stream)
         : launch_forward<Work<type, type, width, groups, false, folds> >(args, stream);
}

template <DType type, int width, int groups>
void choose_work(const WgmmaArgs& args, Stream stream) {
  if (args.folded.k.dtype != type)
    return launch_forward<Work<type, DType::f16, width, groups, true, false> >(args, stream);
  args.folded.m.data ? choose_biased<type, width, groups, true>(args, stream)
                     : choose_biased<type, width, groups, false>(args, stream);
}

/// Beside statistics there are no registers for a third warpgroup's scores.
template <DType type, int width>
void launch_with_statistics(const WgmmaArgs& args, Stream stream) {
  launch_forward<Work<type, type, width, 2, false, false, true> >(args, stream);
}

template <DType type>
void choose_width(const WgmmaArgs& args, Stream stream) {
  if (args.to.statistics()) {
    return args.shape.D == 128 ? launch_with_statistics<type, 128>(args, stream)
                               : launch_with_statistics<type, 64>(args, stream);
  }
  if (args.shape.D == 128) return choose_work<type, 128, 2>(args, stream);
  // Three warpgroups are faster where their 192 queries are not mostly rows that are not there.
  const std::int64_t three = parts(args.shape.N, 192) * 192, two = parts(args.shape.N, 128) * 128;
  20 * three <= 21 * two ? choose_work<type, 64, 3>(args, stream)
                         : choose_work<type, 64, 2>(args, stream);
}

}  // namespace

bool softmax_wgmma_serves(const Shape& shape, const Folded& folded, const Rows& to,
                          const int* room) {
  const int width = shape.D;
  if (shape.E != width || (width != 64 && width != 128)) return false;
  if (shape.q_offsets || folded.spans || shape.longest_m < 2) return false;
  const bool plain = !folded.m.data && !folded.key_bias.data && !folded.key_mask.data;
  if (to.statistics() && !plain) return false;
  const bool narrow = folded.k.dtype == DType::f16 && folded.key_bias.data;  // v may be bf16
  if (folded.q.dtype != folded.k.dtype) return false;
  if (folded.k.dtype != folded.v.dtype && (!narrow || folded.m.data)) return false;
  if (folded.m.data && (!room || to.want_all_bits() || softmax_mma_parts(shape, folded) > 1))
    return false;
  const int B = shape.sequences;
  for (const TileOf& tile : {TileOf{folded.q, B, shape.H, shape.N, width, 64},
                             TileOf{to.o, B, shape.H, shape.N, width, 64},
                             TileOf{folded.k, B, shape.G, shape.M, width, 128},
                             TileOf{folded.v, B, shape.G, shape.M, width, 128}}) {
    if (!has_tensor_map(tile)) return false;
  }
  using Any = Work<DType::bf16, DType::bf16, 64, 2, false, false>;
  return runs_on_hopper(softmax_forward_wgmma<Any>, known);
}

void softmax_wgmma_forward(const Shape& shape, const Folded& folded, const Rows& to, int* room,
                           Stream stream) {
  WgmmaArgs args{};
  args.shape = shape, args.folded = folded, args.to = to, args.room = room;
  folded.v.dtype == DType::bf16 ? choose_width<DType::bf16>(args, stream)
                                : choose_width<DType::f16>(args, stream);
}

#endif  // FOCI_EMULATED
}  // namespace foci::cuda
