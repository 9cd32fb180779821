// SPDX-License-Identifier: Apache-2.0
// Softmax over bf16 and f16, forward: a block has 64 or 128 queries, a warp 16
// or 32 of them, and walks over tiles of keys from the last that it sees to the
// first. Scores, weights and o stay in registers; the keys and values of the
// next tile are on their way while one is worked on. Queries that a metric folds are taken apart
// into several 16-bit numbers, or into one where what that leaves over does not show. Along the
// prefix of a full metric each half of a block has queries of one chunk, and biases of its own.
#include "cuda/softmax_mma_block.cuh"

#include <algorithm>

namespace foci::cuda {
namespace {

/// How a block goes about it.
/// `folded`: 16-bit numbers that a query is made into, 0 where it is what keys meet.
/// `by_chunk`: halves of the block have chunks of their own; queries and keys are f16.
template <DType type_, int width_, bool biased_, bool statistics_, int folded_,
          bool by_chunk_ = false>
struct Forward {
  static constexpr DType type = type_;
  static constexpr bool by_chunk = by_chunk_;
  static constexpr DType score_type = by_chunk ? DType::f16 : type;  // of q and k
  static constexpr int width = width_;
  static constexpr bool biased = biased_, statistics = statistics_;
  static constexpr int warps = 4, threads = warps * warp;
  static constexpr bool folds = folded_ > 0, has_rest = folded_ == 1;
  static constexpr int parts = folds ? folded_ : 1;                      // of a query
  static constexpr int rows = width <= (parts == 1 ? 128 : 64) ? 2 : 1;  // of 16 queries, a warp's
  static constexpr int queries = warps * rows * 16;
  static constexpr int keys = width <= 128 ? 64 : 32;
  static constexpr bool q_in_registers = width <= 64 && parts == 1;

  using Q = Tile<queries, width>;
  using K = Tile<keys, width>;  // and of values
  static constexpr Address q_at = 0, k_at = parts * Q::bytes, stage = 2 * K::bytes;
  static constexpr Address bias_at = k_at + 2 * stage;
  static constexpr int halves = by_chunk ? 2 : 1, half_rows = queries / halves;
  static constexpr Address kept_at = bias_at + (biased ? 2 * halves * keys * 4 : 0);
  static constexpr Address index_at = kept_at + (statistics ? 2 * keys * 4 : 0);
  static constexpr std::size_t bytes = index_at + (has_rest ? 16 : 0);

  using Scores = float[rows][keys / 8][4];
  using Sums = float[rows][width / 8][4];
  using Held = unsigned[rows][width / 16][4];  // queries in registers
};

/// A thread's rows: 16 m + 8 half + lane / 4 of its warp's.
template <class F>
struct RowState {
  float top[F::rows][2];  // so far, as scores are: times `unit` in powers of two
  float sum[F::rows][2];  // this lane's part
  // Statistics, this lane's part: sums of p^2 and p log2 p, keys seen, the largest score and where,
  // and log2 of its weight, which is 0 but for the rounding of `top`.
  float squares[F::rows][2], logs[F::rows][2], best[F::rows][2], high[F::rows][2];
  int seen[F::rows][2], best_at[F::rows][2];

