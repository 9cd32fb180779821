// SPDX-License-Identifier: Apache-2.0
// States: sums of phi(k) v' over the keys before a row, carried from chunk to chunk and from part
// to part. Where phi = exp they are measured from peaks, under decay from a key's position; moving
// either fades them.
#include "cpu/chunked.hpp"

namespace foci::cpu {

State ChunkWork::state(std::span<float> of) const {
  float* column = of.data() + plan.matrix();
  return {of.data(), column};
}

float ChunkWork::row_power(std::int64_t i, const Chunk& chunk) const {
  const Tokens& t = tokens();
  return powers.of(t.key_at[t.sees[i] - 1] - t.key_at[chunk.begin - 1]);
}

void ChunkWork::blend(std::span<float> to, std::span<const float> x, const float* fade,
                      std::span<const float> y) const {
  const std::int64_t step = plan.e_step;
  if (fade) {
    for (std::int64_t d = 0; d < plan.features; ++d)
      kernels.blend(to.data() + d * step, fade[d], x.data() + d * step, y.data() + d * step, step);
  } else {
    kernels.blend(to.data(), 1, x.data(), y.data(), plan.matrix());
  }
  if (!plan.divides) return;
  for (std::int64_t d = 0; d < plan.d_step; ++d) {
    const std::int64_t at = plan.matrix() + d;
    to[at] = (fade ? fade[d] : 1.0f) * x[at] + y[at];
  }
}

void ChunkWork::shrink(std::span<float> state, const float* fade) const {
  if (!fade) return;
  for (std::int64_t d = 0; d < plan.features; ++d)
    kernels.scale(state.data() + d * plan.e_step, fade[d], plan.e_step);
  for (std::int64_t d = 0; d < plan.d_step && plan.divides; ++d)
    state[plan.matrix() + d] *= fade[d];
}

const float* ChunkWork::fade_of(const float* from, const float* to, std::int64_t gap) {
  float* fade = room.fade.data();
  if (plan.map == Map::exp) {
    if (from == to) return nullptr;
    kernels.exp_between(fade, from, to, plan.d_step);
    return fade;
  }
  if (!plan.fades || gap == 0) return nullptr;
  std::fill_n(fade, plan.d_step, powers.of(gap));
  return fade;
}

std::int64_t ChunkWork::gap(std::int64_t from, std::int64_t to) const {
  return plan.fades && from > 0 ? tokens().key_at[to - 1] - tokens().key_at[from - 1] : 0;
}

void ChunkWork::begin_part(const float* peak) {
  std::fill(room.local.begin(), room.local.end(), 0.0f);
  peak_ = peak;
}

void ChunkWork::enter_keys(const Chunk& chunk) {
  if (chunk.peak != peak_) shrink(room.local, fade_of(peak_, chunk.peak, 0));
  peak_ = chunk.peak;
}

void ChunkWork::absorb_keys(const Chunk& chunk) {
  const std::int64_t count = chunk.count(), step = plan.d_step;
  enter_keys(chunk);
  if (plan.fades) {
    if (chunk.begin % plan.part != 0)
      shrink(room.local, fade_of(nullptr, nullptr, gap(chunk.begin, chunk.end)));
    const std::int64_t* at = tokens().key_at.data() + chunk.begin;
    const float* by = powers.row(room.powers.data(), at[count - 1], at, count);
    for (std::int64_t j = 0; j < count; ++j)
      kernels.scale(room.keys.data() + j * step, by[j], step);
  }
  const State to = state(room.local);
  matrix.product({to.matrix, room.keys.data(), values.at, plan.features, plan.e_step, count,
                  plan.e_step, 1, step, values.step, true});
  for (std::int64_t j = 0; j < count && plan.divides; ++j)
    kernels.blend(to.column, 1, room.keys.data() + j * step, to.column, step);
}

std::span<float> ChunkWork::join_keys(std::int64_t part, std::int64_t c) {
  const Chunk& chunk = room.chunks[c];
  enter_keys(chunk);
  if (part == 0) return c == 0 ? std::span<float>() : room.local;
  const float* fade = fade_of(peak_before(part), chunk.peak, gap(part * plan.part, chunk.begin));
  if (c == 0 && !fade) return room.base;
  blend(room.joined, room.base, fade, room.local);
  return room.joined;
}

void ChunkWork::total_keys(std::int64_t part) {
  find_chunks(part);
  begin_part(room.chunks[0].peak);
  for (std::int64_t c = 0; c < chunks; ++c) {
    load_keys(room.chunks[c]);
    load_values(room.chunks[c]);
    absorb_keys(room.chunks[c]);
  }
  finish_keys(part);
}

/// The part's sum, measured from what the next part begins with.
void ChunkWork::finish_keys(std::int64_t part) {
  const float* next = causal() ? peak_before(part + 1) : peak_;
  shrink(room.local, fade_of(peak_, next, 0));
  peak_ = next;
}

void ChunkWork::fold_keys(std::span<const float> total, std::int64_t part) {
  const std::int64_t begin = part * plan.part, end = std::min(begin + plan.part, tokens().n);
  const float* fade =
      causal() ? fade_of(peak_before(part), peak_before(part + 1), gap(begin, end)) : nullptr;
  blend(room.base, room.base, fade, total);
}

void ChunkWork::absorb_rows(const RowBlock& rows, const Chunk& chunk) {
  const State to = state(room.local);
  float* bias = plan.biased() ? to.matrix + (plan.D + rows.r) * plan.e_step : nullptr;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float *q = room.q.data() + i * plan.d_step, *d_o = room.d_o.data() + i * plan.e_step;
    const float power = plan.fades ? row_power(rows.first + i, chunk) : 1.0f;
    if (plan.fades) kernels.scale(q, power, plan.d_step);
    if (bias) kernels.blend(bias, power, d_o, bias, plan.e_step);
    if (!plan.divides) continue;
    const std::int64_t row = rows.r * tokens().at.N + rows.first + i;
    divide_row(d_o, head.sums[row], plan.e_step);
    const float pull = head.sums[row] == 0 ? 0.0f : float(head.deltas[row]) / head.sums[row];
    kernels.blend(to.column, -pull, q, to.column, plan.d_step);
  }
  matrix.product({to.matrix, room.q.data(), room.d_o.data(), plan.D, plan.e_step, rows.count,
                  plan.e_step, 1, plan.d_step, plan.e_step, true});
}

