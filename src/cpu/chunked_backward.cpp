// SPDX-License-Identifier: Apache-2.0
// Backward: dq from the state of earlier keys, along the rows; then dk, dv and dbias from the state
// of later rows, against them. With g = do over the row's divisor,
//   dq'_i = S_i g_i        dk_j = T_j v_j        dv_j = T_j' k_j        T_j = sum_i>=j q'_i g_i'
// and through phi for linear, whose divisor adds -delta_i / sum_i to every g_i . v_j.
#include "cpu/chunked_passes.hpp"

namespace foci::cpu {

namespace {

class ChunkBackward : public ChunkPass {
 public:
  ChunkBackward(Arena& arena, const Problem& problem, int threads)
      : ChunkPass(arena, problem, threads, true) {}

  void run(const Gradients& to, Executor* threads);

 private:
  template <class F>
  void each_block(std::int64_t first, std::int64_t last, F&& f) const {
    for (std::int64_t r = 0; r < plan_.R; ++r) {
      for (std::int64_t i = first; i < last; i += plan_.chunk)
        f(RowBlock{r, i, std::min(plan_.chunk, last - i)});
    }
  }
  template <class F>
  void each_group(Executor* threads, F&& f) {
    each(threads, heads() * plan_.groups,
         [&](std::int64_t i, int thread) { f(work(i / plan_.groups, thread), i % plan_.groups); });
  }

  void causal(Executor* threads);
  void everything(Executor* threads);

  void walk_rows(ChunkWork& work, std::int64_t part);
  void pull_queries(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                    const RowBlock& rows, std::int64_t part);
  void pull_divisors(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                     const RowBlock& rows);
  void finish_queries(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                      const RowBlock& rows, std::int64_t part);

  void total_rows(ChunkWork& work, std::int64_t part);
  void walk_keys(ChunkWork& work, std::int64_t part);
  void pull_later(ChunkWork& work, const Chunk& chunk, std::span<float> later);
  void pull_keys(ChunkWork& work, const Chunk& chunk, const RowBlock& rows);

