// SPDX-License-Identifier: Apache-2.0
// Softmax with the keys split over blocks, on tensor cores. Reading the keys is what takes the
// time: every warp has a ring of its own in shared memory, whose stages of 16 keys and their values
// are on their way while one is worked on, and no warp waits for another before its keys are
// through. Queries are the 16 rows of every product; those that a metric folded are taken apart
// into as many 16-bit numbers as a float has digits for. Sums of weights are those before rounding.
#include "cuda/split_keys_mma.cuh"

#include "cuda/memory.cuh"
#include "cuda/mma.cuh"

namespace foci::cuda {
namespace split {
namespace {

constexpr int warps = threads / warp;
constexpr int step_keys = 16;  // of a warp
constexpr int block_keys = warps * step_keys;
constexpr int rows = split_mma_rows;
constexpr int shallow = 2;                       // stages where there is no room for more
constexpr std::size_t half_memory = 113 * 1024;  // of a Hopper: two blocks side by side

/// Lines of up to `width` numbers. folds: queries are not what keys meet, but m q or floats.
template <DType type_, int width_, bool folds_>
struct Pass {
  static constexpr DType type = type_;
  static constexpr int width = width_;
  static constexpr bool folds = folds_;
  static constexpr int parts = !folds ? 1 : type == DType::bf16 ? 3 : 2;  // of a query
  static constexpr bool q_in_registers = parts == 1 && width <= 128;
  static constexpr int stages = width == 64 ? 6 : 3;

  using Lines16 = Tile<16, width>;                            // queries, keys, values
  static constexpr Address unit_at = parts * Lines16::bytes;  // (rows) floats
  static constexpr Address keep_at = unit_at + rows * 4;      // (stages, warps) bits
  static constexpr Address ring_at = (keep_at + stages * warps * 4 + 127) / 128 * 128;
  static constexpr Address stage = 2 * Lines16::bytes;  // of a warp
  static constexpr std::size_t bytes = ring_at + stages * warps * stage;
  static constexpr std::size_t least_bytes = ring_at + shallow * warps * stage;
  static constexpr int beside = bytes <= half_memory ? 2 : 1;  // blocks

  // When all keys are through: (warps, rows, line) floats, then (warps, rows) largest scores and
  // sums. Eight floats between the lines keep stores out of each other's banks.
  static constexpr int line = width + 8;
  static constexpr Address tops_at = ring_at + warps * rows * line * 4;
  static constexpr Address sums_at = tops_at + warps * rows * 4;
  static_assert(sums_at + warps * rows * 4 <= least_bytes);

