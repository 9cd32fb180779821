// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16, backward, on Hopper (sm_90a): a block has 128 keys, two warpgroups 64
// of them each, and walks over the queries that see them, for every query head that shares them.
// Scores lie key by query, as in softmax_mma_backward.cu, so that weights are the left side of dv
// += p' d_o and dk += ds' q. A third warpgroup sends for queries and d_o and tells what their rows
// have. Only ds goes through shared memory, to dq. Lines that a full metric left are f16, and so is
// ds there, which a power of two keeps in range; weights, values and d_o may be bf16.
#include "cuda/softmax_wgmma_backward.cuh"

#include "cuda/hopper.cuh"

namespace foci::cuda {

#ifdef FOCI_EMULATED

bool softmax_wgmma_serves(const GradientArgs&) { return false; }
void softmax_wgmma_backward(const GradientArgs&, Stream) {}

#else
#if defined(__CUDA_ARCH__) && !defined(FOCI_HOPPER)
#pragma nv_diag_suppress 177  // without a body, a kernel leaves much unused
#endif

namespace {

/// What the warpgroups that compute have to know of a turn; in shared memory, for kept in
/// registers it would fill them.
struct alignas(16) Turn {
  int first;           // query
  int how;             // bits: far_rows and so on
  std::int64_t dq_at;  // where its sums of dq begin
  int first_key;       // of the block
};

/// How a block goes about it, and where its tiles lie: q, d_o and ds in two slots.
/// `narrow`: q and k are lines that a full metric left.
template <DType type_, int width_, bool biased_, bool narrow_ = false>
struct Walk {
  static constexpr bool narrow = narrow_;
  static constexpr DType type = type_;                             // of v, d_o and weights
  static constexpr DType score_type = narrow ? DType::f16 : type;  // of q, k and ds
  static constexpr int width = width_;
  static constexpr bool biased = biased_;
  static constexpr int keys = 128, queries = width == 64 ? 128 : 64;
  static constexpr int threads = 3 * warpgroup, panels = width / 64;

  using K = Tile<keys, width>;     // and of values
  using Q = Tile<queries, width>;  // and of d_o
  using P = Tile<keys, queries>;   // ds
  static constexpr Address k_at = 0, v_at = K::bytes, q_at = 2 * K::bytes;
  static constexpr Address d_o_at = q_at + 2 * Q::bytes, ds_at = d_o_at + 2 * Q::bytes;
  static constexpr Address dq_at = ds_at + 2 * P::bytes;  // of each warp
  static constexpr Address rows_at = dq_at + 8 * 4096;    // low, delta, lse of queries
  static constexpr Address rows_bytes = 3 * queries * 4, biases_at = rows_at + 2 * rows_bytes;
  static constexpr Address turns_at = biases_at + 2 * keys * 4;
  static constexpr Address dbias_at = turns_at + 4 * sizeof(Turn);
  static constexpr Address barriers_at = dbias_at + 2 * 4 * keys * 4;
  static constexpr Address unit_at = barriers_at + 13 * 8;
  static constexpr std::size_t bytes = unit_at + 8 + 1024;

  using Scores = float[queries / 2];  // of a thread: 64 keys by queries
  using Words = unsigned[queries / 4];
  using Sums = float[width / 2];  // 64 keys by columns
};

struct Maps {
  CUtensorMap q, k, v, d_o;
};

/// Where tiles begin, a multiple of 1024; in front of it there is less than 1024 bytes.
FOCI_DEVICE Address tiles_begin() { return (shared_address() + 1023) & ~1023u; }
template <class T>
FOCI_DEVICE T* place(Address at) {
  return reinterpret_cast<T*>(shared_memory() + (at - shared_address()));
}

/// The thread's number, asked for where it stands: kept, it and all that follows from it would
/// fill registers.
FOCI_DEVICE int thread_index() {
  int x;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x));
  return x;
}

#ifdef FOCI_HOPPER
constexpr int far_rows = 1;                   // some have an lse far from 0
constexpr int ends_dbias = 2, odd_dbias = 4;  // dbias is whole; which room it goes to
constexpr int odd_head = 8;                   // where biases lie

