// SPDX-License-Identifier: Apache-2.0
// Softmax over short sequences, forward: a block has the keys and values of one key head in shared
// memory and two tiles of 16 queries a warp on their way there. A warp has the scores of its 16
// queries with all keys in registers at once, so that nothing is rescaled. Queries are multiplied
// by m where they become the left side of a product; what their rounding leaves over is added where
// it shows, as softmax_mma.cu does it.
#include "cuda/softmax_short_block.cuh"

namespace foci::cuda {
namespace {

struct ShortForwardArgs {
  Shape shape;
  Folded folded;
  Rows to;
  ShortMetric metric;
};

/// How a block goes about it; `keys` that it has room for.
template <DType type_, int keys_, bool biased_, bool folds_>
struct ShortForward {
  static constexpr DType type = type_;
  static constexpr int keys = keys_;
  static constexpr bool biased = biased_, folds = folds_;
  static constexpr bool two_parts = folds && keys <= short_two_parts;
  static constexpr bool has_rest = folds && !two_parts;
  static constexpr int warps = 4, threads = warps * warp;
  static constexpr int blocks = keys <= 208 ? 3 : 2;  // of a multiprocessor

  static constexpr Address k_at = 0, v_at = keys * short_line, q_at = 2 * v_at;
  static constexpr Address q_bytes = 16 * short_line;  // of a tile of a warp, which has two
  static constexpr Address m_at = q_at + warps * 2 * q_bytes;
  static constexpr Address room_at = m_at + (folds ? 256 : 0);
  static constexpr Address bias_at = room_at + (folds ? metric_room(warps) : 0);
  /// `heads` with a bias of their own.
  static constexpr std::size_t bytes(int heads) {
    return bias_at + std::size_t(biased ? heads * keys * 4 : 0);
  }

  using Scores = float[keys / 8][4];
  using Weights = unsigned[keys / 8][2];  // rounded, two neighbours a word
};

/// A tile of 16 queries of a head, a warp's turn-th; found again wherever it is needed, for what is
/// kept pushes scores out of the registers.
struct ShortTile {
  Place at;
  int s, g, h, first;

  FOCI_DEVICE ShortTile(const Shape& shape, int turn) {
    const int tiles = (shape.N + 15) / 16, block = block_index();
    g = block % shape.G, s = block / shape.G;
    at = shape.place(s);
    h = g * (shape.H / shape.G) + turn / tiles;
    first = turn % tiles * 16;
  }
};

/// s += q k': q as left(a, step) gives it.
template <class F, class Left>
FOCI_DEVICE void add_scores(typename F::Scores& s, Address k, const Left& left) {
#ifndef FOCI_EMULATED
#pragma unroll 1  // a step has enough products
#endif
  for (int step = 0; step < short_width / 16; ++step) {
    unsigned a[4];
    left(a, step);
    const Address k_here = ShortRows::beside(k, step);
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 16; ++n) {
      unsigned b[4];
      ShortRows::operands<false>(b, k_here, 16 * n);
      multiply<F::type>(s[2 * n], a, b[0], b[1]);
      multiply<F::type>(s[2 * n + 1], a, b[2], b[3]);
    }
  }
}

/// Queries at `q` as a left side, word by word as each(two neighbours, their numbers of m) has it.
template <class Each>
FOCI_DEVICE void take_queries(unsigned (&a)[4], Address q, const float* m, int step,
                              const Each& each) {
  ShortRows::operands<false>(a, ShortRows::beside(q, step), 0);
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const float* here = m + 16 * step + 8 * (i / 2) + 2 * (lane() % 4);
    a[i] = each(a[i], *reinterpret_cast<const float2*>(here));
  }
}

/// Sums of products of the queries at `q`.
template <class F>
FOCI_DEVICE void score(typename F::Scores& s, Address q, Address k, const float* m) {
  FOCI_UNROLL
  for (int i = 0; i < F::keys / 2; ++i) s[i / 4][i % 4] = 0;
  add_scores<F>(s, k, [&](unsigned(&a)[4], int step) {
    if constexpr (F::folds) {
      take_queries(a, q, m, step,
                   [](unsigned x, float2 by) { return folded_pair<F::type>(x, by); });
    } else {
      ShortRows::operands<false>(a, ShortRows::beside(q, step), 0);
    }
  });
}

/// s += rest k', rest what the rounding of queries left over: after all else, as on the way back,
/// which gets the same bits.
template <class F>
FOCI_DEVICE void add_rest(typename F::Scores& s, Address q, Address k, const float* m) {
  add_scores<F>(s, k, [&](unsigned(&a)[4], int step) {
    take_queries(a, q, m, step, [](unsigned x, float2 by) { return rest_of_pair<F::type>(x, by); });
  });
}

