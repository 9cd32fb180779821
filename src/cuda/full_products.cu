// SPDX-License-Identifier: Apache-2.0
// Lines times the matrix of a full metric, and sums of outer products of lines, on tensor cores, in
// two parts of 16 bits what is not of 16 bits: four warps have 64 tokens at a time.
#include "cuda/full_products.cuh"

#include "cuda/largest.cuh"
#include "cuda/softmax_mma_backward.cuh"
#include "cuda/two_parts.cuh"

#include <algorithm>

namespace foci::cuda {

namespace {

constexpr int product_block = 128, tile_tokens = 64;
/// Blocks that keep a large GPU busy once, and those of work that is seldom there.
constexpr std::int64_t enough_blocks = 768, few_blocks = 128;

/// What lines times a matrix become.
enum class Become : int {
  queries,  // q', r
  keys,     // b
  dq,       // c P dq'
  dk,       // what is there - db c P (k - centre) + A (k - centre)
};

struct LineArgs {
  FullProducts of;
  Field x = {};                      // (B,heads,tokens,D)
  Field to = {};                     // dq, dk
  const float* base = nullptr;       // (B,G,M,D) dk so far
  const float* dkey_bias = nullptr;  // (B,G,M)
  Estimate through = {};
  int parts = 1;   // blocks along the tokens of a head, or of a chunk of it
  int chunks = 1;  // queries along the prefix
};

constexpr bool of_keys(Become what) { return what == Become::keys || what == Become::dk; }

/// Where a block stands.
struct LineBlock {
  int s, head, g, part, begin, count;  // tokens from `begin` on, which end before `count`
  Place at;
  std::int64_t slot, first;  // first: the sequence's first token in (B,heads,tokens)

