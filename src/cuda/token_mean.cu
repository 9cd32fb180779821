// SPDX-License-Identifier: Apache-2.0
// Sums of tokens chunk by chunk, running sums over chunks, rows from them; and the same backwards.
#include "cuda/token_mean.cuh"

#include <algorithm>

namespace foci::cuda {

namespace {

constexpr int most_spans = 32;     // of a sequence
constexpr int many_lines = 192;    // that keep a GPU busy, a block each
constexpr int enough_spans = 528;  // of all where lines are fewer
constexpr int least_tokens = 128;  // of such a span
constexpr int prefix_chunk = 32;   // rows of a block under prefix
constexpr int row_threads = 128;   // of such a block
constexpr int batch = 4;           // tokens that a thread loads at once

/// |x - y|, or x.
template <class T>
FOCI_DEVICE T term_of(const Terms& of, T x, T y) {
  return of.y ? fabs(x - y) : x;
}

/// Whether Walk serves the terms.
FOCI_DEVICE bool walks(const Terms& of) {
  return of.y && !of.mask && of.x.dtype == of.y.dtype &&
         (of.x.dtype == DType::bf16 || of.x.dtype == DType::f16);
}

/// |x - y| of 16-bit numbers of every step-th token from `first` on: pointers and a type that are
/// known beforehand, for addresses and conversions take longer than sums.
template <DType type>
struct Walk {
  const std::uint16_t *x, *y;
  std::int64_t step_x, step_y;

  FOCI_DEVICE Walk(const Terms& of, const Terms::Span& at, int head, int first, int d, int step)
      : x(static_cast<const std::uint16_t*>(of.x.data) +
          of.x.offset(at.b, head, at.first + first, d)),
        y(static_cast<const std::uint16_t*>(of.y.data) +
          of.y.offset(at.b, head, at.first + first, d)),
        step_x(of.x.strides[2] * step),
        step_y(of.y.strides[2] * step) {}