  Gradients to_;
};

void ChunkBackward::run(const Gradients& to, Executor* threads) {
  to_ = to;
  for (ChunkRoom& room : rooms_) std::fill(room.across.begin(), room.across.end(), 0.0f);
  prepare(threads);
  each(threads, heads(), [&](std::int64_t i, int thread) {
    ChunkWork at = work(i, thread);
    begin_gradients(at, to);
  });
  total_keys(threads);
  p_.how.causal ? causal(threads) : everything(threads);
  const View& given = p_.from.metric;
  const bool own_rows = p_.packed() && p_.size.N > 1 && given.shape[2] == p_.size.N;
  const bool shared =
      to.dmetric && p_.metric<Given>() && given.shape[0] == 1 && p_.sequences > 1 && !own_rows;
  const std::int64_t G = p_.size.G;
  each(threads, shared ? G : heads(), [&](std::int64_t i, int thread) {
    for (std::int64_t head = i; head < (shared ? heads() : i + 1); head += G) {
      ChunkWork at = work(head, thread);
      finish_metric(at, to, shared && head >= G);
    }
  });
  for (std::int64_t i = 0; i < heads() && p_.through && p_.metric<Jacobian>(); ++i) {
    const ChunkWork at = work(i, 0);
    jacobian(i).backward({at.head.dq, at.head.dk, at.head.dv, {}}, jacobian_room_, threads);
    write_gathered(at, to);
  }
}

void ChunkBackward::causal(Executor* threads) {
  each_group(threads, [&](ChunkWork work, std::int64_t group) {
    const std::int64_t begin = group_begin(work, group), end = group_begin(work, group + 1);
    if (begin < end) begin_group(work, begin);
    for (std::int64_t part = begin; part < end; ++part) {
      walk_rows(work, part);
      if (part + 1 == end) return;
      work.finish_keys(part);
      work.fold_keys(work.room.local, part);
    }
  });
  each_part(threads, plan_.groups > 1 ? p_.longest_m : 0, [&](ChunkWork work, std::int64_t part) {
    if (part == 0 || part < group_begin(work, 1) || part >= work.parts()) return;
    total_rows(work, part);
    keep(total(work, part), work.room.local);
  });
  each_group(threads, [&](ChunkWork work, std::int64_t group) {
    const std::int64_t begin = group_begin(work, group), end = group_begin(work, group + 1);
    if (begin == end) return;
    std::fill(work.room.base.begin(), work.room.base.end(), 0.0f);
    for (std::int64_t part = work.parts(); part-- > end;) work.fold_rows(total(work, part), part);
    for (std::int64_t part = end; part-- > begin;) {
      walk_keys(work, part);
      if (part == begin) return;
      work.finish_rows(part);
      work.fold_rows(work.room.local, part);
    }
  });
}

/// Where every row sees every key.
void ChunkBackward::everything(Executor* threads) {
  each_part(threads, p_.longest_n, [&](ChunkWork work, std::int64_t part) {
    const std::int64_t n = work.tokens().n, N = work.tokens().at.N, first = part * plan_.part;
    if (first >= N || n == 0) return;
    if (work.direct()) {
      if (part > 0) return;
      walk_rows(work, 0);
      walk_keys(work, 0);
      return;
    }
    const Chunk all{n, n, work.peak_before(work.parts())};
    work.begin_part(all.peak);
    work.transpose_state(work.head.whole);
    each_block(first, std::min(first + plan_.part, N), [&](const RowBlock& rows) {
      pull_queries(work, all, work.head.whole, rows, part);
      work.absorb_rows(rows, all);
    });
    keep(total(work, part), work.room.local);
  });
  each(threads, heads(), [&](std::int64_t i, int thread) {
    ChunkWork at = work(i, thread);
    std::fill(at.head.whole.begin(), at.head.whole.end(), 0.0f);
    const std::int64_t parts = at.direct() ? 0 : blocks_of(at.tokens().at.N, plan_.part);
    for (std::int64_t part = 0; part < parts; ++part)
      at.blend(at.head.whole, at.head.whole, nullptr, total(at, part));
  });
  each_part(threads, p_.longest_m, [&](ChunkWork work, std::int64_t part) {
    if (part >= work.parts() || (work.direct() && work.tokens().at.N > 0)) return;
    work.find_chunks(part);
    work.transpose_state(work.head.whole);
    for (std::int64_t c = 0; c < work.chunks; ++c) {
      const Chunk chunk = work.room.chunks[c];
      work.load_keys(chunk);
      work.load_values(chunk);
      pull_later(work, chunk, work.head.whole);
      write_keys(work, to_, chunk);
    }
  });
}

void ChunkBackward::walk_rows(ChunkWork& work, std::int64_t part) {
  work.find_chunks(part);
  work.begin_part(work.room.chunks[0].peak);
  for (std::int64_t c = 0; c < work.chunks; ++c) {
    const Chunk chunk = work.room.chunks[c];
    const std::int64_t first = work.rows_within(chunk.begin), last = work.rows_within(chunk.end);
    const bool needed = last < work.tokens().at.N;
    if (first == last && !needed) return;
    work.load_keys(chunk);
    work.load_values(chunk);
    if (first < last) {
      const std::span<float> before = work.join_keys(part, c);
      if (!before.empty()) work.transpose_state(before);
      work.transpose_values(chunk);
      if (plan_.divides) work.transpose_keys(chunk);
      each_block(first, last,
                 [&](const RowBlock& rows) { pull_queries(work, chunk, before, rows, part); });
    }
    if (needed) work.absorb_keys(chunk);
  }
}

/// dq of a block. room.across holds `before` transposed.
void ChunkBackward::pull_queries(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                                 const RowBlock& rows, std::int64_t part) {
  ChunkRoom& room = work.room;
  const std::int64_t step = plan_.d_step, width = padded(plan_.D, line_pad);
  float *dq = room.dq.data(), *pulls = room.pulls.data();
  work.load_queries(rows, chunk.peak);
  work.load_gradients(rows, to_.d_o);
  if (before.empty()) {
    std::fill_n(dq, rows.count * step, 0.0f);
  } else {
    work.matrix.product({dq, room.d_o.data(), room.across.data(), rows.count, width, plan_.E, step,
                         plan_.e_step, 1, step, false});
    for (std::int64_t i = 0; i < rows.count && plan_.fades; ++i)
      work.kernels.scale(dq + i * step, work.row_power(rows.first + i, chunk), width);
  }
  if (chunk.count() > 0) {
    work.see(rows, chunk);
    work.pull(rows, chunk);
    work.weigh(pulls, rows, chunk, false);
  }
  if (plan_.divides) pull_divisors(work, chunk, before, rows);
  if (chunk.count() > 0) {
    work.kernels.ranged({dq, pulls, room.keys.data(), rows.count, width, chunk.count(), step,
                         plan_.chunk, 1, step, nullptr, room.visible.data()});
  }
  finish_queries(work, chunk, before, rows, part);
}

/// What linear divides by: sum_i, delta_i = sum_j a_ij da_ij, and da_ij - delta_i in place of
/// da_ij, key by key where they are at hand: rows of few weights are all but exact.
void ChunkBackward::pull_divisors(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                                  const RowBlock& rows) {
  ChunkRoom& room = work.room;
  const std::int64_t step = plan_.d_step, D = plan_.D,
                     row = rows.r * work.tokens().at.N + rows.first;
  const float* earlier = before.empty() ? nullptr : work.state(before).column;
  if (chunk.count() > 0) work.score(rows);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* q = room.q.data() + i * step;
    float* dq = room.dq.data() + i * step;
    const float* x = room.scores.data() + i * plan_.chunk;
    float* da = room.pulls.data() + i * plan_.chunk;
    const std::int64_t visible = chunk.count() > 0 ? room.visible[i] : 0;
    double sum = work.kernels.sum(x, visible), delta = work.kernels.dot(x, da, visible);
    if (earlier) {
      sum += work.kernels.dot(q, earlier, D);
      delta += work.kernels.dot(q, dq, D);
    }
    delta = sum == 0 ? 0 : delta / sum;
    work.kernels.subtract(da, delta, visible);
    if (earlier) work.kernels.blend(dq, -float(delta), earlier, dq, padded(D, line_pad));
    work.head.sums[row + i] = float(sum);
    work.head.deltas[row + i] = delta;
  }
}

/// phi(q') . dq' is 0 for linear, whose weights sum to 1: what is left of it by rounding goes,
/// which may be the most of it where sum_i is small.
void ChunkBackward::finish_queries(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                                   const RowBlock& rows, std::int64_t part) {
  ChunkRoom& room = work.room;
  DiagonalMetric& metric = work.head.metric;
  const Tokens& t = work.tokens();
  const std::int64_t step = plan_.d_step, h = work.head.g * plan_.R + rows.r;
  float* z = room.line.data();
  std::fill_n(z, step, 0.0f);
  if (!before.empty()) std::copy_n(work.state(before).column, step, z);
  std::int64_t seen = 0;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.first + i, visible = chunk.count() > 0 ? room.visible[i] : 0;
    QueryGradient of{
        room.dq.data() + i * step,       room.q.data() + i * step, z,    0,       0,      plan_.map,
        work.raw.at + i * work.raw.step, metric.of(rows.r, row),   p_.c, nullptr, plan_.D};
    of.dm =
        metric.per_query ? metric.line(metric.dm, rows.r, row) : shared_dm(work.head, part, rows.r);
    if (plan_.divides) {
      for (; seen < visible; ++seen)
        work.kernels.blend(z, 1, room.keys.data() + seen * step, z, step);
      of.sum = work.kernels.dot(of.phi, z, plan_.D);
      of.delta = of.sum == 0 ? 0 : work.kernels.dot(of.phi, of.dq, plan_.D) / of.sum;
      work.head.deltas[rows.r * t.at.N + row] += of.delta;
    }
    work.kernels.finish_query(of);
  }
  if (work.head.dq.empty()) {
    store_lines(to_.dq, {t.at.b, h, t.at.q0 + rows.first}, room.dq.data(), step, rows.count,
                plan_.D);
    return;
  }
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t row = rows.r * p_.longest_n + rows.first + i;
    std::copy_n(room.dq.data() + i * step, plan_.D, work.head.dq.data() + row * plan_.D);
  }
}