/// 16x16 numbers as the left side of a product has them, to where the lanes say.
FOCI_DEVICE void store_matrices(Address to, unsigned a, unsigned b, unsigned c, unsigned d) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(a),
               "r"(b), "r"(c), "r"(d)
               : "memory");
}
/// The same of operands in registers.
template <int count>
FOCI_DEVICE void pin_words(unsigned (&words)[count]) {
  FOCI_UNROLL
  for (int i = 0; i < count; ++i) asm volatile("" : "+r"(words[i])::"memory");
}

/// Barriers: tiles that are there, and slots that are done with. 8: the warps that compute.
template <class W>
struct Signs {
  Address at = tiles_begin() + W::barriers_at;
  FOCI_DEVICE Address keys() const { return at; }
  FOCI_DEVICE Address queries(int slot) const { return at + 8 + 8 * slot; }
  FOCI_DEVICE Address d_o(int slot) const { return at + 24 + 8 * slot; }
  FOCI_DEVICE Address done(int slot) const { return at + 40 + 8 * slot; }
  FOCI_DEVICE Address ds(int slot) const { return at + 56 + 8 * slot; }
  FOCI_DEVICE Address ds_done(int slot) const { return at + 72 + 8 * slot; }
  FOCI_DEVICE Address dbias(int slot) const { return at + 88 + 8 * slot; }

  FOCI_DEVICE void set_up() const {
    constexpr int one = warp_arrivals;
    set_up_barrier(keys(), 1);
    for (int slot = 0; slot < 2; ++slot) {
      set_up_barrier(queries(slot), 1 + one * (W::biased ? 3 : 2));
      set_up_barrier(d_o(slot), 1);
      set_up_barrier(done(slot), 8 * one);
      set_up_barrier(ds(slot), 8 * one);
      set_up_barrier(ds_done(slot), 8 * one);
      set_up_barrier(dbias(slot), 8 * one);
    }
    show_barriers();
  }
};

/// Tiles of queries that see a block's keys, head by head.
template <class W>
struct Turns {
  int seen_from, count, total, first_head;  // from a multiple of queries on; of a head, of all

  FOCI_DEVICE Turns(const GradientArgs& args, const KeyBlock& block) {
    const int heads = args.shape.H / args.shape.G;
    seen_from = args.shape.causal ? max(block.first - block.at.first_seen, 0) : 0;
    seen_from = seen_from / W::queries * W::queries;
    count = (block.at.N - seen_from + W::queries - 1) / W::queries;
    total = count * heads;
    first_head = block.g * heads;
  }
  FOCI_DEVICE int head(int turn) const { return first_head + turn / count; }
  FOCI_DEVICE int first(int turn) const { return seen_from + turn % count * W::queries; }
  /// Whether dbias is whole after this turn.
  FOCI_DEVICE bool ends_dbias(int turn, int key_head_bias) const {
    return key_head_bias ? turn + 1 == total : (turn + 1) % count == 0;
  }
};

template <class W>
FOCI_DEVICE volatile Turn& turn_at(int turn) {
  return *place<volatile Turn>(tiles_begin() + W::turns_at + turn % 4 * sizeof(Turn));
}

/// Of ds.
template <class W>
FOCI_DEVICE float unit_of() {
  return W::narrow ? *place<volatile float>(tiles_begin() + W::unit_at) : 1.0f;
}

