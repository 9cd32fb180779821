// SPDX-License-Identifier: Apache-2.0
// Softmax over short sequences on Hopper, forward: 129 to 208 keys, as pictures have patches. A
// block stays and takes one head after the other: while it computes, everything of the next is on
// its way into the other of two stages. Its first warpgroup brings: one thread sends for tiles,
// three warps estimate m and make biases. The others compute, 64 queries at a time with all keys.
#include "cuda/hopper.cuh"
#include "cuda/softmax_short_rows.cuh"

#include <algorithm>

namespace foci::cuda {

#ifdef FOCI_EMULATED
bool softmax_short_wgmma_serves(const Shape&, const Folded&, const TokenMean*) { return false; }
void softmax_short_wgmma_forward(const Shape&, const Folded&, const Rows&, const TokenMean*,
                                 Stream) {}
#else

namespace {

std::atomic<signed char> known[64];

struct ShortStayArgs {
  CUtensorMap q, k, v, before;
  Shape shape;
  Folded folded;
  Rows to;
  ShortMetric metric;
  int units;  // heads of all sequences
};

/// How a block goes about it.
template <DType type_, bool biased_, bool folds_>
struct ShortStay : ShortScores<type_, 208, biased_, folds_> {
  static constexpr bool biased = biased_, folds = folds_;
  static constexpr int keys = 208, groups = 2, threads = (groups + 1) * warpgroup;
  static constexpr int preparing = 3 * warp;            // threads
  static constexpr int bringing = 88, computing = 208;  // registers of a thread
  static_assert(bringing + groups * computing <= 504);
  static constexpr int tile_bytes = keys * short_line, stage_bytes = 4 * tile_bytes;
  // Tiles of a stage begin at multiples of 1024.
  static constexpr Address q_at = 0, k_at = tile_bytes, v_at = 2 * tile_bytes;
  static constexpr Address before_at = 3 * tile_bytes;
  // Of each stage.
  static constexpr Address m_at = 2 * stage_bytes, bias_at = m_at + 2 * short_width * 4;
  static constexpr Address sums_at = bias_at + 2 * keys * 4;  // of three warps, in double
  static constexpr Address line_at = sums_at + 2 * 3 * short_width * 8;
  static constexpr Address barriers_at = line_at + 2 * short_width * 4;
  static constexpr std::size_t bytes = barriers_at + 8 * 6;
  static_assert(sums_at % 8 == 0 && barriers_at % 8 == 0 && bytes <= 227 * 1024);
};

#ifdef FOCI_HOPPER

// Products with all 208 keys beside those with fewer.
using cuda::multiply;
#define FOCI_NAMES_104                                                                    \
  FOCI_NAMES_64                                                                           \
  ",%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76,%77,%78,%79,%80,%81,%82,%83,%84," \
  "%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99,%100,%101,%102,%103"
#define FOCI_104(d) FOCI_64(d), FOCI_32(d, 64), FOCI_8(d, 96)
FOCI_PRODUCTS(208, 104, FOCI_NAMES_104, FOCI_104(d), "%104", "%105", "%106", "%107", "%108", "%109",
              "%110", bf16)
FOCI_PRODUCTS(208, 104, FOCI_NAMES_104, FOCI_104(d), "%104", "%105", "%106", "%107", "%108", "%109",
              "%110", f16)

/// Who waits for what, of one of two stages. Rounds of a block have them in turn.
template <class W>
struct ShortStage {
  Address memory;
  int round;

