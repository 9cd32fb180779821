// SPDX-License-Identifier: Apache-2.0
// Diagonal metrics on the GPU: whose lines there are, q' = m q, and the sums that dm is made of.
#include "cuda/diagonal.cuh"

#include "metric/draw.hpp"

#include <algorithm>

namespace foci::cuda {

namespace {

constexpr int rounds = 8;  // lines that a thread folds
constexpr int batch = 4;   // of them at once

struct Draw {
  int G, D;
  Random how;
  float* m;      // (G, D), or
  double* wide;  // the same
};

/// A block a key head.
__global__ void __launch_bounds__(warp) draw_lines(Draw of) {
  auto* line = reinterpret_cast<double*>(shared_memory());  // (D)
  const int g = int(blockIdx.x);
  for (int d = lane(); d < of.D; d += warp)
    line[d] = metric::draw(of.how.floor, of.how.seed, of.how.layer, g, d);
  __syncwarp();
  const double by = divisor_of(of.how.normalize, line, of.D, 1);
  for (int d = lane(); d < of.D; d += warp) {
    const double x = by == 0 ? 1.0 : line[d] / by;
    const std::int64_t at = std::int64_t(g) * of.D + d;
    of.wide ? of.wide[at] = x : of.m[at] = float(x);
  }
}

struct Copy {
  Field from, to;      // (copies, heads, rows, D) where there are any; (batches, heads, rows, D)
  std::int64_t count;  // numbers in `to`
  int heads, rows, D;
  int copies;  // to be added up; 1: from has as many batches as to, 0: zeros
};

__global__ void __launch_bounds__(line_threads) copy_lines(Copy of) {
  const std::int64_t at = std::int64_t(blockIdx.x) * line_threads + int(threadIdx.x);
  if (at >= of.count) return;
  const int d = int(at % of.D);
  const std::int64_t line = at / of.D;
  const int i = int(line % of.rows), head = int(line / of.rows % of.heads);
  const int b = int(line / of.rows / of.heads);
  double sum = 0;
  for (int copy = 0; copy < of.copies; ++copy)
    sum += double(of.from.load(of.copies > 1 ? copy : b, head, i, d));
  of.to.store(float(sum), b, head, i, d);
}

void copy_to(const View& to, const Field& from, std::int64_t copies, Stream stream) {
  const std::int64_t count = to.count();
  launch("metric", copy_lines, {{unsigned(parts(count, line_threads))}, {line_threads}}, stream,
         Copy{from, Field(to), count, int(to.shape[1]), int(to.shape[2]), int(to.shape[3]),
              int(copies)});
}

struct Fold {
  Shape shape;
  MetricLines lines;
  int one_row;  // only the first query's: it has what all have
  Field from;   // (B,H,N,D); absent: ones
  Field to;     // (B,H,N,D)
};

/// to = m from: a block some rows of a query head.
template <int W>
__global__ void __launch_bounds__(line_threads) fold_lines(Fold of) {
  const Shape& shape = of.shape;
  const Columns my = Columns::of(shape.D, W);
  const int most = of.one_row ? 1 : shape.longest_n, rows = rounds * my.groups;
  const int blocks = max(1, (most + rows - 1) / rows), tile = int(blockIdx.x) % blocks;
  const int h = int(blockIdx.x) / blocks % shape.H, s = int(blockIdx.x) / blocks / shape.H;
  const Place at = shape.place(s);
  const int begin = tile * rows, end = min(begin + rows, of.one_row ? min(1, at.N) : at.N);
  for (int d = my.column * W; my.works() && d < shape.D; d += my.width * W) {
    for (int i = begin + my.group; i < end; i += batch * my.groups) {
      std::int64_t in[batch], in_m[batch];
      float x[batch][W], m[batch][W];
      FOCI_UNROLL
      for (int n = 0; n < batch; ++n) {
        const int row = min(i + n * my.groups, end - 1);
        in[n] = of.from.offset(at.b, h, at.q0 + row, d);
        in_m[n] = of.lines.offset(shape, at, s, h, row, d);
      }
      if (of.from) load_runs<W, batch>(x, of.from, in);
      load_runs<W, batch>(m, of.lines.m, in_m);
      FOCI_UNROLL
      for (int n = 0; n < batch; ++n) {
        const int row = i + n * my.groups;
        if (row >= end) continue;
        FOCI_UNROLL
        for (int w = 0; w < W; ++w) x[n][w] = (of.from ? x[n][w] : 1.0f) * m[n][w];
        store_run<W>(of.to, of.to.offset(at.b, h, of.one_row ? 0 : at.q0 + row, d), x[n]);
      }
    }
  }
}

struct GradientSums {
  Shape shape;
  MetricLines lines;
  Field terms, q;  // (B,H,N,D): dm = sum terms q, or sum terms where there is no q
  int heads, chunk, chunks;
  double* sums;  // (sequences, heads, chunks, D)
  float* dm;     // (sequences, heads, 1, D) or (B, heads, N, D)
};

/// total += those of queries first, first + step, .. below last of query head h.
template <int W>
FOCI_DEVICE void add_terms(double (&total)[W], const GradientSums& of, const Place& at, int h,
                           int d, int first, int last, int step) {
  for (int i = first; i < last; i += batch * step) {
    std::int64_t in[batch], in_q[batch];
    float x[batch][W], q[batch][W];
    FOCI_UNROLL
    for (int n = 0; n < batch; ++n) {
      const int row = at.q0 + min(i + n * step, last - 1);
      in[n] = of.terms.offset(at.b, h, row, d);
      in_q[n] = of.q.offset(at.b, h, row, d);
    }
    load_runs<W, batch>(x, of.terms, in);
    if (of.q) load_runs<W, batch>(q, of.q, in_q);
    FOCI_UNROLL
    for (int n = 0; n < batch; ++n) {
      FOCI_UNROLL
      for (int w = 0; w < W && i + n * step < last; ++w)
        total[w] += double(x[n][w]) * double(of.q ? q[n][w] : 1.0f);
    }
  }
}

/// A block some queries of all query heads that share a line.
template <int W>
__global__ void __launch_bounds__(line_threads) sum_lines(GradientSums of) {
  const Shape& shape = of.shape;
  const int c = int(blockIdx.x) % of.chunks, line = int(blockIdx.x) / of.chunks, D = shape.D;
  const int s = line / of.heads, head = line % of.heads, shared_by = shape.H / of.heads;
  const Place at = shape.place(s);
  const int first = c * of.chunk, last = min(first + of.chunk, at.N);
  const Columns my = Columns::of(D, W);
  auto* partial = reinterpret_cast<double*>(shared_memory());  // (groups, width * W)
  for (int begin = 0; begin < D; begin += my.width * W) {
    const int d = begin + my.column * W, wide = min(my.width * W, D - begin);
    double total[W] = {};
    for (int r = 0; r < shared_by && my.works() && d < D; ++r)
      add_terms<W>(total, of, at, head * shared_by + r, d, first + my.group, last, my.groups);
    for (int w = 0; w < W && my.works(); ++w)
      partial[(my.group * my.width + my.column) * W + w] = total[w];
    __syncthreads();
    for (int x = int(threadIdx.x); x < wide; x += line_threads) {
      double sum = 0;
      for (int group = 0; group < my.groups; ++group) sum += partial[group * my.width * W + x];
      of.sums[(std::int64_t(line) * of.chunks + c) * D + begin + x] = sum;
    }
    __syncthreads();
  }
}

__global__ void __launch_bounds__(line_threads) sum_chunks(GradientSums of) {
  const std::int64_t at = std::int64_t(blockIdx.x) * line_threads + int(threadIdx.x);
  const std::int64_t line = at / of.shape.D, d = at % of.shape.D;
  if (line >= std::int64_t(of.shape.sequences) * of.heads) return;
  double sum = 0;
  for (int c = 0; c < of.chunks; ++c) sum += of.sums[(line * of.chunks + c) * of.shape.D + d];
  of.dm[at] = float(sum);
}

/// A line a query: the query heads that share it are all there is to sum up.
__global__ void __launch_bounds__(line_threads) sum_heads(GradientSums of) {
  const Shape& shape = of.shape;
  const std::int64_t at = std::int64_t(blockIdx.x) * line_threads + int(threadIdx.x);
  const std::int64_t row = at / shape.D, line = row / shape.N;
  const int d = int(at % shape.D), i = int(row % shape.N), head = int(line % of.heads);
  const int b = int(line / of.heads), shared_by = shape.H / of.heads;
  if (at >= of.chunks * std::int64_t(of.heads) * shape.N * shape.D) return;  // chunks: batches
  double sum = 0;
  for (int r = 0; r < shared_by; ++r) {
    const int h = head * shared_by + r;
    sum += double(of.terms.load(b, h, i, d)) * double(of.q ? of.q.load(b, h, i, d) : 1.0f);
  }
  of.dm[at] = float(sum);
}

}  // namespace

DiagonalMetric::DiagonalMetric(Arena& arena, const Problem& problem, const Shape& shape, Pass pass,
                               bool exact, const Carried& carried)
    : p_(problem), shape_(shape), exact_(exact), none_(problem.metric<Dot>() != nullptr) {
  mean_.carried = carried;
  if (none_) return;
  describe();
  take_estimate(arena, pass);
  take_fold(arena);
  if (pass == Pass::backward) take_gradients(arena);
}

void DiagonalMetric::describe() {
  const View& given = p_.from.metric;
  const bool is_given = p_.metric<Given>() != nullptr;
  lines_.per_head = p_.metric<Jacobian>() || (is_given && given.shape[1] == p_.size.H);
  lines_.per_query = is_given ? p_.size.N > 1 && given.shape[2] == p_.size.N
                              : p_.scope == Scope::prefix && !p_.metric<Random>();
  heads_ = int(lines_.per_head ? p_.size.H : p_.size.G);
  batches_ = lines_.per_query ? p_.size.B : p_.sequences;
  rows_ = lines_.per_query ? p_.size.N : 1;
}

Terms DiagonalMetric::changing_values() const {
  Inputs from = p_.from;
  const bool carried = mean_.carried.any != 0;
  if (carried) {
    from.v = from.v.sliced(2, p_.size.M - p_.size.N, p_.size.M);
    if (from.key_mask) from.key_mask = from.key_mask.sliced(1, p_.size.M - p_.size.N, p_.size.M);
  }
  return {Field(from.v), Field(from.v_prev), Field(from.key_mask), int(p_.size.G), int(carried)};
}

void DiagonalMetric::take_estimate(Arena& arena, Pass pass) {
  if (p_.metric<Given>()) {
    lines_.m = Field(p_.from.metric);
    return;
  }
  if (p_.metric<Random>()) {
    if (exact_) {
      drawn_exactly_ = arena.take<double>(p_.size.G, p_.size.D).data();
      lines_.m = Field(View(drawn_exactly_, {1, p_.size.G, 1, p_.size.D}));
    } else {
      drawn_ = arena.take<float>(p_.size.G, p_.size.D).data();
      lines_.m = Field::of(drawn_, {1, p_.size.G, 1, p_.size.D});
    }
    return;
  }
  const auto read = [&](const auto& how) {
    mean_.normalize = how.normalize;
    if (how.reduce == Reduce::median)
      chosen_ = arena.take<int>(p_.sequences, p_.size.G, p_.size.D).data();
  };
  if (const auto* how = p_.metric<LayerChange>()) read(*how);
  if (const auto* how = p_.metric<Flat>()) read(*how), mean_.flat = 1;
  const bool back = pass == Pass::backward;
  if (const auto* how = p_.metric<Jacobian>()) {
    mean_.normalize = how->normalize;
    jacobian_.take(arena, p_, shape_, exact_, back && p_.through);
    jacobian_.last_keys = mean_.carried.any;
    mean_.of = jacobian_.terms(p_);
  } else {
    mean_.of = changing_values();
  }
  mean_.take(arena, p_, shape_, exact_, back);
  mean_.median = median();
  if (median()) mean_.chunks = 1;
  lines_.m = Field::of(mean_.m, {batches_, heads_, rows_, p_.size.D});
  if (exact_) lines_.m = Field(View(mean_.wide, {batches_, heads_, rows_, p_.size.D}));
}

void DiagonalMetric::take_fold(Arena& arena) {
  const auto& z = p_.size;
  if (folds()) {
    // In float: 16 bits of q' would show in lse and in the statistics.
    folded_ = Field::of(arena.take<float>(z.B, z.H, z.N, z.D).data(), {z.B, z.H, z.N, z.D});
    return;
  }
  if (exact_) return;
  const bool one_batch =
      p_.metric<Random>() || (p_.metric<Given>() && p_.from.metric.shape[0] == 1);
  const bool by_sequence = p_.packed() && !lines_.per_query && !one_batch;
  spread_ = by_sequence || (heads_ != z.H && heads_ > 1);
  if (!spread_) return;
  const std::int64_t rows = by_sequence || lines_.per_query ? z.N : 1;
  folded_ = Field::of(arena.take<float>(z.B, z.H, rows, z.D).data(), {z.B, z.H, rows, z.D});
}

void DiagonalMetric::take_gradients(Arena& arena) {
  const auto& z = p_.size;
  const auto room = [&](std::int64_t heads, std::int64_t tokens, std::int64_t width) {
    return Field::of(arena.take<float>(z.B, heads, tokens, width).data(),
                     {z.B, heads, tokens, width});
  };
  const bool differentiated = p_.through && differentiates();
  if (folds() || differentiated) dq_ = room(z.H, z.N, z.D);
  if (!folds()) dm_terms_ = room(z.H, z.N, z.D);
  if (differentiated) dk_ = room(z.G, z.M, z.D);
  if (p_.through && estimated()) dv_ = room(z.G, z.M, z.E);
  dm_ = arena.take<float>(batches_, heads_, rows_, z.D).data();
  chunk_ = std::max(128, int(parts(p_.longest_n, 32)));
  chunks_ = std::max(1, int(parts(p_.longest_n, chunk_)));
  if (!lines_.per_query) sums_ = arena.take<double>(p_.sequences, heads_, chunks_, z.D).data();
}

bool DiagonalMetric::wants_dm(const Gradients& to) const {
  return !none_ && (to.dmetric || (p_.through && estimated()));
}

void DiagonalMetric::estimate(const Outputs& to, Stream stream) {
  if (none_) return;
  const int D = shape_.D;
  if (const auto* how = p_.metric<Random>()) {
    launch("random metric", draw_lines, {{unsigned(shape_.G)}, {warp}, D * sizeof(double)}, stream,
           Draw{shape_.G, D, *how, drawn_, drawn_exactly_});
  }
  if (estimated()) {
    if (to.metric) mean_.copy = Field(to.metric);
    if (differentiates()) jacobian_.measure(stream);
    median() ? sum_up_median(mean_, chosen_, stream) : mean_.sum_up(stream);
    mean_.finish(stream);
    return;
  }
  if (to.metric) copy_to(to.metric, lines_.m, 1, stream);
}

const TokenMean* DiagonalMetric::within_pass() const {
  return !none_ && changes() && !median() && !mean_.prefix && !mean_.carried.any ? &mean_ : nullptr;
}

void DiagonalMetric::fold_queries(const Field& from, const Field& to, Stream stream) const {
  const Fold of{shape_, lines_, to.strides[2] == 0 && !from.data, from, to};
  const bool eights = in_eights(shape_.D, 4, {from, to, lines_.m});
  with_width(eights, [&](auto width) {
    constexpr int W = decltype(width)::value;
    const int rows = rounds * Columns::lines_at_once(shape_.D, W);
    const std::int64_t tiles =
        std::max<std::int64_t>(1, parts(of.one_row ? 1 : shape_.longest_n, rows));
    launch("fold", fold_lines<W>,
           {{unsigned(std::int64_t(shape_.sequences) * shape_.H * tiles)}, {line_threads}}, stream,
           of);
  });
}

Folded plain_lines(const Problem& p) {
  Folded folded;
  folded.scale = float(p.c);
  folded.q = Field(p.from.q);
  folded.k = Field(p.from.k);
  folded.v = Field(p.from.v);
  folded.key_bias = Field(p.from.key_bias);
  folded.key_head_bias = p.from.key_bias && p.from.key_bias.shape[1] != p.size.H;
  folded.key_mask = Field(p.from.key_mask);
  return folded;
}

Folded DiagonalMetric::beside() const {
  Folded folded = plain_lines(p_);
  folded.score = product() ? Score::product : Score::weighted;
  folded.m = lines_.m;
  folded.key_head_m = !lines_.per_head;
  return folded;
}

Folded DiagonalMetric::fold(int, Stream stream) {
  Folded folded = beside();
  if (none_) return folded;
  if (folds()) {
    fold_queries(folded.q, folded_, stream);
    folded.q = folded_;
    folded.m = {};
  } else if (spread_) {
    fold_queries({}, folded_, stream);
    folded.m = folded_;
  }
  return folded;
}

bool DiagonalMetric::stays_in_range() const {
  if (none_ || p_.from.q.dtype != DType::f16) return true;
  const auto* drawn = p_.metric<Random>();
  return (estimated() && mean_.normalize == Normalize::max) ||
         (drawn && drawn->normalize == Normalize::max);
}

bool DiagonalMetric::wants_all_bits(const Gradients& to) const {
  return !none_ && (to.dmetric || to.dkey_bias);
}

Sinks DiagonalMetric::sinks(const Gradients& to) {
  Sinks sinks;
  sinks.dq = Field(to.dq);
  sinks.dk = Field(to.dk);
  sinks.dv = Field(to.dv);
  sinks.dkey_bias = Field(to.dkey_bias);
  if (none_) return sinks;
  if (dq_.data && (to.dq || (folds() && wants_dm(to)))) sinks.dq = dq_;
  if (dk_.data && to.dk) sinks.dk = dk_;
  if (!folds() && wants_dm(to)) sinks.dm = dm_terms_;
  if (dv_.data && to.dv) sinks.dv = dv_;
  return sinks;
}

Sinks DiagonalMetric::sinks_beside(const Gradients& to) {
  Sinks sinks = this->sinks(to);
  if (none_ || wants_dm(to)) return sinks;
  sinks.dq = Field(to.dq);
  sinks.dq_of_q = 1;
  return sinks;
}

void DiagonalMetric::sum_gradient(Stream stream) const {
  const Field terms = folds() ? dq_ : dm_terms_, q = folds() ? Field(p_.from.q) : Field();
  GradientSums of{shape_, lines_, terms, q, heads_, chunk_, chunks_, sums_, dm_};
  if (lines_.per_query) {
    of.chunks = int(batches_);
    const std::int64_t count = batches_ * heads_ * rows_ * p_.size.D;
    launch("metric gradient", sum_heads, {{unsigned(parts(count, line_threads))}, {line_threads}},
           stream, of);
    return;
  }
  const std::int64_t lines = p_.sequences * heads_;
  with_width(in_eights(shape_.D, 4, {terms, q}), [&](auto width) {
    constexpr int W = decltype(width)::value;
    launch("metric gradient", sum_lines<W>,
           {{unsigned(lines * chunks_)}, {line_threads}, line_threads * W * sizeof(double)}, stream,
           of);
  });
  launch("metric gradient", sum_chunks,
         {{unsigned(parts(lines * p_.size.D, line_threads))}, {line_threads}}, stream, of);
}

void DiagonalMetric::finish(const Gradients& to, Stream stream, bool beside) {
  const bool through = p_.through && changes();
  if (to.dv_prev && !through) copy_to(to.dv_prev, {}, 0, stream);
  if (none_) return;
  if (wants_dm(to)) sum_gradient(stream);
  if (to.dmetric) {
    const Field dm = Field::of(dm_, {batches_, heads_, rows_, p_.size.D});
    const bool joins = to.dmetric.shape[0] == 1;
    copy_to(to.dmetric, dm, joins ? batches_ : 1, stream);
  }
  const bool more = p_.through && differentiates();  // dq is not complete yet
  if (folds() && to.dq && (!beside || wants_dm(to)))
    fold_queries(dq_, more ? dq_ : Field(to.dq), stream);
  if (!p_.through || !estimated()) return;
  mean_.backward(dm_, !median(), stream);
  if (more) return pull_jacobian(to, stream);
  pull_change({mean_, dm_, chosen_, dv_, Field(to.dv), Field(to.dv_prev)}, stream);
}

void DiagonalMetric::pull_jacobian(const Gradients& to, Stream stream) const {
  const Field g = Field::of(dm_, {batches_, heads_, rows_, p_.size.D});
  jacobian_.backward(
      {g, lines_.per_query, dq_, Field(to.dq), to.dk ? dk_ : Field(), to.dv ? dv_ : Field()},
      stream);
  if (to.dk) copy_to(to.dk, dk_, 1, stream);
  if (to.dv) copy_to(to.dv, dv_, 1, stream);
}

}  // namespace foci::cuda
