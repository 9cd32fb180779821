// SPDX-License-Identifier: Apache-2.0
// Softmax with the keys split over blocks, in float, and how they are shared out. A line of 8
// numbers a lane is read by a group of lanes, four lines at once; sums over lanes leave each lane
// with scores of one row, and its weights go back to the group, whose lanes have the values'
// columns. What blocks found is joined by a second kernel, or in a decoder's step by the block that
// comes last.
#include "cuda/split_keys_mma.cuh"

#include <algorithm>

namespace foci::cuda {
namespace split {
namespace {

constexpr int each = 8;     // numbers of a line that a lane has
constexpr int at_once = 4;  // lines that a group of lanes has in flight

/// Numbers of a line of keys or values, as they come.
template <DType type>
struct Raw {
  uint4 bits;
  FOCI_DEVICE void clear() { bits = make_uint4(0, 0, 0, 0); }
  FOCI_DEVICE void load(const Field& from, std::int64_t at, std::int64_t, int) {
    bits = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(from.data) + at);
  }
  FOCI_DEVICE void widen(float (&x)[each]) const {
    const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
    FOCI_UNROLL
    for (int w = 0; w < 4; ++w) {
      x[2 * w] = wide_of(std::uint16_t(words[w] & 0xffffu), type);
      x[2 * w + 1] = wide_of(std::uint16_t(words[w] >> 16), type);
    }
  }
};
template <>
struct Raw<DType::f32> {
  float4 low, high;
  FOCI_DEVICE void clear() { low = high = make_float4(0, 0, 0, 0); }
  FOCI_DEVICE void load(const Field& from, std::int64_t at, std::int64_t, int) {
    const auto* p = reinterpret_cast<const float4*>(static_cast<const float*>(from.data) + at);
    low = p[0], high = p[1];
  }
  FOCI_DEVICE void widen(float (&x)[each]) const {
    x[0] = low.x, x[1] = low.y, x[2] = low.z, x[3] = low.w;
    x[4] = high.x, x[5] = high.y, x[6] = high.z, x[7] = high.w;
  }
};
/// f64 stands for any type and any strides.
template <>
struct Raw<DType::f64> {
  float x_[each];
  FOCI_DEVICE void clear() {
    FOCI_UNROLL
    for (int x = 0; x < each; ++x) x_[x] = 0;
  }
  FOCI_DEVICE void load(const Field& from, std::int64_t at, std::int64_t step, int count) {
    FOCI_UNROLL
    for (int x = 0; x < each; ++x) x_[x] = x < count ? from.load_at(at + x * step) : 0.0f;
  }
  FOCI_DEVICE void widen(float (&x)[each]) const {
    FOCI_UNROLL
    for (int i = 0; i < each; ++i) x[i] = x_[i];
  }
};

/// Lines of `width` numbers, of which R queries meet `at_once` keys at a time. whitened: keys are
/// floats, and scores are distances of lines.
template <DType of, int width, int rows, bool whitened = false>
struct Block {
  static constexpr DType type = of, keys = whitened && of != DType::f64 ? DType::f32 : of;
  static constexpr bool distances = whitened;
  static constexpr int R = rows;
  static constexpr int lanes = width / each, groups = warp / lanes;  // of a warp
  static constexpr int all_groups = threads / warp * groups;
  static constexpr int step = at_once * all_groups;                   // keys at once
  static constexpr int scores = at_once * R;                          // of a group, at once
  static constexpr int held = scores > lanes ? scores / lanes : 1;    // of them in a lane
  static constexpr int copies = scores < lanes ? lanes / scores : 1;  // lanes with the same
  static constexpr int row_lanes = lanes / R;                         // that have scores of one row
  static constexpr std::size_t shared = sizeof(float) * all_groups * R * (width + 3);
  // Blocks at once.
  static constexpr int beside = of == DType::f64 ? 2 : 3;
  static_assert(held <= at_once && row_lanes > 0);
};

/// Sums over `lanes` lanes of `count` numbers each: lane l is left with numbers l count / lanes ..
/// in front, or where there are fewer numbers than lanes with number l / (lanes / count).
template <int lanes, int count, int size>
FOCI_DEVICE void sum_apart(float (&x)[size]) {
  if constexpr (lanes > 1) {
    constexpr int bit = lanes / 2, half = count / 2;
    if constexpr (count > 1) {
      const bool high = (lane() & bit) != 0;
      FOCI_UNROLL
      for (int i = 0; i < half; ++i) {
        const float away = high ? x[i] : x[i + half], own = high ? x[i + half] : x[i];
        x[i] = own + __shfl_xor_sync(~0u, away, bit);
      }
      sum_apart<bit, half>(x);
    } else {
      x[0] += __shfl_xor_sync(~0u, x[0], bit);
      sum_apart<bit, 1>(x);
    }
  }
}

/// Where a block stands, and a thread in it.
template <class B>
struct Seat : Stand {
  int group, column, row;  // the thread's: of the block, of the line, of its scores
  int own_key;             // its first of a step

