// SPDX-License-Identifier: Apache-2.0
// The sweep over keys: pack a few blocks of them, let every block of queries meet them, keep dk and
// dv. What comes after the sweep is in unfold.cpp.
#include "cpu/backward.hpp"

namespace foci::cpu {

namespace {

/// Parts of a head's keys that may run at once: by shape alone, so that bits stay.
std::int64_t parts_of(const Problem& p, std::int64_t floats_a_part) {
  constexpr std::int64_t tasks = 32, most_floats = 10 << 20;
  const std::int64_t heads = std::max<std::int64_t>(p.sequences * p.size.G, 1);
  const std::int64_t wanted = blocks_of(tasks, heads);
  const std::int64_t fitting =
      std::max<std::int64_t>(most_floats / std::max<std::int64_t>(floats_a_part, 1), 1);
  // A part of less than a block and a half would not be worth a dq' of its own.
  const std::int64_t useful = std::max<std::int64_t>(p.longest_m / (3 * gradient_keys / 2), 1);
  return std::min({wanted, fitting, useful});
}

}  // namespace

Notes Notes::take(Arena& arena, const Problem& p, int threads) {
  const std::int64_t S = p.sequences, H = p.size.H, N = p.longest_n;
  const std::int64_t whitened = has_one_centre(p) ? S : 0;
  return {arena.take<float>(S, H, N),
          arena.take<float>(S, H, N),
          arena.take<float>(S, H, N),
          arena.take<float>(threads, 2, block_rows, std::max(p.size.D, p.size.E)),
          arena.take<float>(whitened, H, N, p.size.D),
          arena.take<float>(has_spans(p) ? whitened : 0, H, N, p.size.D),
          arena.take<float>(whitened, H, N)};
}

bool Backward::wants_notes(const Problem& problem) {
  return !std::holds_alternative<Softmax>(problem.how.weighting) ||
         problem.longest_m > gradient_keys;
}

Backward::Backward(Arena& arena, const Problem& problem, const Kernels& isa, Geometry& geometry,
                   const Notes& notes, int threads, const NarrowKernels* narrow)
    : p_(problem),
      isa_(isa),
      geometry_(geometry),
      notes_(notes),
      narrow_(wants_notes(problem) ? narrow : nullptr),
      panel_(narrow_ ? narrow_->panel : isa.panel),
      weigher_(weigher_of(problem.how.weighting, isa)),
      D_(problem.size.D),
      L_(geometry.line_width()),
      padded_D_(padded(D_, panel_)),
      padded_E_(padded(problem.size.E, panel_)),
      padded_L_(padded(L_, panel_)),
      query_blocks_(blocks_of(problem.longest_n, block_rows)) {
  const auto& z = problem.size;
  const std::int64_t S = problem.sequences, M = problem.longest_m, N = problem.longest_n;
  whitened_ = has_one_centre(problem);
  if (whitened_) query_blocks_ += geometry.spans() - 1;  // a span begins with a block
  const std::int64_t each_dq = query_blocks_ * block_rows * padded_D_;
  parts_ = parts_of(problem, S * z.H * each_dq);
  by_heads_ = parts_ == 1 && (S * z.G >= 4 * threads || S * z.G % threads == 0);
  short_ = shortens(problem, isa, geometry, narrow);
  whole_ = !wants_notes(problem);
  biased_ = problem.from.key_bias || geometry.has_bias();
  wants_db_ = problem.from.key_bias || geometry.wants_db();
  wants_dr_ = geometry.wants_dr();
  wants_dm_ = geometry.wants_dm();
  late_ = problem.through || (geometry.has_spans() && !whitened_);
  const std::int64_t heads = by_heads_ ? threads * problem.heads_per_key() : S * z.H;
  dq_ = arena.take<float>(heads, parts_, each_dq);
  dm_ = arena.take<float>(wants_dm_ ? heads : 0, parts_, each_dq);
  dr_ = arena.take<float>(wants_dr_ ? S : 0, z.H, parts_, N);
  delta_ = arena.take<float>(narrow_ ? S : 0, z.H, parts_, N);
  db_ = arena.take<float>(wants_db_ ? S : 0, z.H, M);
  span_db_ = arena.take<float>(geometry.wants_db() && !whitened_ ? S : 0, z.H, M);
  scatter_ =
      arena.take<double>(whitened_ ? S * z.G * parts_ : 0, geometry.spans(), padded_D_ * padded_D_);
  late_q_ = arena.take<float>(late_ && problem.metric<Jacobian>() ? S : 0, z.H, N, z.D);
  late_k_ = arena.take<float>(late_ ? S : 0, z.G, M, z.D);
  late_v_ = arena.take<float>(2, late_ && !whitened_ ? S : 0, z.G, M, z.E);
  rooms_ = arena.take<Room>(threads);
  geometry.take_gradient(arena);
  for (int t = 0; t < threads; ++t) put(rooms_, t, take_room(arena));
}

Backward::Room Backward::take_room(Arena& arena) const {
  const std::int64_t D = p_.size.D, E = p_.size.E, wide = std::max(L_, E);
  const std::int64_t block = together * gradient_stride, packed = narrow_ ? 0 : block;
  const std::int64_t rows = narrow_ ? 0 : block_rows, padded_rows = block_rows + isa_.tile_rows;
  Room room;
  if (narrow_) room.narrow = take_narrow(arena);
  room.keys = arena.take<float>(packed, D);
  room.values = arena.take<float>(packed, E);
  room.key_lines = arena.take<float>(packed, padded_D_);
  room.dk = arena.take<float>(block, padded_L_);
  room.dv = arena.take<float>(block, padded_E_);
  for (auto* panels : {&room.raw, &room.pulled})
    *panels = arena.take<float>(whitened_ ? most_keys : 0, D);
  room.shared = arena.take<float>(whitened_ ? block : 0);
  room.whitening = arena.take<float>(whitened_ ? isa_.whitening_room(D) : 0);
  room.scaled = arena.take<float>(whitened_ ? gradient_keys : 0, padded_D_);
  room.q = arena.take<float>(block_rows, padded_D_);
  for (auto* q : {&room.m, &room.dm_lines}) *q = arena.take<float>(rows, padded_D_);
  room.q_lines = arena.take<float>(rows, padded_L_);
  room.d_o = arena.take<float>(rows, padded_E_);
  room.rows = arena.take<float>(block_rows, wide);
  room.lines = arena.take<float>(most_keys, wide);
  room.more = arena.take<float>(geometry_.kind() == Kind::product ? 0 : most_keys, D);
  room.dk_lines = arena.take<float>(most_keys, D);
  for (auto* keys : {&room.own, &room.b, &room.db, &room.at}) *keys = arena.take<float>(block);
  for (auto* line : {&room.low, &room.minus_delta, &room.inverse, &room.dr, &room.last})
    *line = arena.take<float>(padded_rows);
  for (auto* tile : {&room.weights, &room.d_scores})
    *tile = arena.take<float>(narrow_ ? 0 : padded_rows, gradient_stride);
  const std::int64_t few = short_ ? std::min(short_keys, p_.longest_m) : 0;
  room.value_lines = arena.take<float>(few, E);
  room.scratch = arena.take<float>(short_ ? isa_.short_backward_scratch(few, D, E) : 0);
  return room;
}

float* Backward::panels_of(std::span<float> array, const Meeting& at, std::int64_t part,
                           std::int64_t first, int thread) const {
  const std::int64_t size = query_blocks_ * block_rows * padded_D_, R = p_.heads_per_key();
  const std::int64_t head = by_heads_ ? thread * R + at.h % R : at.s * p_.size.H + at.h;
  const std::int64_t begin = geometry_.rows(at.s, at.span).first;
  // Spans of whole blocks, at most one more each than fit their rows.
  const std::int64_t row = whitened_ ? (begin / block_rows + at.span) * block_rows : 0;
  return array.data() + ((head * parts_ + part) * size + (row + first - begin) * padded_D_);
}

Gathered Backward::late(std::int64_t s, std::int64_t g) const {
  const std::int64_t S = p_.sequences, G = p_.size.G, M = p_.longest_m, n = geometry_.tokens(s).n;
  const std::int64_t R = p_.heads_per_key(), N = p_.longest_n, D = p_.size.D, E = p_.size.E;
  Gathered to;
  if (!late_) return to;
  if (!late_q_.empty()) to.dq = late_q_.subspan((s * p_.size.H + g * R) * N * D, R * N * D);
  to.dk = late_k_.subspan((s * G + g) * M * D, n * D);
  if (late_v_.empty()) return to;
  to.dv = late_v_.subspan((s * G + g) * M * E, n * E);
  to.dv_prev = late_v_.subspan(((S + s) * G + g) * M * E, n * E);
  return to;
}

void Backward::run(const Gradients& to, Executor* threads) {
  const std::int64_t S = p_.sequences, G = p_.size.G;
  for (auto* array : {&db_, &late_k_, &late_v_}) {
    if (array != &late_k_ || !whitened_) std::fill(array->begin(), array->end(), 0.0f);
  }
  const bool estimated = p_.through && !p_.metric<Dot>() && !p_.metric<Given>();
  geometry_.clear_gradient(to.dmetric || estimated);
  if (narrow_) find_deltas(to, threads);
  if (whitened_) run_whitened(to, threads);
  for (std::int64_t span = 0; span < (whitened_ ? 0 : geometry_.spans()); ++span) {
    for (auto* array : {&dr_, &span_db_}) std::fill(array->begin(), array->end(), 0.0f);
    each(threads, S * G * parts_, [&](std::int64_t i, int t) {
      const std::int64_t s = i / (G * parts_), g = i / parts_ % G;
      if (is_short(s)) {
        if (i % parts_ == 0) run_short(to, s, g, t);
        return;
      }
      run_part(to, {s, g, span, i % parts_, 0, 0, t});
      if (by_heads_) finish_queries(to, {s, g * p_.heads_per_key(), span}, t);
    });
    each(threads, by_heads_ ? 0 : S * G, [&](std::int64_t i, int t) {
      if (!is_short(i / G)) finish_queries(to, {i / G, i % G * p_.heads_per_key(), span}, t);
    });
  }
  const View& given = p_.from.metric;
  const bool own_rows =
      p_.packed() && !p_.full && given && p_.size.N > 1 && given.shape[2] == p_.size.N;
  const bool shared = to.dmetric && p_.metric<Given>() && given.shape[0] == 1 && S > 1 && !own_rows;
  const bool in_turn = geometry_.finishes_in_turn();
  each(in_turn ? nullptr : threads, shared ? G : S * G, [&](std::int64_t i, int t) {
    for (std::int64_t s = shared ? 0 : i / G; s < (shared ? S : i / G + 1); ++s)
      finish_head(to, s, i % G, shared && s > 0, t);
  });
}

/// A part of a key head's keys, a few blocks at a time.
void Backward::walk_keys(const Gradients& to, Work work, WithKeys with) {
  const Geometry::Rows rows = geometry_.rows(work.s, work.span);
  if (rows.first >= rows.last && geometry_.has_spans()) return;
  const std::int64_t n = keys_met(work.s, rows);
  const std::int64_t blocks = blocks_of(n, gradient_keys);
  const std::int64_t begin = blocks * work.part / parts_;
  const std::int64_t end = blocks * (work.part + 1) / parts_;
  for (std::int64_t block = begin; block < end; block += together) {
    work.first = block * gradient_keys;
    work.count = std::min(std::min(together, end - block) * gradient_keys, n - work.first);
    (this->*with)(to, work, rooms_[work.thread]);
  }
}

/// One part of a key head's keys against all queries of a span.
void Backward::run_part(const Gradients& to, const Work& work) {
  const Geometry::Rows rows = geometry_.rows(work.s, work.span);
  const std::int64_t R = p_.heads_per_key();
  for (std::int64_t r = 0; r < R; ++r) {
    const std::int64_t size = padded(rows.last - rows.first, block_rows) * padded_D_;
    const Meeting at{work.s, work.g * R + r, work.span};
    std::fill_n(panels_of(dq_, at, work.part, rows.first, work.thread), size, 0.0f);
    if (wants_dm_) std::fill_n(panels_of(dm_, at, work.part, rows.first, work.thread), size, 0.0f);
  }
  walk_keys(to, work, &Backward::run_keys);
}

void Backward::run_keys(const Gradients& to, const Work& work, Room& room) {
  const std::int64_t R = p_.heads_per_key();
  const std::int64_t slots = blocks_of(work.count, gradient_keys) * gradient_stride;
  std::fill_n(room.dk.begin(), slots * padded_L_, 0.0f);
  std::fill_n(room.dv.begin(), slots * padded_E_, 0.0f);
  std::fill_n(room.dk_lines.begin(), work.count * p_.size.D, 0.0f);
  for (std::int64_t r = 0; r < R; ++r) {
    const Meeting at{work.s, work.g * R + r, work.span};
    if (r == 0) narrow_ ? pack_narrow(work, room) : pack_keys(at, work, room);
    complete_keys(at, work, room);
    narrow_ ? meet_narrow(to, at, work, room, false) : meet_queries(to, at, work, room);
    if (wants_db_) keep_bias(at, work, room);
    if (r == R - 1) unfold_keys(at, work, room);
  }
  keep_keys(to, work, room);
}

void Backward::pack_keys(const Meeting& at, const Work& work, Room& room) {
  const std::int64_t E = p_.size.E;
  const float* v = geometry_.tokens(work.s).lines(p_.from.v, work.g, work.first, work.count, E,
                                                  room.lines.data());
  for (std::int64_t j = 0; j < work.count; j += gradient_keys) {
    isa_.pack_keys(room.values.data() + (j / gradient_keys * gradient_stride * E), v + j * E,
                   std::min(gradient_keys, work.count - j), E);
  }
  const float* k = geometry_.keys(at, work.first, work.count, room.lines.data(), room.own.data(),
                                  room.more.data());
  for (std::int64_t j = 0; j < work.count; j += gradient_keys) {
    isa_.pack_keys(room.keys.data() + (j / gradient_keys * gradient_stride * D_), k + j * D_,
                   std::min(gradient_keys, work.count - j), D_);
  }
  k = geometry_.key_lines(at, work.first, work.count, room.lines.data());
  for (std::int64_t j = 0; j < work.count; j += gradient_keys) {
    isa_.pack_columns(room.key_lines.data() + (j / gradient_keys * gradient_stride * padded_D_),
                      k + j * D_, std::min(gradient_keys, work.count - j), gradient_keys, D_);
  }
}

/// Column panels of block_rows rows; padded rows are zero.
void Backward::pack_queries(const Gradients& to, const Meeting& at, std::int64_t first,
                            std::int64_t rows, Room& room) {
  const Tokens& tokens = geometry_.tokens(at.s);
  const std::int64_t E = p_.size.E, panel = isa_.panel, N = p_.longest_n;
  const auto pack = [&](std::span<float> panels, const float* from, std::int64_t width) {
    isa_.pack_columns(panels.data(), from, rows, block_rows, width);
    for (std::int64_t d = 0; d < width; d += panel)
      std::fill_n(panels.data() + (d * block_rows + rows * panel), (block_rows - rows) * panel,
                  0.0f);
  };
  float *lines = room.rows.data(), *m = room.lines.data();
  if (whitened_) {
    pack(room.q, of(notes_.q, at.s, at.h, N * D_) + first * D_, D_);
    if (geometry_.has_spans())
      pack(room.q_lines, of(notes_.y, at.s, at.h, N * D_) + first * D_, D_);
    const double c = geometry_.scale(at.s, geometry_.key_head(at.h));
    if (geometry_.by_differences(at)) std::fill(room.m.begin(), room.m.end(), float(-0.5 * c));
  } else {
    geometry_.queries(at, first, rows, lines, m, room.low.data());
    pack(room.q, lines, D_);
    if (geometry_.by_differences(at)) pack(room.m, m, D_);
  }
  if (geometry_.keeps_rest()) {
    geometry_.rounded_off(at, first, rows, lines, m);
    pack(room.m, m, D_);
  }
  if (!whitened_ && geometry_.query_lines(at, first, rows, lines)) pack(room.q_lines, lines, L_);
  if (wants_dm_) {
    geometry_.centred_queries(at, first, rows, lines);
    pack(room.dm_lines, lines, D_);
  }
  const auto copy = [&](std::span<float> line, std::span<float> from, float behind) {
    std::copy_n(of(from, at.s, at.h, N) + first, rows, line.begin());
    std::fill(line.begin() + rows, line.end(), behind);
  };
  if (!whole_) copy(room.low, notes_.low, weigher_.softmax ? padding : 0.0f);
  if (!whole_) copy(room.minus_delta, notes_.minus_delta, 0.0f);
  if (!whole_) copy(room.inverse, notes_.inverse, 0.0f);
  const float* d_o = tokens.queries(to.d_o, at.h, first, rows, E, lines);
  if (weigher_.softmax && !whole_) {
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t e = 0; e < E; ++e) lines[i * E + e] = d_o[i * E + e] * room.inverse[i];
    }
    d_o = lines;
  }
  pack(room.d_o, d_o, E);
  for (std::int64_t i = 0; i < rows && weigher_.fades; ++i) {
    const std::int64_t seen = tokens.sees[first + i];
    room.last[i] = seen > 0 ? float(tokens.key_at[seen - 1]) : 0.0f;
  }
}

