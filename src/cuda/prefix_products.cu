// SPDX-License-Identifier: Apache-2.0
// Full metrics along the prefix as products on tensor cores: every chunk of queries has a metric of
// its own, and with it a bias for every key that it looks at,
//   b = -1/2 |W (k - centre)|^2 = -1/2 |W k - W centre|^2, W lower triangular,
// one f16 part of each. A warp has 32 keys; blocks of W above the diagonal are not multiplied.
#include "cuda/full_products.cuh"
#include "cuda/largest.cuh"
#include "cuda/softmax_mma_backward.cuh"
#include "cuda/two_parts.cuh"

namespace foci::cuda {

namespace {

constexpr int bias_threads = 128, bias_keys = 128;
constexpr int group = 64;  // columns of W k at a time

struct NarrowArgs {
  FullProducts of;
  Field k;
  int lanes, tiles;  // threads of a key, a power of 2; blocks along the keys of a head
};

/// Keys in f16, masked ones 0, and how large they are.
__global__ void __launch_bounds__(bias_threads) narrow_keys(NarrowArgs args) {
  const Slots& slots = args.of.slots;
  const Shape& shape = slots.shape;
  const int tile = int(blockIdx.x) % args.tiles, head = int(blockIdx.x) / args.tiles;
  const int g = head % shape.G, piece = int(threadIdx.x) % args.lanes;
  const Place at = shape.place(head / shape.G);
  const int keys = bias_threads / args.lanes;
  float most = 0;
  for (int first = tile * keys; first < at.M; first += args.tiles * keys) {
    const int j = first + int(threadIdx.x) / args.lanes;
    const bool there = j < at.M && 8 * piece < shape.D;
    Eight x = {};
    if (there && slots.keeps(at, j))
      x = load_eight(args.k, args.k.offset(at.b, g, at.k0 + j) + 8 * piece);
    float sum = 0;
    unsigned words[4];
    FOCI_UNROLL
    for (int i = 0; i < 8; ++i) sum = fmaf(x.x[i], x.x[i], sum);
    FOCI_UNROLL
    for (int i = 0; i < 4; ++i) words[i] = pack<DType::f16>(x.x[2 * i], x.x[2 * i + 1]);
    if (there && args.of.narrow_k) {
      const std::int64_t line = (std::int64_t(at.b) * shape.G + g) * shape.M + at.k0 + j;
      *reinterpret_cast<uint4*>(args.of.narrow_k + line * shape.D + 8 * piece) =
          make_uint4(words[0], words[1], words[2], words[3]);
    }
    for (int step = 1; step < args.lanes; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (sum > most || sum != sum) most = sum;
  }
  raise(args.of.largest + head * FullProducts::sizes + 2, most);
}

struct BiasArgs {
  FullProducts of;
  Field k;  // f16
};

template <int width_>
struct BiasWork {
  static constexpr int width = width_;
  using X = Tile<bias_keys, width>;
  using M = Tile<width, width>;
  static constexpr Address m_at = 0, x_at = M::bytes, moved_at = x_at + 2 * X::bytes;
  static constexpr std::size_t bytes = moved_at + 4 * width;
  using Sums = float[2][group / 8][4];
  FOCI_DEVICE static float* moved() { return reinterpret_cast<float*>(shared_memory() + moved_at); }
};

/// W centre, W as it was rounded.
template <class W>
FOCI_DEVICE void move_centre(const float* centre, int D) {
  for (int e = int(threadIdx.x); e < W::width; e += bias_threads) {
    float sum = 0;
    for (int piece = 0; 8 * piece < D; ++piece) {
      const uint4 four =
          *reinterpret_cast<const uint4*>(shared_memory() + W::m_at + W::M::at(e, piece));
      const unsigned words[] = {four.x, four.y, four.z, four.w};
      FOCI_UNROLL
      for (int i = 0; i < 8; ++i)
        sum = fmaf(wide_of(std::uint16_t(words[i / 2] >> 16 * (i % 2)), DType::f16),
                   centre[8 * piece + i], sum);
    }
    W::moved()[e] = sum;
  }
}

/// Columns 64 `part`.. of W k for the warp's 32 keys.
template <class W, int part>
FOCI_DEVICE void whiten_keys(typename W::Sums& sums, Address x) {
  x += shared_address() + W::X::along() + int(threadIdx.x) / warp * 32 * W::X::panel * 2;
  const Address m = shared_address() + W::m_at + W::M::across();
  FOCI_UNROLL
  for (int i = 0; i < group; ++i) sums[i / (group / 2)][i / 4 % (group / 8)][i % 4] = 0;
  FOCI_UNROLL
  for (int step = 0; step < group / 16 * (part + 1); ++step) {
    unsigned a[2][4];
    const Address x_here = W::X::beside(x, step), m_here = W::M::beside(m, step);
    W::X::template operands<false>(a[0], x_here, 0);
    W::X::template operands<false>(a[1], x_here, 16);
    FOCI_UNROLL
    for (int n = 0; n < group / 16; ++n) {
      if (group / 16 * part + n < step) continue;
      unsigned b[4];
      W::M::template operands<false>(b, m_here, group * part + 16 * n);
      FOCI_UNROLL
      for (int r = 0; r < 2; ++r)
        multiply_both<DType::f16>(sums[r][2 * n], sums[r][2 * n + 1], a[r], b);
    }
  }
}

/// Squares of a lane's keys, 16 r + 8 half + lane / 4: from the centre, and from the origin.
struct Squares {
  float near[2][2] = {}, far[2][2] = {};

  template <class W, int part>
  FOCI_DEVICE void add(const typename W::Sums& sums, bool from_origin) {
    FOCI_UNROLL
    for (int n = 0; n < group / 8; ++n) {
      const float2 off =
          *reinterpret_cast<const float2*>(W::moved() + group * part + 8 * n + 2 * (lane() % 4));
      FOCI_UNROLL
      for (int i = 0; i < 8; ++i) {
        const float z = sums[i / 4][n][i % 4] - (i % 2 ? off.y : off.x);
        float& sum = near[i / 4][i % 4 / 2];
        sum = fmaf(z, z, sum);
      }
      if (!from_origin) continue;
      FOCI_UNROLL
      for (int i = 0; i < 8; ++i) {
        float& sum = far[i / 4][i % 4 / 2];
        sum = fmaf(sums[i / 4][n][i % 4], sums[i / 4][n][i % 4], sum);
      }
    }
  }
};

/// How large biases are, and squares from the origin where they were summed up.
struct Spread {
  float near = 0, far = 0;
  static FOCI_DEVICE void grow(float& to, float x) {
    if (x > to || x != x) to = x;  // NaN stays
  }
};

FOCI_DEVICE void write_bias(float* to, const Squares& of, float unit, Spread& spread,
                            const Slots& slots, const Place& at, int first) {
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int j = first + 8 * i + lane() / 4;
    const float near = unit * quad_sum(of.near[i / 2][i % 2]);
    const float far = unit * quad_sum(of.far[i / 2][i % 2]);
    if (j >= at.M) continue;
    if (lane() % 4 == 0) to[j] = -0.5f * near;
    if (slots.keeps(at, j)) Spread::grow(spread.near, near), Spread::grow(spread.far, far);
  }
}

/// The biases of one chunk, the longest first.
template <class W>
__global__ void __launch_bounds__(bias_threads) prefix_bias(BiasArgs args) {
  const Slots& slots = args.of.slots;
  const Shape& shape = slots.shape;
  const int heads = shape.sequences * shape.G, head = int(blockIdx.x) % heads;
  const int c = slots.chunks - 1 - int(blockIdx.x) / heads, D = shape.D;
  const int s = head / shape.G, g = head % shape.G;
  const Place at = shape.place(s);
  const int end = slots.looked_at(s, at, c);
  if (end == 0) return;
  const std::int64_t slot = slots.slot(s, g, c);
  const Lines keys = Lines::of(args.k, at.b, g, at.k0, at.M, D);
  const auto load = [&](int t, int place) {
    load_tile<typename W::X, bias_threads>(shared_address() + W::x_at + place * W::X::bytes, keys,
                                           t);
    commit_copies();
  };
  load_tile<typename W::M, bias_threads>(shared_address() + W::m_at,
                                         {args.of.W + slot * D * D, D, D, D}, 0);
  load(0, 0);
  await_copies<0>();
  __syncthreads();
  move_centre<W>(args.of.centre + slot * D, D);
  const std::int64_t line = (std::int64_t(c) * slots.B + at.b) * shape.G + g;
  float* to = args.of.key_bias + line * shape.M + at.k0;
  Spread spread;
  for (int t = 0, place = 0; t < end; t += bias_keys, place ^= 1) {
    await_copies<0>();
    __syncthreads();
    if (t + bias_keys < end) load(t + bias_keys, place ^ 1);
    Squares squares;
    typename W::Sums sums;
    whiten_keys<W, 0>(sums, W::x_at + place * W::X::bytes);
    squares.add<W, 0>(sums, t == 0);
    if constexpr (W::width > group) {
      whiten_keys<W, 1>(sums, W::x_at + place * W::X::bytes);
      squares.add<W, 1>(sums, t == 0);
    }
    write_bias(to, squares, args.of.unit[slot], spread, slots, at,
               t + int(threadIdx.x) / warp * 32);
  }
  int* largest = args.of.largest + head * FullProducts::sizes;
  raise(largest + 1, 0.5f * spread.near), raise(largest + 3, spread.far);
  raise(largest + 4, spread.near);
}

struct PullArgs {
  FullProducts of;
  ProductSums sums;
  Field k;
  int tiles;
};

/// 128 keys by 64 columns of dk.
template <DType type_, int width_>
struct PullWork {
  static constexpr DType type = type_;
  static constexpr int width = width_;
  using X = Tile<bias_keys, width>;
  using M = Tile<group, width>;
  static constexpr Address x_at = 0, m_at = X::bytes;
  static constexpr std::size_t bytes = m_at + 2 * M::bytes;
  using Sums = float[2][group / 8][4];
};

/// sums = k P' of the warp's 32 keys, P (64 rows, width)
template <class W>
FOCI_DEVICE void multiply_keys(typename W::Sums& sums, Address m) {
  const Address x =
      shared_address() + W::x_at + W::X::along() + int(threadIdx.x) / warp * 32 * W::X::panel * 2;
  m += shared_address() + W::M::across();
  FOCI_UNROLL
  for (int i = 0; i < group; ++i) sums[i / (group / 2)][i / 4 % (group / 8)][i % 4] = 0;
  FOCI_UNROLL
  for (int step = 0; step < W::width / 16; ++step) {
    unsigned a[2][4];
    const Address x_here = W::X::beside(x, step), m_here = W::M::beside(m, step);
    W::X::template operands<false>(a[0], x_here, 0);
    W::X::template operands<false>(a[1], x_here, 16);
    FOCI_UNROLL
    for (int n = 0; n < group / 16; ++n) {
      unsigned b[4];
      W::M::template operands<false>(b, m_here, 16 * n);
      FOCI_UNROLL
      for (int r = 0; r < 2; ++r)
        multiply_both<W::type>(sums[r][2 * n], sums[r][2 * n + 1], a[r], b);
    }
  }
}

/// total -= db c P (k - centre) of one chunk, where `sums` has P k.
template <class W>
FOCI_DEVICE void pull_chunk(typename W::Sums& total, const typename W::Sums& sums, const float* db,
                            const float* moved, float unit, int keys, int columns) {
  float by[2][2];
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i) {
    const int j = int(threadIdx.x) / warp * 32 + 8 * i + lane() / 4;
    by[i / 2][i % 2] = j < keys ? -unit * db[j] : 0.0f;
  }
  FOCI_UNROLL
  for (int n = 0; n < group / 8; ++n) {
    const int e = 8 * n + 2 * (lane() % 4);
    const float2 off =
        e < columns ? *reinterpret_cast<const float2*>(moved + e) : make_float2(0, 0);
    FOCI_UNROLL
    for (int i = 0; i < 8; ++i)
      total[i / 4][n][i % 4] =
          fmaf(by[i / 4][i % 4 / 2], sums[i / 4][n][i % 4] - (i % 2 ? off.y : off.x),
               total[i / 4][n][i % 4]);
  }
}

template <class W>
FOCI_DEVICE void add_pulled(const PullArgs& args, const typename W::Sums& total, std::int64_t line,
                            const Place& at, int first, int keys, int column) {
  const int D = args.of.slots.shape.D;
  FOCI_UNROLL
  for (int i = 0; i < 2 * group / 4; ++i) {
    const int half = i % 2, n = i / 2 % (group / 8), r = i / 2 / (group / 8);
    const int j = int(threadIdx.x) / warp * 32 + 16 * r + 8 * half + lane() / 4;
    const int d = column + 8 * n + 2 * (lane() % 4);
    if (j >= keys || d >= D || !args.of.slots.keeps(at, first + j)) continue;
    auto* to = reinterpret_cast<float2*>(args.sums.dk + (line + first + j) * D + d);
    const float2 x = *to;
    *to = make_float2(x.x + total[r][n][2 * half], x.y + total[r][n][2 * half + 1]);
  }
}

/// What biases of all chunks pull at 128 keys.
template <class W>
__global__ void __launch_bounds__(bias_threads) prefix_pull(PullArgs args) {
  const Slots& slots = args.of.slots;
  const Shape& shape = slots.shape;
  const int D = shape.D, column = int(blockIdx.y) * group;
  const int first = int(blockIdx.x) % args.tiles * bias_keys, head = int(blockIdx.x) / args.tiles;
  const int s = head / shape.G, g = head % shape.G;
  const Place at = shape.place(s);
  if (first >= at.M || !args.of.chosen[head]) return;
  const int own = slots.own_chunks(at), keys = min(bias_keys, at.M - first);
  const auto next = [&](int c) {  // the next chunk that looks at these keys
    while (c < own && slots.looked_at(s, at, c) <= first) ++c;
    return c;
  };
  const auto load = [&](int c, int place) {
    const std::int64_t at_row = (2 * slots.slot(s, g, c) * D + column) * D;
    load_tile<typename W::M, bias_threads>(shared_address() + W::m_at + place * W::M::bytes,
                                           {args.of.P_parts + at_row, D, D - column, D}, 0);
    commit_copies();
  };
  load_tile<typename W::X, bias_threads>(shared_address() + W::x_at,
                                         Lines::of(args.k, at.b, g, at.k0, at.M, D), first);
  int c = next(0);
  if (c < own) load(c, 0);
  typename W::Sums total = {};
  for (int place = 0; c < own; place ^= 1) {
    await_copies<0>();
    __syncthreads();
    const std::int64_t slot = slots.slot(s, g, c);
    const std::int64_t line = (std::int64_t(c) * slots.B + at.b) * shape.G + g;
    c = next(c + 1);
    if (c < own) load(c, place ^ 1);
    typename W::Sums sums;
    multiply_keys<W>(sums, W::m_at + place * W::M::bytes);
    pull_chunk<W>(total, sums, args.sums.dkey_bias + line * shape.M + at.k0 + first,
                  args.of.moved + slot * D + column, args.of.unit[slot], keys, D - column);
  }
  const std::int64_t line = (std::int64_t(at.b) * shape.G + g) * shape.M + at.k0;
  add_pulled<W>(args, total, line, at, first, keys, column);
}

template <DType type>
void launch_pull(const PullArgs& args, Stream stream) {
  using Narrow = PullWork<type, 64>;
  using Wide = PullWork<type, 128>;
  const Shape& shape = args.of.slots.shape;
  const bool narrow = shape.D <= 64;
  launch("key-covariance: dk of every chunk", narrow ? prefix_pull<Narrow> : prefix_pull<Wide>,
         {{unsigned(shape.sequences * shape.G * args.tiles), unsigned(parts(shape.D, group))},
          {bias_threads},
          narrow ? Narrow::bytes : Wide::bytes},
         stream, args);
}

struct SumArgs {
  FullProducts of;
  MetricGradient to;
  ProductSums sums;
  Field q, k;
};

template <int width_>
struct SumWork {
  static constexpr int width = width_, threads = 2 * width;  // a warp has 16 rows
  using X = Tile<64, width>;
  using T = Tile<width, width>;  // where tiles of keys were
  static constexpr Address p_at = 2 * X::bytes, first_at = p_at + T::bytes;
  static constexpr std::size_t bytes = first_at + 4 * width;
  FOCI_DEVICE static float* first() { return reinterpret_cast<float*>(shared_memory() + first_at); }
};

/// Both numbers of a word times those of another, bf16.
FOCI_DEVICE unsigned pair_product(unsigned x, unsigned y) {
#ifdef FOCI_EMULATED
  const auto of = [](unsigned z, int i) {
    return wide_of(std::uint16_t(z >> 16 * i), DType::bf16);
  };
  return pack<DType::bf16>(of(x, 0) * of(y, 0), of(x, 1) * of(y, 1));
#else
  unsigned z;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(z) : "r"(x), "r"(y), "r"(0x80008000u));
  return z;
#endif
}