  using Sums = float[width / 8][4];
  using Held = unsigned[width / 16][4];
};

template <class T>
FOCI_DEVICE T* shared_at(Address at) {
  return reinterpret_cast<T*>(shared_memory() + at);
}

/// The power of two that takes |x| = most to 2^14 .. 2^15, and what undoes it: nothing of an f16
/// part is lost below its smallest number then, or above its largest.
struct Lift {
  float by = 1, back = 1;
  FOCI_DEVICE explicit Lift(float most) {
    const int power = min(max(int(__float_as_uint(most) >> 23 & 255u) - 127, -100), 100);
    by = __uint_as_float(unsigned(127 + 14 - power) << 23);
    back = __uint_as_float(unsigned(127 - 14 + power) << 23);
  }
};

/// Query r of the tile, two neighbouring numbers a lane, as parts of 16 bits.
template <class P>
FOCI_DEVICE void put_query(float (&x)[P::width / 64][2], int r, float scale) {
  if constexpr (P::folds && P::type == DType::f16) {
    float most = 0;
    FOCI_UNROLL
    for (int i = 0; i < P::width / 32; ++i) most = fmaxf(most, fabsf(x[i / 2][i % 2]));
    const Lift lift(warp_max(most));
    FOCI_UNROLL
    for (int i = 0; i < P::width / 32; ++i) x[i / 2][i % 2] *= lift.by;
    scale *= lift.back;
  }
  if (lane() == 0) shared_at<float>(P::unit_at)[r] = scale;
  FOCI_UNROLL
  for (int i = 0; i < P::width / 64; ++i) {
    const int d = 64 * i + 2 * lane();
    FOCI_UNROLL
    for (int part = 0; part < P::parts; ++part) {
      const unsigned word = pack<P::type>(x[i][0], x[i][1]);
      const Address at = P::Lines16::at(r, d / 8) + Address(d % 8 * 2);
      *shared_at<unsigned>(part * P::Lines16::bytes + at) = word;
      x[i][0] -= wide_of(std::uint16_t(word), P::type);
      x[i][1] -= wide_of(std::uint16_t(word >> 16), P::type);
    }
  }
}

/// The tile's queries, times their metric where they have one, to shared memory, and what makes
/// scores of their products. `room` is for m of a step.
template <class P>
FOCI_DEVICE void load_queries(const Args& args, const Stand& stand, Address room) {
  constexpr int own = rows / warps;  // rows of a warp
  const Folded& folded = args.folded;
  const StepTokens& tokens = args.tokens;
  const int D = args.shape.D;
  auto* m = shared_at<float>(room);  // (N, D)
  if (P::folds && tokens.v_prev)
    tokens.find_metric(m, stand.at.b, stand.g, stand.tile == 0 && stand.split == 0);
  float x[own][P::width / 64][2];
  FOCI_UNROLL
  for (int n = 0; n < own; ++n) {
    const int r = int(threadIdx.x) / warp + n * warps;
    const int h = stand.head(args, r), i = stand.at.q0 + stand.query(r);
    FOCI_UNROLL
    for (int at = 0; at < P::width / 32; ++at) {
      const int d = 64 * (at / 2) + 2 * lane() + at % 2;
      float number = 0;
      if (stand.has(r) && d < D) {
        number = folded.q.load(stand.at.b, h, i, d);
        if (P::folds && tokens.v_prev) number *= m[i * D + d];
      }
      x[n][at / 2][at % 2] = number;
    }
  }
  const float by = folded.scales ? folded.scales[stand.s * args.shape.G + stand.g] : 1.0f;
  FOCI_UNROLL
  for (int n = 0; n < own; ++n)
    put_query<P>(x[n], int(threadIdx.x) / warp + n * warps, folded.scale * by);
}

/// Keys or values on their way into a warp's tiles: a lane has one piece of 16 bytes of every few
/// lines.
template <class P>
struct Source {
  static constexpr int pieces = P::width / 8, at_once = warp / pieces;  // lines
  const std::uint16_t* data;  // the lane's piece of its first line
  std::int64_t stride;
  bool there;  // whether lines are so long

  FOCI_DEVICE Source(const Field& from, const Stand& stand, int width)
      : data(static_cast<const std::uint16_t*>(from.data) +
             from.offset(stand.at.b, stand.g, stand.at.k0)),
        stride(from.strides[2]),
        there(lane() % pieces * 8 < width) {
    if (there) data += lane() % pieces * 8;
  }
  /// Those of the lines from j on whose bits are set; zeros for the others.
  FOCI_DEVICE void copy(Address to, int j, unsigned keep) const {
    const int row = lane() / pieces;
    const std::uint16_t* from = data + (j + row) * stride;
    FOCI_UNROLL
    for (int n = 0; n < step_keys / at_once; ++n) {
      const bool take = there && (keep >> (row + n * at_once) & 1);
      copy_async(to + P::Lines16::at(row + n * at_once, lane() % pieces), take ? from : data, take);
      from += at_once * stride;
    }
  }
};

/// A warp's ring of stages, from the block's first keys on. Which keys count is looked up one step
/// before their copies begin.
template <class P>
struct Ring {
  const Args& args;
  const Stand& stand;
  Source<P> k, v;
  int deep;             // stages
  int next, slot = 0;   // the first key to be copied, and where it goes
  bool coming = false;  // whether key next + lane counts
  int read = 0;         // the stage to be worked on