  FOCI_DEVICE RowState() {
    FOCI_UNROLL
    for (int i = 0; i < 2 * F::rows; ++i) {
      top[i / 2][i % 2] = best[i / 2][i % 2] = high[i / 2][i % 2] = nothing;
      sum[i / 2][i % 2] = squares[i / 2][i % 2] = logs[i / 2][i % 2] = 0;
      seen[i / 2][i % 2] = 0;
      best_at[i / 2][i % 2] = -1;
    }
  }
};

/// s = q k', sums of products
template <class F>
FOCI_DEVICE void score(typename F::Scores& s, Address q, Address k,
                       const typename F::Held& q_held) {
  FOCI_UNROLL
  for (int i = 0; i < F::rows * F::keys / 2; ++i)
    s[i / (F::keys / 2)][i / 4 % (F::keys / 8)][i % 4] = 0;
  FOCI_UNROLL
  for (int step = 0; step < F::width / 16; ++step) {
    const Address q_here = F::Q::beside(q, step), k_here = F::K::beside(k, step);
    unsigned a[F::parts * F::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < F::parts * F::rows; ++m) {
      if constexpr (F::q_in_registers) {
        FOCI_UNROLL
        for (int i = 0; i < 4; ++i) a[m][i] = q_held[m][step][i];
      } else {
        F::Q::template operands<false>(a[m], q_here + m / F::rows * F::Q::bytes,
                                       16 * (m % F::rows));
      }
    }
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 16; ++n) {
      unsigned b[4];
      F::K::template operands<false>(b, k_here, 16 * n);
      FOCI_UNROLL
      for (int m = 0; m < F::parts * F::rows; ++m) {
        multiply<F::score_type>(s[m % F::rows][2 * n], a[m], b[0], b[1]);
        multiply<F::score_type>(s[m % F::rows][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// o += p v
template <class F>
FOCI_DEVICE void gather(typename F::Sums& o, const typename F::Scores& p, Address v) {
  Address v_here[F::width / 16];
  FOCI_UNROLL
  for (int n = 0; n < F::width / 16; ++n) v_here[n] = F::K::beside(v, n);
  FOCI_UNROLL
  for (int step = 0; step < F::keys / 16; ++step) {
    unsigned a[F::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < F::rows; ++m) {
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) {
        const float* pair = p[m][2 * step + i / 2] + 2 * (i % 2);
        a[m][i] = pack<F::type>(pair[0], pair[1]);
      }
    }
    FOCI_UNROLL
    for (int n = 0; n < F::width / 16; ++n) {
      unsigned b[4];
      F::K::template operands<true>(b, v_here[n], 16 * step);
      FOCI_UNROLL
      for (int m = 0; m < F::rows; ++m) {
        multiply<F::type>(o[m][2 * n], a[m], b[0], b[1]);
        multiply<F::type>(o[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Scores in powers of two, the bias in them. (keys) floats at `bias`.
template <class F>
FOCI_DEVICE void add_bias(typename F::Scores& s, const float* bias, float unit) {
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    const float2 b = *reinterpret_cast<const float2*>(bias + 8 * n + 2 * (lane() % 4));
    FOCI_UNROLL
    for (int m = 0; m < F::rows; ++m) {
      s[m][n][0] = fmaf(s[m][n][0], unit, b.x);
      s[m][n][1] = fmaf(s[m][n][1], unit, b.y);
      s[m][n][2] = fmaf(s[m][n][2], unit, b.x);
      s[m][n][3] = fmaf(s[m][n][3], unit, b.y);
    }
  }
}

/// What makes a score of a sum of products where statistics are asked for: (keys) biases, not in
/// powers of two, so that what all keys have can go off before anything is rounded.
struct Biases {
  const float* at;
  float unit;

  FOCI_DEVICE float of(int n, int i) const { return at[8 * n + 2 * (lane() % 4) + i % 2]; }
  template <class F>
  FOCI_DEVICE float score(const typename F::Scores& s, int m, int n, int i) const {
    return F::statistics ? fmaf(s[m][n][i], unit, log2_e * of(n, i)) : s[m][n][i];
  }
  /// log2 of the weight; `low` is `top`, but not in powers of two. Where scores themselves are far
  /// from 0, the largest goes off as it was rounded.
  FOCI_DEVICE float power(float x, int n, int i, float top, float low) const {
    const float bias = of(n, i);
    return is_far(low - bias) ? fmaf(x, unit, log2_e * bias) - top
                              : fmaf(x, unit, (bias - low) * log2_e);
  }
};

/// Hides the keys of the tile from the rows that do not reach them:
/// reach[m][half] of its keys.
template <class F>
FOCI_DEVICE void hide(typename F::Scores& s, const int (&reach)[F::rows][2]) {
  FOCI_UNROLL
  for (int m = 0; m < F::rows; ++m) {
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 8; ++n) {
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) {
        if (8 * n + 2 * (lane() % 4) + i % 2 >= reach[m][i / 2]) s[m][n][i] = nothing;
      }
    }
  }
}

/// What a row's statistics learn from a tile before its scores become weights.
/// (keys) ones and zeros at `kept`; best_at counts from the sequence's first
/// key, as `first` does.
template <class F>
FOCI_DEVICE void look(RowState<F>& row, const typename F::Scores& s, const Biases& biases,
                      const float* kept, const int (&reach)[F::rows][2], int first) {
  FOCI_UNROLL
  for (int m = 0; m < F::rows; ++m) {
    FOCI_UNROLL
    for (int n = F::keys / 8 - 1; n >= 0; --n) {
      FOCI_UNROLL
      for (int i = 3; i >= 0; --i) {
        const int j = 8 * n + 2 * (lane() % 4) + i % 2;
        if (j >= reach[m][i / 2] || kept[j] == 0) continue;
        ++row.seen[m][i / 2];
        const float score = biases.score<F>(s, m, n, i);
        if (score < row.best[m][i / 2]) continue;
        row.best[m][i / 2] = score;
        row.best_at[m][i / 2] = first + j;
      }
    }
  }
}

/// Where a tile moves the rows: weights are 2^(unit s - low), and o shrinks.
template <class F>
struct Move {
  float top[F::rows][2], low[F::rows][2], shrink[F::rows][2];
};

/// Row maxima.
template <class F>
FOCI_DEVICE void find_tops(Move<F>& move, const RowState<F>& row, const typename F::Scores& s,
                           const Biases& biases) {
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2;
    float top = row.top[m][half];
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 8; ++n)
      top = fmaxf(
          top, fmaxf(biases.score<F>(s, m, n, 2 * half), biases.score<F>(s, m, n, 2 * half + 1)));
    move.top[m][half] = quad_max(top);
  }
}

/// Whether any of the warp's rows has a maximum that shows how queries were rounded.
template <class F>
FOCI_DEVICE bool is_loud(const Move<F>& move, float unit) {
  float most = 0;
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const float top = move.top[i / 2][i % 2];
    most = fmaxf(most, top == nothing ? 0.0f : fabsf(top * unit));
  }
  return __any_sync(~0u, most > loud);
}

/// What follows from maxima that grow.
template <class F>
FOCI_DEVICE void raise(Move<F>& move, RowState<F>& row, float unit) {
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2;
    const float before = row.top[m][half], top = move.top[m][half];
    const float low = top == nothing ? 0.0f : rounded_product(top, unit);
    const bool exact = !F::biased && fabsf(low) > far;
    float grown = exact ? (before - top) * unit : rounded_product(before, unit) - low;
    if (F::statistics) grown *= log2_e;
    const float shrink = power_of_two(grown);
    if (F::statistics) {
      const float moved = shrink > 0 ? grown * row.sum[m][half] : 0.0f;
      row.logs[m][half] = shrink * (row.logs[m][half] + moved);
      row.squares[m][half] *= shrink * shrink;
      row.high[m][half] += grown;
    }
    row.top[m][half] = top;
    row.sum[m][half] *= shrink;
    move.low[m][half] = low;
    move.shrink[m][half] = shrink;
  }
}

/// Takes the maximum from the scores of rows far from 0.
template <class F>
FOCI_DEVICE void lower(Move<F>& move, const RowState<F>& row, typename F::Scores& s) {
  float most = 0;
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) most = fmaxf(most, fabsf(move.low[i / 2][i % 2]));
  if (most <= far) return;
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2;
    if (fabsf(move.low[m][half]) <= far) continue;
    move.low[m][half] = 0;
    FOCI_UNROLL
    for (int j = 0; j < F::keys / 4; ++j) s[m][j / 2][2 * half + j % 2] -= row.top[m][half];
  }
}

/// Scores become weights; add_rest() completes scores of rounded queries.
template <class F, class Rest>
FOCI_DEVICE void weigh(RowState<F>& row, typename F::Scores& s, typename F::Sums& o, float unit,
                       const Biases& biases, const Rest& add_rest) {
  Move<F> move;
  find_tops<F>(move, row, s, biases);
  bool may_be_far = true;
  if constexpr (F::has_rest) {
    may_be_far = is_loud<F>(move, unit);
    if (may_be_far) {
      add_rest();
      find_tops<F>(move, row, s, biases);
    }
  }
  raise<F>(move, row, F::statistics ? ln_2 : unit);
  if constexpr (!F::biased) {
    if (may_be_far) lower<F>(move, row, s);
  }
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2;
    const float low = move.low[m][half], shrink = move.shrink[m][half];
    const float top = move.top[m][half] == nothing ? 0.0f : move.top[m][half];
    float sum = row.sum[m][half];
    FOCI_UNROLL
    for (int j = 0; j < F::keys / 4; ++j) {
      float& x = s[m][j / 2][2 * half + j % 2];
      const float power = F::statistics ? biases.power(x, j / 2, j % 2, top, low)
                          : F::biased   ? x - low
                                        : fmaf(x, unit, -low);
      x = power_of_two(power);
      sum += x;
      if (F::statistics) {
        row.high[m][half] = fmaxf(row.high[m][half], power);
        row.squares[m][half] = fmaf(x, x, row.squares[m][half]);
        row.logs[m][half] += x > 0 ? x * power : 0.0f;
      }
    }
    row.sum[m][half] = sum;
    FOCI_UNROLL
    for (int n = 0; n < F::width / 8; ++n) {
      o[m][n][2 * half] *= shrink;
      o[m][n][2 * half + 1] *= shrink;
    }
  }
}

/// The statistics of a row whose sums are whole; one lane of the four writes.
template <class F>
FOCI_DEVICE void write_statistics(const Rows& to, RowState<F>& row, int m, int half, float sum,
                                  std::int64_t (&at)[3], bool writes) {
  float best = row.best[m][half];
  int best_at = row.best_at[m][half];
  for (int step = 1; step <= 2; ++step) {
    const float other = __shfl_xor_sync(~0u, best, step);
    const int other_at = __shfl_xor_sync(~0u, best_at, step);
    if (other_at < 0) continue;
    if (best_at >= 0 && (other < best || (other == best && other_at > best_at))) continue;
    best = other;
    best_at = other_at;
  }
  const float squares = quad_sum(row.squares[m][half]), logs = quad_sum(row.logs[m][half]);
  const float high = quad_max(row.high[m][half]);
  const int seen = int(quad_sum(float(row.seen[m][half])));
  if (!writes) return;
  const float share = sum > 0 ? 1 / sum : 0;
  const float n = float(seen);
  const float concentration = sum > 0 ? sum / sqrtf(n * squares) : 0;
  if (to.concentration) to.concentration.store(concentration, at[0], at[1], at[2]);
  if (to.effective_keys)
    to.effective_keys.store(n * concentration * concentration, at[0], at[1], at[2]);
  if (to.entropy) {
    const float entropy = sum > 0 ? ln_2 * (log2f(sum) - logs * share) : 0;
    to.entropy.store(fmaxf(entropy, 0.0f), at[0], at[1], at[2]);
  }
  if (to.largest) to.largest.store(share * power_of_two(high), at[0], at[1], at[2]);
  if (to.largest_at)
    static_cast<std::int64_t*>(to.largest_at.data)[to.largest_at.offset(at[0], at[1], at[2])] =
        best_at;
}

/// o and lse, o by way of the shared memory in which q was: whole pieces of 16
/// bytes go out.
template <class F>
FOCI_DEVICE void finish(const ForwardArgs& args, RowState<F>& row, typename F::Sums& o) {
  const Block block = Block::of<F>(args);
  const float unit = block.scale * log2_e;
  const int mine = int(threadIdx.x) / warp * 16 * F::rows;
  std::byte* memory = shared_memory() + F::q_at;
  __syncwarp();
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2, r = mine + 16 * m + 8 * half + lane() / 4;
    const float sum = quad_sum(row.sum[m][half]), share = sum > 0 ? 1 / sum : 0;
    std::int64_t at[] = {block.at.b, block.h, block.at.q0 + block.first + r};
    const bool writes = lane() % 4 == 0 && block.first + r < block.at.N;
    if (F::statistics) write_statistics<F>(args.to, row, m, half, sum, at, writes);
    if (args.to.lse && writes) {
      const float low = F::biased ? row.top[m][half] : row.top[m][half] * unit;
      const Field& more = args.folded.row_bias;
      const float high = more ? more.load(at[0], at[1], at[2]) : 0.0f;
      const float largest = rounded_product(low, ln_2), rest = logf(sum);
      const float lse = (F::statistics ? largest + rest : fmaf(low, ln_2, rest)) + high;
      args.to.lse.store(sum > 0 ? lse : nothing, at[0], at[1], at[2]);
    }
    FOCI_UNROLL
    for (int n = 0; n < F::width / 8; ++n) {
      *reinterpret_cast<unsigned*>(memory + F::Q::at(r, n) + 4 * (lane() % 4)) =
          pack<F::type>(o[m][n][2 * half] * share, o[m][n][2 * half + 1] * share);
    }
  }
  __syncwarp();
  auto* out = static_cast<std::uint16_t*>(args.to.o.data);
  constexpr int pieces = F::width / 8;
  for (int i = lane(); i < 16 * F::rows * pieces; i += warp) {
    const int r = mine + i / pieces, piece = i % pieces, token = block.first + r;
    if (token >= block.at.N || 8 * piece >= args.shape.E) continue;
    const std::int64_t at = args.to.o.offset(block.at.b, block.h, block.at.q0 + token, 8 * piece);
    *reinterpret_cast<uint4*>(out + at) =
        *reinterpret_cast<const uint4*>(memory + F::Q::at(r, piece));
  }
}

/// Queries made into what keys meet, into shared memory.
template <class F>
FOCI_DEVICE void fold_queries(const ForwardArgs& args, const Block& block) {
  constexpr int pieces = F::width / 8, rounds = F::queries * pieces / F::threads;
  constexpr int at_once = rounds % 8 == 0 ? 8 : rounds % 4 == 0 ? 4 : 2;
  static_assert(rounds % at_once == 0);
  const QueryPiece lines(args.folded, args.shape, block.at, block.s, block.h);
  std::byte* memory = shared_memory() + F::q_at;
#ifndef FOCI_EMULATED
#pragma unroll 1  // once a block
#endif
  for (int round = 0; round < rounds; round += at_once) {
    float x[at_once][8];
    int row[at_once], piece[at_once];
    const auto place = [&](int n) { return int(threadIdx.x) + (round + n) * F::threads; };
    FOCI_UNROLL
    for (int n = 0; n < at_once; ++n) {
      row[n] = min(block.first + place(n) / pieces, block.at.N - 1);
      piece[n] = min(place(n) % pieces, args.shape.D / 8 - 1);
    }
    lines.load<at_once>(x, row, piece);
    FOCI_UNROLL
    for (int n = 0; n < at_once; ++n) {
      const int r = place(n) / pieces, p = place(n) % pieces;
      const bool there = block.first + r < block.at.N && 8 * p < args.shape.D;
      FOCI_UNROLL
      for (int i = 0; i < 8; ++i) x[n][i] = there ? x[n][i] : 0.0f;
      uint4 words[F::parts];
      split<F::type, F::parts>(words, x[n]);
      FOCI_UNROLL
      for (int part = 0; part < F::parts; ++part)
        *reinterpret_cast<uint4*>(memory + part * F::Q::bytes + F::Q::at(r, p)) = words[part];
    }
  }
}

/// s += by rest k', rest what the rounding of queries left over.
template <class F>
FOCI_DEVICE void add_rest_of(typename F::Scores& s, const ForwardArgs& args, Address k, float by) {
  const Block block(args, block_of<F>(), F::queries);
  const QueryRest rest(args.folded, args.shape, block.at, block.s, block.h);
  const int first = block.first + int(threadIdx.x) / warp * 16 * F::rows + lane() / 4;
#ifndef FOCI_EMULATED
#pragma unroll 1
#endif
  for (int step = 0; step < F::width / 16; ++step) {
    unsigned a[F::rows][4];
    FOCI_UNROLL
    for (int m = 0; m < F::rows; ++m)
      rest.left<F::type>(a[m], first + 16 * m, 16 * step + 2 * (lane() % 4), by);
    const Address k_here = F::K::beside(k, step);
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 16; ++n) {
      unsigned b[4];
      F::K::template operands<false>(b, k_here, 16 * n);
      FOCI_UNROLL
      for (int m = 0; m < F::rows; ++m) {
        multiply<F::type>(s[m][2 * n], a[m], b[0], b[1]);
        multiply<F::type>(s[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

/// Queries that have arrived in shared memory.
template <class F>
FOCI_DEVICE void hold(typename F::Held& to, Address q) {
  await_copies<0>();
  __syncthreads();
  FOCI_UNROLL
  for (int i = 0; i < F::rows * (F::width / 16); ++i)
    F::Q::template operands<false>(to[i % F::rows][i / F::rows], F::Q::beside(q, i / F::rows),
                                   16 * (i % F::rows));
}

/// What each row sees of the tile that begins at `key`.
template <class F>
FOCI_DEVICE void see(typename F::Scores& s, RowState<F>& row, const ForwardArgs& args,
                     const Block& block, const Biases& biases, const float* kept, int key) {
  const int first = block.first + int(threadIdx.x) / warp * 16 * F::rows + lane() / 4;
  int reach[F::rows][2];
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i)
    reach[i / 2][i % 2] = args.shape.reach(block.at, first + 8 * i) - key;
  if (F::statistics) look<F>(row, s, biases, kept, reach, key);
  hide<F>(s, reach);
}

/// Queries that are what keys meet, on their way.
template <class F>
FOCI_DEVICE void load_queries(const ForwardArgs& args, const Block& block) {
  const Place& at = block.at;
  if constexpr (F::by_chunk) {
    load_halves<F>(args);
  } else if constexpr (!F::folds) {
    const Lines q = Lines::of(args.folded.q, at.b, block.h, at.q0, at.N, args.shape.D);
    load_tile<typename F::Q, F::threads>(shared_address() + F::q_at, q, block.first);
  }
}

/// The bias that this thread brings for tile t; none before the first.
template <class F>
FOCI_DEVICE KeyBias bias_of(const Folded& folded, const Block& block, int t) {
  const int thread = int(threadIdx.x);
  const bool has = F::biased && t >= 0 && thread < F::halves * F::keys;
  const int j = has ? t * F::keys + thread % F::keys : -1;
  return F::by_chunk ? KeyBias::of_chunk(folded, block.at, block.chunk, block.g, j)
                     : KeyBias(folded, block.at, block.h, block.g, j);
}

/// Every tile of keys that the block's queries see.
template <class F>
FOCI_DEVICE void walk(const ForwardArgs& args, const Block& block, RowState<F>& row,
                      typename F::Sums& o, float unit) {
  const Place& at = block.at;
  const Folded& folded = args.folded;
  const Lines k = Lines::of(folded.k, at.b, block.g, at.k0, at.M, args.shape.D);
  const Lines v = Lines::of(folded.v, at.b, block.g, at.k0, at.M, args.shape.E);
  const Address memory = shared_address();
  const int mine = int(threadIdx.x) / warp * 16 * F::rows, thread = int(threadIdx.x);
  auto* bias = reinterpret_cast<float*>(shared_memory() + F::bias_at);
  auto* kept = reinterpret_cast<float*>(shared_memory() + F::kept_at);

  const int half = F::by_chunk ? thread / (F::threads / F::halves) : 0;
  // the keys that every query sees
  const int all = args.shape.reach(at, block.first + half * F::half_rows);
  int tile = (most_keys<F>(args, block, half) + F::keys - 1) / F::keys - 1;
  if (tile < 0) return;

  const auto load = [&](int t, int slot) {
    load_tile<typename F::K, F::threads>(memory + F::k_at + slot * F::stage, k, t * F::keys);
    load_tile<typename F::K, F::threads>(memory + F::k_at + slot * F::stage + F::K::bytes, v,
                                         t * F::keys);
  };
  const auto write_bias = [&](const KeyBias& from, int slot) {
    if (thread >= F::halves * F::keys) return;
    bias[slot * F::halves * F::keys + thread] = F::statistics ? from.bias : log2_e * from.bias;
    if (F::statistics) kept[slot * F::keys + thread] = from.kept;
  };
  load_queries<F>(args, block);
  load(tile, 0);
  commit_copies();
  if constexpr (F::folds) fold_queries<F>(args, block);
  if (F::biased) write_bias(bias_of<F>(folded, block, tile), 0);

  const Address q_mine = memory + F::q_at + F::Q::along() + mine * F::Q::panel * 2;
  const Address k_mine = memory + F::k_at + F::K::across();
  const Address v_mine = memory + F::k_at + F::K::bytes + F::K::along();
  typename F::Held q_held;
  if (F::q_in_registers) hold<F>(q_held, q_mine);
  for (int slot = 0; tile >= 0; --tile, slot ^= 1) {
    await_copies<0>();
    __syncthreads();
    const bool more = tile > 0;
    if (more) load(tile - 1, slot ^ 1);
    commit_copies();
    const KeyBias next_bias = bias_of<F>(folded, block, tile - 1);
    const Address stage = slot * F::stage;
    typename F::Scores s;
    score<F>(s, q_mine, k_mine + stage, q_held);
    const Biases biases{bias + (slot * F::halves + half) * F::keys, unit};
    if (F::biased && !F::statistics) add_bias<F>(s, biases.at, unit);
    if (F::statistics || (tile + 1) * F::keys > all)
      see<F>(s, row, args, block, biases, kept + slot * F::keys, tile * F::keys);
    weigh<F>(row, s, o, F::biased && !F::statistics ? 1.0f : unit, biases,
             [&] { add_rest_of<F>(s, args, k_mine + stage, F::biased ? unit : 1.0f); });
    gather<F>(o, s, v_mine + stage);
    if (F::biased && more) write_bias(next_bias, slot ^ 1);
  }
}

template <class F>
FOCI_DEVICE void forward_block(const ForwardArgs& args) {
  const Block block = Block::of<F>(args);
  if (!has_queries<F>(args) || is_left(args.folded, args.shape, block.s, block.g)) return;
  RowState<F> row;
  typename F::Sums o;
  FOCI_UNROLL
  for (int i = 0; i < F::rows * F::width / 2; ++i)
    o[i / (F::width / 2)][i / 4 % (F::width / 8)][i % 4] = 0;
  walk<F>(args, block, row, o, block.scale * log2_e);
  finish<F>(args, row, o);
}

template <class F>
__global__ void __launch_bounds__(F::threads) softmax_forward(ForwardArgs args) {
  if constexpr (!F::has_rest) return forward_block<F>(args);
  const int heads = args.shape.sequences * args.shape.G;
  if (args.folded.by_mma && !any_marked(args.folded.by_mma, heads)) return;
  for (int index = int(blockIdx.x); index < args.blocks; index += int(gridDim.x)) {
    if (threadIdx.x == 0) *reinterpret_cast<int*>(shared_memory() + F::index_at) = index;
    __syncthreads();
    forward_block<F>(args);
    __syncthreads();
  }
}

template <DType type, int width, bool biased, bool statistics, int folded>
void launch_forward(ForwardArgs args, Stream stream) {
  using F = Forward<type, width, biased, statistics, folded>;
  args.tiles = int(parts(args.shape.longest_n, F::queries));
  std::int64_t blocks = std::int64_t(args.tiles) * args.shape.H * args.shape.sequences;
  args.blocks = int(blocks);
  if (F::has_rest && args.folded.by_mma) blocks = std::min(blocks, few_blocks);
  launch("softmax_mma_forward", softmax_forward<F>, {dim3(unsigned(blocks)), F::threads, F::bytes},
         stream, args);
}

/// Along the prefix.
template <DType type, int width>
void launch_by_chunk(ForwardArgs args, Stream stream) {
  using F = Forward<type, width, true, false, 0, true>;
  static_assert(F::halves * F::keys == F::threads);
  const int longest = std::min(args.folded.chunks, args.shape.longest_n);
  args.rounds = int(parts(longest, F::half_rows));
  args.tiles = int(parts(args.folded.most_chunks, 2)) * args.rounds;
  const std::int64_t blocks = std::int64_t(args.tiles) * args.shape.H * args.shape.sequences;
  launch("softmax_mma_forward by chunk", softmax_forward<F>,
         {dim3(unsigned(blocks)), F::threads, F::bytes}, stream, args);
}

template <DType type, int width>
void choose_forward(const ForwardArgs& args, Stream stream) {
  constexpr int whole = type == DType::bf16 ? 3 : 2;  // numbers that leave nothing to be seen
  const bool biased = args.folded.key_bias.data || args.folded.key_mask.data;
  if (has_lines(args.folded)) {
    if (args.to.want_all_bits())
      return launch_forward<type, width, true, true, whole>(args, stream);
    if (softmax_mma_parts(args.shape, args.folded) == 2)
      return launch_forward<type, width, true, false, 2>(args, stream);
    return biased ? launch_forward<type, width, true, false, 1>(args, stream)
                  : launch_forward<type, width, false, false, 1>(args, stream);
  }
  if (args.to.statistics()) return launch_forward<type, width, true, true, 0>(args, stream);
  biased ? launch_forward<type, width, true, false, 0>(args, stream)
         : launch_forward<type, width, false, false, 0>(args, stream);
}

template <DType type>
void choose_width(const ForwardArgs& args, Stream stream) {
  if (args.folded.spans)
    return args.shape.D <= 64 && args.shape.E <= 64 ? launch_by_chunk<type, 64>(args, stream)
                                                    : launch_by_chunk<type, 128>(args, stream);
  switch (softmax_mma_width(args.shape.D, args.shape.E)) {
    case 16:
      return choose_forward<type, 16>(args, stream);
    case 32:
      return choose_forward<type, 32>(args, stream);
    case 64:
      return choose_forward<type, 64>(args, stream);
    case 96:
      return choose_forward<type, 96>(args, stream);
    case 128:
      return choose_forward<type, 128>(args, stream);
    default:
      return choose_forward<type, 256>(args, stream);
  }
}

}  // namespace

bool softmax_mma_serves(const Shape& shape, const Folded& folded, const Field& o) {
  const DType type = folded.v.dtype;
  if (type != DType::bf16 && type != DType::f16) return false;
  if (folded.score != Score::product || !(folded.scale > 0)) return false;
  const DType keys = folded.spans ? DType::f16 : type;
  if (shape.longest_m < 2) return false;  // a lone weight is exactly 1, which here it nearly is
  for (const int width : {shape.D, shape.E}) {
    if (width % 8 != 0 || width < 8 || width > 256) return false;
  }
  if (folded.spans && (folded.q.dtype != keys || shape.D > 128 || shape.E > 128)) return false;
  if (folded.k.dtype != keys || !in_pieces(folded.k)) return false;
  for (const Field* field : {&folded.v, &o}) {
    if (field->dtype != type || !in_pieces(*field)) return false;
  }
  if (folded.m.data && (folded.m.dtype != DType::f32 || !in_pieces(folded.m))) return false;
  return (folded.q.dtype == keys || folded.q.dtype == DType::f32) && in_pieces(folded.q);
}

int softmax_mma_parts(const Shape& shape, const Folded& folded) {
  if (!has_lines(folded)) return 1;
  // Floats may be large where scores are not.
  return folded.q.dtype == DType::f32 || shape.longest_m <= 128 ? 2 : 1;
}

void softmax_mma_forward(const Shape& shape, const Folded& folded, const Rows& to, Stream stream) {
  const ForwardArgs args{shape, folded, to, 0};
  folded.v.dtype == DType::bf16 ? choose_width<DType::bf16>(args, stream)
                                : choose_width<DType::f16>(args, stream);
}

}  // namespace foci::cuda