/// Sends for tiles: one thread.
template <class W>
FOCI_DEVICE void send_for_tiles(const Maps& maps, const KeyBlock& block, const Turns<W>& turns) {
  const Signs<W> signs;
  const Address memory = tiles_begin();
  const auto fetch = [&](Address to, int bytes, const CUtensorMap& map, Address sign, int token,
                         int head) {
    for (int p = 0; p < W::panels; ++p)
      fetch_tile(memory + to + p * (bytes / W::panels), map, sign, 64 * p, token, head, block.at.b);
  };
  arrive_expecting(signs.keys(), 2 * W::K::bytes);
  fetch(W::k_at, W::K::bytes, maps.k, signs.keys(), block.first, block.g);
  fetch(W::v_at, W::K::bytes, maps.v, signs.keys(), block.first, block.g);
  for (int turn = 0; turn < turns.total; ++turn) {
    const int slot = turn % 2, h = turns.head(turn), first = turns.first(turn);
    await(signs.done(slot), turn / 2 % 2 ^ 1);
    arrive_expecting(signs.queries(slot), W::Q::bytes);
    fetch(W::q_at + slot * W::Q::bytes, W::Q::bytes, maps.q, signs.queries(slot), first, h);
    arrive_expecting(signs.d_o(slot), W::Q::bytes);
    fetch(W::d_o_at + slot * W::Q::bytes, W::Q::bytes, maps.d_o, signs.d_o(slot), first, h);
  }
}

/// Floats of a head's tokens, which lie side by side.
FOCI_DEVICE const float* line_of(const Field& field, int b, int h, int first) {
  return static_cast<const float*>(field.data) + field.offset(b, h) + first;
}

/// Tells turns and their rows' lse, and low: -lse in powers of two, or, where keys have a bias,
/// what its rounding left over. One warp.
template <class W>
FOCI_DEVICE void tell_rows(const GradientArgs& args, const KeyBlock& block, const Turns<W>& turns) {
  const Signs<W> signs;
  constexpr int each = W::queries / warp;
  for (int turn = 0; turn < turns.total; ++turn) {
    const int slot = turn % 2, h = turns.head(turn), first = turns.first(turn);
    const float* lse_of = line_of(args.saved.lse, block.s, h, first);
    float lse[each], more[each];  // asked for while the slot is in use
    FOCI_UNROLL
    for (int n = 0; n < each; ++n) {
      const int i = lane() + n * warp;
      lse[n] = first + i < block.at.N ? lse_of[i] : INFINITY;
      more[n] = W::biased && first + i < block.at.N ? saved_share(args, block.at, h, first + i) : 0;
    }
    int how = turns.ends_dbias(turn, args.folded.key_head_bias) ? ends_dbias : 0;
    if (turn / turns.count % 2) how |= args.folded.key_head_bias ? odd_head : odd_head | odd_dbias;
    auto* to = place<float>(tiles_begin() + W::rows_at + slot * W::rows_bytes) + lane();
    await(signs.done(slot), turn / 2 % 2 ^ 1);
    FOCI_UNROLL
    for (int n = 0; n < each; ++n) {
      if (lse[n] == nothing) lse[n] = INFINITY;
      how |= is_far(lse[n]) ? far_rows : 0;
      to[n * warp] = W::biased ? more[n] : -lse[n] * log2_e;
      to[n * warp + 2 * W::queries] = lse[n];
    }
    how = int(__reduce_or_sync(~0u, unsigned(how)));
    if (lane() == 0) {
      volatile Turn& now = turn_at<W>(turn);
      now.first = first, now.how = how;
      now.dq_at = dq_tile_at(args, block.s, h, first / 64);
      now.first_key = block.first;
    }
    __syncwarp();
    arrive_as_warp(signs.queries(slot));
  }
}

/// Tells rows' delta, times the unit of ds: one warp.
template <class W>
FOCI_DEVICE void tell_deltas(const GradientArgs& args, const KeyBlock& block,
                             const Turns<W>& turns) {
  const Signs<W> signs;
  constexpr int each = W::queries / warp;
  for (int turn = 0; turn < turns.total; ++turn) {
    const int slot = turn % 2, first = turns.first(turn) + lane();
    const float* from = args.saved.delta + delta_at(args.shape, block.at, turns.head(turn), first);
    float delta[each];
    FOCI_UNROLL
    for (int n = 0; n < each; ++n) delta[n] = first + n * warp < block.at.N ? from[n * warp] : 0.0f;
    await(signs.done(slot), turn / 2 % 2 ^ 1);
    auto* to = place<float>(tiles_begin() + W::rows_at + slot * W::rows_bytes) + W::queries;
    FOCI_UNROLL
    for (int n = 0; n < each; ++n) to[lane() + n * warp] = unit_of<W>() * delta[n];
    __syncwarp();
    arrive_as_warp(signs.queries(slot));
  }
}