  FOCI_DEVICE Ring(const Args& all, const Stand& place, int stages)
      : args(all),
        stand(place),
        k(all.folded.k, place, all.shape.D),
        v(all.folded.v, place, all.shape.E),
        deep(stages),
        next(place.first + int(threadIdx.x) / warp * step_keys) {
    look();
  }
  FOCI_DEVICE void look() {
    const int key = next + lane();
    coming = lane() < step_keys && key < stand.last;
    const Field& mask = args.folded.key_mask;
    if (mask && coming) {
      const std::int64_t at = mask.offset(stand.at.b, stand.at.k0 + key);
      coming = static_cast<const std::uint8_t*>(mask.data)[at] != 0;
    }
  }
  FOCI_DEVICE static Address place_of(int slot) {
    return P::ring_at + Address(slot * warps + int(threadIdx.x) / warp) * P::stage;
  }
  FOCI_DEVICE unsigned* keep_of(int slot) const {
    return shared_at<unsigned>(P::keep_at) + slot * warps + int(threadIdx.x) / warp;
  }
  /// The next stage begins.
  FOCI_DEVICE void fill() {
    const unsigned keep = __ballot_sync(~0u, coming);
    if (keep != 0) {
      const Address to = shared_address() + place_of(slot);
      k.copy(to, next, keep);
      v.copy(to + P::Lines16::bytes, next, keep);
    }
    if (lane() == 0) *keep_of(slot) = keep;
    commit_copies();
    slot = slot + 1 == deep ? 0 : slot + 1;
    next += block_keys;
    look();
  }
  /// Until the stage to be worked on is there.
  FOCI_DEVICE void await() const {
    if (deep == P::stages) {
      await_copies<P::stages - 2>();
    } else {
      await_copies<shallow - 2>();
    }
    __syncwarp();
  }
  FOCI_DEVICE void done() { read = read + 1 == deep ? 0 : read + 1; }
};

/// A lane's two rows, lane / 4 and eight below: what they have seen. `sum` is the lane's own part.
struct TwoRows {
  int reach[2] = {};
  std::int64_t bias[2] = {};  // where those of the sequence's keys begin
  float unit[2], top[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  FOCI_DEVICE TwoRows(const Args& args, const Stand& stand, const float* units) {
    FOCI_UNROLL
    for (int half = 0; half < 2; ++half) {
      const int r = lane() / 4 + 8 * half;
      unit[half] = units[r];
      if (!stand.has(r)) continue;
      reach[half] = args.shape.reach(stand.at, stand.query(r));
      const int head = args.folded.key_head_bias ? stand.g : stand.head(args, r);
      bias[half] = args.folded.key_bias.offset(stand.at.b, head, stand.at.k0);
    }
  }
};

/// A lane's part of 16 rows by 16 keys: number i of eight is that of row lane / 4 + 8 half() and
/// key().
using Scores = float[2][4];
FOCI_DEVICE int key_of(int n, int i) { return 8 * n + 2 * (lane() % 4) + i % 2; }

/// Biases of the step's keys, 0 where there are none.
FOCI_DEVICE void load_biases(Scores& bias, const Args& args, const TwoRows& row, int j, int last) {
  const Field& from = args.folded.key_bias;
  FOCI_UNROLL
  for (int x = 0; x < 8; ++x) {
    const int i = x % 4, key = j + key_of(x / 4, i);
    bias[x / 4][i] = 0;
    if (from && key < last && key < row.reach[i / 2])
      bias[x / 4][i] = from.load_at(row.bias[i / 2] + key * from.strides[2]);
  }
}

/// s = q k', sums of products
template <class P>
FOCI_DEVICE void multiply_keys(Scores& s, Address q, Address k, const typename P::Held& q_held) {
  using T = typename P::Lines16;
  float sums[2][2][4] = {};  // of every other step, so that more of them are under way
  FOCI_UNROLL
  for (int step = 0; step < P::width / 16; ++step) {
    unsigned a[4], b[4];
    T::template operands<false>(b, T::beside(k, step), 0);
    FOCI_UNROLL
    for (int part = 0; part < P::parts; ++part) {
      if constexpr (P::q_in_registers) {
        FOCI_UNROLL
        for (int i = 0; i < 4; ++i) a[i] = q_held[step][i];
      } else {
        T::template operands<false>(a, T::beside(q + part * T::bytes, step), 0);
      }
      multiply<P::type>(sums[step % 2][0], a, b[0], b[1]);
      multiply<P::type>(sums[step % 2][1], a, b[2], b[3]);
    }
  }
  FOCI_UNROLL
  for (int x = 0; x < 8; ++x) s[x / 4][x % 4] = sums[0][x / 4][x % 4] + sums[1][x / 4][x % 4];
}

/// Sums of products to scores and on to weights; o fades where a row's largest score grows.
template <class P>
FOCI_DEVICE void weigh(Scores& s, typename P::Sums& o, TwoRows& row, const Scores& bias, int j,
                       unsigned keep) {
  float most[2] = {row.top[0], row.top[1]}, fade[2], top[2];
  FOCI_UNROLL
  for (int x = 0; x < 8; ++x) {
    const int n = x / 4, i = x % 4, half = i / 2;
    const bool seen = (keep >> key_of(n, i) & 1) && j + key_of(n, i) < row.reach[half];
    s[n][i] = seen ? fmaf(s[n][i], row.unit[half], bias[n][i]) : -INFINITY;
    most[half] = fmaxf(most[half], s[n][i]);
  }
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 1));
    most[half] = fmaxf(most[half], __shfl_xor_sync(~0u, most[half], 2));
    top[half] = most[half] == -INFINITY ? 0 : most[half];  // -inf - -inf would be NaN
    fade[half] = expf(row.top[half] - top[half]);
    row.sum[half] *= fade[half];
    row.top[half] = most[half];
  }
  FOCI_UNROLL
  for (int x = 0; x < 8; ++x) {
    const int half = x % 4 / 2;
    s[x / 4][x % 4] = expf(s[x / 4][x % 4] - top[half]);
    row.sum[half] += s[x / 4][x % 4];
  }
  if (!__any_sync(~0u, fade[0] != 1.0f || fade[1] != 1.0f)) return;
  FOCI_UNROLL
  for (int x = 0; x < P::width / 2; ++x) o[x / 4][x % 4] *= fade[x % 4 / 2];
}

/// o += p v
template <class P>
FOCI_DEVICE void gather_values(typename P::Sums& o, const Scores& p, Address v) {
  using T = typename P::Lines16;
  unsigned a[4];
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i)
    a[i] = pack<P::type>(p[i / 2][2 * (i % 2)], p[i / 2][2 * (i % 2) + 1]);
  FOCI_UNROLL
  for (int n = 0; n < P::width / 16; ++n) {
    unsigned b[4];
    T::template operands<true>(b, T::beside(v, n), 0);
    multiply<P::type>(o[2 * n], a, b[0], b[1]);
    multiply<P::type>(o[2 * n + 1], a, b[2], b[3]);
  }
}