  FOCI_DEVICE float operator()(int n) const {
    return fabsf(wide_of(x[n * step_x], type) - wide_of(y[n * step_y], type));
  }
  /// total += those of eight columns of `count` tokens.
  FOCI_DEVICE void add_all(double (&total)[8], int count) const {
    for (int begin = 0; begin < count; begin += batch) {
      uint4 from[2][batch];
      FOCI_UNROLL
      for (int n = 0; n < batch; ++n) {
        const int at = min(begin + n, count - 1);
        from[0][n] = *reinterpret_cast<const uint4*>(x + at * step_x);
        from[1][n] = *reinterpret_cast<const uint4*>(y + at * step_y);
      }
      float sum[8] = {};
      FOCI_UNROLL
      for (int n = 0; n < batch; ++n) {
        float a[8], b[8];
        unpack(a, from[0][n], type);
        unpack(b, from[1][n], type);
        FOCI_UNROLL
        for (int w = 0; w < 8 && begin + n < count; ++w) sum[w] += fabsf(a[w] - b[w]);
      }
      FOCI_UNROLL
      for (int w = 0; w < 8; ++w) total[w] += double(sum[w]);
    }
  }
};

/// total += the terms of tokens first, first + step, .. below last, in columns d ..
template <int W>
FOCI_DEVICE void add_terms(double (&total)[W], const Terms& of, const Terms::Span& at, int head,
                           int d, int first, int last, int step) {
  if constexpr (W == 8) {
    const int count = (last - first + step - 1) / step;
    if (walks(of) && of.x.dtype == DType::bf16)
      return Walk<DType::bf16>(of, at, head, first, d, step).add_all(total, count);
    if (walks(of)) return Walk<DType::f16>(of, at, head, first, d, step).add_all(total, count);
  }
  for (int j = first; j < last; j += batch * step) {
    float x[batch][W], y[batch][W];
    std::int64_t in_x[batch], in_y[batch];
    FOCI_UNROLL
    for (int n = 0; n < batch; ++n) {
      const int token = at.first + min(j + n * step, last - 1);
      in_x[n] = of.x.offset(at.b, head, token, d);
      in_y[n] = of.y.offset(at.b, head, token, d);
    }
    load_runs<W, batch>(x, of.x, in_x);
    if (of.y) load_runs<W, batch>(y, of.y, in_y);
    float sum[W] = {};
    FOCI_UNROLL
    for (int n = 0; n < batch; ++n) {
      const int token = j + n * step;
      if (token >= last || !of.counts(at, token)) continue;
      FOCI_UNROLL
      for (int w = 0; w < W; ++w) sum[w] += term_of(of, x[n][w], y[n][w]);
    }
    FOCI_UNROLL
    for (int w = 0; w < W; ++w) total[w] += double(sum[w]);
  }
}

/// The same of one column in double, where few tokens count every digit.
FOCI_DEVICE void add_exactly(double& total, const Terms& of, const Terms::Span& at, int head, int d,
                             int first, int last, int step) {
  for (int j = first; j < last; j += step) {
    const int token = at.first + j;
    if (!of.counts(at, j)) continue;
    const double x = number_at<double>(of.x, of.x.offset(at.b, head, token, d));
    total += term_of(of, x, of.y ? double(of.y.load(at.b, head, token, d)) : 0.0);
  }
}

/// How many tokens of [first, last) count; by a whole warp.
FOCI_DEVICE int count_tokens(const Terms& of, const Terms::Span& at, int first, int last) {
  int count = 0;
  for (int j = first + lane(); j < last; j += warp) count += of.counts(at, j);
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) count += __shfl_xor_sync(~0u, count, step);
  return count;
}

/// Sums of the threads that have the same columns, in `partial`: (.., width * W) of the warps or of
/// the groups; how many there are is returned. All threads get there.
template <int W>
FOCI_DEVICE int join_threads(double (&total)[W], const Columns& my, double* partial) {
  const bool by_warps = warp % my.width == 0;
  for (int step = my.width; by_warps && step < warp; step *= 2) {
    FOCI_UNROLL
    for (int w = 0; w < W; ++w) total[w] += __shfl_xor_sync(~0u, total[w], step);
  }
  const int part = by_warps ? int(threadIdx.x) / warp : my.group;
  if (by_warps ? lane() < my.width : my.works()) {
    FOCI_UNROLL
    for (int w = 0; w < W; ++w) partial[(part * my.width + my.column) * W + w] = total[w];
  }
  __syncthreads();
  return by_warps ? line_threads / warp : my.groups;
}

/// A block a chunk: every group of threads sums some of its tokens, then the groups are summed. A
/// block that has the whole line finishes it.
template <int W>
__global__ void __launch_bounds__(line_threads) sum_spans(TokenMean mean) {
  const int c = int(blockIdx.x) % mean.chunks, line = int(blockIdx.x) / mean.chunks;
  const int s = line / mean.of.heads, head = line % mean.of.heads, D = mean.D;
  const Terms::Span at = mean.of.span(mean.shape, s);
  const int first = c * mean.chunk, last = min(first + mean.chunk, at.count);
  const Columns my = Columns::of(D, W);
  auto* partial = reinterpret_cast<double*>(shared_memory());  // (groups, width * W)
  double* means = partial + line_threads * W;                  // (D)
  const int count = mean.of.mask ? count_tokens(mean.of, at, first, last) : max(last - first, 0);
  for (int begin = 0; begin < D; begin += my.width * W) {
    const int d = begin + my.column * W, wide = min(my.width * W, D - begin);
    double total[W] = {};
    if (my.works() && d < D && mean.wide) {
      add_exactly(total[0], mean.of, at, head, d, first + my.group, last, my.groups);
    } else if (my.works() && d < D) {
      add_terms<W>(total, mean.of, at, head, d, first + my.group, last, my.groups);
    }
    const int joined = join_threads<W>(total, my, partial);
    for (int x = int(threadIdx.x); x < wide; x += line_threads) {
      double sum = 0;
      for (int part = 0; part < joined; ++part) sum += partial[part * my.width * W + x];
      if (mean.chunks > 1) mean.sum(s, head, c)[begin + x] = sum;
      means[begin + x] = count > 0 ? sum / double(count) : 0.0;
    }
    __syncthreads();
  }
  if (mean.chunks > 1) {
    if (threadIdx.x == 0) *mean.count(s, head, c) = count;
  } else if (mean.wide) {
    normalize_line(mean, s, head, means, count);
  } else {
    auto* line = reinterpret_cast<float*>(partial);  // (D)
    for (int d = int(threadIdx.x); d < D; d += line_threads) line[d] = float(means[d]);
    normalize_line(mean, s, head, line, count);
  }
}

/// Short chunks: a group of threads each.
template <int W>
__global__ void __launch_bounds__(line_threads) sum_chunks(TokenMean mean) {
  const int D = mean.D;
  const Columns my = Columns::of(D, W);
  const int blocks = (mean.chunks + my.groups - 1) / my.groups;
  const int line = int(blockIdx.x) / blocks, c = int(blockIdx.x) % blocks * my.groups + my.group;
  if (!my.works() || c >= mean.chunks) return;
  const int s = line / mean.of.heads, head = line % mean.of.heads;
  const Terms::Span at = mean.of.span(mean.shape, s);
  const int first = c * mean.chunk, last = min(first + mean.chunk, at.count);
  for (int d = my.column * W; d < D; d += my.width * W) {
    double total[W] = {};
    if (mean.wide) {
      add_exactly(total[0], mean.of, at, head, d, first, last, 1);
    } else {
      add_terms<W>(total, mean.of, at, head, d, first, last, 1);
    }
    for (int w = 0; w < W; ++w) mean.sum(s, head, c)[d + w] = total[w];
  }
  if (my.column != 0) return;
  int count = 0;
  for (int j = first; j < last; ++j) count += mean.of.counts(at, j);
  *mean.count(s, head, c) = count;
}

/// x_c becomes the sum of those before it, or of it and those after it; several at a time, so that
/// loads do not wait for stores. `carried`: before all of them, and then what comes after.
template <class T>
FOCI_DEVICE void scan(T* x, std::int64_t step, int count, bool from_the_end, T* carried = nullptr) {
  constexpr int at_once = 16;
  T sum = carried ? *carried : T(0);
  for (int begin = 0; begin < count; begin += at_once) {
    T some[at_once];
    const auto place = [&](int n) {
      return std::int64_t(from_the_end ? count - 1 - begin - n : begin + n) * step;
    };
    FOCI_UNROLL
    for (int n = 0; n < at_once; ++n) some[n] = begin + n < count ? x[place(n)] : T(0);
    FOCI_UNROLL
    for (int n = 0; n < at_once; ++n) {
      const T before = sum;
      sum += some[n];
      if (begin + n < count) x[place(n)] = from_the_end ? sum : before;
    }
  }
  if (carried) *carried = sum;
}

__global__ void __launch_bounds__(line_threads) scan_chunks(TokenMean mean, int from_the_end) {
  const int thread = int(blockIdx.x) * line_threads + int(threadIdx.x);
  const int line = thread / mean.D, d = thread % mean.D;
  if (line >= mean.shape.sequences * mean.of.heads) return;
  const Carried& carried = mean.carried;
  scan(mean.sums + std::int64_t(line) * mean.chunks * mean.D + d, mean.D, mean.chunks,
       from_the_end != 0, carried.sums ? carried.sums + thread : nullptr);
  if (d == 0 && !from_the_end)
    scan(mean.counts + std::int64_t(line) * mean.chunks, 1, mean.chunks, false,
         carried.counts ? carried.counts + line : nullptr);
}

template <class T>
__global__ void __launch_bounds__(row_threads) finish_lines(TokenMean mean) {
  auto* line = reinterpret_cast<T*>(shared_memory());  // (D)
  const int s = int(blockIdx.x) / mean.of.heads, head = int(blockIdx.x) % mean.of.heads;
  int counted = 0;
  for (int c = 0; c < mean.chunks; ++c) counted += mean.count(s, head, 0)[c];
  for (int d = int(threadIdx.x); d < mean.D; d += row_threads) {
    double sum = 0;
    for (int c = 0; c < mean.chunks; ++c) sum += mean.sum(s, head, c)[d];
    line[d] = counted > 0 ? T(sum / double(counted)) : T(0);
  }
  normalize_line(mean, s, head, line, counted);
}

/// Which rows of a sequence and head a block works on under prefix.
struct Rows32 {
  int s, head, first, last;
  std::int64_t row0;  // of m: the sequence's first
  Place place;

