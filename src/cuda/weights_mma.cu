// SPDX-License-Identifier: Apache-2.0
// relu2 and identity over bf16 and f16, forward: a block has 64 or 128 queries, a warp 16 or 32 of
// them, and walks over tiles of keys from the last that it sees to the first. Scores become weights
// where they lie, and o waits in registers until the row's divisor is known.
#include "cuda/weights_mma.cuh"

#include "cuda/weights_tiles.cuh"

namespace foci::cuda {
namespace {

/// What a row sums up along the way: |x|, x^2, or nothing.
enum class Gauge : int { nothing, size, squares };

struct ForwardArgs {
  Shape shape;
  Folded folded;
  Weigh weigh;
  Gauge gauge;
  Field o;
  int tiles;  // of queries in the longest sequence
};

/// How a block goes about it. biased: a key has a bias or a mask.
template <DType type_, int width_, bool biased_>
struct Forward {
  static constexpr DType type = type_;
  static constexpr int width = width_;
  static constexpr bool biased = biased_;
  static constexpr int warps = 4, threads = warps * warp;
  static constexpr int rows = width <= 128 ? 2 : 1;  // of 16 queries, a warp's
  static constexpr int queries = warps * rows * 16;
  static constexpr int keys = width <= 128 ? 64 : 32;
  static constexpr bool q_in_registers = width <= 64;

  using Q = Tile<queries, width>;
  using K = Tile<keys, width>;  // and of values
  using Facts = KeyTile<keys>;
  static constexpr Address q_at = 0, k_at = Q::bytes, stage = 2 * K::bytes;
  static constexpr Address facts_at = k_at + 2 * stage;
  static constexpr std::size_t bytes = facts_at + (biased ? 2 * sizeof(Facts) : 0);

  using Scores = float[rows][keys / 8][4];
  using Sums = float[rows][width / 8][4];
};

/// A thread's rows: 16 m + 8 half + lane / 4 of its warp's.
template <class F>
struct RowState {
  float unit[F::rows][2];  // a power of two that scores are multiplied by
  float sum[F::rows][2];   // this lane's part, in such units
  int seen[F::rows][2];    // keys that are kept, biased alone

  FOCI_DEVICE RowState() {
    FOCI_UNROLL
    for (int i = 0; i < 2 * F::rows; ++i) {
      unit[i / 2][i % 2] = 1;
      sum[i / 2][i % 2] = 0;
      seen[i / 2][i % 2] = 0;
    }
  }
};

/// Scores to x, which is y or relu(y)^2 of y = factor s.
template <class F, Kind kind, Gauge gauge>
FOCI_DEVICE void take_values(typename F::Scores& s, RowState<F>& row, float scale) {
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2;
    const float factor = scale * row.unit[m][half];
    float sum = row.sum[m][half];
    FOCI_UNROLL
    for (int j = 0; j < F::keys / 4; ++j) {
      float& x = s[m][j / 2][2 * half + j % 2];
      x = value_of<kind>(x * factor);
      if (gauge == Gauge::size) sum += fabsf(x);
      if (gauge == Gauge::squares) sum = fmaf(x, x, sum);
    }
    row.sum[m][half] = sum;
  }
}

/// Where sums lie while 16 bits can hold x, which is no larger, as well as x divided by them.
template <class F>
FOCI_DEVICE Range range_of(Gauge gauge) {
  if (F::type == DType::bf16) return Range::of_float();
  return gauge == Gauge::squares ? Range{0x1p30f, 0x1p-12f} : Range{0x1p15f, 0x1p-6f};
}

/// Another unit for the rows of the warp whose sums are out of range; x and o come along.
template <class F>
FOCI_DEVICE void change_units(typename F::Scores& x, RowState<F>& row, typename F::Sums& o,
                              const ForwardArgs& args) {
  const Range range = range_of<F>(args.gauge);
  const Degrees degrees(args.weigh.kind, args.gauge == Gauge::squares);
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2;
    const float ratio = range.change(row.unit[m][half], row.sum[m][half], degrees);
    FOCI_UNROLL
    for (int j = 0; j < F::keys / 4; ++j) x[m][j / 2][2 * half + j % 2] *= ratio;
    FOCI_UNROLL
    for (int j = 0; j < F::width / 4; ++j) o[m][j / 2][2 * half + j % 2] *= ratio;
  }
}