/// The warp's o over all of its keys. Copies are under way when queries are looked up.
template <class P>
FOCI_DEVICE void walk(typename P::Sums& o, TwoRows& row, Ring<P>& ring) {
  using T = typename P::Lines16;
  const Address base = shared_address(), q = base + T::along();
  typename P::Held q_held;
  if constexpr (P::q_in_registers) {
    FOCI_UNROLL
    for (int step = 0; step < P::width / 16; ++step)
      T::template operands<false>(q_held[step], T::beside(q, step), 0);
  }
  const Stand& stand = ring.stand;
  const int own = int(threadIdx.x) / warp * step_keys;
  for (int j = stand.first + own; j < stand.last; j += block_keys) {
    Scores s, bias;
    load_biases(bias, ring.args, row, j, stand.last);
    ring.await();
    ring.fill();
    const unsigned keep = *ring.keep_of(ring.read);
    const Address here = base + Ring<P>::place_of(ring.read);
    ring.done();
    if (keep == 0) continue;
    multiply_keys<P>(s, q, here + T::across(), q_held);
    weigh<P>(s, o, row, bias, j, keep);
    gather_values<P>(o, s, here + T::bytes + T::along());
  }
}

/// The warps' sums joined, and out.
template <class P>
FOCI_DEVICE void finish(const typename P::Sums& o, TwoRows& row, const Args& args,
                        const Stand& stand) {
  const int own = int(threadIdx.x) / warp * rows + lane() / 4;
  auto *tops = shared_at<float>(P::tops_at), *sums = shared_at<float>(P::sums_at);
  auto* lines = shared_at<float>(P::ring_at);
  await_copies<0>();
  __syncthreads();  // other warps may still read where this one's lines go
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    row.sum[half] += __shfl_xor_sync(~0u, row.sum[half], 1);
    row.sum[half] += __shfl_xor_sync(~0u, row.sum[half], 2);
    if (lane() % 4 == 0) tops[own + 8 * half] = row.top[half], sums[own + 8 * half] = row.sum[half];
  }
  __syncthreads();
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    float top = -INFINITY;
    for (int w = 0; w < warps; ++w) top = fmaxf(top, tops[w * rows + lane() / 4 + 8 * half]);
    const float share = below(row.top[half], top);
    float* to = lines + (own + 8 * half) * P::line + 2 * (lane() % 4);
    FOCI_UNROLL
    for (int n = 0; n < P::width / 8; ++n)
      *reinterpret_cast<float2*>(to + 8 * n) =
          make_float2(share * o[n][2 * half], share * o[n][2 * half + 1]);
  }
  __syncthreads();
  const int fours = args.shape.E / 4;
  for (int x = int(threadIdx.x); x < rows * fours; x += threads) {
    const int r = x / fours, e = x % fours * 4;
    if (!stand.has(r)) break;
    const std::int64_t slot = stand.line(args, r) * args.by.splits + stand.split;
    float4 sum = make_float4(0, 0, 0, 0);
    for (int w = 0; w < warps; ++w) {
      const float4 part = *reinterpret_cast<const float4*>(lines + (w * rows + r) * P::line + e);
      sum = make_float4(sum.x + part.x, sum.y + part.y, sum.z + part.z, sum.w + part.w);
    }
    *reinterpret_cast<float4*>(args.o + slot * args.shape.E + e) = sum;
    if (e != 0) continue;
    float top = -INFINITY, all = 0;
    for (int w = 0; w < warps; ++w) top = fmaxf(top, tops[w * rows + r]);
    for (int w = 0; w < warps; ++w) all += sums[w * rows + r] * below(tops[w * rows + r], top);
    args.notes[slot] = make_float2(top, all);
  }
}