  FOCI_DEVICE LineBlock(const LineArgs& args, bool keys, int index) {
    const Shape& shape = args.of.slots.shape;
    const int heads = keys ? shape.G : shape.H;
    part = index % args.parts, index /= args.parts;
    const int c = index % args.chunks;
    index /= args.chunks;
    head = index % heads, s = index / heads;
    g = keys ? head : shape.key_head(head);
    at = shape.place(s);
    const Stretch tokens = keys ? Stretch{0, at.M} : args.of.slots.queries(s, at, c);
    begin = tokens.begin, count = tokens.end;
    slot = args.of.slots.slot(s, g, c);
    first =
        (std::int64_t(at.b) * heads + head) * (keys ? shape.M : shape.N) + (keys ? at.k0 : at.q0);
  }
  FOCI_DEVICE int token(bool keys, int t) const { return (keys ? at.k0 : at.q0) + t; }
};

/// How a block goes about it: tokens as they were given, the next tile on its way while one is
/// worked on, times a matrix in two parts; dq' is float and has two parts itself. dk has 16 bits,
/// so that one part each of two matrices suffices.
template <DType type_, int width_, Become what_>
struct LineWork {
  static constexpr DType type = type_;
  static constexpr int width = width_;
  static constexpr Become what = what_;
  static constexpr bool keys = of_keys(what), split = what == Become::dq;
  using X = TwoParts<type, tile_tokens, width>;
  using M = TwoParts<type, width, width>;
  static constexpr Address m_at = X::bytes;  // two slots, or two parts
  static constexpr Address centre_at = m_at + M::bytes, moved_at = centre_at + 4 * width;
  static constexpr Address pulled_at = moved_at + 4 * width;  // what A makes of the centre
  static constexpr Address most_at = pulled_at + 4 * width;
  static constexpr std::size_t bytes = most_at + 4 * sizeof(float);
  FOCI_DEVICE static float* floats(Address at) {
    return reinterpret_cast<float*>(shared_memory() + at);
  }
};

/// Entry (row, column) of c P, or of A.
enum class Matrix : int { metric, estimate };
template <Matrix which>
FOCI_DEVICE float entry(const LineArgs& args, const LineBlock& block, int row, int column) {
  const int D = args.of.slots.shape.D;
  if (which == Matrix::estimate)
    return float(args.through.A[block.slot * args.through.step + row * D + column]);
  return args.of.c * args.of.P[(block.slot * D + row) * D + column];
}

/// A power of two that brings the matrix near 1, where f16 has all its digits; 1 for bf16.
template <class W, Matrix which>
FOCI_DEVICE float unit_of(const LineArgs& args, const LineBlock& block) {
  if (W::type == DType::bf16) return 1;
  const int D = args.of.slots.shape.D;
  float most = 0;
  for (int i = int(threadIdx.x); i < D * D; i += product_block)
    most = fmaxf(most, fabsf(entry<which>(args, block, i / D, i % D)));
  most = warp_max(most);
  float* warps = W::floats(W::most_at);
  __syncthreads();
  if (lane() == 0) warps[int(threadIdx.x) / warp] = most;
  __syncthreads();
  most = fmaxf(fmaxf(warps[0], warps[1]), fmaxf(warps[2], warps[3]));
  return most > 0 && most < 1e30f ? exp2f(floorf(log2f(most))) : 1.0f;
}

/// What the matrix, as its parts at `m` say it, over its unit makes of the centre.
template <class W, int parts>
FOCI_DEVICE float moved_centre(Address m, int row) {
  float sum = 0;
  FOCI_UNROLL
  for (int piece = 0; piece < W::width / 8; ++piece) {
    FOCI_UNROLL
    for (int part = 0; part < parts; ++part) {
      const Address at = m + part * W::M::low + W::M::Part::at(row, piece);
      const uint4 four = *reinterpret_cast<const uint4*>(shared_memory() + at);
      const unsigned words[] = {four.x, four.y, four.z, four.w};
      FOCI_UNROLL
      for (int i = 0; i < 8; ++i)
        sum = fmaf(wide_of(std::uint16_t(words[i / 2] >> 16 * (i % 2)), W::type),
                   W::floats(W::centre_at)[8 * piece + i], sum);
    }
  }
  return sum;
}

/// The matrix in parts, over `unit`; the centre, and what it becomes. Zeros beyond D.
template <class W, Matrix which>
FOCI_DEVICE void load_matrix(const LineArgs& args, const LineBlock& block, float unit) {
  constexpr bool one = W::what == Become::dk, metric = which == Matrix::metric;
  constexpr Address at = W::m_at + (metric ? 0 : W::M::low);
  const int D = args.of.slots.shape.D;
  const float by = 1 / unit;
  const auto eight = [&](int row, int piece) {
    Eight to = {};
    if (row >= D || 8 * piece >= D) return to;
    if constexpr (metric) {
      to = load_eight(args.of.P + (block.slot * D + row) * D + 8 * piece);
      for (int i = 0; i < 8; ++i) to.x[i] *= by * args.of.c;
    } else {
      for (int i = 0; i < 8; ++i) to.x[i] = by * entry<which>(args, block, row, 8 * piece + i);
    }
    return to;
  };
  if constexpr (one) {
    fill_rounded<W::type, typename W::M::Part, product_block>(at, eight);
  } else {
    W::M::template fill<product_block>(W::m_at, eight);
  }
  if constexpr (!W::split) {
    for (int d = int(threadIdx.x); d < W::width && metric; d += product_block)
      W::floats(W::centre_at)[d] = d < D ? args.of.centre[block.slot * D + d] : 0.0f;
    __syncthreads();
    float* moved = W::floats(metric ? W::moved_at : W::pulled_at);
    for (int d = int(threadIdx.x); d < W::width; d += product_block)
      moved[d] = unit * moved_centre < W, one ? 1 : 2 > (at, d);
  }
}

/// 64 tokens from t on, on their way to a slot, or here in two parts.
template <class W>
FOCI_DEVICE void load_tokens(const LineArgs& args, const LineBlock& block, int slot, int t) {
  const int D = args.of.slots.shape.D;
  if constexpr (W::split) {
    const std::int64_t base = args.x.offset(block.at.b, block.head, block.at.q0 + t);
    W::X::template fill<product_block>(0, [&](int row, int piece) {
      if (t + row >= block.count || 8 * piece >= D) return Eight{};
      return load_eight(args.x, base + row * args.x.strides[2] + 8 * piece);
    });
  } else {
    const Lines lines =
        Lines::of(args.x, block.at.b, block.head, block.token(W::keys, 0), block.count, D);
    load_tile<typename W::X::Part, product_block>(shared_address() + slot * W::X::low, lines, t);
    commit_copies();
  }
}

/// How large a block's numbers are, as in FullProducts::largest.
struct Sizes {
  float lines = 0, bias = 0, x = 0, far = 0, near = 0, centred = 0;
  static FOCI_DEVICE void grow(float& to, float sum) {
    if (sum > to || sum != sum) to = sum;  // NaN stays
  }
};

/// Numbers of a row of q' or of keys, as one f16 number each where somebody takes that, and what
/// they add up to.
template <class W>
struct FoldedRow {
  float product = 0, yy = 0, xx = 0, far = 0, centred = 0;
  unsigned pairs[W::width / 8];