/// Tells biases of the block's keys, head by head, and writes their gradients: one warp.
template <class W>
FOCI_DEVICE void keep_biases(const GradientArgs& args, const KeyBlock& block,
                             const Turns<W>& turns) {
  const Signs<W> signs;
  int heads = 0;  // whose gradients are written
  for (int turn = 0; turn <= turns.total; ++turn) {
    if (turn < turns.total) {
      const int slot = turn % 2, head = turn / turns.count;
      await(signs.done(slot), turn / 2 % 2 ^ 1);
      auto* to = place<float>(tiles_begin() + W::biases_at) + head % 2 * W::keys;
#pragma unroll 1
      for (int i = lane(); i < W::keys && turn % turns.count == 0; i += warp)
        to[i] =
            KeyBias(args.folded, block.at, turns.first_head + head, block.g, block.first + i).bias;
      __syncwarp();
      arrive_as_warp(signs.queries(slot));
    }
    if (turn == 0 || !turns.ends_dbias(turn - 1, args.folded.key_head_bias)) continue;
    const auto* from = place<const float>(tiles_begin() + W::dbias_at) + heads % 2 * 4 * W::keys;
    const int head = args.folded.key_head_bias ? block.g : turns.head(turn - 1);
    await(signs.dbias(heads % 2), heads / 2 % 2);
    ++heads;
#pragma unroll 1
    for (int i = lane(); i < W::keys && args.to.dkey_bias; i += warp)
      if (block.first + i < block.at.M)
        args.to.dkey_bias.store(
            ((from[i] + from[i + W::keys]) + (from[i + 2 * W::keys] + from[i + 3 * W::keys])) /
                unit_of<W>(),
            block.at.b, head, block.first + i);
  }
}

/// c (64 keys, queries) = x y', x 64 lines of a tile of keys, y a tile of queries
template <class W, DType type>
FOCI_DEVICE void cross(typename W::Scores& c, Address x, Address y) {
  const std::uint64_t a = operand(x, 16, 1024), b = operand(y, 16, 1024);
  FOCI_UNROLL
  for (int k = 0; k < W::width / 16; ++k)
    multiply<type>(c, on(a, k / 4 * W::keys * 128 + k % 4 * 32),
                   on(b, k / 4 * W::queries * 128 + k % 4 * 32), k > 0);
}

/// sums (64 keys, width) += x y, y a tile of queries
template <class W, DType type>
FOCI_DEVICE void sum_up(typename W::Sums& sums, const typename W::Words& x, Address y) {
  const std::uint64_t b = operand(y, W::queries * 128, 1024);
  FOCI_UNROLL
  for (int k = 0; k < W::queries / 16; ++k)
    multiply<type, true>(sums, x[4 * k], x[4 * k + 1], x[4 * k + 2], x[4 * k + 3], on(b, 2048 * k),
                         1);
}

/// Scores become weights 2^(unit s + bias - lse).
template <class W>
FOCI_DEVICE void weigh(typename W::Scores& s, const float* rows, float unit, int how) {
  const int thread = thread_index();
  const float* biases = place<const float>(tiles_begin() + W::biases_at) +
                        (how & odd_head ? W::keys : 0) + (thread / warp - 4) * 16 +
                        thread % warp / 4;
  const float bias[] = {W::biased ? biases[0] : 0.0f, W::biased ? biases[8] : 0.0f};
  const float* mine = rows + 2 * (thread % 4);
  if (how & far_rows) {
    FOCI_UNROLL
    for (int n = 0; n < W::queries / 8; ++n) {
      const float2 lse = *reinterpret_cast<const float2*>(mine + 2 * W::queries + 8 * n);
      const float2 low = *reinterpret_cast<const float2*>(mine + 8 * n);
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i)
        s[4 * n + i] = far_weight_of<W::biased>(s[4 * n + i], unit, bias[i / 2],
                                                i % 2 ? lse.y : lse.x, i % 2 ? low.y : low.x);
    }
    return;
  }
  FOCI_UNROLL
  for (int n = 0; n < W::queries / 8; ++n) {
    const float2 low = *reinterpret_cast<const float2*>(mine + 8 * n);
    float2 lse = {};
    if (W::biased) lse = *reinterpret_cast<const float2*>(mine + 2 * W::queries + 8 * n);
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      const float off = i % 2 ? low.y : low.x;
      s[4 * n + i] =
          W::biased ? weight_of<true>(s[4 * n + i], unit, bias[i / 2], i % 2 ? lse.y : lse.x, off)
                    : power_of_two(fmaf(s[4 * n + i], unit, off));
    }
  }
}