  FOCI_DEVICE explicit Seat(const Args& args) : Stand(args) {
    group = int(threadIdx.x) / B::lanes;
    column = int(threadIdx.x) % B::lanes * each;
    row = int(threadIdx.x) % B::lanes / B::row_lanes;
    own_key = int(threadIdx.x) / warp * at_once * B::groups + group % B::groups;
  }
  /// Key of line u of the step from j on.
  FOCI_DEVICE int key(int j, int u) const { return j + own_key + u * B::groups; }
};

/// The queries, times c and their metric where they have one: to the lanes by way of shared memory,
/// all threads at once.
template <class B>
FOCI_DEVICE void load_queries(float (&q)[B::R][each], const Args& args, const Seat<B>& seat) {
  constexpr int width = B::lanes * each;
  auto* lines = reinterpret_cast<float*>(shared_memory());  // (R, width)
  float* m = lines + B::R * width;                          // (N, D) of a step
  const Folded& folded = args.folded;
  const float scale =
      B::distances
          ? 1.0f
          : folded.scale * (folded.scales ? folded.scales[seat.s * args.shape.G + seat.g] : 1.0f);
  if (args.tokens.v_prev)
    args.tokens.find_metric(m, seat.at.b, seat.g, seat.tile == 0 && seat.split == 0);
  for (int at = int(threadIdx.x); at < B::R * width; at += threads) {
    const int r = at / width, d = at % width;
    float x = 0;
    if (seat.has(r) && d < args.shape.D) {
      const int h = seat.head(args, r), i = seat.at.q0 + seat.query(r);
      x = folded.q.load(seat.at.b, h, i, d);
      if (args.tokens.v_prev) x *= m[i * args.shape.D + d];
    }
    lines[at] = scale * x;
  }
  __syncthreads();
  FOCI_UNROLL
  for (int r = 0; r < B::R; ++r) {
    FOCI_UNROLL
    for (int x = 0; x < each; ++x) q[r][x] = lines[r * width + seat.column + x];
  }
  __syncthreads();
}

/// One kind of lines: keys or values of the block's head.
struct Source {
  Field of;
  std::int64_t base, token, step;
  int count;  // of the thread's columns
  FOCI_DEVICE Source(const Field& field, const Place& at, int g, int column, int width)
      : of(field),
        base(field.offset(at.b, g, at.k0, column)),
        token(field.strides[2]),
        step(field.strides[3]),
        count(min(each, width - column)) {}
};

template <class B, DType type>
FOCI_DEVICE void load_lines(Raw<type> (&to)[at_once], const Source& from, const Seat<B>& seat,
                            int j, unsigned keep) {
  FOCI_UNROLL
  for (int u = 0; u < at_once; ++u) {
    to[u].clear();
    if (keep >> u & 1 && from.count > 0)
      to[u].load(from.of, from.base + seat.key(j, u) * from.token, from.step, from.count);
  }
}

/// Which of a group's lines are keys that count: a bit each.
template <class B>
FOCI_DEVICE unsigned kept(const Args& args, const Seat<B>& seat, int j) {
  const Field& mask = args.folded.key_mask;
  unsigned bits = 0;
  FOCI_UNROLL
  for (int u = 0; u < at_once; ++u) {
    const int key = seat.key(j, u);
    bool keep = key < seat.last;
    if (mask && keep) {
      const std::int64_t place = mask.offset(seat.at.b, seat.at.k0 + key);
      keep = static_cast<const std::uint8_t*>(mask.data)[place] != 0;
    }
    bits |= unsigned(keep) << u;
  }
  return bits;
}

/// A lane's row: what it has seen so far. `sum` is the lane's own part.
struct Row {
  int reach = 0;
  int bias_head = 0;
  float top = -INFINITY, sum = 0;
};

/// Sums of products to scores of the lane's row and on to weights; how much the sums of before
/// fade, in every lane of the row.
template <class B>
FOCI_DEVICE float weigh(float (&s)[B::held], Row& row, const Args& args, const Seat<B>& seat, int j,
                        unsigned keep) {
  const int number = int(threadIdx.x) % B::lanes * B::held / B::copies;  // the first of its scores
  float most = row.top;
  FOCI_UNROLL
  for (int i = 0; i < B::held; ++i) {
    const int u = (number + i) % at_once, key = seat.key(j, u);
    const bool seen = (keep >> u & 1) && key < row.reach;
    if constexpr (B::distances) s[i] *= -0.5f * args.folded.scale;
    s[i] = seen ? s[i] : -INFINITY;
    if (seen && args.folded.key_bias)
      s[i] += args.folded.key_bias.load(seat.at.b, row.bias_head, seat.at.k0 + key);
    most = fmaxf(most, s[i]);
  }
  FOCI_UNROLL
  for (int step = B::row_lanes / 2; step > 0; step /= 2)
    most = fmaxf(most, __shfl_xor_sync(~0u, most, step));
  const float top = most == -INFINITY ? 0 : most;  // -inf - -inf would be NaN
  const float fade = expf(row.top - top);
  row.sum *= fade;
  row.top = most;
  FOCI_UNROLL
  for (int i = 0; i < B::held; ++i) {
    s[i] = expf(s[i] - top);
    row.sum += s[i];
  }
  return fade;
}

/// The group's o (R rows, the lane's columns) over all of the block's keys.
template <class B>
FOCI_DEVICE void walk(float (&o)[B::R][each], Row& row, const Args& args, const Seat<B>& seat) {
  float q[B::R][each];
  load_queries<B>(q, args, seat);
  const Source k(args.folded.k, seat.at, seat.g, seat.column, args.shape.D);
  const Source v(args.folded.v, seat.at, seat.g, seat.column, args.shape.E);
  Raw<B::keys> keys[at_once];
  Raw<B::type> values[at_once];
  unsigned keep = kept(args, seat, seat.first);
  load_lines<B>(keys, k, seat, seat.first, keep);
  for (int j = seat.first; j < seat.last; j += B::step) {
    load_lines<B>(values, v, seat, j, keep);
    float s[B::scores];  // row by row
    FOCI_UNROLL
    for (int u = 0; u < at_once; ++u) {
      float x[each];
      keys[u].widen(x);
      FOCI_UNROLL
      for (int r = 0; r < B::R; ++r) {
        float sum = 0;
        FOCI_UNROLL
        for (int d = 0; d < each; ++d) {
          const float gap = q[r][d] - x[d];
          sum = B::distances ? fmaf(gap, gap, sum) : fmaf(q[r][d], x[d], sum);
        }
        s[r * at_once + u] = sum;
      }
    }
    const unsigned next = kept(args, seat, j + B::step);
    load_lines<B>(keys, k, seat, j + B::step, next);
    sum_apart<B::lanes, B::scores>(s);
    float a[B::held];
    FOCI_UNROLL
    for (int i = 0; i < B::held; ++i) a[i] = s[i];
    const float fade = weigh<B>(a, row, args, seat, j, keep);
    if (__any_sync(~0u, fade != 1.0f)) {
      FOCI_UNROLL
      for (int r = 0; r < B::R; ++r) {
        const float by = __shfl_sync(~0u, fade, r * B::row_lanes, B::lanes);
        FOCI_UNROLL
        for (int x = 0; x < each; ++x) o[r][x] *= by;
      }
    }
    FOCI_UNROLL
    for (int u = 0; u < at_once; ++u) {
      float x[each];
      values[u].widen(x);
      FOCI_UNROLL
      for (int r = 0; r < B::R; ++r) {
        const int number = r * at_once + u;
        const float weight =
            __shfl_sync(~0u, a[number % B::held], number / B::held * B::copies, B::lanes);
        FOCI_UNROLL
        for (int e = 0; e < each; ++e) o[r][e] = fmaf(weight, x[e], o[r][e]);
      }
    }
    keep = next;
  }
}

/// The groups' sums joined, and out.
template <class B>
FOCI_DEVICE void finish(const float (&o)[B::R][each], Row& row, const Args& args,
                        const Seat<B>& seat) {
  constexpr int width = B::lanes * each, count = B::all_groups * B::R;
  auto* lines = reinterpret_cast<float*>(shared_memory());  // (groups, R, width)
  float* tops = lines + count * width;                      // (groups, R)
  float* sums = tops + count;                               // (groups, R)
  float* shares = sums + count;                             // (groups, R)
  FOCI_UNROLL
  for (int step = B::row_lanes / 2; step > 0; step /= 2)
    row.sum += __shfl_xor_sync(~0u, row.sum, step);
  tops[seat.group * B::R + seat.row] = row.top;
  sums[seat.group * B::R + seat.row] = row.sum / B::copies;
  __syncthreads();
  for (int at = int(threadIdx.x); at < count; at += threads) {
    float top = -INFINITY;
    for (int group = 0; group < B::all_groups; ++group)
      top = fmaxf(top, tops[group * B::R + at % B::R]);
    shares[at] = below(tops[at], top);
  }
  __syncthreads();
  FOCI_UNROLL
  for (int r = 0; r < B::R; ++r) {
    const float by = shares[seat.group * B::R + r];
    auto* to = reinterpret_cast<float4*>(lines + (seat.group * B::R + r) * width + seat.column);
    to[0] = make_float4(by * o[r][0], by * o[r][1], by * o[r][2], by * o[r][3]);
    to[1] = make_float4(by * o[r][4], by * o[r][5], by * o[r][6], by * o[r][7]);
  }
  __syncthreads();
  const int E = args.shape.E;
  for (int at = int(threadIdx.x); at < B::R * width; at += threads) {
    const int r = at / width, e = at % width;
    if (!seat.has(r) || e >= E) continue;
    const std::int64_t slot = seat.line(args, r) * args.by.splits + seat.split;
    float sum = 0, top = -INFINITY;
    FOCI_UNROLL
    for (int group = 0; group < B::all_groups; ++group)
      sum += lines[(group * B::R + r) * width + e];
    args.o[slot * E + e] = sum;
    if (e != 0) continue;
    sum = 0;
    for (int group = 0; group < B::all_groups; ++group) {
      top = fmaxf(top, tops[group * B::R + r]);
      sum += sums[group * B::R + r] * shares[group * B::R + r];
    }
    args.notes[slot] = make_float2(top, sum);
  }
}

/// A block a row: what the splits found, joined.
__global__ void __launch_bounds__(threads) join_splits(Args args) {
  auto* shares = reinterpret_cast<float*>(shared_memory());  // (warps, splits)
  const Shape& shape = args.shape;
  const int i = int(blockIdx.x) % shape.longest_n;
  const int h = int(blockIdx.x) / shape.longest_n % shape.H;
  const Place at = shape.place(int(blockIdx.x) / shape.longest_n / shape.H);
  if (i >= at.N) return;
  const std::int64_t line = (std::int64_t(at.b) * shape.H + h) * shape.N + at.q0 + i;
  const std::int64_t slot = line * args.by.splits;
  const Found found{0, 1, (at.M + args.by.keys - 1) / args.by.keys};
  shares += int(threadIdx.x) / warp * args.by.splits;
  const float2 all = share_out(args, slot, found, shares);
  __syncwarp();
  for (int e = int(threadIdx.x); e < shape.E; e += threads) {
    float o[1] = {};
    join_columns(o, args, slot, found, shares, e);
    args.to.o.store(all.y == 0 ? 0 : o[0] / all.y, at.b, h, at.q0 + i, e);
  }
  if (threadIdx.x == 0 && args.to.lse)
    args.to.lse.store(all.y == 0 ? -INFINITY : all.x + logf(all.y), at.b, h, at.q0 + i);
}

template <class B>
__global__ void __launch_bounds__(threads, B::beside) split_rows(Args args) {
  const Seat<B> seat(args);
  if (!seat.has_work()) return;
  seat.append(args);
  Row row;
  if (seat.has(seat.row)) {
    const int h = seat.head(args, seat.row);
    row.reach = args.shape.reach(seat.at, seat.query(seat.row));
    row.bias_head = args.folded.key_head_bias ? seat.g : h;
  }
  float o[B::R][each] = {};
  walk<B>(o, row, args, seat);
  finish<B>(o, row, args, seat);
  if (args.arrived) join_at_last<B::type == DType::f64 ? 1 : 4>(args, seat);
}

template <class B>
void launch_rows(const Args& args, Stream stream) {
  const Splits& by = args.by;
  const auto blocks = std::int64_t(args.shape.sequences) * args.shape.G * by.tiles * by.splits;
  std::size_t room = B::shared;
  if (args.tokens.v_prev.data)
    room = std::max(room, sizeof(float) * B::R * B::lanes * each +
                              StepTokens::room(args.tokens.n, args.shape.D));
  launch("softmax over split keys", split_rows<B>, {{unsigned(blocks)}, {threads}, room}, stream,
         args);
}

template <DType type, int R, bool whitened = false>
void choose_width(const Args& args, Stream stream) {
  const int most = std::max(args.shape.D, args.shape.E);
  if (most <= 64) return launch_rows<Block<type, 64, R, whitened>>(args, stream);
  if (most <= 128) return launch_rows<Block<type, 128, R, whitened>>(args, stream);
  launch_rows<Block<type, 256, R, whitened>>(args, stream);
}

template <DType type>
void choose_rows(const Args& args, Stream stream) {
  if (args.folded.score == Score::difference) return choose_width<type, 4, true>(args, stream);
  if constexpr (type == DType::f32)
    args.by.tile == 1 ? choose_width<type, 1>(args, stream) : choose_width<type, 4>(args, stream);
}

/// Whether lines can be read 16 bytes at a time.
bool in_pieces(const Field& field, int width) {
  const std::int64_t size = field.dtype == DType::f32 ? 4 : 2;
  if (width % each != 0 || field.strides[3] != 1) return false;
  if (reinterpret_cast<std::uintptr_t>(field.data) % 16 != 0) return false;
  return std::all_of(field.strides, field.strides + 3,
                     [&](std::int64_t stride) { return stride * size % 16 == 0; });
}

constexpr int fewest_keys = 512;           // that are worth a second kernel
constexpr int most_queries = 16;           // of a sequence
constexpr int most_rows = 64;              // of a key head
constexpr std::int64_t least_split = 128;  // keys of a block
constexpr std::int64_t enough = 528;       // blocks that a large GPU runs at once
constexpr std::int64_t many_heads = 264;   // that keep it busy without splitting

/// Whether tensor cores may do it.
bool narrow(const Problem& p) { return p.from.q.dtype != DType::f32 && !p.full; }

/// Blocks that a large GPU runs at once: on tensor cores two on a multiprocessor, for their rings.
std::int64_t blocks_at_once(const Problem& p, const Shape& shape) {
  return !narrow(p) ? enough : std::max(shape.D, shape.E) <= 128 ? enough / 2 : enough / 4;
}

/// Into how many blocks the keys of a head go at most, and how many keys each has at least: blocks
/// that run all at once, or where heads alone are more a few rounds, so that the last is short.
struct Sharing {
  std::int64_t most, least;
};

Sharing sharing_of(const Problem& p, const Shape& shape, int tiles) {
  const auto heads = std::max<std::int64_t>(std::int64_t(shape.sequences) * shape.G * tiles, 1);
  const std::int64_t slots = blocks_at_once(p, shape);
  if (heads > slots) return {parts(4 * slots, heads), 8 * least_split};
  return {std::min<std::int64_t>(slots / heads, 1024), least_split};
}

Splits splits_of(const Problem& p, const Shape& shape) {
  Splits by;
  by.rows = shape.H / shape.G * shape.longest_n;
  by.tile = narrow(p) ? split_mma_rows : by.rows == 1 && !p.full ? 1 : 4;
  by.tiles = int(parts(by.rows, by.tile));
  const auto [most, least] = sharing_of(p, shape, by.tiles);
  by.keys = int(parts(std::max(parts(shape.longest_m, most), least), 64)) * 64;
  by.splits = int(std::max<std::int64_t>(parts(shape.longest_m, by.keys), 1));
  return by;
}

}  // namespace
}  // namespace split