/// Scores in powers of two, the bias in them.
template <class F>
FOCI_DEVICE void add_bias(typename F::Scores& s, const float* bias, float unit) {
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    const float2 b = *reinterpret_cast<const float2*>(bias + 8 * n + 2 * (lane() % 4));
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) s[n][i] = fmaf(s[n][i], unit, i % 2 ? b.y : b.x);
  }
}

/// Hides keys that the tile's queries do not reach.
template <class F>
FOCI_DEVICE void hide(typename F::Scores& s, const Shape& shape, int turn) {
  const ShortTile tile(shape, turn);
  const int all = shape.reach(tile.at, tile.first), row = tile.first + lane() / 4;
  const int low = shape.reach(tile.at, row), high = shape.reach(tile.at, row + 8);
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    if (8 * n + 8 <= all) continue;
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      if (8 * n + 2 * (lane() % 4) + i % 2 >= (i < 2 ? low : high)) s[n][i] = nothing;
    }
  }
}

/// Row maxima.
template <class F>
FOCI_DEVICE void find_tops(float (&top)[2], const typename F::Scores& s) {
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    float most = nothing;
    FOCI_UNROLL
    for (int n = 0; n < F::keys / 8; ++n)
      most = fmaxf(most, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
    top[half] = quad_max(most);
  }
}
/// The same of scores to which biases will be added, in powers of two.
template <class F>
FOCI_DEVICE void find_tops(float (&top)[2], const typename F::Scores& s, const float* bias,
                           float unit) {
  float most[2] = {nothing, nothing};
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    const float2 b = *reinterpret_cast<const float2*>(bias + 8 * n + 2 * (lane() % 4));
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i)
      most[i / 2] = fmaxf(most[i / 2], fmaf(s[n][i], unit, i % 2 ? b.y : b.x));
  }
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) top[half] = quad_max(most[half]);
}

/// Whether any of the warp's rows has a maximum that shows how queries were rounded.
FOCI_DEVICE bool any_is_loud(const float (&top)[2], float unit) {
  float most = 0;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half)
    most = fmaxf(most, top[half] == nothing ? 0.0f : fabsf(top[half] * unit));
  return __any_sync(~0u, most > loud);
}

/// Takes the largest score from those of rows far from 0, whose `low` becomes 0.
template <class F>
FOCI_DEVICE void lower(typename F::Scores& s, float (&low)[2], const float (&top)[2]) {
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    if (fabsf(low[half]) <= far) continue;
    low[half] = 0;
    FOCI_UNROLL
    for (int i = 0; i < F::keys / 4; ++i) s[i / 2][2 * half + i % 2] -= top[half];
  }
}

/// Scores become weights, neighbours of a product's operand one after the other; and their sums.
template <class F>
FOCI_DEVICE void weigh(typename F::Weights& p, typename F::Scores& s, const float (&top)[2],
                       float (&sum)[2], float unit) {
  float low[2];
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half)
    low[half] = top[half] == nothing ? 0.0f : rounded_product(top[half], unit);
  if constexpr (!F::biased) lower<F>(s, low, top);
  float part[2][2] = {};
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      float x[2];
      FOCI_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float score = s[n][2 * half + i];
        x[i] = power_of_two(F::biased ? score - low[half] : fmaf(score, unit, -low[half]));
        part[half][i] += x[i];
      }
      p[n][half] = pack<F::type>(x[0], x[1]);
    }
  }
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) sum[half] = quad_sum(part[half][0] + part[half][1]);
}

/// o = p v / sum, into the shared memory in which the queries were. Half of the columns at a time:
/// all of them leave too few registers for values on their way.
template <class F>
FOCI_DEVICE void gather(const typename F::Weights& p, const float (&sum)[2], Address v, Address q) {
  float share[2];
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) share[half] = sum[half] > 0 ? 1 / sum[half] : 0;
  __syncwarp();