/// b of the keys at hand as head h meets them, and where they stand.
void Backward::complete_keys(const Meeting& at, const Work& work, Room& room) {
  const Tokens& tokens = geometry_.tokens(at.s);
  if (geometry_.has_bias()) {
    std::copy_n(room.own.begin(), work.count, room.b.begin());
  } else {
    std::fill_n(room.b.begin(), work.count, 0.0f);
  }
  add_key_bias(room.b.data(), p_, tokens, at.h, work.first, work.count);
  std::fill(room.b.begin() + work.count, room.b.end(), padding);
  std::fill(room.db.begin(), room.db.end(), 0.0f);
  for (std::int64_t j = 0; j < work.count && weigher_.fades; ++j)
    room.at[j] = float(tokens.key_at[work.first + j]);
}

/// What is the same for all key blocks.
BackwardBlock Backward::block_of(const Meeting& at, const Work& work, std::int64_t first,
                                 const Room& room) const {
  const Geometry::Rows span = geometry_.rows(at.s, at.span);
  const std::int64_t N = p_.longest_n;
  BackwardBlock block{};
  block.q = room.q.data();
  if (geometry_.by_differences(at)) block.m = room.m.data();
  if (geometry_.keeps_rest()) block.q_rest = room.m.data();
  const bool own_lines = whitened_ ? geometry_.has_spans() : geometry_.kind() != Kind::product;
  block.q_lines = own_lines ? room.q_lines.data() : block.q;
  block.d_o = room.d_o.data();
  block.low = room.low.data();
  block.minus_delta = room.minus_delta.data();
  block.inverse = room.inverse.data();
  block.sees = geometry_.tokens(at.s).sees.data() + first;
  block.biased = biased_;
  block.whole = p_.longest_m <= gradient_keys;
  block.wide = keys_met(at.s, span) <= gradient_keys;
  block.divisor = weigher_.divisor;
  block.scale = 1;
  block.rows = std::min(block_rows, span.last - first);
  block.query_rows = block_rows;
  block.key_rows = gradient_keys;
  block.D = D_;
  block.line_width = L_;
  block.E = p_.size.E;
  block.weights = room.weights.data();
  block.d_scores = room.d_scores.data();
  block.dq = panels_of(dq_, at, work.part, first, work.thread);
  if (wants_dm_) block.dm = panels_of(dm_, at, work.part, first, work.thread);
  block.dm_lines = room.dm_lines.data();
  if (wants_dr_) block.dr = of(dr_, at.s, at.h, parts_ * N) + work.part * N + first;
  return block;
}