  static FOCI_DEVICE Rows32 of(const TokenMean& mean) {
    const int blocks = (mean.shape.longest_n + prefix_chunk - 1) / prefix_chunk;
    const int line = int(blockIdx.x) / blocks, first = int(blockIdx.x) % blocks * prefix_chunk;
    const int s = line / mean.of.heads, head = line % mean.of.heads;
    const Place place = mean.shape.place(s);
    return {s,    head, first, min(first + prefix_chunk, place.N), mean.first_row(s, head, place),
            place};
  }
};

/// Running means of column d at the block's rows, into lines (rows, D); counts into counted.
/// term(j) is that of token j.
template <class T, class Term>
FOCI_DEVICE void run_column(const TokenMean& mean, const Rows32& rows, int d, T* lines,
                            int* counted, const Term& term) {
  const Terms::Span at = mean.of.span(mean.shape, rows.s);
  const int t0 = at.ahead + rows.first, t1 = at.ahead + rows.last, D = mean.D;
  const int c = max(t0, 0) / mean.chunk;
  const bool any = t1 > 0 && c < mean.chunks;
  double sum = any ? mean.sum(rows.s, rows.head, c)[d] : 0.0;
  int count = any ? *mean.count(rows.s, rows.head, c) : 0;
  for (int i = 0; i < rows.last - rows.first && t0 + i < 0; ++i) {
    lines[i * D + d] = 0;
    if (d == 0) counted[i] = 0;
  }
  constexpr int at_once = 16;
  for (int begin = c * mean.chunk; begin < t1; begin += at_once) {
    T some[at_once];
    FOCI_UNROLL
    for (int n = 0; n < at_once; ++n) some[n] = term(min(begin + n, t1 - 1));
    FOCI_UNROLL
    for (int n = 0; n < at_once; ++n) {
      const int j = begin + n;
      if (j >= t1) break;
      if (mean.of.counts(at, j)) {
        sum += double(some[n]);
        ++count;
      }
      if (j < t0) continue;
      // Floats: rounded twice, which costs a unit in the last place, and no division in double.
      lines[(j - t0) * D + d] = count > 0 ? T(sum) / T(count) : T(0);
      if (d == 0) counted[j - t0] = count;
    }
  }
}

/// The same with the terms of any type.
template <class T>
FOCI_DEVICE void run_column(const TokenMean& mean, const Rows32& rows, int d, T* lines,
                            int* counted) {
  const Terms& of = mean.of;
  const Terms::Span at = of.span(mean.shape, rows.s);
  if constexpr (sizeof(T) == sizeof(float)) {
    if (walks(of) && of.x.dtype == DType::bf16)
      return run_column(mean, rows, d, lines, counted,
                        Walk<DType::bf16>(of, at, rows.head, 0, d, 1));
    if (walks(of))
      return run_column(mean, rows, d, lines, counted,
                        Walk<DType::f16>(of, at, rows.head, 0, d, 1));
  }
  run_column(mean, rows, d, lines, counted, [&](int j) {
    const T x = number_at<T>(of.x, of.x.offset(at.b, rows.head, at.first + j, d));
    const T y = of.y ? T(of.y.load(at.b, rows.head, at.first + j, d)) : T(0);
    return term_of(of, x, y);
  });
}

/// m of 32 rows: a thread walks down a column, then a warp normalises a row.
template <class T>
__global__ void __launch_bounds__(row_threads) run_rows(TokenMean mean) {
  const Rows32 rows = Rows32::of(mean);
  const int D = mean.D;
  auto* lines = reinterpret_cast<T*>(shared_memory());               // (32, D)
  auto* counted = reinterpret_cast<int*>(lines + prefix_chunk * D);  // (32)
  for (int d = int(threadIdx.x); d < D; d += row_threads) run_column(mean, rows, d, lines, counted);
  __syncthreads();
  for (int i = int(threadIdx.x) / warp; i < rows.last - rows.first; i += row_threads / warp) {
    const T* line = lines + i * D;
    const T by = divisor_of(mean.normalize, line, D, counted[i]);
    const T all = mean.flat ? flat_of(line, D, by) : T(0);
    const std::int64_t row = rows.row0 + rows.first + i;
    for (int d = lane(); d < D; d += warp) {
      const T m = by == 0 ? T(1) : line[d] / by;
      mean.write(mean.flat ? all : m, m, row, d,
                 {rows.place.b, rows.head, rows.place.q0 + rows.first + i});
    }
    if (lane() != 0 || !mean.by) continue;
    mean.by[row] = float(by);
    mean.counted[row] = counted[i];
  }
}

/// dm of a normalised row -> of each of its terms, in place; by a whole warp.
FOCI_DEVICE void pull_row(const TokenMean& mean, std::int64_t row, float* dm, bool divides) {
  const int D = mean.D, counted = mean.counted[row];
  const float* m = (mean.flat ? mean.uneven : mean.m) + row * D;
  const double by = double(mean.by[row]);
  // The mean of what was divided by its mean is 1 whatever the tokens.
  const bool still = by == 0 || counted == 0 || (mean.flat && mean.normalize == Normalize::mean);
  double whole = 0, dot = 0, ties = 0;
  for (int d = lane(); d < D; d += warp) whole += double(dm[d]);
  whole = warp_total(whole) / double(D);
  for (int d = lane(); d < D; d += warp) {
    dot += (mean.flat ? whole : double(dm[d])) * double(m[d]);
    ties += m[d] == 1.0f ? 1.0 : 0.0;
  }
  dot = warp_total(dot);
  ties = warp_total(ties);
  for (int d = lane(); d < D; d += warp) {
    double through = 0;  // the divisor's own share
    if (mean.normalize == Normalize::max && m[d] == 1.0f) through = dot / ties;
    if (mean.normalize == Normalize::mean) through = dot / double(D);
    const double back = ((mean.flat ? whole : double(dm[d])) - through) / by;
    dm[d] = still ? 0.0f : float(divides ? back / double(counted) : back);
  }
}

__global__ void __launch_bounds__(warp) pull_lines(TokenMean mean, float* dm, int divides) {
  pull_row(mean, blockIdx.x, dm + std::int64_t(blockIdx.x) * mean.D, divides != 0);
}

/// The rows' own gradients, and their sums over the block.
__global__ void __launch_bounds__(row_threads) pull_rows(TokenMean mean, float* dm) {
  const Rows32 rows = Rows32::of(mean);
  const int D = mean.D;
  float* lines = dm + (rows.row0 + rows.first) * D;
  for (int i = int(threadIdx.x) / warp; i < rows.last - rows.first; i += row_threads / warp)
    pull_row(mean, rows.row0 + rows.first + i, lines + i * D, true);
  __syncthreads();
  for (int d = int(threadIdx.x); d < D; d += row_threads) {
    double sum = 0;
    for (int i = 0; i < rows.last - rows.first; ++i) sum += double(lines[i * D + d]);
    mean.sum(rows.s, rows.head, rows.first / prefix_chunk)[d] = sum;
  }
}

/// Row i becomes the sum of itself and those after it.
__global__ void __launch_bounds__(row_threads) run_back(TokenMean mean, float* dm) {
  const Rows32 rows = Rows32::of(mean);
  const int D = mean.D, c = rows.first / prefix_chunk;
  float* lines = dm + (rows.row0 + rows.first) * D;
  for (int d = int(threadIdx.x); d < D; d += row_threads) {
    double sum = c + 1 < mean.chunks ? mean.sum(rows.s, rows.head, c + 1)[d] : 0.0;
    for (int i = rows.last - rows.first - 1; i >= 0; --i) {
      sum += double(lines[i * D + d]);
      lines[i * D + d] = float(sum);
    }
  }
}

unsigned row_blocks(const TokenMean& mean, int chunks) {
  return unsigned(std::int64_t(mean.shape.sequences) * mean.of.heads * chunks);
}

}  // namespace

