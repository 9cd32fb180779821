// SPDX-License-Identifier: Apache-2.0
// What surrounds the walk back: gradients of what is not seen, writing those of keys, and dm on its
// way through the estimate.
#include "cpu/chunked_passes.hpp"

namespace foci::cpu {

namespace {

std::int64_t bias_head(const ChunkWork& work, std::int64_t r) {
  const Problem& p = *work.plan.p;
  return p.from.key_bias.shape[1] == p.size.H ? work.head.g * work.plan.R + r : work.head.g;
}

/// Keys [first, first + count) of those kept, to where they stand.
void store_kept(const ChunkWork& work, const View& to, const float* from, std::int64_t step,
                std::int64_t first, std::int64_t count, std::int64_t width) {
  const Tokens& t = work.tokens();
  const std::int64_t* at = t.key_at.data() + first;
  const bool together = count > 0 && at[count - 1] - at[0] == count - 1;
  const std::int64_t lines = together ? count : 1;
  for (std::int64_t j = 0; j < count; j += lines) {
    store_lines(to, {t.at.b, work.head.g, t.at.k0 + at[j]}, from + j * step, step, lines, width);
  }
}

/// A chunk's lines to where they stand, or to where they gather.
void write_lines(const ChunkWork& work, const View& to, std::span<float> gathered,
                 const Lines& from, const Chunk& chunk, std::int64_t width) {
  if (gathered.empty())
    return store_kept(work, to, from.at, from.step, chunk.begin, chunk.count(), width);
  for (std::int64_t j = 0; j < chunk.count(); ++j)
    std::copy_n(from.at + j * from.step, width, gathered.data() + ((chunk.begin + j) * width));
}

/// dm of a metric that rows share, part after part.
void join_dm(const ChunkWork& work) {
  DiagonalMetric& metric = work.head.metric;
  if (work.head.dm.empty()) return;
  const std::int64_t size = metric.heads() * work.plan.D;
  std::fill_n(metric.dm.begin(), size, 0);
  for (std::size_t x = 0; x < work.head.dm.size(); ++x) metric.dm[x % size] += work.head.dm[x];
}

}  // namespace

double* shared_dm(KeyHead& head, std::int64_t part, std::int64_t r) {
  if (head.dm.empty()) return nullptr;
  const DiagonalMetric& metric = head.metric;
  return head.dm.data() + ((part * metric.heads() + (metric.per_head ? r : 0)) * metric.p->size.D);
}

/// Rows that see nothing and keys that are masked.
void begin_gradients(ChunkWork& work, const Gradients& to) {
  const ChunkPlan& plan = work.plan;
  const Tokens& t = work.tokens();
  const std::int64_t R = plan.R, g = work.head.g;
  std::fill(work.head.dm.begin(), work.head.dm.end(), 0);
  std::fill(work.head.metric.dm.begin(), work.head.metric.dm.end(), 0);
  for (std::int64_t h = g * R; h < (g + 1) * R; ++h)
    clear_lines(to.dq, {t.at.b, h, t.at.q0}, work.rows_within(0), plan.D);
  clear_lines(to.dv_prev, {t.at.b, g, t.at.k0}, t.at.M, plan.E);
  std::fill(work.head.dq.begin(), work.head.dq.end(), 0.0f);
  std::int64_t kept = 0;
  for (std::int64_t j = 0; j < t.at.M; ++j) {
    const std::int64_t token = t.at.k0 + j;
    if (kept < t.n && t.key_at[kept] == j) {
      ++kept;
      continue;
    }
    clear_lines(to.dk, {t.at.b, g, token}, 1, plan.D);
    clear_lines(to.dv, {t.at.b, g, token}, 1, plan.E);
    for (std::int64_t r = 0; r < R && to.dkey_bias; ++r)
      metric::store_one(to.dkey_bias, {t.at.b, bias_head(work, r), token}, 0.0f);
  }
}

void write_keys(ChunkWork& work, const Gradients& to, const Chunk& chunk) {
  const ChunkPlan& plan = work.plan;
  ChunkRoom& room = work.room;
  const Tokens& t = work.tokens();
  const std::int64_t count = chunk.count();
  for (std::int64_t j = 0; j < count && plan.divides; ++j) {
    const std::int64_t at = j * plan.d_step;
    work.kernels.slope(room.dk.data() + at, room.keys.data() + at, plan.map, plan.d_step);
  }
  write_lines(work, to.dk, work.head.dk, {room.dk.data(), plan.d_step}, chunk, plan.D);
  write_lines(work, to.dv, work.head.dv, {room.dv.data(), plan.e_step}, chunk, plan.E);
  if (!to.dkey_bias) return;
  const bool each = to.dkey_bias.shape[1] == plan.p->size.H;
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t token = t.at.k0 + t.key_at[chunk.begin + j];
    float sum = 0;
    for (std::int64_t r = 0; r < plan.R; ++r) {
      const float here = room.dk[j * plan.d_step + plan.D + r];
      sum = each ? here : sum + here;
      metric::store_one(to.dkey_bias, {t.at.b, bias_head(work, r), token}, sum);
    }
  }
}

void finish_metric(ChunkWork& work, const Gradients& to, bool joins) {
  const ChunkPlan& plan = work.plan;
  const Tokens& t = work.tokens();
  KeyHead& head = work.head;
  if (head.metric.m.empty()) return;
  join_dm(work);
  if (to.dmetric) head.metric.write_gradient(to.dmetric, joins);
  if (head.dv.empty() || plan.p->metric<Jacobian>()) return;
  const Inputs& from = plan.p->from;
  const float* v = t.lines(from.v, head.g, 0, t.n, plan.E, work.room.lines.data());
  const float* v_prev = t.lines(from.v_prev, head.g, 0, t.n, plan.E, work.room.others.data());
  std::fill_n(head.dv_prev.begin(), t.n * plan.E, 0.0f);
  head.metric.through_change({{}, {}, head.dv, head.dv_prev}, v, v_prev);
  store_kept(work, to.dv, head.dv.data(), plan.E, 0, t.n, plan.E);
  store_kept(work, to.dv_prev, head.dv_prev.data(), plan.E, 0, t.n, plan.E);
}

void write_gathered(const ChunkWork& work, const Gradients& to) {
  const ChunkPlan& plan = work.plan;
  const Tokens& t = work.tokens();
  const KeyHead& head = work.head;
  const std::int64_t D = plan.D, each = plan.p->longest_n * D;
  for (std::int64_t r = 0; r < plan.R; ++r) {
    store_lines(to.dq, {t.at.b, head.g * plan.R + r, t.at.q0}, head.dq.data() + r * each, D, t.at.N,
                D);
  }
  store_kept(work, to.dk, head.dk.data(), D, 0, t.n, D);
  store_kept(work, to.dv, head.dv.data(), plan.E, 0, t.n, plan.E);
}

}  // namespace foci::cpu