bool SplitKeys::few_rows(const Problem& p, const Shape& shape) {
  using namespace split;
  const int rows = shape.H / shape.G * shape.longest_n;
  if (!std::holds_alternative<Softmax>(p.how.weighting)) return false;
  if (shape.longest_n > most_queries || rows > most_rows) return false;
  return !narrow(p) || rows <= split_mma_rows ||
         std::int64_t(shape.sequences) * shape.H < many_heads;
}

bool SplitKeys::pays(const Problem& p, const Shape& shape) {
  return few_rows(p, shape) && !p.full && metric::form_of(p.how.metric) == Form::product &&
         shape.longest_m >= split::fewest_keys;
}

std::int64_t SplitKeys::counters(const Problem& p) {
  using namespace split;
  // A tile has one and its groups of splits have; of 4 rows there may be four times as many tiles.
  const std::int64_t tiles = p.size.B * p.size.G * parts(most_rows, 4);
  return 2 * tiles + 4 * parts(enough, fan);
}

SplitKeys::SplitKeys(Arena& arena, const Problem& p, const Shape& shape)
    : shape_(shape), splits_(split::splits_of(p, shape)) {
  // As many splits as fewer keys might have: room for M keys is room for fewer.
  const auto rows = p.size.B * p.size.H * p.size.N;
  const auto [most, least] = split::sharing_of(p, shape, splits_.tiles);
  const auto splits =
      std::max<std::int64_t>(splits_.splits, std::min(most, parts(shape.longest_m, least)));
  o_ = arena.take<float>(rows, splits, p.size.E).data();
  notes_ = arena.take<float2>(rows, splits).data();
}