  FOCI_DEVICE void look(const LineArgs& args, const RowSums<W::width>& sums, float unit, int slot,
                        int row, int half, float* floats) {
    const float *centre = W::floats(W::centre_at), *moved = W::floats(W::moved_at);
    const bool from_centre = W::keys || args.of.centred();
    FOCI_UNROLL
    for (int n = 0; n < W::width / 8; ++n) {
      const int d = 8 * n + 2 * (lane() % 4);
      const unsigned pair = *reinterpret_cast<const unsigned*>(
          shared_memory() + slot * W::X::low + W::X::Part::at(row, n) + 4 * (lane() % 4));
      float y[2], gap[2];
      FOCI_UNROLL
      for (int i = 0; i < 2; ++i) {
        const float x = wide_of(std::uint16_t(pair >> 16 * i), W::type);
        y[i] = fmaf(sums[n][2 * half + i], unit, -moved[d + i]);
        gap[i] = x - centre[d + i];
        product = fmaf(y[i], from_centre ? gap[i] : x + centre[d + i], product);
        yy = fmaf(y[i], y[i], yy);
        if (!W::keys) continue;
        xx = fmaf(x, x, xx), far = fmaf(x, y[i] + moved[d + i], far);
        centred = fmaf(gap[i], gap[i], centred);
      }
      pairs[n] = W::keys ? pack<DType::f16>(gap[0], gap[1]) : pack<DType::f16>(y[0], y[1]);
      if (floats && d < args.of.slots.shape.D)
        *reinterpret_cast<float2*>(floats + d) = make_float2(y[0], y[1]);
    }
    product = -0.5f * quad_sum(product);
    yy = quad_sum(yy), xx = quad_sum(xx), far = quad_sum(far), centred = quad_sum(centred);
  }
};

/// q' and r, or keys of one number and b; and how large they are.
template <class W>
FOCI_DEVICE void write_fold(const LineArgs& args, const LineBlock& block, Sizes& sizes,
                            const RowSums<W::width>& sums, float unit, int slot, int t) {
  const FullProducts& of = args.of;
  const int D = of.slots.shape.D;
  std::uint16_t* narrow = W::keys ? of.narrow_k : of.narrow_q;
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int r = int(threadIdx.x) / warp * 16 + 8 * half + lane() / 4, token = t + r;
    const bool there = token < block.count;
    const bool kept = there && (!W::keys || of.slots.keeps(block.at, token));
    const std::int64_t line = block.first + token;
    FoldedRow<W> row;
    row.look(args, sums, unit, slot, r, half,
             !W::keys && !narrow && there ? of.q + line * D : nullptr);
    if (narrow) {
      FOCI_UNROLL
      for (int n = 0; n < W::width / 8; ++n) row.pairs[n] = kept ? row.pairs[n] : 0;
      write_row<W::width>(narrow + (block.first * of.apart + token) * D, row.pairs, there, D);
    }
    if (there && lane() % 4 == 0) (W::keys ? of.key_bias : of.row_bias)[line] = row.product;
    if (!kept) continue;
    Sizes::grow(sizes.lines, row.yy), Sizes::grow(sizes.bias, fabsf(row.product));
    Sizes::grow(sizes.x, row.xx), Sizes::grow(sizes.centred, row.centred);
    Sizes::grow(sizes.far, row.far), Sizes::grow(sizes.near, -2 * row.product);
  }
}

/// What a row of k c P becomes of dk: -db times it, the centre off, over the unit of A.
template <class W>
FOCI_DEVICE void pull_bias(const LineArgs& args, const LineBlock& block, RowSums<W::width>& sums,
                           float unit, float over, int t) {
  const float* moved = W::floats(W::moved_at);
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int token = t + int(threadIdx.x) / warp * 16 + 8 * half + lane() / 4;
    const float by = token < block.count ? -args.dkey_bias[block.first + token] / over : 0.0f;
    FOCI_UNROLL
    for (int i = 0; i < W::width / 4; ++i) {
      float& x = sums[i / 2][2 * half + i % 2];
      x = by * (unit * x - moved[i / 2 * 8 + 2 * (lane() % 4) + i % 2]);
    }
  }
}