  FOCI_DEVICE int index() const { return round % 2; }
  FOCI_DEVICE int parity() const { return round / 2 % 2; }
  FOCI_DEVICE Address tiles() const { return index() * W::stage_bytes; }
  FOCI_DEVICE Address barrier(int which) const {
    return memory + W::barriers_at + 8 * (2 * which + index());
  }
  FOCI_DEVICE Address full() const { return barrier(0); }   // tiles are there
  FOCI_DEVICE Address ready() const { return barrier(1); }  // m and biases too
  FOCI_DEVICE Address empty() const { return barrier(2); }  // nobody reads any more
  FOCI_DEVICE float* m() const { return floats(W::m_at, short_width); }
  FOCI_DEVICE float* bias() const { return floats(W::bias_at, W::keys); }
  FOCI_DEVICE float* line() const { return floats(W::line_at, short_width); }
  FOCI_DEVICE double* sums() const {
    return reinterpret_cast<double*>(tile_memory() + W::sums_at) + index() * 3 * short_width;
  }

 private:
  FOCI_DEVICE float* floats(Address at, int count) const {
    return reinterpret_cast<float*>(tile_memory() + at) + index() * count;
  }
};

/// A round's head.
FOCI_DEVICE ShortTile head_of(const ShortStayArgs& args, int unit, int first) {
  const Shape& shape = args.shape;
  const int h = unit % shape.H, s = unit / shape.H;
  return {shape.place(s), s, shape.key_head(h), h, first};
}

/// The thread that sends for tiles.
template <class W>
FOCI_DEVICE void bring_heads(const ShortStayArgs& args, Address memory) {
  const bool estimates = W::folds && args.metric.estimates;
  for (int unit = int(blockIdx.x), round = 0; unit < args.units; unit += int(gridDim.x), ++round) {
    const ShortStage<W> stage{memory, round};
    const ShortTile head = head_of(args, unit, 0);
    const Address to = memory + stage.tiles(), full = stage.full();
    await(stage.empty(), stage.parity() ^ 1);
    arrive_expecting(full, (3 + estimates) * W::tile_bytes);
    fetch_tile(to + W::v_at, args.v, full, 0, 0, head.g, head.s);
    if (estimates) fetch_tile(to + W::before_at, args.before, full, 0, 0, head.g, head.s);
    fetch_tile(to + W::q_at, args.q, full, 0, 0, head.h, head.s);
    fetch_tile(to + W::k_at, args.k, full, 0, 0, head.g, head.s);
  }
}

/// This thread's part of the sums of |v - v_prev|, in columns 8 (thread % 8) on. Rows that are not
/// there are zeros in both.
template <class W>
FOCI_DEVICE void add_changes(double (&total)[8], const TokenMean& mean, const Place& at,
                             Address tiles, int thread) {
  constexpr int step = W::preparing / 8, whole = 4;  // so many are summed up in float
  const int piece = thread % 8;
  for (int first = thread / 8; first < at.M; first += whole * step) {
    uint4 v[whole], before[whole];
    FOCI_UNROLL
    for (int n = 0; n < whole; ++n) {
      const int row = first + n * step;
      bool counts = row < W::keys;
      if (mean.of.mask) counts = row < at.M && mean.of.counts({at.b, at.k0, at.M, 0}, row);
      v[n] = counts ? piece_at(tiles + W::v_at, row, piece) : make_uint4(0, 0, 0, 0);
      before[n] = counts ? piece_at(tiles + W::before_at, row, piece) : make_uint4(0, 0, 0, 0);
    }
    float sum[8] = {};
    FOCI_UNROLL
    for (int n = 0; n < whole; ++n) add_change<W::type>(sum, v[n], before[n]);
    FOCI_UNROLL
    for (int w = 0; w < 8; ++w) total[w] += double(sum[w]);
  }
}

/// m of the round's key head, where it is estimated; by three warps.
template <class W>
FOCI_DEVICE void estimate(const ShortStayArgs& args, const ShortStage<W>& stage,
                          const ShortTile& head, int thread) {
  const TokenMean& mean = args.metric.mean;
  double total[8] = {};
  add_changes<W>(total, mean, head.at, stage.tiles(), thread);
  FOCI_UNROLL
  for (int w = 0; w < 8; ++w) {
    total[w] += __shfl_xor_sync(~0u, total[w], 8);
    total[w] += __shfl_xor_sync(~0u, total[w], 16);
    if (lane() < 8) stage.sums()[thread / warp * short_width + 8 * lane() + w] = total[w];
  }
  meet(1, W::preparing);
  if (thread >= warp) return;
  const int counted = count_tokens(mean, head.at);
  float* line = stage.line();
  for (int d = lane(); d < short_width; d += warp) {
    const double* sums = stage.sums() + d;
    const double sum = sums[0] + sums[short_width] + sums[2 * short_width];
    line[d] = counted > 0 ? float(sum / double(counted)) : 0.0f;
  }
  __syncwarp();
  const float by = divisor_of(mean.normalize, line, short_width, counted);
  const float all = mean.flat ? flat_of(line, short_width, by) : 0.0f;
  const std::int64_t row = std::int64_t(head.s) * mean.of.heads + head.g;
  const bool tells = head.h % (args.shape.H / args.shape.G) == 0;  // the first of its queries'
  for (int d = lane(); d < short_width; d += warp) {
    const float own = by == 0 ? 1.0f : line[d] / by, m = mean.flat ? all : own;
    stage.m()[d] = m;
    if (tells) mean.write(m, own, row, d, {head.s, head.g, 0});
  }
  if (lane() == 0 && mean.by && tells) {
    mean.by[row] = by;
    mean.counted[row] = counted;
  }
}

/// What is made of what came, by three warps.
template <class W>
FOCI_DEVICE void prepare_heads(const ShortStayArgs& args, Address memory) {
  const int thread = int(threadIdx.x);
  for (int unit = int(blockIdx.x), round = 0; unit < args.units; unit += int(gridDim.x), ++round) {
    const ShortStage<W> stage{memory, round};
    const ShortTile head = head_of(args, unit, 0);
    await(stage.full(), stage.parity());
    if constexpr (W::folds) {
      if (args.metric.estimates) {
        estimate<W>(args, stage, head, thread);
      } else if (thread < short_width) {
        stage.m()[thread] = args.folded.m.load(head.s, head.g, 0, thread);
      }
    }
    if constexpr (W::biased) {
      const int own = args.folded.key_head_bias ? head.g * (args.shape.H / args.shape.G) : head.h;
      for (int j = thread; j < W::keys; j += W::preparing)
        stage.bias()[j] = log2_e * KeyBias(args.folded, head.at, own, head.g, j).bias;
    }
    __syncwarp();
    arrive_as_warp(stage.ready());
  }
}

/// Queries of a warp as a left side, times m.
template <class W>
FOCI_DEVICE void take_queries(unsigned (&a)[short_width / 4], Address q, const float* m) {
  FOCI_UNROLL
  for (int step = 0; step < short_width / 16; ++step) {
    unsigned words[4];
    ShortRows::operands<false>(words, ShortRows::beside(q, step), 0);
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) {
      if constexpr (W::folds) {
        const float* here = m + 16 * step + 8 * (i / 2) + 2 * (lane() % 4);
        words[i] = folded_pair<W::type>(words[i], *reinterpret_cast<const float2*>(here));
      }
      a[4 * step + i] = words[i];
    }
  }
}

/// From scores of a warp's queries to their weights.
template <class W>
FOCI_DEVICE void weigh_rows(typename W::Weights& p, typename W::Scores& s, float (&top)[2],
                            float (&sum)[2], const ShortStayArgs& args, const ShortStage<W>& stage,
                            const ShortTile& tile) {
  const float unit = args.folded.scale * log2_e;
  const Address tiles = stage.memory + stage.tiles();
  const Address q = tiles + W::q_at + tile.first * short_line + ShortRows::along();
  const Address k = tiles + W::k_at + ShortRows::across();
  if (args.shape.causal || (!W::biased && args.shape.M < W::keys)) hide<W>(s, args.shape, tile);
  if constexpr (W::biased && W::has_rest) {
    find_tops<W>(top, s, stage.bias(), unit);
    if (any_is_loud(top, 1)) add_rest<W>(s, q, k, stage.m());
  }
  if constexpr (W::biased) add_bias<W>(s, stage.bias(), unit);
  find_tops<W>(top, s);
  if constexpr (!W::biased && W::has_rest) {
    if (any_is_loud(top, unit)) {
      add_rest<W>(s, q, k, stage.m());
      find_tops<W>(top, s);
    }
  }
  weigh<W>(p, s, top, sum, W::biased ? 1.0f : unit);
}

/// o of a warp's queries to where they were, and on from there.
template <class W>
FOCI_DEVICE void leave_rows(const float (&o)[short_width / 2], const float (&top)[2],
                            const float (&sum)[2], const ShortStayArgs& args,
                            const ShortStage<W>& stage, const ShortTile& tile) {
  const Address q = stage.tiles() + W::q_at + tile.first * short_line;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const float share = sum[half] > 0 ? 1 / sum[half] : 0;
    FOCI_UNROLL
    for (int n = 0; n < short_width / 8; ++n) {
      const Address here = q + ShortRows::at(8 * half + lane() / 4, n);
      *reinterpret_cast<unsigned*>(tile_memory() + here + 4 * (lane() % 4)) =
          pack<W::type>(o[4 * n + 2 * half] * share, o[4 * n + 2 * half + 1] * share);
    }
  }
  __syncwarp();
  write_rows<W>(args.folded, args.to, tile, top, sum, q);
}