void Backward::meet_queries(const Gradients& to, const Meeting& at, const Work& work, Room& room) {
  const Tokens& tokens = geometry_.tokens(at.s);
  const Geometry::Rows span = geometry_.rows(at.s, at.span);
  for (std::int64_t first = span.first; first < span.last; first += block_rows) {
    const std::int64_t rows = std::min(block_rows, span.last - first);
    const std::int64_t seen = tokens.sees[first + rows - 1];
    if (seen <= work.first) continue;
    pack_queries(to, at, first, rows, room);
    BackwardBlock block = block_of(at, work, first, room);
    for (std::int64_t j = 0; j < work.count && work.first + j < seen; j += gradient_keys) {
      const std::int64_t slot = j / gradient_keys * gradient_stride;
      block.key = work.first + j;
      block.n = std::min(gradient_keys, work.count - j);
      block.causal = block.sees[0] < block.key + block.n;
      block.keys = room.keys.data() + ((whitened_ ? j : slot) * D_);
      block.values = room.values.data() + (slot * p_.size.E);
      block.key_lines = room.key_lines.data() + (slot * padded_D_);
      block.bias = room.b.data() + j;
      if (weigher_.fades) block.fading = {weigher_.slope, room.at.data() + j, room.last.data()};
      block.dk = room.dk.data() + (slot * padded_L_);
      block.dv = room.dv.data() + (slot * padded_E_);
      block.dbias = wants_db_ ? room.db.data() + j : nullptr;
      weigher_.backward(block);
    }
  }
}

}  // namespace foci::cpu
