// SPDX-License-Identifier: Apache-2.0
// Chunks of a part, and the lines of keys, queries and gradients on their way into them.
#include "cpu/chunked.hpp"

#include <cstring>

namespace foci::cpu {

namespace {

constexpr float far_below = -1e30f;  // a peak before the first key

/// Whether lines of the tensor are neighbouring floats.
bool plain(const View& view) {
  return view.dtype == DType::f32 && view.strides[view.rank - 1] == 1;
}

metric::Index moved(metric::Index index, std::int64_t by) {
  index.of[index.rank - 1] += by;
  return index;
}

}  // namespace

void load_lines(float* to, std::int64_t step, const View& from, const metric::Index& first,
                std::int64_t count, std::int64_t width) {
  if (!plain(from)) {
    for (std::int64_t i = 0; i < count; ++i)
      metric::load(to + i * step, from, moved(first, i), width);
    return;
  }
  const float* line = metric::address<float>(from, first);
  const std::int64_t apart = from.strides[from.rank - 2];
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(to + i * step, line + i * apart, std::size_t(width) * sizeof(float));
}

void store_lines(const View& to, const metric::Index& first, const float* from, std::int64_t step,
                 std::int64_t count, std::int64_t width) {
  if (!to) return;
  if (!plain(to)) {
    for (std::int64_t i = 0; i < count; ++i)
      metric::store(to, moved(first, i), from + i * step, width);
    return;
  }
  float* line = metric::address<float>(to, first);
  const std::int64_t apart = to.strides[to.rank - 2];
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(line + i * apart, from + i * step, std::size_t(width) * sizeof(float));
}

void clear_lines(const View& to, const metric::Index& first, std::int64_t count,
                 std::int64_t width) {
  if (!to || count == 0) return;
  if (plain(to) && to.strides[to.rank - 2] == width) {
    std::memset(metric::address<float>(to, first), 0, std::size_t(count * width) * sizeof(float));
    return;
  }
  constexpr float zeros[line_pad] = {};
  for (std::int64_t d = 0; d < width; d += line_pad) {
    const View part = to.sliced(to.rank - 1, d, std::min(d + line_pad, width));
    store_lines(part, first, zeros, 0, count, part.shape[to.rank - 1]);
  }
}

ChunkWork::ChunkWork(const ChunkPlan& p, const Powers& w, KeyHead& h, ChunkRoom& r,
                     const Kernels& isa)
    : plan(p), powers(w), head(h), room(r), matrix(*isa.matrix), kernels(*isa.chunk) {}

std::int64_t ChunkWork::rows_within(std::int64_t seen) const {
  const auto begin = tokens().sees.begin();
  return std::upper_bound(begin, begin + tokens().at.N, seen) - begin;
}

const float* ChunkWork::peak_before(std::int64_t part) const {
  return plan.map == Map::exp ? head.peaks.data() + part * plan.d_step : nullptr;
}

void ChunkWork::find_peaks(std::int64_t part) {
  float* top = head.peaks.data() + ((part + 1) * plan.d_step);
  std::fill_n(top, plan.d_step, far_below);
  const std::int64_t end = std::min((part + 1) * plan.part, tokens().n);
  for (std::int64_t j = part * plan.part; j < end; j += plan.chunk) {
    const std::int64_t count = std::min(plan.chunk, end - j);
    load_raw_keys(j, count);
    for (std::int64_t i = 0; i < count; ++i)
      kernels.raise(top, room.keys.data() + i * plan.d_step, plan.d_step);
  }
}

void ChunkWork::join_peaks() {
  std::fill_n(head.peaks.begin(), plan.d_step, far_below);
  for (std::int64_t part = 1; part <= parts(); ++part)
    kernels.raise(head.peaks.data() + part * plan.d_step, peak_before(part - 1), plan.d_step);
}

/// Keys as they are, far below in what pads them.
void ChunkWork::load_raw_keys(std::int64_t first, std::int64_t count) {
  const std::int64_t D = plan.D, step = plan.d_step;
  load_kept(room.keys.data(), step, plan.p->from.k, first, count, D);
  for (std::int64_t i = 0; i < count; ++i)
    std::fill(room.keys.data() + i * step + D, room.keys.data() + i * step + step, far_below);
}

void ChunkWork::load_kept(float* to, std::int64_t step, const View& from, std::int64_t first,
                          std::int64_t count, std::int64_t width) const {
  const Tokens& t = tokens();
  const std::int64_t* at = t.key_at.data() + first;
  if (count > 0 && at[count - 1] - at[0] == count - 1) {
    load_lines(to, step, from, {t.at.b, head.g, t.at.k0 + at[0]}, count, width);
    return;
  }
  for (std::int64_t j = 0; j < count; ++j)
    load_lines(to + j * step, step, from, {t.at.b, head.g, t.at.k0 + at[j]}, 1, width);
}

Lines ChunkWork::in_place(const View& from, std::int64_t first, std::int64_t count,
                          std::int64_t width) const {
  const Tokens& t = tokens();
  const std::int64_t* at = t.key_at.data() + first;
  const bool whole = width % line_pad == 0 && count % line_pad == 0 && count > 0;
  if (!whole || !plain(from) || at[count - 1] - at[0] != count - 1) return {};
  return {metric::address<float>(from, {t.at.b, head.g, t.at.k0 + at[0]}), from.strides[2]};
}

void ChunkWork::find_chunks(std::int64_t part) {
  const std::int64_t begin = part * plan.part, end = std::min(begin + plan.part, tokens().n);
  const float* peak = peak_before(causal() ? part : parts());
  chunks = 0;
  if (peak && causal() && kernels.outgrown(peak_before(part + 1), peak, plan.d_step)) {
    walk_keys(begin, end, peak);
    return;
  }
  for (std::int64_t j = begin; j < end; j += plan.chunk)
    room.chunks[chunks++] = {j, std::min(j + plan.chunk, end), peak};
}

/// Wherever a key outgrows the peaks a new chunk begins, measured from the peaks up to that key:
/// rows before it never know.
void ChunkWork::walk_keys(std::int64_t begin, std::int64_t end, const float* peak) {
  float* top = room.line.data();
  std::copy_n(peak, plan.d_step, top);
  std::int64_t since = begin, raised = 0;
  for (std::int64_t j = begin; j < end; ++j) {
    const std::int64_t i = (j - begin) % plan.chunk;
    if (i == 0) load_raw_keys(j, std::min(plan.chunk, end - j));
    const float* key = room.keys.data() + i * plan.d_step;
    const bool outgrown = kernels.outgrown(key, peak, plan.d_step);
    if (j > since && (outgrown || j - since == plan.chunk)) {
      room.chunks[chunks++] = {since, j, peak};
      since = j;
    }
    kernels.raise(top, key, plan.d_step);
    if (!outgrown) continue;
    float* next = room.peaks.data() + (raised++ * plan.d_step);
    std::copy_n(top, plan.d_step, next);
    peak = next;
  }
  room.chunks[chunks++] = {since, end, peak};
}

void ChunkWork::load_keys(const Chunk& chunk) {
  const std::int64_t count = chunk.count(), D = plan.D, step = plan.d_step;
  const View& bias = plan.p->from.key_bias;
  const Tokens& t = tokens();
  float* keys = room.keys.data();
  Lines from = plan.map == Map::none ? Lines{} : in_place(plan.p->from.k, chunk.begin, count, D);
  if (!from.at) {
    load_kept(keys, step, plan.p->from.k, chunk.begin, count, D);
    from = {keys, step};
    for (std::int64_t j = 0; j < count; ++j)
      std::fill(&keys[j * step + D], &keys[j * step] + step, 0.0f);
  }
  if (plan.map != Map::none) kernels.map({keys, from, plan.map, chunk.peak, count, D, step});
  for (std::int64_t r = 0; r < plan.features - D; ++r) {
    const std::int64_t h = bias.shape[1] == plan.p->size.H ? head.g * plan.R + r : head.g;
    for (std::int64_t j = 0; j < count; ++j) {
      const std::int64_t token = t.at.k0 + t.key_at[chunk.begin + j];
      keys[j * step + D + r] = metric::load_one<float>(bias, {t.at.b, h, token});
    }
  }
  const std::int64_t whole = std::min(padded(count, line_pad), plan.chunk);
  std::fill(keys + count * step, keys + whole * step, 0.0f);
}

void ChunkWork::load_values(const Chunk& chunk) {
  const std::int64_t count = chunk.count(), E = plan.E, step = plan.e_step;
  values = in_place(plan.p->from.v, chunk.begin, count, E);
  if (values.at) return;
  float* lines = room.values.data();
  values = {lines, step};
  load_kept(lines, step, plan.p->from.v, chunk.begin, count, E);
  for (std::int64_t j = 0; j < count; ++j)
    std::fill(&lines[j * step + E], &lines[j * step] + step, 0.0f);
  const std::int64_t whole = std::min(padded(count, line_pad), plan.chunk);
  std::fill(lines + count * step, lines + whole * step, 0.0f);
}

void ChunkWork::transpose_keys(const Chunk& chunk) {
  const std::int64_t whole = std::min(padded(chunk.count(), line_pad), plan.chunk);
  matrix.transpose(room.keys_across.data(), room.keys.data(), whole, plan.D, plan.chunk,
                   plan.d_step);
}

void ChunkWork::transpose_values(const Chunk& chunk) {
  const std::int64_t whole = std::min(padded(chunk.count(), line_pad), plan.chunk);
  matrix.transpose(room.values_across.data(), values.at, whole, plan.E, plan.chunk, values.step);
}

void ChunkWork::load_queries(const RowBlock& rows, const float* peak) {
  const std::int64_t D = plan.D, step = plan.d_step, h = head.g * plan.R + rows.r;
  const Tokens& t = tokens();
  float* q = room.q.data();
  const View& from = plan.p->from.q;
  const metric::Index first{t.at.b, h, t.at.q0 + rows.first};
  raw = {room.raw.data(), D};
  if (plain(from)) {
    raw = {metric::address<float>(from, first), from.strides[2]};
  } else {
    load_lines(room.raw.data(), D, from, first, rows.count, D);
  }
  const float c = float(plan.p->c);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const float* x = raw.at + i * raw.step;
    const float* m = head.metric.of(rows.r, rows.first + i);
    float* line = q + i * step;
    for (std::int64_t d = 0; d < D; ++d) line[d] = m ? c * m[d] * x[d] : c * x[d];
    std::fill(line + D, line + step, 0.0f);
  }
  if (plan.map == Map::exp) {
    kernels.exp_queries(q, peak, rows.count, D, step);
  } else if (plan.map != Map::none) {
    kernels.map({q, {q, step}, plan.map, nullptr, rows.count, D, step});
  }
}