/// 64 queries of a head; a warp has 16 of them, if there are so many.
template <class W>
FOCI_DEVICE void attend_64(const ShortStayArgs& args, const ShortStage<W>& stage,
                           const ShortTile& tile) {
  const bool any = tile.first < tile.at.N;
  const Address tiles = stage.memory + stage.tiles();
  typename W::Scores s;
  unsigned q[short_width / 4] = {};
  if (any)
    take_queries<W>(q, tiles + W::q_at + tile.first * short_line + ShortRows::along(), stage.m());
  const std::uint64_t k = operand(tiles + W::k_at, 16, 1024);
  auto& sums = reinterpret_cast<float(&)[W::keys / 2]>(s);
  begin_products();
  FOCI_UNROLL
  for (int step = 0; step < short_width / 16; ++step)
    multiply<W::type>(sums, q[4 * step], q[4 * step + 1], q[4 * step + 2], q[4 * step + 3],
                      on(k, 32 * step), step > 0);
  commit_products();
  await_products<0>();
  pin(sums);
  float top[2] = {}, sum[2] = {};
  typename W::Weights p = {};
  if (any) weigh_rows<W>(p, s, top, sum, args, stage, tile);
  float o[short_width / 2];
  const std::uint64_t v = operand(tiles + W::v_at, W::tile_bytes, 1024);
  begin_products();
  FOCI_UNROLL
  for (int step = 0; step < W::keys / 16; ++step)
    multiply<W::type, true>(o, p[2 * step][0], p[2 * step][1], p[2 * step + 1][0],
                            p[2 * step + 1][1], on(v, 16 * short_line * step), step > 0);
  commit_products();
  await_products<0>();
  pin(o);
  if (any) leave_rows<W>(o, top, sum, args, stage, tile);
}