#ifndef FOCI_EMULATED
#pragma unroll 1
#endif
  for (int first = 0; first < 4; first += 2) {
    const Address v_here[] = {ShortRows::beside(v, first), ShortRows::beside(v, first + 1)};
    float o[4][4] = {};
    FOCI_UNROLL
    for (int step = 0; step < F::keys / 16; ++step) {
      const unsigned a[] = {p[2 * step][0], p[2 * step][1], p[2 * step + 1][0], p[2 * step + 1][1]};
      FOCI_UNROLL
      for (int n = 0; n < 2; ++n) {
        unsigned b[4];
        ShortRows::operands<true>(b, v_here[n], 16 * step);
        multiply<F::type>(o[2 * n], a, b[0], b[1]);
        multiply<F::type>(o[2 * n + 1], a, b[2], b[3]);
      }
    }
    FOCI_UNROLL
    for (int i = 0; i < 8; ++i) {
      const int half = i % 2, n = i / 2;
      const Address here = q + ShortRows::at(8 * half + lane() / 4, 2 * first + n);
      *reinterpret_cast<unsigned*>(shared_memory() + here + 4 * (lane() % 4)) =
          pack<F::type>(o[n][2 * half] * share[half], o[n][2 * half + 1] * share[half]);
    }
  }
  __syncwarp();
}

/// lse, and o from the shared memory in which it is.
template <class F>
FOCI_DEVICE void write_rows(const ShortForwardArgs& args, int turn, const float (&top)[2],
                            const float (&sum)[2], Address q) {
  const ShortTile tile(args.shape, turn);
  const Place& at = tile.at;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int i = tile.first + 8 * half + lane() / 4;
    if (!args.to.lse || lane() % 4 != 0 || i >= at.N) continue;
    const float low = F::biased ? top[half] : top[half] * (args.folded.scale * log2_e);
    const float lse = fmaf(low, ln_2, logf(sum[half]));
    args.to.lse.store(sum[half] > 0 ? lse : nothing, at.b, tile.h, at.q0 + i);
  }
  const Field& to = args.to.o;
  const int row = lane() / 8, piece = lane() % 8;
  auto* out = static_cast<std::uint16_t*>(to.data) +
              to.offset(at.b, tile.h, at.q0 + tile.first + row, 8 * piece);
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    if (tile.first + row + 4 * i < at.N)
      *reinterpret_cast<uint4*>(out + 4 * i * to.strides[2]) = piece_at(q, row + 4 * i, piece);
  }
  __syncwarp();
}

/// A tile of queries, which lie at `q`.
template <class F>
FOCI_DEVICE void attend_tile(const ShortForwardArgs& args, int turn, Address q) {
  const Shape& shape = args.shape;
  const Address memory = shared_address();
  const Address q_mine = memory + q + ShortRows::along();
  const Address k = memory + F::k_at + ShortRows::across();
  const auto* m = reinterpret_cast<const float*>(shared_memory() + F::m_at);
  const float unit = args.folded.scale * log2_e;
  const int own = args.folded.key_head_bias ? 0 : turn / ((shape.N + 15) / 16);
  const auto* bias = reinterpret_cast<const float*>(shared_memory() + F::bias_at) + own * F::keys;
  typename F::Scores s;
  score<F>(s, q_mine, k, m);
  if constexpr (F::two_parts) add_rest<F>(s, q_mine, k, m);
  if (shape.causal || (!F::biased && shape.M < F::keys)) hide<F>(s, shape, turn);
  float top[2], sum[2];
  if constexpr (F::biased && F::has_rest) {
    find_tops<F>(top, s, bias, unit);
    if (any_is_loud(top, 1)) add_rest<F>(s, q_mine, k, m);
  }
  if constexpr (F::biased) add_bias<F>(s, bias, unit);
  find_tops<F>(top, s);
  if constexpr (!F::biased && F::has_rest) {
    if (any_is_loud(top, unit)) {
      add_rest<F>(s, q_mine, k, m);
      find_tops<F>(top, s);
    }
  }
  typename F::Weights p;
  weigh<F>(p, s, top, sum, F::biased ? 1.0f : unit);
  gather<F>(p, sum, memory + F::v_at + ShortRows::along(), q);
  write_rows<F>(args, turn, top, sum, q);
}

/// A warp's next tile of queries on its way, if there is one.
template <class F>
FOCI_DEVICE void bring_queries(const ShortForwardArgs& args, int turn, int turns, Address q) {
  if (turn < turns) {
    const ShortTile tile(args.shape, turn);
    const Place& at = tile.at;
    bring(shared_address() + q + turn / F::warps % 2 * F::q_bytes,
          Lines::of(args.folded.q, at.b, tile.h, at.q0, at.N, short_width), tile.first, 16, lane(),
          warp);
  }
  commit_copies();
}

template <class F>
FOCI_DEVICE void bring_keys(const ShortForwardArgs& args, const Field& from, Address to) {
  const ShortTile tile(args.shape, 0);
  const Place& at = tile.at;
  bring(shared_address() + to, Lines::of(from, at.b, tile.g, at.k0, at.M, short_width), 0, F::keys,
        int(threadIdx.x), F::threads);
}