/// Scores become x, and the rows' sums learn of it.
template <class F>
FOCI_DEVICE void weigh(typename F::Scores& s, RowState<F>& row, typename F::Sums& o,
                       const ForwardArgs& args, float scale) {
  const bool squares = args.gauge == Gauge::squares;
  if (args.weigh.kind == Kind::relu2) {
    if (args.gauge == Gauge::nothing)
      return take_values<F, Kind::relu2, Gauge::nothing>(s, row, scale);
    squares ? take_values<F, Kind::relu2, Gauge::squares>(s, row, scale)
            : take_values<F, Kind::relu2, Gauge::size>(s, row, scale);
  } else {
    squares ? take_values<F, Kind::identity, Gauge::squares>(s, row, scale)
            : take_values<F, Kind::identity, Gauge::size>(s, row, scale);
  }
  const Range range = range_of<F>(args.gauge);
  bool fine = true;
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) fine = fine && range.holds(row.sum[i / 2][i % 2]);
  if (!__all_sync(~0u, fine)) change_units<F>(s, row, o, args);
}

/// Sums of products to scores.
template <class F>
FOCI_DEVICE void add_bias(typename F::Scores& s, const typename F::Facts& facts) {
  FOCI_UNROLL
  for (int n = 0; n < F::keys / 8; ++n) {
    const int j = 8 * n + 2 * (lane() % 4);
    const float2 scale = *reinterpret_cast<const float2*>(facts.scale + j);
    const float2 bias = *reinterpret_cast<const float2*>(facts.bias + j);
    FOCI_UNROLL
    for (int m = 0; m < F::rows; ++m) {
      s[m][n][0] = fmaf(s[m][n][0], scale.x, bias.x);
      s[m][n][1] = fmaf(s[m][n][1], scale.y, bias.y);
      s[m][n][2] = fmaf(s[m][n][2], scale.x, bias.x);
      s[m][n][3] = fmaf(s[m][n][3], scale.y, bias.y);
    }
  }
}

/// What a block works on.
struct Block {
  Place at;
  int h, g, first;  // of its queries
  float scale;      // c

  FOCI_DEVICE Block(const ForwardArgs& args, int index, int queries) {
    first = (args.tiles - 1 - index % args.tiles) * queries;  // causal: the longest first
    h = index / args.tiles % args.shape.H;
    g = args.shape.key_head(h);
    const int s = index / args.tiles / args.shape.H;
    at = args.shape.place(s);
    scale = scale_of(args.folded, args.shape, s, g);
  }
};

/// No score where a row does not reach the key; `key` is the tile's first. Keys are counted.
template <class F>
FOCI_DEVICE void see(typename F::Scores& s, RowState<F>& row, const ForwardArgs& args,
                     const Block& block, const typename F::Facts& facts, int key, bool whole) {
  const int first = block.first + int(threadIdx.x) / warp * 16 * F::rows + lane() / 4;
  FOCI_UNROLL
  for (int m = 0; m < F::rows; ++m) {
    int reach[2];
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      reach[half] = args.shape.reach(block.at, first + 16 * m + 8 * half) - key;
      if (F::biased) row.seen[m][half] += facts.count(reach[half]);
    }
    if (whole) continue;
    FOCI_UNROLL
    for (int i = 0; i < F::keys / 2; ++i) {
      if (8 * (i / 4) + 2 * (lane() % 4) + i % 2 >= reach[i % 4 / 2]) s[m][i / 4][i % 4] = 0;
    }
  }
}

/// 1 over what row `token` is divided by, in its units.
template <class F>
FOCI_DEVICE float share_of(const ForwardArgs& args, const Block& block, const RowState<F>& row,
                           int m, int half, int token) {
  const Rescale rescale = args.weigh.rescale;
  const float sum = quad_sum(row.sum[m][half]), unit = row.unit[m][half];
  float by = args.weigh.kind == Kind::relu2 ? unit * unit : unit;
  if (rescale == Rescale::length)
    by *= float(F::biased ? row.seen[m][half] : args.shape.reach(block.at, token));
  if (rescale == Rescale::l1) by = sum;
  if (rescale == Rescale::l2) by = sqrtf(sum);
  return by == 0 ? 0 : 1 / by;
}