/// A warpgroup that computes: every third tile of 64 queries, head by head.
template <class W>
FOCI_DEVICE void compute(const ShortStayArgs& args, Address memory, int group) {
  const int tiles = (args.shape.N + 63) / 64, mine = int(threadIdx.x) % warpgroup / warp;
  int tile = group, unit = int(blockIdx.x);
#pragma unroll 1
  for (int round = 0;; tile += W::groups) {
    for (; tile >= tiles; tile -= tiles, ++round) unit += int(gridDim.x);
    if (unit >= args.units) return;
    const ShortStage<W> stage{memory, round};
    await(stage.full(), stage.parity());
    await(stage.ready(), stage.parity());
    attend_64<W>(args, stage, head_of(args, unit, 64 * tile + 16 * mine));
    show_writes();  // o, where the next queries will be
    __syncwarp();
    arrive_as_warp(stage.empty());
  }
}

#endif  // FOCI_HOPPER

template <class W>
__global__ void __launch_bounds__(W::threads, 1)
    softmax_short_wgmma(const __grid_constant__ ShortStayArgs args) {
#ifdef FOCI_HOPPER
  const Address memory = Address(__cvta_generic_to_shared(tile_memory()));
  const int thread = int(threadIdx.x);
  if (thread == 0) {
    const int tiles = (args.shape.N + 63) / 64, warps = tiles * (warpgroup / warp) * warp_arrivals;
    for (int round = 0; round < 2; ++round) {
      const ShortStage<W> stage{memory, round};
      set_up_barrier(stage.full(), 1);
      set_up_barrier(stage.ready(), W::preparing / warp * warp_arrivals);
      set_up_barrier(stage.empty(), warps);
    }
    show_barriers();
  }
  __syncthreads();
  if (thread < warpgroup) {
    leave_registers<W::bringing>();
    if (thread < W::preparing) prepare_heads<W>(args, memory);
    if (thread == W::preparing) bring_heads<W>(args, memory);
  } else {
    take_registers<W::computing>();
    compute<W>(args, memory, thread / warpgroup - 1);
  }
#endif
}