void ChunkBackward::total_rows(ChunkWork& work, std::int64_t part) {
  work.find_chunks(part);
  work.begin_part(work.room.chunks[work.chunks - 1].peak);
  for (std::int64_t c = work.chunks; c-- > 0;) {
    const Chunk chunk = work.room.chunks[c];
    work.enter_rows(chunk);
    work.leave_rows(chunk);
    each_block(work.rows_within(chunk.begin), work.rows_within(chunk.end),
               [&](const RowBlock& rows) {
                 work.load_queries(rows, chunk.peak);
                 work.load_gradients(rows, to_.d_o);
                 work.absorb_rows(rows, chunk);
               });
  }
  work.finish_rows(part);
}

void ChunkBackward::walk_keys(ChunkWork& work, std::int64_t part) {
  work.find_chunks(part);
  work.begin_part(work.room.chunks[work.chunks - 1].peak);
  for (std::int64_t c = work.chunks; c-- > 0;) {
    const Chunk chunk = work.room.chunks[c];
    work.load_keys(chunk);
    work.load_values(chunk);
    work.transpose_keys(chunk);
    work.transpose_values(chunk);
    const std::span<float> later = work.join_rows(part, c);
    if (!later.empty()) work.transpose_state(later);
    pull_later(work, chunk, later);
    work.leave_rows(chunk);
    each_block(work.rows_within(chunk.begin), work.rows_within(chunk.end),
               [&](const RowBlock& rows) { pull_keys(work, chunk, rows); });
    write_keys(work, to_, chunk);
  }
}