/// No weight where a query does not see a key: `key` and `query` are the thread's first.
template <class W>
FOCI_DEVICE void hide(typename W::Scores& p, const Shape& shape, const Place& at, int key,
                      int query) {
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int j = key + 8 * half;
    int from = shape.causal ? j - at.first_seen - query : 0;  // the first query that sees it
    if (j >= at.M) from = W::queries;
    FOCI_UNROLL
    for (int n = 0; n < W::queries / 8; ++n) {
      if (8 * n < from) p[4 * n + 2 * half] = 0;
      if (8 * n + 1 < from) p[4 * n + 2 * half + 1] = 0;
    }
  }
}

/// da becomes ds = p (unit da - delta), both are rounded; dbias gets its sums.
template <class W>
FOCI_DEVICE void pull(typename W::Words& ds16, typename W::Words& p16, float (&dbias)[2],
                      const typename W::Scores& p, const typename W::Scores& da, const float* delta,
                      float unit) {
  delta += 2 * (thread_index() % 4);
  FOCI_UNROLL
  for (int n = 0; n < W::queries / 8; ++n) {
    const float2 pair = *reinterpret_cast<const float2*>(delta + 8 * n);
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int i = 4 * n + 2 * half;
      const float x = p[i] * (W::narrow ? fmaf(unit, da[i], -pair.x) : da[i] - pair.x);
      const float y = p[i + 1] * (W::narrow ? fmaf(unit, da[i + 1], -pair.y) : da[i + 1] - pair.y);
      if (W::biased) dbias[half] += x + y;
      p16[2 * n + half] = pack<W::type>(p[i], p[i + 1]);
      ds16[2 * n + half] = pack<W::score_type>(x, y);
    }
  }
}

/// dq of a turn, (64 queries, 64 columns) of a warpgroup, to its sums, which lie in blocks of 16x8
/// as accumulators have them: a warp's eight are added from shared memory, in the background.
template <class W>
FOCI_DEVICE void add_dq(const float (&dq)[32], const GradientArgs& args,
                        const volatile Turn& turn) {
  const int thread = thread_index(), group = thread / warpgroup - 1;
  const Address from = tiles_begin() + W::dq_at + (thread / warp - 4) * 4096;
  if (thread % warp == 0) await_reads<0>();
  __syncwarp();
  auto* to = place<float4>(from) + thread % warp;
  FOCI_UNROLL
  for (int n = 0; n < 8; ++n)
    to[32 * n] = make_float4(dq[4 * n], dq[4 * n + 1], dq[4 * n + 2], dq[4 * n + 3]);
  show_writes();
  __syncwarp();
  const bool there = turn.first + (W::width == 64 ? 64 * group : 0) < args.shape.N;
  if (thread % warp != 0 || !there) return;
  const int block = thread / warp % 4 * (W::width / 8) + group * (W::width == 64 ? 32 : 8);
  add_floats(args.dq + turn.dq_at + block * 128, from, 4096);
  commit_stores();
}

