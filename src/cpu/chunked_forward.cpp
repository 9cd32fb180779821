// SPDX-License-Identifier: Apache-2.0
// Forward: rows of a chunk from the state before it and the keys of the chunk they see; where every
// row sees everything, from the state of all keys. Statistics look at every weight, when asked.
#include "cpu/chunked_passes.hpp"

#include <cmath>

namespace foci::cpu {

namespace {

class ChunkForward : public ChunkPass {
 public:
  ChunkForward(Arena& arena, const Problem& problem, int threads)
      : ChunkPass(arena, problem, threads, false) {}

  void run(const Outputs& to, Executor* threads);

 private:
  void walk_group(ChunkWork& work, std::int64_t group);
  void walk_part(ChunkWork& work, std::int64_t part);
  void each_block(ChunkWork& work, const Chunk& chunk, std::span<float> before, std::int64_t first,
                  std::int64_t last);
  void attend(ChunkWork& work, const Chunk& chunk, std::span<float> before, const RowBlock& rows);
  void find_divisors(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                     const RowBlock& rows);
  void write_unseeing(ChunkWork& work) const;

  Outputs to_;
};

void ChunkForward::run(const Outputs& to, Executor* threads) {
  to_ = to;
  prepare(threads);
  each(threads, heads(), [&](std::int64_t i, int thread) {
    ChunkWork at = work(i, thread);
    at.head.metric.write(to.metric);
    write_unseeing(at);
  });
  total_keys(threads);
  if (p_.how.causal) {
    each(threads, heads() * plan_.groups, [&](std::int64_t i, int thread) {
      ChunkWork at = work(i / plan_.groups, thread);
      walk_group(at, i % plan_.groups);
    });
    return;
  }
  each_part(threads, p_.longest_n, [&](ChunkWork work, std::int64_t part) {
    const std::int64_t first = part * plan_.part,
                       last = std::min(first + plan_.part, work.tokens().at.N);
    if (first >= last || work.tokens().n == 0) return;
    if (work.direct()) {
      work.find_chunks(0);
      work.load_keys(work.room.chunks[0]);
      work.load_values(work.room.chunks[0]);
      work.transpose_keys(work.room.chunks[0]);
      each_block(work, work.room.chunks[0], {}, first, last);
    } else {
      const std::int64_t n = work.tokens().n;
      each_block(work, {n, n, work.peak_before(work.parts())}, work.head.whole, first, last);
    }
  });
}

/// Rows that see no key.
void ChunkForward::write_unseeing(ChunkWork& work) const {
  const Tokens& t = work.tokens();
  const std::int64_t rows = work.rows_within(0);
  std::fill_n(work.room.out.begin(), plan_.e_step, 0.0f);
  for (std::int64_t h = work.head.g * plan_.R; h < (work.head.g + 1) * plan_.R; ++h) {
    for (std::int64_t i = 0; i < rows; ++i) {
      const metric::Index at{t.at.b, h, t.at.q0 + i};
      store_lines(to_.o, at, work.room.out.data(), plan_.e_step, 1, plan_.E);
      write_tally(to_, at, Tally{}, 0, -1);
    }
  }
}

void ChunkForward::walk_group(ChunkWork& work, std::int64_t group) {
  const std::int64_t begin = group_begin(work, group), end = group_begin(work, group + 1);
  if (begin < end) begin_group(work, begin);
  for (std::int64_t part = begin; part < end; ++part) {
    walk_part(work, part);
    if (part + 1 == end) return;
    work.finish_keys(part);
    work.fold_keys(work.room.local, part);
  }
}

void ChunkForward::walk_part(ChunkWork& work, std::int64_t part) {
  work.find_chunks(part);
  work.begin_part(work.room.chunks[0].peak);
  for (std::int64_t c = 0; c < work.chunks; ++c) {
    const Chunk chunk = work.room.chunks[c];
    const std::int64_t first = work.rows_within(chunk.begin), last = work.rows_within(chunk.end);
    const bool needed = last < work.tokens().at.N;  // by rows to come
    if (first == last && !needed) return;
    work.load_keys(chunk);
    work.load_values(chunk);
    if (first < last) {
      work.transpose_keys(chunk);
      each_block(work, chunk, work.join_keys(part, c), first, last);
    }
    if (needed) work.absorb_keys(chunk);
  }
}

void ChunkForward::each_block(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                              std::int64_t first, std::int64_t last) {
  for (std::int64_t r = 0; r < plan_.R; ++r) {
    for (std::int64_t i = first; i < last; i += plan_.chunk)
      attend(work, chunk, before, {r, i, std::min(plan_.chunk, last - i)});
  }
}

void ChunkForward::attend(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                          const RowBlock& rows) {
  ChunkRoom& room = work.room;
  const std::int64_t step = plan_.e_step;
  float *out = room.out.data(), *scores = room.scores.data();
  work.load_queries(rows, chunk.peak);
  if (before.empty()) {
    std::fill_n(out, rows.count * step, 0.0f);
  } else {
    const float* matrix = work.state(before).matrix;
    work.matrix.product({out, room.q.data(), matrix, rows.count, step, plan_.D, step, plan_.d_step,
                         1, step, false});
    for (std::int64_t i = 0; i < rows.count; ++i) {
      float* line = out + i * step;
      if (plan_.biased())
        work.kernels.blend(line, 1, matrix + (plan_.D + rows.r) * step, line, step);
      if (plan_.fades) work.kernels.scale(line, work.row_power(rows.first + i, chunk), step);
    }
  }
  if (chunk.count() > 0) {
    work.see(rows, chunk);
    work.score(rows);
    work.weigh(scores, rows, chunk, plan_.biased());
    work.kernels.ranged({out, scores, work.values.at, rows.count, step, chunk.count(), step,
                         plan_.chunk, 1, work.values.step, nullptr, room.visible.data()});
  }
  find_divisors(work, chunk, before, rows);
  for (std::int64_t i = 0; i < rows.count; ++i) work.divide_row(out + i * step, room.by[i], step);
  const Tokens& t = work.tokens();
  const std::int64_t h = work.head.g * plan_.R + rows.r;
  store_lines(to_.o, {t.at.b, h, t.at.q0 + rows.first}, out, step, rows.count, plan_.E);
  if (wants_tally(to_)) tally_rows(work, to_, rows, chunk.peak);
}

/// room.by: what each row is divided by.
void ChunkForward::find_divisors(ChunkWork& work, const Chunk& chunk, std::span<float> before,
                                 const RowBlock& rows) {
  ChunkRoom& room = work.room;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    if (!plan_.divides) {
      room.by[i] = work.head.by[rows.first + i];
      continue;
    }
    const float* q = room.q.data() + i * plan_.d_step;
    const double earlier =
        before.empty() ? 0 : work.kernels.dot(q, work.state(before).column, plan_.D);
    const double here = chunk.count() == 0 ? 0
                                           : work.kernels.sum(room.scores.data() + i * plan_.chunk,
                                                              room.visible[i]);
    room.by[i] = float(earlier + here);
  }
}

}  // namespace

void chunk_forward(const Outputs& to, const Problem& p, std::span<std::byte> memory,
                   Executor* threads) {
  Arena arena(memory);
  ChunkForward(arena, p, threads ? threads->threads() : 1).run(to, threads);
}

}  // namespace foci::cpu