/// sums += dq' (q - centre)' over the queries of one chunk and head.
template <class W>
FOCI_DEVICE void add_queries(RowSums<W::width>& sums, const SumArgs& args, const Place& at,
                             const Stretch& of, const float* centre, int h) {
  const Shape& shape = args.of.slots.shape;
  const int D = shape.D;
  const float* dq = args.sums.dq + ((std::int64_t(at.b) * shape.H + h) * shape.N + at.q0) * D;
  const std::int64_t q = args.q.offset(at.b, h, at.q0);
  for (int t = of.begin; t < of.end; t += 64) {
    const auto there = [&](int row, int piece) { return t + row < of.end && 8 * piece < D; };
    __syncthreads();
    fill_rounded<DType::bf16, typename W::X, W::threads>(0, [&](int row, int piece) {
      return there(row, piece) ? load_eight(dq + std::int64_t(t + row) * D + 8 * piece) : Eight{};
    });
    fill_rounded<DType::bf16, typename W::X, W::threads>(W::X::bytes, [&](int row, int piece) {
      if (!there(row, piece)) return Eight{};
      Eight x = load_eight(args.q, q + (t + row) * args.q.strides[2] + 8 * piece);
      for (int i = 0; i < 8; ++i) x.x[i] -= centre[8 * piece + i];
      return x;
    });
    __syncthreads();
    add_outer<DType::bf16, W::width>(sums, 0, W::X::bytes, int(threadIdx.x) / warp);
  }
  __syncthreads();
}