/// dq, or dk and what is there; masked keys have none.
template <class W>
FOCI_DEVICE void write_gradient(const LineArgs& args, const LineBlock& block,
                                const RowSums<W::width>& sums, float unit, int t) {
  const int D = args.of.slots.shape.D;
  const float* pulled = W::floats(W::pulled_at);
  FOCI_UNROLL
  for (int half = 0; half < 2; ++half) {
    const int token = t + int(threadIdx.x) / warp * 16 + 8 * half + lane() / 4;
    if (token >= block.count) continue;
    const bool kept = !W::keys || args.of.slots.keeps(block.at, token);
    const std::int64_t to = args.to.offset(block.at.b, block.head, block.token(W::keys, token));
    FOCI_UNROLL
    for (int n = 0; n < W::width / 8; ++n) {
      const int d = 8 * n + 2 * (lane() % 4);
      if (d >= D) continue;
      float y[2] = {unit * sums[n][2 * half], unit * sums[n][2 * half + 1]};
      if constexpr (W::keys) {
        const float2 base =
            *reinterpret_cast<const float2*>(args.base + (block.first + token) * D + d);
        y[0] = kept ? base.x + y[0] - pulled[d] : 0.0f;
        y[1] = kept ? base.y + y[1] - pulled[d + 1] : 0.0f;
      }
      store_pair(args.to, to + d * args.to.strides[3], y[0], y[1]);
    }
  }
}

/// The units of both matrices, which are loaded; 1 for A where it is absent.
struct Units {
  float metric, estimate = 1;
};
/// Along the prefix both parts of c P lie ready, and what it makes of the centre.
template <class W>
FOCI_DEVICE float load_parts(const LineArgs& args, const LineBlock& block) {
  const int D = args.of.slots.shape.D;
  for (int part = 0; part < 2; ++part) {
    const std::uint16_t* from = args.of.P_parts + (2 * block.slot + part) * D * D;
    load_tile<typename W::M::Part, product_block>(shared_address() + W::m_at + part * W::M::low,
                                                  {from, D, D, D}, 0);
  }
  commit_copies();
  const float unit = args.of.unit[block.slot];
  for (int d = int(threadIdx.x); d < W::width; d += product_block) {
    W::floats(W::centre_at)[d] = d < D ? args.of.centre[block.slot * D + d] : 0.0f;
    W::floats(W::moved_at)[d] = d < D ? unit * args.of.moved[block.slot * D + d] : 0.0f;
  }
  if (W::split) await_copies<0>();
  return unit;
}

