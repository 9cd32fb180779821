// SPDX-License-Identifier: Apache-2.0
// After the sweep over keys: db, dk and dv to their places, dq' summed over parts and unfolded, the
// metric's gradient written and sent back through its estimate.
#include "cpu/backward.hpp"
#include "cpu/narrow_lines.hpp"

namespace foci::cpu {

void Backward::keep_bias(const Meeting& at, const Work& work, const Room& room) {
  const std::int64_t M = p_.longest_m, R = p_.heads_per_key();
  float* total = of(db_, at.s, at.h, M) + work.first;
  for (std::int64_t j = 0; j < work.count; ++j) total[j] += room.db[j];
  if (span_db_.empty()) return;
  const std::int64_t head = at.h / R * R;
  float* shared = of(span_db_, at.s, head, M) + work.first;
  for (std::int64_t j = 0; j < work.count; ++j) shared[j] += room.db[j];
}

void lines_of(float* to, std::span<const float> panels, std::int64_t count, std::int64_t width,
              std::int64_t panel) {
  const std::int64_t padded_width = padded(width, panel);
  for (std::int64_t j = 0; j < count; ++j) {
    const std::int64_t slot = j / gradient_keys * gradient_stride * padded_width;
    for (std::int64_t d = 0; d < width; d += panel) {
      std::copy_n(panels.data() + (slot + d * gradient_keys + j % gradient_keys * panel),
                  std::min(panel, width - d), to + j * width + d);
    }
  }
}

void Backward::unfold_keys(const Meeting& at, const Work& work, Room& room) {
  const std::int64_t R = p_.heads_per_key();
  lines_of(room.lines.data(), room.dk, work.count, L_, panel_);
  const float* db = of(span_db_, at.s, at.h / R * R, p_.longest_m);
  geometry_.unfold_keys(at, work.first, work.count, room.lines.data(),
                        db ? db + work.first : nullptr, room.dk_lines.data(), room.more.data());
}

/// dk and dv of the keys at hand: written, or kept where more is to come.
void Backward::keep_keys(const Gradients& to, const Work& work, Room& room) {
  const Tokens& tokens = geometry_.tokens(work.s);
  const std::int64_t D = p_.size.D, E = p_.size.E;
  const float* dk = room.dk_lines.data();
  lines_of(room.lines.data(), room.dv, work.count, E, panel_);
  const Gathered gathered = late(work.s, work.g);
  if (late_ && whitened_) {
    std::copy_n(dk, work.count * D, gathered.dk.data() + (work.first * D));
  } else if (late_) {
    for (std::int64_t i = 0; i < work.count * D; ++i) gathered.dk[work.first * D + i] += dk[i];
    for (std::int64_t i = 0; i < work.count * E; ++i)
      gathered.dv[work.first * E + i] += room.lines[i];
    return;
  }
  const auto write = [&](const View& view, const float* lines, std::int64_t width) {
    const metric::Index first{tokens.at.b, work.g, tokens.at.k0 + work.first};
    if (!view) return;
    if (tokens.n == tokens.at.M && store_narrow(narrow_, view, first, lines, work.count, width))
      return;
    for (std::int64_t j = 0; j < work.count; ++j) {
      const std::int64_t key = tokens.key_at[work.first + j];
      metric::store(view, {tokens.at.b, work.g, tokens.at.k0 + key}, lines + j * width, width);
    }
  };
  if (!late_) write(to.dk, dk, D);
  write(to.dv, room.lines.data(), E);
}

/// dq of a span's queries, head by head of those that share keys, and what is known of the metric.
void Backward::finish_queries(const Gradients& to, Meeting at, int thread) {
  const Geometry::Rows rows = geometry_.rows(at.s, at.span);
  if (rows.first >= rows.last) return;
  const std::int64_t n = keys_met(at.s, rows);
  if (!span_db_.empty())
    geometry_.gather_keys(at, n, of(span_db_, at.s, at.h, p_.longest_m), thread);
  for (std::int64_t r = 0; r < p_.heads_per_key(); ++r, ++at.h) {
    for (std::int64_t first = rows.first; first < rows.last; first += block_rows)
      finish_rows(to, at, first, std::min(block_rows, rows.last - first), thread);
  }
}

/// Rows of column panels (rows,D), summed over the parts.
void Backward::sum_parts(float* to, std::span<float> array, const Meeting& at, std::int64_t first,
                         std::int64_t rows, int thread) const {
  const std::int64_t panel = panel_;
  const Geometry::Rows span = geometry_.rows(at.s, at.span);
  float* sum = panels_of(array, at, 0, first, thread);
  for (std::int64_t part = 1; part < parts_ && meets(at, part, span); ++part) {
    const float* more = panels_of(array, at, part, first, thread);
    for (std::int64_t i = 0; i < block_rows * padded_D_; ++i) sum[i] += more[i];
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < D_; d += panel) {
      std::copy_n(sum + d * block_rows + i * panel, std::min(panel, D_ - d), to + i * D_ + d);
    }
  }
}

