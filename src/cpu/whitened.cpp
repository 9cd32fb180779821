// SPDX-License-Identifier: Apache-2.0
// The sweep over keys under a full metric and many keys. A key gets
//   dk = W' (sum_i ds_i q'_i - c db z) = sum_i ds_i y_i - W' (c db z),  y = W' q'
// where spans follow one another by the second form: its first sum goes on from span to span, and
// its last is taken back in panels. Lines that dq sums up are measured from one centre, so that
// keys at hand meet span after span, and all but z stays.
#include "cpu/backward.hpp"

#include <cmath>

namespace foci::cpu {

void note_queries(const Notes& notes, const Problem& p, const Geometry& geometry,
                  Executor* threads) {
  const std::int64_t H = p.size.H, N = p.longest_n, D = p.size.D, spans = geometry.spans();
  const std::int64_t room = notes.room.size() / std::max(threads ? threads->threads() : 1, 1);
  each(threads, p.sequences * H * spans, [&](std::int64_t i, int thread) {
    const Meeting at{i / spans / H, i / spans % H, i % spans};
    const Geometry::Rows rows = geometry.rows(at.s, at.span);
    for (std::int64_t first = rows.first; first < rows.last; first += block_rows) {
      const std::int64_t to = (at.s * H + at.h) * N + first;
      const std::int64_t count = std::min(block_rows, rows.last - first);
      float *q = notes.q.data() + to * D, *m = notes.room.data() + thread * room;
      geometry.queries(at, first, count, q, m, notes.r.data() + to);
      if (!notes.y.empty()) geometry.metric_queries(at, count, notes.y.data() + to * D, q);
    }
  });
}

/// Where a part's keys begin, in blocks. Under causal the first keys meet more queries.
std::int64_t Backward::first_block(std::int64_t s, std::int64_t part) const {
  const std::int64_t blocks = blocks_of(geometry_.tokens(s).n, gradient_keys);
  if (!p_.how.causal) return blocks * part / parts_;
  const double left = 1 - double(part) / double(parts_);
  return std::int64_t(double(blocks) * (1 - std::sqrt(left)) + 1e-9);
}

double* Backward::scatter_of(std::int64_t s, std::int64_t g, std::int64_t part,
                             std::int64_t span) const {
  const std::int64_t head = (s * p_.size.G + g) * parts_ + part;
  return scatter_.data() + ((head * geometry_.spans() + span) * padded_D_ * padded_D_);
}

void Backward::run_whitened(const Gradients& to, Executor* threads) {
  const std::int64_t S = p_.sequences, G = p_.size.G;
  std::fill(dr_.begin(), dr_.end(), 0.0f);
  each(threads, S * G * parts_, [&](std::int64_t i, int t) {
    const std::int64_t s = i / (G * parts_), g = i / parts_ % G;
    run_whitened_part(to, {s, g, 0, i % parts_, 0, 0, t});
    if (by_heads_) finish_whitened(to, s, g, t);
  });
  each(threads, by_heads_ ? 0 : S * G,
       [&](std::int64_t i, int t) { finish_whitened(to, i / G, i % G, t); });
}

/// Zeros where a part's sums over the queries of a span begin.
void Backward::clear_span(const Work& work) {
  const Geometry::Rows rows = geometry_.rows(work.s, work.span);
  if (rows.first >= rows.last || !meets({work.s, 0, work.span}, work.part, rows)) return;
  const std::int64_t R = p_.heads_per_key();
  const std::int64_t size = padded(rows.last - rows.first, block_rows) * padded_D_;
  for (std::int64_t h = work.g * R; h < (work.g + 1) * R; ++h) {
    float* dq = panels_of(dq_, {work.s, h, work.span}, work.part, rows.first, work.thread);
    std::fill_n(dq, size, 0.0f);
  }
}

/// One part of a key head's keys, a few blocks at a time, against the queries of all spans.
void Backward::run_whitened_part(const Gradients& to, Work work) {
  const std::int64_t n = geometry_.tokens(work.s).n, spans = geometry_.spans();
  const std::int64_t begin = first_block(work.s, work.part);
  const std::int64_t end = first_block(work.s, work.part + 1);
  for (work.span = 0; work.span < spans; ++work.span) clear_span(work);
  Room& room = rooms_[work.thread];
  for (std::int64_t block = begin; block < end; block += together) {
    work.first = block * gradient_keys;
    work.count = std::min(std::min(together, end - block) * gradient_keys, n - work.first);
    pack_lines(work, room);
    for (work.span = 0; work.span < spans; ++work.span) meet_span(to, work, room);
    geometry_.has_spans() ? add_pulled(work, room) : unwhiten_keys(work, room);
    keep_keys(to, work, room);
  }
}

/// Whether a part has keys that the span's queries meet, and so a sum of its own.
bool Backward::scatters(const Meeting& at, std::int64_t part, const Geometry::Rows& rows) const {
  const std::int64_t begin = first_block(at.s, part), end = first_block(at.s, part + 1);
  return begin < end && begin * gradient_keys < keys_met(at.s, rows);
}

void Backward::finish_whitened(const Gradients& to, std::int64_t s, std::int64_t g, int thread) {
  Meeting at{s, g * p_.heads_per_key(), 0};
  for (at.span = 0; at.span < geometry_.spans(); ++at.span) {
    const Geometry::Rows rows = geometry_.rows(s, at.span);
    if (rows.first >= rows.last) continue;
    for (std::int64_t part = 0; part < parts_ && geometry_.wants_gradient(); ++part) {
      if (scatters(at, part, rows))
        geometry_.gather_scatter(at, scatter_of(s, g, part, at.span), padded_D_);
    }
    finish_queries(to, at, thread);
  }
}

void Backward::pack_lines(const Work& work, Room& room) {
  const Tokens& tokens = geometry_.tokens(work.s);
  const std::int64_t E = p_.size.E;
  const Meeting at{work.s, work.g * p_.heads_per_key(), 0};
  const float* v = tokens.lines(p_.from.v, work.g, work.first, work.count, E, room.lines.data());
  for (std::int64_t j = 0; j < work.count; j += gradient_keys) {
    isa_.pack_keys(room.values.data() + (j / gradient_keys * gradient_stride * E), v + j * E,
                   std::min(gradient_keys, work.count - j), E);
  }
  const float* k = tokens.lines(p_.from.k, work.g, work.first, work.count, D_, room.lines.data());
  isa_.pack_keys(room.raw.data(), k, work.count, D_);
  k = geometry_.key_lines(at, work.first, work.count, room.lines.data());
  for (std::int64_t j = 0; j < work.count; j += gradient_keys) {
    isa_.pack_columns(room.key_lines.data() + (j / gradient_keys * gradient_stride * padded_D_),
                      k + j * D_, std::min(gradient_keys, work.count - j), gradient_keys, D_);
  }
  for (auto* sums : {&room.dk, &room.dv, &room.pulled}) std::fill(sums->begin(), sums->end(), 0.0f);
}

/// Keys at hand against the queries of one span.
void Backward::meet_span(const Gradients& to, const Work& work, Room& room) {
  const std::int64_t R = p_.heads_per_key();
  const Geometry::Rows rows = geometry_.rows(work.s, work.span);
  if (rows.first >= rows.last) return;
  const std::int64_t met = std::min(work.count, keys_met(work.s, rows) - work.first);
  if (met <= 0) return;
  const Meeting first{work.s, work.g * R, work.span};
  geometry_.whiten_panels(first, met, room.keys.data(), room.own.data(), room.raw.data(),
                          room.whitening.data());
  std::fill_n(room.shared.begin(), work.count, 0.0f);
  for (std::int64_t r = 0; r < R; ++r) {
    const Meeting at{work.s, work.g * R + r, work.span};
    complete_keys(at, work, room);
    meet_queries(to, at, work, room);
    if (p_.from.key_bias) keep_bias(at, work, room);
    for (std::int64_t j = 0; j < work.count; ++j) room.shared[j] += room.db[j];
  }
  if (geometry_.wants_gradient()) scatter_keys(work, met, room);
  if (!geometry_.has_spans()) return;
  geometry_.unwhiten_panels(first, met, room.pulled.data(), room.keys.data(), room.shared.data(),
                            room.whitening.data());
}

/// What the metric's gradient gets from keys alone.
void Backward::scatter_keys(const Work& work, std::int64_t met, Room& room) {
  // Where ds of a row sum up to more than 0, what they leave is small beside their sums.
  const std::int64_t most = weigher_.softmax ? gradient_keys : gradient_keys / 3;
  for (std::int64_t j = 0; j < met; j += gradient_keys) {
    const std::int64_t slot = j / gradient_keys * gradient_stride;
    const bool adds = j > 0 || work.first > first_block(work.s, work.part) * gradient_keys;
    isa_.scatter_lines({scatter_of(work.s, work.g, work.part, work.span),
                        room.key_lines.data() + slot * padded_D_, room.shared.data() + j,
                        std::min(gradient_keys, met - j), gradient_keys, D_, adds, most,
                        room.scaled.data()});
  }
}

/// dk of the keys at hand as lines, without spans.
void Backward::unwhiten_keys(const Work& work, Room& room) const {
  const std::int64_t panel = isa_.panel;
  for (std::int64_t j = 0; j < work.count; j += panel) {
    isa_.matrix->transpose(room.lines.data() + j * D_, room.keys.data() + j * D_, D_,
                           std::min(panel, work.count - j), D_, panel);
  }
  lines_of(room.more.data(), room.dk, work.count, D_, panel);
  geometry_.unwhiten_keys({work.s, work.g * p_.heads_per_key(), 0}, work.count,
                          room.dk_lines.data(), room.more.data(), room.shared.data(),
                          room.lines.data());
}

/// The same of spans: both sums together.
void Backward::add_pulled(const Work& work, Room& room) const {
  const std::int64_t panel = isa_.panel;
  lines_of(room.dk_lines.data(), room.dk, work.count, D_, panel);
  float* turned = room.lines.data();
  for (std::int64_t j = 0; j < work.count; j += panel) {
    isa_.matrix->transpose(turned, room.pulled.data() + j * D_, D_, panel, D_, panel);
    for (std::int64_t i = 0; i < std::min(panel, work.count - j) * D_; ++i)
      room.dk_lines[j * D_ + i] += turned[i];
  }
}

}  // namespace foci::cpu