/// o, by way of the shared memory in which q was: whole pieces of 16 bytes go out.
template <class F>
FOCI_DEVICE void finish(const ForwardArgs& args, const RowState<F>& row, typename F::Sums& o) {
  const Block block(args, block_index(), F::queries);
  const int mine = int(threadIdx.x) / warp * 16 * F::rows;
  std::byte* memory = shared_memory() + F::q_at;
  __syncwarp();
  FOCI_UNROLL
  for (int i = 0; i < 2 * F::rows; ++i) {
    const int m = i / 2, half = i % 2, r = mine + 16 * m + 8 * half + lane() / 4;
    const float share = share_of<F>(args, block, row, m, half, block.first + r);
    FOCI_UNROLL
    for (int n = 0; n < F::width / 8; ++n) {
      *reinterpret_cast<unsigned*>(memory + F::Q::at(r, n) + 4 * (lane() % 4)) =
          pack<F::type>(o[m][n][2 * half] * share, o[m][n][2 * half + 1] * share);
    }
  }
  __syncwarp();
  auto* out = static_cast<std::uint16_t*>(args.o.data);
  constexpr int pieces = F::width / 8;
  for (int i = lane(); i < 16 * F::rows * pieces; i += warp) {
    const int r = mine + i / pieces, piece = i % pieces, token = block.first + r;
    if (token >= block.at.N || 8 * piece >= args.shape.E) continue;
    const std::int64_t at = args.o.offset(block.at.b, block.h, block.at.q0 + token, 8 * piece);
    *reinterpret_cast<uint4*>(out + at) =
        *reinterpret_cast<const uint4*>(memory + F::Q::at(r, piece));
  }
}

/// The warp's queries as the left side of scores: from registers, which `q` fills once it is there,
/// or from shared memory.
template <class F>
struct Asking {
  Address q;
  unsigned held[F::rows][F::q_in_registers ? F::width / 16 : 1][4];

  FOCI_DEVICE explicit Asking(Address at) : q(at) {
    if constexpr (F::q_in_registers) {
      await_copies<0>();
      __syncthreads();
      FOCI_UNROLL
      for (int i = 0; i < F::rows * (F::width / 16); ++i)
        rows_at<typename F::Q>(q)(held[i % F::rows][i / F::rows], i % F::rows, i / F::rows);
    }
  }
  FOCI_DEVICE void operator()(unsigned (&a)[4], int m, int step) const {
    if constexpr (F::q_in_registers) {
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) a[i] = held[m][step][i];
    } else {
      rows_at<typename F::Q>(q)(a, m, step);
    }
  }
};

/// Every tile of keys that the block's queries see.
template <class F>
FOCI_DEVICE void walk(const ForwardArgs& args, const Block& block, RowState<F>& row,
                      typename F::Sums& o) {
  const Place& at = block.at;
  const Folded& folded = args.folded;
  const Lines q = Lines::of(folded.q, at.b, block.h, at.q0, at.N, args.shape.D);
  const Lines k = Lines::of(folded.k, at.b, block.g, at.k0, at.M, args.shape.D);
  const Lines v = Lines::of(folded.v, at.b, block.g, at.k0, at.M, args.shape.E);
  const Address memory = shared_address();
  const int mine = int(threadIdx.x) / warp * 16 * F::rows, thread = int(threadIdx.x);
  auto* facts = reinterpret_cast<typename F::Facts*>(shared_memory() + F::facts_at);

  const int most = args.shape.reach(at, min(block.first + F::queries, at.N) - 1);
  const int all = args.shape.reach(at, block.first);  // the keys that every query sees
  int tile = (most + F::keys - 1) / F::keys - 1;
  if (tile < 0) return;

  const auto load = [&](int t, int slot) {
    const Address to = memory + F::k_at + slot * F::stage;
    load_tile<typename F::K, F::threads>(to, k, t * F::keys);
    load_tile<typename F::K, F::threads>(to + F::K::bytes, v, t * F::keys);
  };
  const auto facts_of = [&](int t) {
    const int j = F::biased && t >= 0 && thread < F::keys ? t * F::keys + thread : -1;
    return KeyFacts(folded, at, block.h, block.g, j, block.scale);
  };
  load_tile<typename F::Q, F::threads>(memory + F::q_at, q, block.first);
  load(tile, 0);
  commit_copies();
  if (F::biased) facts[0].write(facts_of(tile), thread);

  const Asking<F> ask(memory + F::q_at + F::Q::along() + mine * F::Q::panel * 2);
  for (int slot = 0; tile >= 0; --tile, slot ^= 1) {
    await_copies<0>();
    __syncthreads();
    if (tile > 0) load(tile - 1, slot ^ 1);
    commit_copies();
    const KeyFacts next = facts_of(tile - 1);
    const Address here = memory + F::k_at + slot * F::stage;
    typename F::Scores s;
    cross<F::type, typename F::K>(s, here + F::K::across(), ask);
    if (F::biased) add_bias<F>(s, facts[slot]);
    const bool whole = (tile + 1) * F::keys <= all;
    if (!whole || (F::biased && args.weigh.rescale == Rescale::length))
      see<F>(s, row, args, block, facts[slot], tile * F::keys, whole);
    weigh<F>(s, row, o, args, F::biased ? 1.0f : block.scale);
    sum_up<F::type, typename F::K, F::keys / 16>(o, here + F::K::bytes + F::K::along(), 0,
                                                 rounded<F::type>(s));
    if (F::biased && tile > 0) facts[slot ^ 1].write(next, thread);
  }
}