/// Sums of -1/2 db over keys, of that times k (all rows alike, the warp's columns), times k k'.
template <class W>
struct KeyMoments {
  float zeroth = 0, first[2][4] = {};

  FOCI_DEVICE void add(RowSums<W::width>& second, Address tile, const float* db, int keys) {
    using X = typename W::X;
    const int rows = int(threadIdx.x) / warp;
    const Address left = X::beside(tile + shared_address() + X::across(), rows);
    const Address right = tile + shared_address() + X::along();
    FOCI_UNROLL
    for (int step = 0; step < 4; ++step) {
      unsigned by[2], a[4], b[4];
      FOCI_UNROLL
      for (int i = 0; i < 2; ++i) {
        const int t = 16 * step + 8 * i + 2 * (lane() % 4);
        by[i] = pack<DType::bf16>(t < keys ? -0.5f * db[t] : 0.0f,
                                  t + 1 < keys ? -0.5f * db[t + 1] : 0.0f);
        zeroth += wide_of(std::uint16_t(by[i]), DType::bf16) +
                  wide_of(std::uint16_t(by[i] >> 16), DType::bf16);
      }
      const unsigned all[4] = {by[0], by[0], by[1], by[1]};
      X::template operands<true>(b, X::beside(right, rows), 16 * step);
      multiply_both<DType::bf16>(first[0], first[1], all, b);
      X::template operands<true>(a, left, 16 * step);
      FOCI_UNROLL
      for (int i = 0; i < 4; ++i) a[i] = pair_product(a[i], all[i]);
      FOCI_UNROLL
      for (int n = 0; n < W::width / 16; ++n) {
        X::template operands<true>(b, X::beside(right, n), 16 * step);
        multiply_both<DType::bf16>(second[2 * n], second[2 * n + 1], a, b);
      }
    }
  }
};