/// Biases in powers of two, and m.
template <class F>
FOCI_DEVICE void prepare(const ShortForwardArgs& args) {
  const Folded& folded = args.folded;
  const ShortTile tile(args.shape, 0);
  if constexpr (F::biased) {
    auto* bias = reinterpret_cast<float*>(shared_memory() + F::bias_at);
    const int heads = folded.key_head_bias ? 1 : args.shape.H / args.shape.G;
    for (int i = int(threadIdx.x); i < heads * F::keys; i += F::threads)
      bias[i] = log2_e * KeyBias(folded, tile.at, tile.h + i / F::keys, tile.g, i % F::keys).bias;
  }
  if constexpr (F::folds) {
    auto* m = reinterpret_cast<float*>(shared_memory() + F::m_at);
    auto* room = reinterpret_cast<double*>(shared_memory() + F::room_at);
    take_metric<F::type>(m, args.metric, folded, tile.at, tile.s, tile.g, F::v_at, room, [] {
      await_copies<2>();
      __syncthreads();
    });
  }
}

template <class F>
__global__ void __launch_bounds__(F::threads, F::blocks) softmax_short(ShortForwardArgs args) {
  const Shape& shape = args.shape;
  const int mine = int(threadIdx.x) / warp, turns = shape.H / shape.G * ((shape.N + 15) / 16);
  const Address q = F::q_at + mine * 2 * F::q_bytes;
  bring_keys<F>(args, args.folded.v, F::v_at);
  commit_copies();
  bring_keys<F>(args, args.folded.k, F::k_at);
  bring_queries<F>(args, mine, turns, q);
  bring_queries<F>(args, mine + F::warps, turns, q);
  prepare<F>(args);
  await_copies<1>();
  __syncthreads();
  int slot = 0;
#ifndef FOCI_EMULATED
#pragma unroll 1
#endif
  for (int turn = mine; turn < turns; turn += F::warps, slot ^= 1) {
    await_copies<1>();
    __syncwarp();
    attend_tile<F>(args, turn, q + slot * F::q_bytes);
    bring_queries<F>(args, turn + 2 * F::warps, turns, q);
  }
}

template <DType type, int keys, bool biased, bool folds>
void launch_short(const ShortForwardArgs& args, Stream stream) {
  using F = ShortForward<type, keys, biased, folds>;
  const Shape& shape = args.shape;
  const int heads = args.folded.key_head_bias ? 1 : shape.H / shape.G;
  launch("softmax_short", softmax_short<F>,
         {dim3(unsigned(shape.sequences) * unsigned(shape.G)), F::threads, F::bytes(heads)}, stream,
         args);
}

template <DType type, int keys>
void choose_short(const ShortForwardArgs& args, Stream stream) {
  if (args.folded.key_bias.data || args.folded.key_mask.data) {
    args.folded.m.data ? launch_short<type, keys, true, true>(args, stream)
                       : launch_short<type, keys, true, false>(args, stream);
  } else {
    args.folded.m.data ? launch_short<type, keys, false, true>(args, stream)
                       : launch_short<type, keys, false, false>(args, stream);
  }
}

template <DType type>
void choose_keys(const ShortForwardArgs& args, Stream stream) {
  if (args.shape.M <= 128) return choose_short<type, 128>(args, stream);
  if (args.shape.M <= 208) return choose_short<type, 208>(args, stream);
  choose_short<type, 256>(args, stream);
}

}  // namespace

bool softmax_short_pays(const Shape& shape) {
  constexpr int enough = 128;  // blocks, about one a multiprocessor
  return shape.H == shape.G || std::int64_t(shape.sequences) * shape.G >= enough;
}

bool softmax_short_serves(const Shape& shape, const Folded& folded, const Rows& to,
                          const TokenMean* mean) {
  if (to.statistics() || to.by || (folded.m.data && to.want_all_bits())) return false;
  return short_shape(shape, folded, mean) && softmax_mma_serves(shape, folded, to.o);
}

void softmax_short_forward(const Shape& shape, const Folded& folded, const Rows& to,
                           const TokenMean* mean, Stream stream) {
  ShortForwardArgs args{shape, folded, to, {}};
  if (mean) args.metric = {*mean, 1};
  folded.v.dtype == DType::bf16 ? choose_keys<DType::bf16>(args, stream)
                                : choose_keys<DType::f16>(args, stream);
}

}  // namespace foci::cuda