/// The sums of a thread's two keys, `key` and 8 on, in pairs of columns.
template <class W>
FOCI_DEVICE void write_sums(const Field& to, const typename W::Sums& sums, const KeyBlock& block,
                            int key, float scale) {
  if (!to) return;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (key + 8 * half >= block.at.M) continue;
    const std::int64_t at =
        to.offset(block.at.b, block.g, key + 8 * half, 2 * (thread_index() % 4));
    auto* words = reinterpret_cast<unsigned*>(static_cast<std::uint16_t*>(to.data) + at);
    // Mostly: pairs are words that lie in a row.
    const bool plain = to.dtype == W::type && to.strides[3] == 1 &&
                       reinterpret_cast<std::uintptr_t>(words) % 4 == 0;
    FOCI_UNROLL
    for (int n = 0; n < W::width / 8; ++n) {
      const float x = scale * sums[4 * n + 2 * half], y = scale * sums[4 * n + 2 * half + 1];
      if (plain) {
        words[4 * n] = pack<W::type>(x, y);
      } else {
        store_pair(to, at + 8 * n * to.strides[3], x, y);
      }
    }
  }
}

/// A warpgroup that computes: its 64 keys meet one tile of queries after the other. Products are
/// begun and, later, finished.
template <class W>
struct Warpgroup {
  const GradientArgs& args;
  float unit;
  typename W::Scores s, da;
  typename W::Words p16, ds16;
  typename W::Sums dk, dv;
  float dq_[32];
  float dbias[2] = {};

  FOCI_DEVICE Warpgroup(const GradientArgs& all, float scale) : args(all), unit(scale * log2_e) {
    FOCI_UNROLL
    for (int i = 0; i < W::width / 2; ++i) dk[i] = dv[i] = 0;
  }

  /// 64 queries by 64 columns; where registers are few, those of da, which is not there yet.
  FOCI_DEVICE float (&dq())[32] {
    if constexpr (W::width == 128) {
      return da;
    } else {
      return dq_;
    }
  }
  FOCI_DEVICE static int group() { return thread_index() / warpgroup - 1; }
  /// The thread's first key in the block; the other is 8 on.
  FOCI_DEVICE static int key() {
    const int thread = thread_index();
    return (thread / warp - 4) * 16 + thread % warp / 4;
  }
  FOCI_DEVICE static void signal(Address sign) {
    __syncwarp();
    arrive_as_warp(sign);
  }

  FOCI_DEVICE void begin_scores(int turn) {
    const int slot = turn % 2;
    const Address memory = tiles_begin();
    await(Signs<W>().queries(slot), turn / 2 % 2);
    begin_products();
    cross<W, W::score_type>(s, memory + W::k_at + group() * 64 * 128,
                            memory + W::q_at + slot * W::Q::bytes);
    commit_products();
  }
  FOCI_DEVICE void begin_da(int turn) {
    const int slot = turn % 2;
    const Address memory = tiles_begin();
    await(Signs<W>().d_o(slot), turn / 2 % 2);
    begin_products();
    cross<W, W::type>(da, memory + W::v_at + group() * 64 * 128,
                      memory + W::d_o_at + slot * W::Q::bytes);
    commit_products();
  }

  /// s and da become p and ds, in 16 bits; ds is shown to both warpgroups.
  FOCI_DEVICE void weigh_and_pull(int turn) {
    const int slot = turn % 2;
    const Address memory = tiles_begin();
    const float* rows = place<const float>(memory + W::rows_at + slot * W::rows_bytes);
    await_products<1>();
    pin(s);
    volatile Turn& now = turn_at<W>(turn);
    weigh<W>(s, rows, W::narrow ? log2_e : unit, now.how);  // c is in the lines
    const Place at = args.shape.place(0);
    const int last = now.first_key + 64 * group() + 64;
    if (last > at.M || last > args.shape.reach(at, now.first))
      hide<W>(s, args.shape, at, now.first_key + key(), now.first + 2 * (lane() % 4));
    await_products<0>();
    pin(da);
    pull<W>(ds16, p16, dbias, s, da, rows + W::queries, unit_of<W>());
    await(Signs<W>().ds_done(slot), turn / 2 % 2 ^ 1);
    const Address to = memory + W::ds_at + slot * W::P::bytes + W::P::along() +
                       (thread_index() / warp - 4) * 16 * 128;
    FOCI_UNROLL
    for (int k = 0; k < W::queries / 16; ++k)
      store_matrices(W::P::beside(to, k), ds16[4 * k], ds16[4 * k + 1], ds16[4 * k + 2],
                     ds16[4 * k + 3]);
    show_writes();
    signal(Signs<W>().ds(slot));
    if (W::biased && W::width == 64) show_dbias(now.how);  // 128: later, there is room for it
  }