/// Takes from sums of keys what they are of keys less the centre; the first ones lie in W::first().
template <class W>
FOCI_DEVICE void centre_sums(RowSums<W::width>& sums, const float* centre, float zeroth, int D) {
  const int first = int(threadIdx.x) / warp * 16 + lane() / 4;
  FOCI_UNROLL
  for (int i = 0; i < W::width / 2; ++i) {
    const int d = first + 8 * (i % 4 / 2), e = i / 4 * 8 + 2 * (lane() % 4) + i % 2;
    if (d >= D || e >= D) continue;
    const float mean = centre[e];
    sums[i / 4][i % 4] += centre[d] * (zeroth * mean - W::first()[e]) - W::first()[d] * mean;
  }
}

/// The warp's 16 rows, rounded, into the (width,width) tile at 0.
template <class W>
FOCI_DEVICE void put_rows(const RowSums<W::width>& sums, float by) {
  const int first = int(threadIdx.x) / warp * 16 + lane() / 4;
  FOCI_UNROLL
  for (int i = 0; i < W::width / 4; ++i) {
    const int n = i / 2, half = i % 2;
    *reinterpret_cast<unsigned*>(shared_memory() + W::T::at(first + 8 * half, n) +
                                 4 * (lane() % 4)) =
        pack<DType::bf16>(by * sums[n][2 * half], by * sums[n][2 * half + 1]);
  }
}