template <class P>
__global__ void __launch_bounds__(threads, P::beside) split_rows_mma(Args args, int deep) {
  const Stand stand(args);
  if (!stand.has_work()) return;
  stand.append(args);
  Ring<P> ring(args, stand, deep);
  for (int n = 0; n + 1 < deep; ++n) ring.fill();
  // The stage that no copy goes to yet lends its room.
  load_queries<P>(args, stand, P::ring_at + Address(deep - 1) * warps * P::stage);
  __syncthreads();
  TwoRows row(args, stand, shared_at<float>(P::unit_at));
  typename P::Sums o = {};
  walk<P>(o, row, ring);
  finish<P>(o, row, args, stand);
  if (args.arrived) join_at_last<4>(args, stand);
}

bool folds(const Args& args) {
  return args.tokens.v_prev.data || args.folded.q.dtype != args.folded.k.dtype;
}

/// Calls f with a null pointer of the pass.
template <DType type, bool folds, class F>
auto with_width(const Args& args, const F& f) {
  const int most = args.shape.D > args.shape.E ? args.shape.D : args.shape.E;
  if (most <= 64) return f(static_cast<Pass<type, 64, folds>*>(nullptr));
  if (most <= 128) return f(static_cast<Pass<type, 128, folds>*>(nullptr));
  return f(static_cast<Pass<type, 256, folds>*>(nullptr));
}
template <class F>
auto with_pass(const Args& args, const F& f) {
  if (args.folded.v.dtype == DType::bf16)
    return folds(args) ? with_width<DType::bf16, true>(args, f)
                       : with_width<DType::bf16, false>(args, f);
  return folds(args) ? with_width<DType::f16, true>(args, f)
                     : with_width<DType::f16, false>(args, f);
}

}  // namespace
}  // namespace split

bool split_keys_mma_serves(const split::Args& args) {
  const Folded& folded = args.folded;
  if (folded.score != Score::product || folded.k.dtype != folded.v.dtype) return false;
  if (folded.v.dtype == DType::f32 || args.by.tile != split_mma_rows) return false;
  const auto least = split::with_pass(args, []<class P>(P*) { return P::least_bytes; });
  return least <= block_memory();
}

void split_keys_mma(const split::Args& args, Stream stream) {
  using namespace split;
  const auto blocks =
      std::int64_t(args.shape.sequences) * args.shape.G * args.by.tiles * args.by.splits;
  with_pass(args, [&]<class P>(P*) {
    const bool deep = P::bytes <= block_memory();
    const Grid grid{{unsigned(blocks)}, {threads}, deep ? P::bytes : P::least_bytes};
    launch("softmax over split keys", split_rows_mma<P>, grid, stream, args,
           deep ? P::stages : shallow);
  });
}

}  // namespace foci::cuda