template <class W>
void launch_stay(ShortStayArgs args, Stream stream) {
  const Shape& shape = args.shape;
  const int B = shape.sequences;
  const auto map = [&](const Field& of, int heads, int tokens) {
    return tensor_map({of, B, heads, tokens, short_width, W::keys});
  };
  args.q = map(args.folded.q, shape.H, shape.N);
  args.k = map(args.folded.k, shape.G, shape.M);
  args.v = map(args.folded.v, shape.G, shape.M);
  if (args.metric.estimates) args.before = map(args.metric.mean.of.y, shape.G, shape.M);
  args.units = B * shape.H;
  const int processors = multiprocessors("softmax_short_wgmma");
  launch("softmax_short_wgmma", softmax_short_wgmma<W>,
         {dim3(unsigned(std::min(processors, args.units))), dim3(W::threads), W::bytes}, stream,
         args);
}

template <DType type>
void choose_stay(const ShortStayArgs& args, Stream stream) {
  if (args.folded.key_bias.data || args.folded.key_mask.data) {
    args.folded.m.data ? launch_stay<ShortStay<type, true, true> >(args, stream)
                       : launch_stay<ShortStay<type, true, false> >(args, stream);
  } else {
    args.folded.m.data ? launch_stay<ShortStay<type, false, true> >(args, stream)
                       : launch_stay<ShortStay<type, false, false> >(args, stream);
  }
}

}  // namespace

bool softmax_short_wgmma_serves(const Shape& shape, const Folded& folded, const TokenMean* mean) {
  using Any = ShortStay<DType::bf16, false, true>;
  if (shape.N <= 64 || shape.N > Any::keys || shape.M <= 128 || shape.M > Any::keys) return false;
  const auto goes = [&](const Field& of, int heads, int tokens) {
    return has_tensor_map({of, shape.sequences, heads, tokens, short_width, Any::keys});
  };
  return goes(folded.q, shape.H, shape.N) && goes(folded.k, shape.G, shape.M) &&
         goes(folded.v, shape.G, shape.M) && (!mean || goes(mean->of.y, shape.G, shape.M)) &&
         runs_on_hopper(softmax_short_wgmma<Any>, known);
}

void softmax_short_wgmma_forward(const Shape& shape, const Folded& folded, const Rows& to,
                                 const TokenMean* mean, Stream stream) {
  ShortStayArgs args{};
  args.shape = shape, args.folded = folded, args.to = to;
  if (mean) args.metric = {*mean, 1};
  folded.v.dtype == DType::bf16 ? choose_stay<DType::bf16>(args, stream)
                                : choose_stay<DType::f16>(args, stream);
}

#endif  // FOCI_EMULATED
}  // namespace foci::cuda