void TokenMean::take(metric::Arena& arena, const metric::Problem& problem, const Shape& of_shape,
                     bool exact, bool back) {
  shape = of_shape;
  prefix = problem.scope == Scope::prefix;
  D = shape.D;
  const int heads = of.heads, tokens = of.of_queries ? shape.longest_n : shape.longest_m;
  const int all = std::max(shape.sequences * heads, 1);
  const int spans = all >= many_lines ? 1 : std::min(int(parts(enough_spans, all)), most_spans);
  chunk = prefix ? prefix_chunk : std::max(least_tokens, int(parts(std::max(tokens, 1), spans)));
  chunks = std::max(1, int(parts(tokens, chunk)));
  const int backward_chunks = back && prefix ? int(parts(shape.longest_n, prefix_chunk)) : 0;
  const std::int64_t lines = heads * (prefix ? problem.size.B * problem.size.N : problem.sequences);
  sums = arena.take<double>(shape.sequences, heads, std::max(chunks, backward_chunks), D).data();
  counts = arena.take<int>(shape.sequences, heads, chunks).data();
  m = arena.take<float>(lines, D).data();
  if (exact) wide = arena.take<double>(lines, D).data();
  if (!back) return;
  by = arena.take<float>(lines).data();
  counted = arena.take<int>(lines).data();
  if (flat) uneven = arena.take<float>(lines, D).data();
}