bool SplitKeys::serves(const Folded& folded, const Rows& to) const {
  if (folded.score != Score::product || folded.spans || folded.row_bias.data || folded.by_mma)
    return false;
  return !to.statistics() && !to.by;
}

void SplitKeys::forward(const Folded& folded, const Rows& to, Stream stream) const {
  run(folded, to, {}, nullptr, stream);
  const auto rows = std::int64_t(shape_.sequences) * shape_.H * shape_.longest_n;
  const std::size_t room = sizeof(float) * std::size_t(split::threads / warp * splits_.splits);
  launch("joining split keys", split::join_splits, {{unsigned(rows)}, {split::threads}, room},
         stream, split::Args{shape_, folded, to, splits_, o_, notes_, nullptr, {}});
}

void SplitKeys::step(const Folded& folded, const Rows& to, const StepTokens& tokens, int* arrived,
                     Stream stream) const {
  run(folded, to, tokens, arrived, stream);
}

void SplitKeys::run(const Folded& folded, const Rows& to, const StepTokens& tokens, int* arrived,
                    Stream stream) const {
  using namespace split;
  Args args{shape_, folded, to, splits_, o_, notes_, arrived, tokens};
  const bool whitened = folded.score == Score::difference, narrow = folded.v.dtype != DType::f32;
  const bool whole = (whitened || folded.k.dtype == folded.v.dtype) &&
                     in_pieces(folded.k, shape_.D) && in_pieces(folded.v, shape_.E);
  if (whole && split_keys_mma_serves(args)) return split_keys_mma(args, stream);
  if (!whole || (narrow && !whitened)) {
    args.by.tile = 4;
    args.by.tiles = int(parts(args.by.rows, 4));
    whitened ? launch_rows<Block<DType::f64, 256, 4, true>>(args, stream)
             : choose_width<DType::f64, 4>(args, stream);
  } else if (!narrow) {
    choose_rows<DType::f32>(args, stream);
  } else if (folded.v.dtype == DType::bf16) {
    choose_rows<DType::bf16>(args, stream);
  } else {
    choose_rows<DType::f16>(args, stream);
  }
}

}  // namespace foci::cuda