/// sums becomes P 1/2 (sums + sums') P, P the tile at p_at: the way of dP to the covariance.
template <class W>
FOCI_DEVICE void follow(RowSums<W::width>& sums) {
  using T = typename W::T;
  const int rows = int(threadIdx.x) / warp;
  const Address memory = shared_address(), p = memory + W::p_at;
  __syncthreads();
  put_rows<W>(sums, 0.5f);
  clear<W::width>(sums);
  __syncthreads();
  FOCI_UNROLL
  for (int step = 0; step < W::width / 16; ++step) {
    unsigned a[2][4], b[4];
    T::template operands<false>(a[0], T::beside(memory + T::along(), step), 16 * rows);
    T::template operands<true>(a[1], T::beside(memory + T::across(), rows), 16 * step);
    FOCI_UNROLL
    for (int n = 0; n < W::width / 16; ++n) {
      T::template operands<false>(b, T::beside(p + T::across(), step), 16 * n);
      multiply_both<DType::bf16>(sums[2 * n], sums[2 * n + 1], a[0], b);
      multiply_both<DType::bf16>(sums[2 * n], sums[2 * n + 1], a[1], b);
    }
  }
  __syncthreads();
  put_rows<W>(sums, 1);
  clear<W::width>(sums);
  __syncthreads();
  FOCI_UNROLL
  for (int step = 0; step < W::width / 16; ++step) {
    unsigned a[4], b[4];
    T::template operands<false>(a, T::beside(p + T::along(), step), 16 * rows);
    FOCI_UNROLL
    for (int n = 0; n < W::width / 16; ++n) {
      T::template operands<true>(b, T::beside(memory + T::along(), n), 16 * step);
      multiply_both<DType::bf16>(sums[2 * n], sums[2 * n + 1], a, b);
    }
  }
}