/// dk and dv from the rows that see the whole chunk. room.across holds `later` transposed.
void ChunkBackward::pull_later(ChunkWork& work, const Chunk& chunk, std::span<float> later) {
  ChunkRoom& room = work.room;
  const std::int64_t count = chunk.count(), d_step = plan_.d_step, e_step = plan_.e_step;
  float *dk = room.dk.data(), *dv = room.dv.data();
  if (later.empty()) {
    std::fill_n(dk, count * d_step, 0.0f);
    std::fill_n(dv, count * e_step, 0.0f);
    return;
  }
  const State state = work.state(later);
  work.matrix.product({dv, room.keys.data(), state.matrix, count, e_step, plan_.features, e_step,
                       d_step, 1, e_step, false});
  for (std::int64_t j = 0; j < count && plan_.divides; ++j)
    std::copy_n(state.column, d_step, dk + j * d_step);
  work.matrix.product({dk, work.values.at, room.across.data(), count, d_step, plan_.E, d_step,
                       work.values.step, 1, d_step, plan_.divides});
  if (!plan_.fades) return;
  const std::int64_t* at = work.tokens().key_at.data() + chunk.begin;
  const float* by = powers_.row(room.powers.data(), at[count - 1], at, count);
  for (std::int64_t j = 0; j < count; ++j) {
    work.kernels.scale(dk + j * d_step, by[j], d_step);
    work.kernels.scale(dv + j * e_step, by[j], e_step);
  }
}

/// What the chunk's own rows add, each to the keys it sees.
void ChunkBackward::pull_keys(ChunkWork& work, const Chunk& chunk, const RowBlock& rows) {
  ChunkRoom& room = work.room;
  const std::int64_t d_step = plan_.d_step, e_step = plan_.e_step, stride = plan_.chunk;
  float *scores = room.scores.data(), *pulls = room.pulls.data();
  work.load_queries(rows, chunk.peak);
  work.load_gradients(rows, to_.d_o);
  work.see(rows, chunk);
  work.score(rows);
  work.weigh(scores, rows, chunk, plan_.biased());
  work.pull(rows, chunk);
  for (std::int64_t i = 0; i < rows.count && plan_.divides; ++i) {
    const std::int64_t row = rows.r * work.tokens().at.N + rows.first + i;
    const float sum = work.head.sums[row];
    work.kernels.subtract(pulls + i * stride, work.head.deltas[row], room.visible[i]);
    work.divide_row(pulls + i * stride, sum, room.visible[i]);
    work.divide_row(scores + i * stride, sum, room.visible[i]);
  }
  work.weigh(pulls, rows, chunk, false);
  work.kernels.ranged({room.dv.data(), scores, room.d_o.data(), chunk.count(), e_step, rows.count,
                       e_step, 1, stride, e_step, room.from.data(), nullptr});
  work.kernels.ranged({room.dk.data(), pulls, room.q.data(), chunk.count(),
                       padded(plan_.D, line_pad), rows.count, d_step, 1, stride, d_step,
                       room.from.data(), nullptr});
  for (std::int64_t i = 0; i < rows.count && plan_.biased(); ++i) {
    for (std::int64_t j = 0; j < room.visible[i]; ++j)
      room.dk[j * d_step + plan_.D + rows.r] += pulls[i * stride + j];
  }
  if (chunk.begin > 0) work.absorb_rows(rows, chunk);
}

}  // namespace

std::size_t chunk_backward_workspace(const Problem& p, int threads) {
  Arena counting;
  ChunkBackward pass(counting, p, threads);
  return counting.used() + Arena::alignment;
}

void chunk_backward(const Gradients& to, const Problem& p, std::span<std::byte> memory,
                    Executor* threads) {
  Arena arena(memory);
  ChunkBackward(arena, p, threads ? threads->threads() : 1).run(to, threads);
}

}  // namespace foci::cpu