template <class W>
FOCI_DEVICE Units load_matrices(const LineArgs& args, const LineBlock& block) {
  if constexpr (!W::keys) {
    const DType parts = args.of.half ? DType::f16 : DType::bf16;
    if (args.of.P_parts && W::type == parts) return {load_parts<W>(args, block)};
  }
  Units units{unit_of<W, Matrix::metric>(args, block)};
  load_matrix<W, Matrix::metric>(args, block, units.metric);
  if constexpr (W::what == Become::dk) {
    if (args.through.A) {
      units.estimate = unit_of<W, Matrix::estimate>(args, block);
      load_matrix<W, Matrix::estimate>(args, block, units.estimate);
    } else {
      for (int d = int(threadIdx.x); d < W::width; d += product_block)
        W::floats(W::pulled_at)[d] = 0;
    }
  }
  return units;
}

/// One tile of 64 tokens.
template <class W>
FOCI_DEVICE void multiply_tile(const LineArgs& args, const LineBlock& block, const Units& units,
                               Sizes& sizes, int slot, int t) {
  const Address x = slot * W::X::low;
  const int row = int(threadIdx.x) / warp * 16;
  RowSums<W::width> sums;
  clear<W::width>(sums);
  if constexpr (W::what == Become::dk) {
    add_rounded<W::type, W::width>(sums, x, W::m_at, row);
    pull_bias<W>(args, block, sums, units.metric, units.estimate, t);
    if (args.through.A) add_rounded<W::type, W::width>(sums, x, W::m_at + W::M::low, row);
    write_gradient<W>(args, block, sums, units.estimate, t);
  } else {
    add_lines<W::type, W::width, W::split>(sums, x, W::m_at, row);
    if constexpr (W::split) {
      write_gradient<W>(args, block, sums, units.metric, t);
    } else {
      write_fold<W>(args, block, sizes, sums, units.metric, slot, t);
    }
  }
}

/// Block `index` of those that go about it so.
template <class W>
FOCI_DEVICE void multiply_block(const LineArgs& args, int index) {
  constexpr bool folds = W::what == Become::queries || W::what == Become::keys;
  const LineBlock block(args, W::keys, index);
  const int step = args.parts * tile_tokens;
  int t = block.begin + block.part * tile_tokens;
  const int head = block.s * args.of.slots.shape.G + block.g;
  if (t >= block.count || (!folds && !args.of.chosen[head])) return;
  if (folds && args.of.only && !args.of.only[head]) return;
  if (!W::split) load_tokens<W>(args, block, 0, t);
  const Units units = load_matrices<W>(args, block);
  Sizes sizes;
  for (int slot = 0; t < block.count; t += step, slot ^= W::split ? 0 : 1) {
    if constexpr (W::split) {
      __syncthreads();
      load_tokens<W>(args, block, 0, t);
    } else {
      await_copies<0>();
    }
    __syncthreads();
    if (!W::split && t + step < block.count) load_tokens<W>(args, block, slot ^ 1, t + step);
    multiply_tile<W>(args, block, units, sizes, slot, t);
  }
  if constexpr (folds) {
    int* largest = args.of.largest + head * FullProducts::sizes;
    raise(largest, sizes.lines), raise(largest + 1, sizes.bias);
    if (!W::keys) raise(largest + 6, sizes.lines);
    if (W::keys)
      raise(largest + 2, sizes.x), raise(largest + 3, sizes.far), raise(largest + 4, sizes.near),
          raise(largest + 5, sizes.centred);
  }
}

template <class W>
__global__ void __launch_bounds__(product_block) multiply_lines(LineArgs args) {
  multiply_block<W>(args, int(blockIdx.x));
}

/// Queries, then keys, which as many blocks work on as their arguments say.
template <DType type, int width>
__global__ void __launch_bounds__(product_block)
    fold_lines(LineArgs queries, LineArgs keys, int first_key) {
  const int index = int(blockIdx.x);
  if (index < first_key) {
    multiply_block<LineWork<type, width, Become::queries> >(queries, index);
  } else {
    multiply_block<LineWork<type, width, Become::keys> >(keys, index - first_key);
  }
}