/// A = by sums, and what it makes of the mean less that of the last chunk.
template <class W>
FOCI_DEVICE void write_estimate(const MetricGradient& to, const RowSums<W::width>& sums, float by,
                                std::int64_t slot, std::int64_t last) {
  const int D = to.slots.shape.D;
  double* A = to.G + slot * to.parts * D * D;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int d = int(threadIdx.x) / warp * 16 + 8 * half + lane() / 4;
    float shift = 0;
    FOCI_UNROLL
    for (int i = 0; i < W::width / 4; ++i) {
      const int e = i / 2 * 8 + 2 * (lane() % 4) + i % 2;
      const float x = by * sums[i / 2][2 * half + i % 2];
      if (d >= D || e >= D) continue;
      A[d * D + e] = double(x);
      shift = fmaf(x, float(to.mean[slot * D + e] - to.mean[last * D + e]), shift);
    }
    shift = quad_sum(shift);
    if (d < D && lane() % 4 == 0) to.shift[slot * D + d] = double(shift);
  }
}

/// sums += -1/2 sum over keys of db (k - centre)(k - centre)'.
template <class W>
FOCI_DEVICE void add_keys(RowSums<W::width>& sums, const SumArgs& args, const Place& at, int s,
                          int g, int c) {
  const Slots& slots = args.of.slots;
  const Shape& shape = slots.shape;
  const int D = shape.D, end = slots.looked_at(s, at, c), rows = int(threadIdx.x) / warp;
  const std::int64_t line = (std::int64_t(c) * slots.B + at.b) * shape.G + g;
  const float* db = args.sums.dkey_bias + line * shape.M + at.k0;
  const Lines keys = Lines::of(args.k, at.b, g, at.k0, at.M, D);
  const auto load = [&](int t, int place) {
    load_tile<typename W::X, W::threads>(shared_address() + place * W::X::bytes, keys, t);
    commit_copies();
  };
  KeyMoments<W> moments;
  load(0, 0);
  for (int t = 0, place = 0; t < end; t += 64, place ^= 1) {
    await_copies<0>();
    __syncthreads();
    if (slots.key_mask)
      forget_masked<typename W::X, W::threads>(place * W::X::bytes, slots, at, t, end);
    if (t + 64 < end) load(t + 64, place ^ 1);
    moments.add(sums, place * W::X::bytes, db + t, end - t);
  }
  if (lane() < 4) {
    for (int i = 0; i < 4; ++i)
      W::first()[16 * rows + 8 * (i / 2) + 2 * lane() + i % 2] = moments.first[i / 2][i % 2];
  }
  __syncthreads();
  centre_sums<W>(sums, args.of.centre + slots.slot(s, g, c) * D, quad_sum(moments.zeroth), D);
}