void ChunkWork::load_gradients(const RowBlock& rows, const View& d_o) {
  const std::int64_t E = plan.E, step = plan.e_step, h = head.g * plan.R + rows.r;
  const Tokens& t = tokens();
  float* lines = room.d_o.data();
  load_lines(lines, step, d_o, {t.at.b, h, t.at.q0 + rows.first}, rows.count, E);
  for (std::int64_t i = 0; i < rows.count; ++i) {
    float* line = lines + i * step;
    std::fill(line + E, line + step, 0.0f);
    if (!plan.divides) kernels.divide(line, head.by[rows.first + i], step);
  }
}

void ChunkWork::divide_row(float* x, float by, std::int64_t count) const {
  if (by == 0) {
    std::fill_n(x, count, 0.0f);
  } else {
    kernels.divide(x, by, count);
  }
}

void ChunkWork::see(const RowBlock& rows, const Chunk& chunk) {
  std::int64_t key = 0;
  for (std::int64_t i = 0; i < rows.count; ++i) {
    room.visible[i] = std::min(tokens().sees[rows.first + i] - chunk.begin, chunk.count());
    for (; key < room.visible[i]; ++key) room.from[key] = i;
  }
  for (; key < chunk.count(); ++key) room.from[key] = rows.count;
}

namespace {
constexpr std::int64_t strip_rows = 24;  // a multiple of every tile
}