/// How many blocks work on lines, of about `enough`; says so to them.
int share_lines(LineArgs& args, bool keys, std::int64_t enough) {
  const Shape& shape = args.of.slots.shape;
  const std::int64_t tiles = parts(keys ? shape.longest_m : shape.longest_n, tile_tokens);
  if (!keys) args.chunks = args.of.slots.chunks;
  const std::int64_t heads =
      std::int64_t(shape.sequences) * (keys ? shape.G : shape.H) * args.chunks;
  const std::int64_t wanted = parts(enough, std::max<std::int64_t>(heads, 1));
  args.parts = int(std::clamp<std::int64_t>(wanted, 1, std::max<std::int64_t>(tiles, 1)));
  return int(heads * args.parts);
}

template <DType type, int width, Become what>
void launch_lines(const char* name, LineArgs args, Stream stream) {
  using W = LineWork<type, width, what>;
  const int blocks = share_lines(args, W::keys, args.of.only ? few_blocks : enough_blocks);
  launch(name, multiply_lines<W>, {{unsigned(blocks)}, {product_block}, W::bytes}, stream, args);
}

template <DType type, int width>
void launch_fold(LineArgs queries, LineArgs keys, Stream stream) {
  using W = LineWork<type, width, Become::queries>;
  static_assert(W::bytes == LineWork<type, width, Become::keys>::bytes);
  const int first_key = share_lines(queries, false, enough_blocks / 2);
  const int blocks = first_key + share_lines(keys, true, enough_blocks / 2);
  launch("full metric: q' and b", fold_lines<type, width>,
         {{unsigned(blocks)}, {product_block}, W::bytes}, stream, queries, keys, first_key);
}

/// Parts are of the lines' own type, those of floats bf16.
template <Become what>
void run_lines(const char* name, const LineArgs& args, Stream stream) {
  const bool narrow = args.of.slots.shape.D <= 64;
  if constexpr (what != Become::dq) {
    if (args.x.dtype == DType::f16)
      return narrow ? launch_lines<DType::f16, 64, what>(name, args, stream)
                    : launch_lines<DType::f16, 128, what>(name, args, stream);
  }
  narrow ? launch_lines<DType::bf16, 64, what>(name, args, stream)
         : launch_lines<DType::bf16, 128, what>(name, args, stream);
}

void run_fold(const LineArgs& queries, const LineArgs& keys, Stream stream) {
  const bool narrow = queries.of.slots.shape.D <= 64;
  if (queries.x.dtype == DType::f16) {
    narrow ? launch_fold<DType::f16, 64>(queries, keys, stream)
           : launch_fold<DType::f16, 128>(queries, keys, stream);
  } else {
    narrow ? launch_fold<DType::bf16, 64>(queries, keys, stream)
           : launch_fold<DType::bf16, 128>(queries, keys, stream);
  }
}

/// A score of two parts is off by 2^-17 of |q'| |k| / sqrt(D) or so; weights of 16 bits by more
/// than 2^-10 of themselves. Where keys are farther from the origin than from their centre, as the
/// metric measures it, what rounding leaves of sums of ds that are 0 shows in dq.
constexpr float most_product = 1024, most_bias = 2048, most_offset = 3;
/// Times sqrt(D), of one f16 part, off by 2^-12 of the same; of f16 less is hidden by the rounding
/// of weights.
constexpr float once = 64, once_half = 8;
/// Of f16, whose parts end at 2^16 and at 2^-24.
constexpr float most_half_line = 1 << 15, most_half_key = 1 << 11, least_half = 1.0f / (1 << 9);