/// A block a chunk: A = -slope P dP P, with dP = c (sum dq' (q - centre)' - 1/2 sum db ...).
template <class W>
__global__ void __launch_bounds__(W::threads) prefix_sums(SumArgs args) {
  const Slots& slots = args.of.slots;
  const Shape& shape = slots.shape;
  const int heads = shape.sequences * shape.G, head = int(blockIdx.x) % heads;
  const int c = slots.chunks - 1 - int(blockIdx.x) / heads, D = shape.D;
  const int s = head / shape.G, g = head % shape.G;
  if (!args.of.chosen[head]) return;
  const Place at = shape.place(s);
  const std::int64_t slot = slots.slot(s, g, c);
  const Stretch queries = slots.queries(s, at, c);
  RowSums<W::width> sums;
  clear<W::width>(sums);
  const int own = slots.own_chunks(at);
  const std::int64_t last = slots.slot(s, g, own > 0 ? own - 1 : 0);
  if (queries.empty()) return write_estimate<W>(args.to, sums, 0, slot, last);
  load_tile<typename W::T, W::threads>(shared_address() + W::p_at,
                                       {args.of.P_parts + 2 * slot * D * D, D, D, D}, 0);
  commit_copies();
  for (int r = 0; r < slots.heads_per_key(); ++r)
    add_queries<W>(sums, args, at, queries, args.of.centre + slot * D,
                   g * slots.heads_per_key() + r);
  add_keys<W>(sums, args, at, s, g, c);
  follow<W>(sums);
  const float unit = args.of.unit[slot], slope = float(args.to.shrink.slope(args.to.count[slot]));
  write_estimate<W>(args.to, sums, -slope * unit * unit / args.of.c, slot, last);
}