void TokenMean::sum_up(Stream stream) const {
  const bool eights = !wide && in_eights(D, 4, {of.x, of.y});
  with_width(eights, [&](auto width) {
    constexpr int W = decltype(width)::value;
    if (prefix) {
      const int blocks = int(parts(chunks, Columns::lines_at_once(D, W)));
      launch("token mean", sum_chunks<W>, {{row_blocks(*this, blocks)}, {line_threads}}, stream,
             *this);
    } else {
      launch("token mean", sum_spans<W>,
             {{row_blocks(*this, chunks)},
              {line_threads},
              (line_threads * W + std::size_t(D)) * sizeof(double)},
             stream, *this);
    }
  });
}

void TokenMean::finish(Stream stream) const {
  if (!prefix && chunks == 1 && !median) return;
  if (!prefix) {
    launch("token mean", wide ? finish_lines<double> : finish_lines<float>,
           {{row_blocks(*this, 1)}, {row_threads}, std::size_t(D) * sizeof(double)}, stream, *this);
    return;
  }
  const auto columns = std::int64_t(shape.sequences) * of.heads * D;
  launch("token mean", scan_chunks, {{unsigned(parts(columns, line_threads))}, {line_threads}},
         stream, *this, 0);
  const std::size_t number = wide ? sizeof(double) : sizeof(float);
  const std::size_t room = std::size_t(prefix_chunk) * (std::size_t(D) * number + sizeof(int));
  launch("token mean", wide ? run_rows<double> : run_rows<float>,
         {{row_blocks(*this, int(parts(shape.longest_n, prefix_chunk)))}, {row_threads}, room},
         stream, *this);
}

void TokenMean::backward(float* dm, bool mean, Stream stream) const {
  if (!prefix) {
    launch("token mean", pull_lines, {{row_blocks(*this, 1)}, {warp}}, stream, *this, dm,
           int(mean));
    return;
  }
  TokenMean rows = *this;
  rows.chunks = int(parts(shape.longest_n, prefix_chunk));
  const Grid grid{{row_blocks(rows, rows.chunks)}, {row_threads}};
  const auto columns = std::int64_t(shape.sequences) * of.heads * D;
  launch("token mean", pull_rows, grid, stream, rows, dm);
  launch("token mean", scan_chunks, {{unsigned(parts(columns, line_threads))}, {line_threads}},
         stream, rows, 1);
  launch("token mean", run_back, grid, stream, rows, dm);
}

}  // namespace foci::cuda
