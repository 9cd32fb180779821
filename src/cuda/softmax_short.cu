// SPDX-License-Identifier: Apache-2.0
// Softmax over short sequences, forward: a block has the keys and values of one key head in shared
// memory and two tiles of 16 queries a warp on their way there. A warp has the scores of its 16
// queries with all keys in registers at once, so that nothing is rescaled. Queries are multiplied
// by m where they become the left side of a product; what their rounding leaves over is added where
// it shows, as softmax_mma.cu does it.
#include "cuda/softmax_short_rows.cuh"

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
struct ShortForward : ShortScores<type_, keys_, biased_, folds_> {
  static constexpr int keys = keys_;
  static constexpr bool biased = biased_, folds = folds_;
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
};

/// A warp's turn-th tile; found again wherever it is needed, for what is kept pushes scores out of
/// the registers.
FOCI_DEVICE ShortTile tile_of(const Shape& shape, int turn) {
  const int tiles = (shape.N + 15) / 16, block = block_index();
  const int g = block % shape.G, s = block / shape.G;
  return {shape.place(s), s, g, g * (shape.H / shape.G) + turn / tiles, turn % tiles * 16};
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
  if (shape.causal || (!F::biased && shape.M < F::keys)) hide<F>(s, shape, tile_of(shape, turn));
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
  write_rows<F>(args.folded, args.to, tile_of(shape, turn), top, sum, q);
}

/// A warp's next tile of queries on its way, if there is one.
template <class F>
FOCI_DEVICE void bring_queries(const ShortForwardArgs& args, int turn, int turns, Address q) {
  if (turn < turns) {
    const ShortTile tile = tile_of(args.shape, turn);
    const Place& at = tile.at;
    bring(shared_address() + q + turn / F::warps % 2 * F::q_bytes,
          Lines::of(args.folded.q, at.b, tile.h, at.q0, at.N, short_width), tile.first, 16, lane(),
          warp);
  }
  commit_copies();
}

template <class F>
FOCI_DEVICE void bring_keys(const ShortForwardArgs& args, const Field& from, Address to) {
  const ShortTile tile = tile_of(args.shape, 0);
  const Place& at = tile.at;
  bring(shared_address() + to, Lines::of(from, at.b, tile.g, at.k0, at.M, short_width), 0, F::keys,
        int(threadIdx.x), F::threads);
}

/// Biases in powers of two, and m.
template <class F>
FOCI_DEVICE void prepare(const ShortForwardArgs& args) {
  const Folded& folded = args.folded;
  const ShortTile tile = tile_of(args.shape, 0);
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
  if (softmax_short_wgmma_serves(shape, folded, mean))
    return softmax_short_wgmma_forward(shape, folded, to, mean, stream);
  ShortForwardArgs args{shape, folded, to, {}};
  if (mean) args.metric = {*mean, 1};
  folded.v.dtype == DType::bf16 ? choose_keys<DType::bf16>(args, stream)
                                : choose_keys<DType::f16>(args, stream);
}

}  // namespace foci::cuda