template <int width>
void launch_sums(const SumArgs& args, Stream stream) {
  using W = SumWork<width>;
  launch("key-covariance: A of every chunk", prefix_sums<W>,
         {{unsigned(args.of.slots.count())}, {W::threads}, W::bytes}, stream, args);
}

template <int width>
void launch_bias(const BiasArgs& args, Stream stream) {
  using W = BiasWork<width>;
  launch("key-covariance: b of every chunk", prefix_bias<W>,
         {{unsigned(args.of.slots.count())}, {bias_threads}, W::bytes}, stream, args);
}

}  // namespace

void fold_prefix(const FullProducts& to, const Field& k, Stream stream) {
  const Shape& shape = to.slots.shape;
  NarrowArgs args{to, k, 1, 1};
  while (8 * args.lanes < shape.D) args.lanes *= 2;
  constexpr int keys_of_thread = 8;
  args.tiles = int(parts(shape.longest_m, keys_of_thread * bias_threads / args.lanes));
  launch("key-covariance: keys in f16", narrow_keys,
         {{unsigned(shape.sequences * shape.G * args.tiles)}, {bias_threads}}, stream, args);
  const BiasArgs bias{to, prefix_keys(to, k)};
  shape.D <= 64 ? launch_bias<64>(bias, stream) : launch_bias<128>(bias, stream);
}

void unfold_prefix_keys(const ProductSums& sums, const Field& k, const FullProducts& of,
                        Stream stream) {
  const PullArgs args{of, sums, k, int(parts(of.slots.shape.longest_m, bias_keys))};
  of.half ? launch_pull<DType::f16>(args, stream) : launch_pull<DType::bf16>(args, stream);
}

void form_prefix_gradient(const MetricGradient& to, const ProductSums& sums, const Field& q,
                          const Field& k, const FullProducts& of, Stream stream) {
  const SumArgs args{of, to, sums, q, k};
  of.slots.shape.D <= 64 ? launch_sums<64>(args, stream) : launch_sums<128>(args, stream);
}

Field narrow_lines(std::uint16_t* data, std::initializer_list<std::int64_t> shape, int apart) {
  Field to = Field::of(reinterpret_cast<float*>(data), shape);
  to.dtype = DType::f16;
  to.strides[0] *= apart, to.strides[1] *= apart;
  return to;
}

Field prefix_keys(const FullProducts& of, const Field& k) {
  const Shape& shape = of.slots.shape;
  return of.narrow_k ? narrow_lines(of.narrow_k, {of.slots.B, shape.G, shape.M, shape.D}) : k;
}

}  // namespace foci::cuda