  /// dbias so far is shown, the parts of a row's four lanes each; it starts anew where it is whole.
  FOCI_DEVICE void show_dbias(int how) {
    auto* to = place<float>(tiles_begin() + W::dbias_at) + (how & odd_dbias ? 4 * W::keys : 0);
    to += thread_index() % 4 * W::keys + key();
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      to[8 * half] = dbias[half];
      dbias[half] = how & ends_dbias ? 0 : dbias[half];
    }
    __syncwarp();
    if (how & ends_dbias) arrive_as_warp(Signs<W>().dbias(how & odd_dbias ? 1 : 0));
  }

  FOCI_DEVICE void begin_sums(int turn) {  // dv += p d_o, dk += ds q
    const int slot = turn % 2;
    const Address memory = tiles_begin();
    pin(dk), pin(dv), pin_words(p16), pin_words(ds16);
    begin_products();
    sum_up<W, W::type>(dv, p16, memory + W::d_o_at + slot * W::Q::bytes);
    sum_up<W, W::score_type>(dk, ds16, memory + W::q_at + slot * W::Q::bytes);
    commit_products();
  }
  FOCI_DEVICE void finish_sums(int turn) {
    pin(dk), pin(dv), pin_words(p16), pin_words(ds16);
    if (W::biased && W::width == 128) show_dbias(turn_at<W>(turn).how);
    signal(Signs<W>().done(turn % 2));
  }

  /// dq = ds' k over the block's keys: half of the queries, or of the columns.
  FOCI_DEVICE void begin_dq(int turn) {
    const int slot = turn % 2, half = group() * W::keys * 128;
    const Address memory = tiles_begin();
    await(Signs<W>().ds(slot), turn / 2 % 2);
    const std::uint64_t a =
        operand(memory + W::ds_at + slot * W::P::bytes + (W::width == 64 ? half : 0), 16, 1024);
    const std::uint64_t b = operand(memory + W::k_at + (W::width == 64 ? 0 : half), 16, 1024);
    begin_products();
    FOCI_UNROLL
    for (int k = 0; k < W::keys / 16; ++k)
      multiply<W::score_type, true, true>(dq(), on(a, 2048 * k), on(b, 2048 * k), k > 0);
    commit_products();
  }
  FOCI_DEVICE void finish_dq(int turn) {
    pin(dq());
    signal(Signs<W>().ds_done(turn % 2));
    add_dq<W>(dq(), args, turn_at<W>(turn));
  }

  /// Turn after turn: while dv, dk and dq of one are on their way, scores of the next begin.
  FOCI_DEVICE void walk(int total) {
    await(Signs<W>().keys(), 0);
    begin_scores(0);
    begin_da(0);
    weigh_and_pull(0);
    for (int turn = 1; turn < total; ++turn) {
      begin_sums(turn - 1);
      begin_dq(turn - 1);
      await_products<1>();
      finish_sums(turn - 1);
      begin_scores(turn);
      await_products<1>();
      finish_dq(turn - 1);
      begin_da(turn);
      weigh_and_pull(turn);
    }
    begin_sums(total - 1);
    begin_dq(total - 1);
    await_products<0>();
    finish_sums(total - 1);
    finish_dq(total - 1);
  }

  FOCI_DEVICE void write() {
    if (lane() == 0) await_stores<0>();
    const KeyBlock block(args, block_index(), W::keys);
    write_sums<W>(args.to.dk, dk, block, block.first + key(), block.scale / unit_of<W>());
    write_sums<W>(args.to.dv, dv, block, block.first + key(), 1);
  }
};

#endif  // FOCI_HOPPER