template <class F>
__global__ void __launch_bounds__(F::threads) weights_forward(ForwardArgs args) {
  const Block block(args, block_index(), F::queries);
  if (block.first >= block.at.N) return;
  RowState<F> row;
  typename F::Sums o;
  clear(o);
  walk<F>(args, block, row, o);
  finish<F>(args, row, o);
}

template <DType type, int width, bool biased>
void launch_forward(ForwardArgs args, Stream stream) {
  using F = Forward<type, width, biased>;
  args.tiles = int(parts(args.shape.longest_n, F::queries));
  const std::int64_t blocks = std::int64_t(args.tiles) * args.shape.H * args.shape.sequences;
  launch("weights_mma_forward", weights_forward<F>, {dim3(unsigned(blocks)), F::threads, F::bytes},
         stream, args);
}

/// The sizes most heads have go without a bias; others take the one that asks for it.
template <DType type>
void choose_forward(const ForwardArgs& args, Stream stream) {
  const bool biased = args.folded.key_bias.data || args.folded.key_mask.data;
  switch (weights_mma_width(args.shape.D, args.shape.E)) {
    case 32:
      return launch_forward<type, 32, true>(args, stream);
    case 64:
      return biased ? launch_forward<type, 64, true>(args, stream)
                    : launch_forward<type, 64, false>(args, stream);
    case 128:
      return biased ? launch_forward<type, 128, true>(args, stream)
                    : launch_forward<type, 128, false>(args, stream);
    default:
      return launch_forward<type, 256, true>(args, stream);
  }
}

}  // namespace

bool weights_mma_serves(const Shape& shape, const Folded& folded, const Weigh& weigh,
                        const Rows& to) {
  const DType type = folded.q.dtype;
  if (weigh.kind != Kind::relu2 && weigh.kind != Kind::identity) return false;
  if (type != DType::bf16 && type != DType::f16) return false;
  if (folded.score != Score::product || folded.spans || folded.m.data || folded.row_bias.data ||
      folded.by_mma)
    return false;
  if (shape.longest_m < 2 || weigh.features) return false;
  for (const Field* field : {&to.concentration, &to.effective_keys, &to.largest, &to.largest_at}) {
    if (field->data) return false;
  }
  for (const int width : {shape.D, shape.E}) {
    if (width % 8 != 0 || width < 8 || width > 256) return false;
  }
  for (const Field* field : {&folded.q, &folded.k, &folded.v, &to.o}) {
    if (field->dtype != type || !in_pieces(*field)) return false;
  }
  return !to.by;
}

void weights_mma_forward(const Shape& shape, const Folded& folded, const Weigh& weigh,
                         const Rows& to, Stream stream) {
  const bool bf16 = folded.q.dtype == DType::bf16;
  ForwardArgs args{shape, folded, weigh, Gauge::size, to.o, 0};
  if (weigh.rescale == Rescale::l2) {
    args.gauge = Gauge::squares;
  } else if (bf16 && weigh.rescale != Rescale::l1 && weigh.kind == Kind::relu2) {
    args.gauge = Gauge::nothing;  // nothing leaves the range of bf16 that o does not leave
  }
  bf16 ? choose_forward<DType::bf16>(args, stream) : choose_forward<DType::f16>(args, stream);
}

}  // namespace foci::cuda