__global__ void __launch_bounds__(product_block) choose_products(FullProducts of) {
  const int head = int(blockIdx.x) * product_block + int(threadIdx.x);
  const Shape& shape = of.slots.shape;
  if (head >= shape.sequences * shape.G) return;
  const int* sizes = of.largest + of.sizes * head;
  const auto size = [&](int i) { return __int_as_float(sizes[i]); };
  const float lines = sqrtf(size(0)), bias = size(1), keys = sqrtf(size(2));
  const float most_once = once * sqrtf(float(shape.D));
  const bool prefix = of.slots.prefix != 0, half = of.half || prefix;
  bool all = lines * keys <= (prefix ? most_once : most_product) &&
             bias <= (prefix ? most_once : most_bias) && size(3) <= most_offset * size(4);
  if (half) all = all && lines <= most_half_line && keys <= most_half_key;
  if (of.narrow) {
    const float centred = sqrtf(size(5)), most = of.half ? most_once * once_half / once : most_once;
    const bool suffices = lines * centred <= most && bias <= most_once && lines <= most_half_line &&
                          centred <= most_half_key && centred >= least_half &&
                          sqrtf(size(6)) >= least_half;
    of.narrow[head] = int(suffices), of.wide[head] = int(all && !suffices);
    all = all || suffices;
  }
  of.chosen[head] = int(all);
}

struct SumArgs {
  FullProducts of;
  OuterSums to;
  ProductSums sums;
  Field q, k;
  int part_queries, part_keys;
};

template <int width>
struct SumRoom {
  using X = Tile<tile_tokens, width>;
  static constexpr int threads = 2 * width;  // a warp has 16 rows
  static constexpr Address left_at = 0, right_at = X::bytes;
  static constexpr std::size_t bytes = 2 * X::bytes;
};

/// Eight numbers of token `token` less the centre, 0 beyond D.
FOCI_DEVICE Eight centred(const Field& x, std::int64_t at, const float* centre, int piece) {
  Eight to = load_eight(x, at + 8 * piece);
  FOCI_UNROLL
  for (int i = 0; i < 8; ++i) to.x[i] -= centre[8 * piece + i];
  return to;
}

/// to (D,D) = by sums, the warp's 16 rows
template <int width>
FOCI_DEVICE void write_outer(double* to, const RowSums<width>& sums, float by, int D) {
  const int first = int(threadIdx.x) / warp * 16 + lane() / 4;
  FOCI_UNROLL
  for (int i = 0; i < width / 2; ++i) {
    const int d = first + 8 * (i % 4 / 2), e = i / 4 * 8 + 2 * (lane() % 4) + i % 2;
    if (d < D && e < D) to[d * D + e] = double(by) * double(sums[i / 4][i % 4]);
  }
}

/// One stretch of queries of every head that shares the metric, and one of its keys, in one part:
/// what rounding leaves averages out over tokens, and all of it goes into dk of 16 bits.
template <int width>
__global__ void __launch_bounds__(2 * width) sum_products(SumArgs args) {
  using Room = SumRoom<width>;
  using X = typename Room::X;
  const Slots& slots = args.of.slots;
  const Shape& shape = slots.shape;
  const int D = shape.D, part = int(blockIdx.x) % args.to.parts;
  const std::int64_t slot = int(blockIdx.x) / args.to.parts;
  const int c = int(slot % slots.chunks), head = int(slot / slots.chunks);
  const int g = head % shape.G, s = head / shape.G, rows = int(threadIdx.x) / warp;
  if (!args.of.chosen[head]) return;
  const Place at = shape.place(s);
  const float* centre = args.of.centre + slot * D;
  RowSums<width> sums;
  clear<width>(sums);
  const auto add = [&](const Stretch& of, const auto& left, const auto& right) {
    for (int t = of.begin; t < of.end; t += tile_tokens) {
      __syncthreads();
      const auto within = [&](const auto& from) {
        return [&, t](int row, int piece) {
          return t + row < of.end && 8 * piece < D ? from(t + row, piece) : Eight{};
        };
      };
      fill_rounded<DType::bf16, X, Room::threads>(Room::left_at, within(left));
      fill_rounded<DType::bf16, X, Room::threads>(Room::right_at, within(right));
      __syncthreads();
      add_outer<DType::bf16, width>(sums, Room::left_at, Room::right_at, rows);
    }
  };
  for (int r = 0; r < slots.heads_per_key(); ++r) {
    const int h = g * slots.heads_per_key() + r;
    const std::int64_t line = (std::int64_t(at.b) * shape.H + h) * shape.N + at.q0;
    const std::int64_t q = args.q.offset(at.b, h, at.q0);
    add(
        slots.queries(s, at, c).part(part, args.part_queries),
        [&](int i, int piece) { return load_eight(args.sums.dq + (line + i) * D + 8 * piece); },
        [&](int i, int piece) {
          return centred(args.q, q + i * args.q.strides[2], centre, piece);
        });
  }
  const std::int64_t k = args.k.offset(at.b, g, at.k0);
  const std::int64_t line = (std::int64_t(c) * slots.B + at.b) * shape.G + g;
  const float* db = args.sums.dkey_bias + line * shape.M + at.k0;
  const auto key = [&](int j, int piece) {
    return slots.keeps(at, j) ? centred(args.k, k + j * args.k.strides[2], centre, piece) : Eight{};
  };
  add(
      Stretch{0, slots.looked_at(s, at, c)}.part(part, args.part_keys),
      [&](int j, int piece) {
        Eight x = key(j, piece);
        for (int i = 0; i < 8; ++i) x.x[i] *= -0.5f * db[j];
        return x;
      },
      key);
  write_outer<width>(args.to.to + (slot * args.to.parts + part) * D * D, sums, args.of.c, D);
}

}  // namespace