/// A few rows of lines (rows, K) times across (K, chunk), as far as they see; K is left open.
Product ChunkWork::strip(float* to, const float* lines, std::int64_t step, const float* across,
                         std::int64_t first, std::int64_t rows) const {
  const std::int64_t count = std::min(strip_rows, rows - first);
  const std::int64_t most = padded(room.visible[first + count - 1], line_pad);
  return {to + first * plan.chunk,
          lines + first * step,
          across,
          count,
          std::min(most, plan.chunk),
          0,
          plan.chunk,
          step,
          1,
          plan.chunk,
          false};
}

void ChunkWork::score(const RowBlock& rows, std::int64_t from) {
  const float* q = room.q.data() + from * plan.d_step;
  for (std::int64_t i = 0; i < rows.count; i += strip_rows) {
    Product of = strip(room.scores.data(), q, plan.d_step, room.keys_across.data(), i, rows.count);
    of.K = plan.D;
    matrix.product(of);
  }
}

void ChunkWork::pull(const RowBlock& rows, const Chunk& chunk) {
  for (std::int64_t i = 0; i < rows.count; i += strip_rows) {
    Product of = strip(room.pulls.data(), room.d_o.data(), plan.e_step, room.values_across.data(),
                       i, rows.count);
    of.K = plan.E;
    plan.divides&& chunk.begin == 0 ? kernels.exact_product(of) : matrix.product(of);
  }
}

void ChunkWork::weigh(float* scores, const RowBlock& rows, const Chunk& chunk, bool biased) {
  if (!biased && !plan.fades) return;
  const std::int64_t* at = tokens().key_at.data() + chunk.begin;
  for (std::int64_t j = 0; biased && j < chunk.count(); ++j)
    room.bias[j] = room.keys[j * plan.d_step + plan.D + rows.r];
  for (std::int64_t i = 0; i < rows.count; ++i) {
    const std::int64_t last = tokens().key_at[tokens().sees[rows.first + i] - 1];
    const std::int64_t count = room.visible[i];
    const float* by = plan.fades ? powers.row(room.powers.data(), last, at, count) : nullptr;
    kernels.weigh(scores + i * plan.chunk, biased ? room.bias.data() : nullptr, by, count);
  }
}

}  // namespace foci::cpu