void Backward::finish_rows(const Gradients& to, const Meeting& at, std::int64_t first,
                           std::int64_t rows, int thread) {
  Room& room = rooms_[thread];
  const Tokens& tokens = geometry_.tokens(at.s);
  const std::int64_t D = D_, N = p_.longest_n;
  sum_parts(room.rows.data(), dq_, at, first, rows, thread);
  if (wants_dm_) sum_parts(room.lines.data(), dm_, at, first, rows, thread);
  for (std::int64_t i = 0; i < rows && wants_dr_; ++i) {
    room.dr[i] = 0;
    for (std::int64_t part = 0; part < parts_; ++part)
      room.dr[i] += of(dr_, at.s, at.h, parts_ * N)[part * N + first + i];
  }
  float* dq = room.q.data();
  geometry_.unfold_queries(at, first, rows, {room.rows.data(), room.dr.data(), room.lines.data()},
                           dq, thread);
  if (!late_q_.empty()) {
    std::copy_n(dq, rows * D, of(late_q_, at.s, at.h, N * D) + first * D);
    return;
  }
  if (!to.dq ||
      store_narrow(narrow_, to.dq, {tokens.at.b, at.h, tokens.at.q0 + first}, dq, rows, D))
    return;
  for (std::int64_t i = 0; i < rows; ++i)
    metric::store(to.dq, {tokens.at.b, at.h, tokens.at.q0 + first + i}, dq + i * D, D);
}

/// The metric's gradient, its way back through the estimate, and what waited for that.
void Backward::finish_head(const Gradients& to, std::int64_t s, std::int64_t g, bool joins,
                           int thread) {
  geometry_.finish(to.dmetric, s, g, joins, late(s, g), thread);
  write_keys(to, s, g);
  const Tokens& tokens = geometry_.tokens(s);
  const std::int64_t D = p_.size.D, R = p_.heads_per_key();
  for (std::int64_t r = 0; r < R && to.dq && !late_q_.empty(); ++r) {
    const float* dq = of(late_q_, s, g * R + r, p_.longest_n * D);
    for (std::int64_t i = 0; i < tokens.at.N; ++i)
      metric::store(to.dq, {tokens.at.b, g * R + r, tokens.at.q0 + i}, dq + i * D, D);
  }
}

/// What was kept for late; masked keys get zeros, and so does v_prev when nothing goes there.
void Backward::write_keys(const Gradients& to, std::int64_t s, std::int64_t g) const {
  const Tokens& tokens = geometry_.tokens(s);
  if (tokens.n == tokens.at.M && !late_ && !to.dv_prev && !to.dkey_bias) return;
  const std::int64_t D = p_.size.D, E = p_.size.E, R = p_.heads_per_key();
  const Gathered gathered = late(s, g);
  std::int64_t kept = 0;
  for (std::int64_t j = 0; j < tokens.at.M; ++j) {
    const bool keep = kept < tokens.n && tokens.key_at[kept] == j;
    const metric::Index at{tokens.at.b, g, tokens.at.k0 + j};
    const auto line = [&](const View& view, std::span<float> from, std::int64_t width, bool known) {
      if (!view || (keep && !known)) return;
      if (keep && !from.empty()) return metric::store(view, at, from.data() + kept * width, width);
      metric::store_zeros(view, at, width);
    };
    line(to.dk, gathered.dk, D, late_);
    line(to.dv, gathered.dv, E, late_ && !whitened_);
    line(to.dv_prev, gathered.dv_prev, E, true);
    for (std::int64_t r = 0; r < R && to.dkey_bias; ++r) {
      const bool own = to.dkey_bias.shape[1] == p_.size.H;
      const metric::Index place{at.of[0], own ? g * R + r : g, at.of[2]};
      float sum = keep ? of(db_, s, g * R + r, p_.longest_m)[kept] : 0.0f;
      if (!own && r > 0) sum += metric::load_one<float>(to.dkey_bias, place);
      metric::store_one(to.dkey_bias, place, sum);
    }
    kept += keep;
  }
}

}  // namespace foci::cpu