void ChunkWork::enter_rows(const Chunk& chunk) {
  if (chunk.peak != peak_) shrink(room.local, fade_of(chunk.peak, peak_, 0));
  peak_ = chunk.peak;
}

void ChunkWork::leave_rows(const Chunk& chunk) {
  if (plan.fades) shrink(room.local, fade_of(nullptr, nullptr, gap(chunk.begin, chunk.end)));
}

void ChunkWork::finish_rows(std::int64_t part) {
  shrink(room.local, fade_of(peak_before(part), peak_, 0));
  peak_ = peak_before(part);
}

std::span<float> ChunkWork::join_rows(std::int64_t part, std::int64_t c) {
  const Chunk& chunk = room.chunks[c];
  const std::int64_t end = std::min((part + 1) * plan.part, tokens().n), N = tokens().at.N;
  enter_rows(chunk);
  if (rows_within(chunk.end) == N) return {};
  if (rows_within(end) == N) return room.local;
  const float* fade = fade_of(chunk.peak, peak_before(part + 1), gap(chunk.end, end));
  blend(room.joined, room.base, fade, room.local);
  return room.joined;
}

void ChunkWork::fold_rows(std::span<const float> total, std::int64_t part) {
  const std::int64_t begin = part * plan.part, end = std::min(begin + plan.part, tokens().n);
  const float* fade = fade_of(peak_before(part), peak_before(part + 1), gap(begin, end));
  blend(room.base, room.base, fade, total);
}

void ChunkWork::transpose_state(std::span<float> of) {
  matrix.transpose(room.across.data(), of.data(), plan.features, plan.E, plan.d_step, plan.e_step);
}

}  // namespace foci::cpu