template <class W>
__global__ void __launch_bounds__(W::threads, 1)
    softmax_wgmma(const GradientArgs args, const __grid_constant__ Maps maps) {
#ifdef FOCI_HOPPER
  __builtin_assume(!args.shape.q_offsets && !args.folded.spans);
  const KeyBlock block(args, block_index(), W::keys);
  if (is_left(args.folded, args.shape, block.s, block.g)) return;
  if (args.loud && args.loud[block.s * args.shape.G + block.g]) return;
  const Turns<W> turns(args, block);
  if (threadIdx.x == 0) Signs<W>().set_up();
  if (W::narrow && threadIdx.x == warp)
    *place<float>(tiles_begin() + W::unit_at) = ds_unit(args, block.s, block.g);
  __syncthreads();
  if (threadIdx.x < warpgroup) {
    leave_registers<40>();
    if (threadIdx.x == 0) {
      send_for_tiles<W>(maps, block, turns);
    } else if (threadIdx.x / warp == 1) {
      tell_rows<W>(args, block, turns);
    } else if (threadIdx.x / warp == 2) {
      tell_deltas<W>(args, block, turns);
    } else if (W::biased && threadIdx.x / warp == 3) {
      keep_biases<W>(args, block, turns);
    }
  } else {
    take_registers<232>();
    Warpgroup<W> mine(args, block.scale);
    mine.walk(turns.total);
    mine.write();
  }
#endif
}

template <class W>
void launch_walk(GradientArgs args, Stream stream) {
  const Shape& z = args.shape;
  args.tiles = int(parts(z.M, W::keys));
  const auto queries = [&](const Field& field) {
    return tensor_map({field, z.sequences, z.H, z.N, W::width, W::queries});
  };
  const auto keys = [&](const Field& field) {
    return tensor_map({field, z.sequences, z.G, z.M, W::width, W::keys});
  };
  const Maps maps{queries(args.q), keys(args.folded.k), keys(args.folded.v),
                  queries(args.saved.d_o)};
  const std::int64_t blocks = std::int64_t(args.tiles) * z.G * z.sequences;
  launch("softmax_wgmma_backward", softmax_wgmma<W>, {dim3(unsigned(blocks)), W::threads, W::bytes},
         stream, args, maps);
}

template <DType type, int width>
void choose(const GradientArgs& args, Stream stream) {
  const bool biased = args.folded.key_bias.data || args.folded.key_mask.data;
  if (args.largest) return launch_walk<Walk<type, width, true, true> >(args, stream);
  using Biased = Walk<type, width, true>;
  using Plain = Walk<type, width, false>;
  biased ? launch_walk<Biased>(args, stream) : launch_walk<Plain>(args, stream);
}

}  // namespace

bool softmax_wgmma_serves(const GradientArgs& args) {
  const Shape& z = args.shape;
  if (z.D != z.E || (z.D != 64 && z.D != 128) || z.N == 0 || z.M <= 128) return false;
  if (!args.dq || args.folded.spans || z.q_offsets) return false;
  if (args.q_rest.data || (args.folded.m.data && !args.loud)) return false;
  const auto lies_in_floats = [&](const Field& field) {
    return field.dtype == DType::f32 && (z.N == 1 || field.strides[2] == 1);
  };
  if (!lies_in_floats(args.saved.lse)) return false;
  static std::atomic<signed char> known[64];
  using Any = Walk<DType::bf16, 64, true>;
  if (!runs_on_hopper(softmax_wgmma<Any>, known)) return false;
  const auto maps = [&](const Field& field, int heads, int tokens) {
    return has_tensor_map({field, z.sequences, heads, tokens, z.D, 64});
  };
  return maps(args.q, z.H, z.N) && maps(args.saved.d_o, z.H, z.N) &&
         maps(args.folded.k, z.G, z.M) && maps(args.folded.v, z.G, z.M);
}

void softmax_wgmma_backward(const GradientArgs& args, Stream stream) {
  const bool bf16 = args.folded.v.dtype == DType::bf16;
  if (args.shape.D == 64) {
    bf16 ? choose<DType::bf16, 64>(args, stream) : choose<DType::f16, 64>(args, stream);
  } else {
    bf16 ? choose<DType::bf16, 128>(args, stream) : choose<DType::f16, 128>(args, stream);
  }
}
#endif

}  // namespace foci::cuda