bool products_read(const Field& lines) {
  return in_pieces(lines) && (lines.dtype == DType::bf16 || lines.dtype == DType::f16);
}

void fold_products(const FullProducts& to, const Field& q, const Field& k, Stream stream) {
  const std::int64_t heads = std::int64_t(to.slots.shape.sequences) * to.slots.shape.G;
  fill(to.largest, 0, sizeof(int) * to.sizes * std::size_t(heads), stream);
  const LineArgs queries{.of = to, .x = q}, keys{.of = to, .x = k};
  if (to.slots.prefix) {
    run_lines<Become::queries>("full metric: q'", queries, stream);
    fold_prefix(to, k, stream);
  } else {
    run_fold(queries, keys, stream);
  }
  const Grid grid{dim3(unsigned(parts(heads, product_block))), dim3(product_block)};
  launch("full metric: who multiplies", choose_products, grid, stream, to);
  if (!to.narrow) return;
  LineArgs wide = queries;
  wide.of.narrow_q = wide.of.narrow_k = nullptr, wide.of.only = to.wide;
  run_lines<Become::queries>("full metric: q' in two parts", wide, stream);
}

void unfold_queries(const Field& dq, const ProductSums& sums, const FullProducts& of,
                    Stream stream) {
  const Shape& shape = of.slots.shape;
  const Field lines = Field::of(sums.dq, {of.slots.B, shape.H, shape.N, shape.D});
  run_lines<Become::dq>("full metric: c P dq'", {.of = of, .x = lines, .to = dq}, stream);
}

void sum_gradient(const OuterSums& to, const ProductSums& sums, const Field& q, const Field& k,
                  const FullProducts& of, Stream stream) {
  const Shape& shape = of.slots.shape;
  const bool narrow = shape.D <= 64;
  launch("full metric: sums of products", narrow ? sum_products<64> : sum_products<128>,
         {{unsigned(of.slots.count() * to.parts)},
          {narrow ? 128u : 256u},
          narrow ? SumRoom<64>::bytes : SumRoom<128>::bytes},
         stream,
         SumArgs{of, to, sums, q, k, int(parts(shape.longest_n, to.parts)),
                 int(parts(shape.longest_m, to.parts))});
}

void unfold_keys(const Field& dk, const ProductSums& sums, const Field& k, const Estimate& through,
                 const FullProducts& of, Stream stream) {
  LineArgs args{.of = of, .x = k, .to = dk, .base = sums.dk, .dkey_bias = sums.dkey_bias};
  args.through = through;
  run_lines<Become::dk>("full metric: dk", args, stream);
}

}  // namespace foci::cuda
