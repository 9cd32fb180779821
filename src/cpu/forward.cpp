// SPDX-License-Identifier: Apache-2.0
// Packs what a head's queries meet and walks through its blocks.
#include "cpu/forward.hpp"

#include "cpu/narrow_lines.hpp"

#include <cmath>

namespace foci::cpu {

namespace {

/// Keys transformed and packed at a time; a multiple of every panel.
constexpr std::int64_t pack_rows = 4 * block_keys;

Divisor divisor_of(Rescale how) {
  return how == Rescale::length ? Divisor::length
         : how == Rescale::l1   ? Divisor::l1
         : how == Rescale::l2   ? Divisor::l2
                                : Divisor::none;
}

}  // namespace

Weigher weigher_of(const Weighting& weighting, const Kernels& isa) {
  if (const auto* relu2 = std::get_if<Relu2>(&weighting))
    return {isa.relu2_forward, isa.relu2_backward, false, divisor_of(relu2->rescale)};
  if (const auto* identity = std::get_if<Identity>(&weighting))
    return {isa.identity_forward, isa.identity_backward, false, divisor_of(identity->rescale)};
  if (const auto* decay = std::get_if<Decay>(&weighting)) {
    const auto slope = float(std::log(decay->rate));
    return {isa.identity_forward, isa.identity_backward, false, Divisor::none, true, slope};
  }
  return {.forward = isa.softmax_forward, .backward = isa.softmax_backward};
}

void add_key_bias(float* b, const Problem& p, const Tokens& tokens, std::int64_t h,
                  std::int64_t first, std::int64_t count) {
  const View& bias = p.from.key_bias;
  if (!bias) return;
  const std::int64_t head = bias.shape[1] == p.size.H ? h : h / p.heads_per_key();
  const std::int64_t step = bias.strides[2];
  metric::with_floating(bias.dtype, [&]<class S>(S*) {
    const S* line = metric::address<S>(bias, {tokens.at.b, head, tokens.at.k0});
    for (std::int64_t j = 0; j < count; ++j)
      b[j] += metric::convert<float>(line[tokens.key_at[first + j] * step]);
  });
}

Forward::Forward(Arena& arena, const Problem& problem, const Kernels& isa, const Geometry& geometry,
                 int threads, const NarrowKernels* narrow)
    : p_(problem),
      isa_(isa),
      geometry_(geometry),
      narrow_(narrow),
      panel_(narrow ? narrow->panel : isa.panel),
      weigher_(weigher_of(problem.how.weighting, isa)) {
  const auto& z = problem.size;
  const std::int64_t S = problem.sequences, M = problem.longest_m, D = z.D;
  const bool spans = geometry.has_spans();
  if (narrow) pieces_ = blocks_of(M, narrow_piece);
  biased_ = problem.from.key_bias || geometry.has_bias();
  bias_room_ = padded(M, panel_) + panel_;
  key_room_ = narrow ? narrow->keys_room(M, D) : bias_room_ * D;
  value_room_ = narrow ? narrow->values_room(M, z.E) : M * padded(z.E, isa.panel);
  const std::int64_t lanes = isa.panel / 2;
  short_ = weigher_.softmax && !narrow && geometry.kind() == Kind::product && D % lanes == 0 &&
           z.E % lanes == 0;
  by_heads_ = !spans && (S * z.G >= 4 * threads || S * z.G % threads == 0);
  const std::int64_t slots = by_heads_ ? threads : S * z.G;
  keys_ = arena.take<float>(spans && !geometry.whitens() ? 0 : slots, key_room_);
  values_ = arena.take<float>(slots, value_room_);
  b_ = arena.take<float>(spans ? 0 : S, biased_ ? z.H : 1, bias_room_);
  positions_ = arena.take<float>(weigher_.fades ? S : 0, bias_room_);
  rooms_ = arena.take<Room>(threads);
  const std::int64_t more_room =
      geometry.whitens() ? isa.whitening_room(D) : std::min(pack_rows, M) * D;
  for (int t = 0; t < threads; ++t) {
    Room room;
    for (auto* rows : {&room.q, &room.m}) *rows = arena.take<float>(block_rows, D);
    room.r = arena.take<float>(block_rows);
    room.o = arena.take<float>(block_rows, z.E);
    room.own = arena.take<float>(bias_room_);
    room.b = arena.take<float>(bias_room_);
    room.keys = arena.take<float>(spans ? key_room_ : 0);
    room.lines = arena.take<float>(narrow ? 0 : std::min(pack_rows, M), std::max(D, z.E));
    room.values = arena.take<float>(short_ ? std::min(short_keys, M) : 0, z.E);
    room.narrow_lines = arena.take<Bf16>(narrow ? narrow_piece : 0, std::max(D, z.E));
    room.more = arena.take<float>(geometry.has_bias() ? more_room : 0);
    room.scratch =
        arena.take<float>((narrow ? narrow->forward_scratch : isa.forward_scratch)(D, z.E));
    room.rows = arena.take<float>(7, block_rows);
    room.at = arena.take<std::int64_t>(block_rows);
    room.last = arena.take<float>(block_rows);
    put(rooms_, t, room);
  }
}

void Forward::pack_values(std::int64_t s, std::int64_t g, float* values, Room& room) {
  const Tokens& tokens = geometry_.tokens(s);
  const std::int64_t E = p_.size.E, n = tokens.n;
  for (std::int64_t first = 0; first < n; first += pack_rows) {
    const std::int64_t count = std::min(pack_rows, n - first);
    const float* v = tokens.lines(p_.from.v, g, first, count, E, room.lines.data());
    isa_.pack_columns(values + first * isa_.panel, v, count, n, E);
  }
}

/// Keys as they are, all of a head's: what whiten_panels() starts from.
void Forward::pack_raw_keys(std::int64_t s, std::int64_t g, float* keys, Room& room) {
  const Tokens& tokens = geometry_.tokens(s);
  const std::int64_t D = p_.size.D;
  for (std::int64_t first = 0; first < tokens.n; first += pack_rows) {
    const std::int64_t count = std::min(pack_rows, tokens.n - first);
    const float* k = tokens.lines(p_.from.k, g, first, count, D, room.lines.data());
    isa_.pack_keys(keys + first * D, k, count, D);
  }
}

/// k' of the first n kept keys; b where the metric has one. A full metric makes them of `raw`,
/// which without spans is where they shall be.
void Forward::pack_keys(const Meeting& at, std::int64_t n, float* keys, float* b, float* raw,
                        Room& room) {
  const std::int64_t D = p_.size.D;
  if (geometry_.whitens()) {
    if (!geometry_.has_spans()) pack_raw_keys(at.s, geometry_.key_head(at.h), raw, room);
    return geometry_.whiten_panels(at, n, keys, b, raw, room.more.data());
  }
  for (std::int64_t first = 0; first < n; first += pack_rows) {
    const std::int64_t count = std::min(pack_rows, n - first);
    const float* k =
        geometry_.keys(at, first, count, room.lines.data(), b + first, room.more.data());
    isa_.pack_keys(keys + first * D, k, count, D);
  }
}

void Forward::complete_bias(const Meeting& at, std::int64_t n, float* b, const float* own) const {
  if (geometry_.has_bias()) {
    std::copy_n(own, n, b);
  } else {
    std::fill_n(b, n, 0.0f);
  }
  add_key_bias(b, p_, geometry_.tokens(at.s), at.h, 0, n);
  std::fill(b + n, b + padded(n, panel_), padding);
}

/// What every block of a head shares.
void Forward::pack(std::int64_t s, std::int64_t g, std::int64_t piece, int thread) {
  const std::int64_t H = p_.size.H, R = p_.heads_per_key(), n = geometry_.tokens(s).n;
  Room& room = rooms_[thread];
  float* keys = keys_.data() + (slot(s, g, thread) * key_room_);
  if (narrow_) {
    pack_narrow(s, g, piece, thread);
  } else if (!is_short(s)) {
    pack_values(s, g, values_.data() + (slot(s, g, thread) * value_room_), room);
    if (geometry_.has_spans()) {
      if (geometry_.whitens()) pack_raw_keys(s, g, keys, room);
      return;
    }
    pack_keys({s, g * R, 0}, n, keys, room.own.data(), keys, room);
  }
  for (std::int64_t r = 0; r < R && biased_ && piece == 0; ++r) {
    const Meeting at{s, g * R + r, 0};
    complete_bias(at, n, b_.data() + ((s * H + at.h) * bias_room_), room.own.data());
  }
}

void Forward::aim(const View& o) {
  if (o.dtype == DType::f32 && o.strides[3] == 1 && o.strides[2] == p_.size.E) direct_ = o;
}

void Forward::prepare() {
  for (std::int64_t s = 0; s < p_.sequences; ++s) {
    const Tokens& tokens = geometry_.tokens(s);
    if (!biased_ && !is_short(s))
      complete_bias({s, 0, 0}, tokens.n, b_.data() + s * bias_room_, nullptr);
    for (std::int64_t j = 0; j < tokens.n && weigher_.fades; ++j)
      positions_[s * bias_room_ + j] = float(tokens.key_at[j]);
  }
}

Forward::Met Forward::met_by(std::int64_t s, std::int64_t h, int thread) const {
  const std::int64_t H = p_.size.H, g = geometry_.key_head(h), at = slot(s, g, thread);
  const float* b = b_.data() + ((biased_ ? s * H + h : s) * bias_room_);
  if (is_short(s)) {
    const Tokens& tokens = geometry_.tokens(s);
    const Room& room = rooms_[thread];
    return {tokens.lines(p_.from.k, g, 0, tokens.n, p_.size.D, room.lines.data()),
            tokens.lines(p_.from.v, g, 0, tokens.n, p_.size.E, room.values.data()), b, tokens.n};
  }
  return {keys_.data() + (at * key_room_), values_.data() + (at * value_room_), b,
          geometry_.tokens(s).n};
}

/// All blocks of the heads that share a packed one.
void Forward::run_blocks(std::int64_t s, std::int64_t g, const Call& call) {
  const std::int64_t R = p_.heads_per_key(), N = geometry_.tokens(s).at.N;
  for (std::int64_t piece = 0; piece < pieces_; ++piece) pack(s, g, piece, call.thread);
  for (std::int64_t h = g * R; h < (g + 1) * R; ++h) {
    const Met met = met_by(s, h, call.thread);
    for (std::int64_t first = 0; first < N; first += block_rows)
      run_block({s, h, 0}, first, std::min(block_rows, N - first), met, call);
  }
}

void Forward::run(Executor* threads, bool statistics, const Sink& sink) {
  const std::int64_t G = p_.size.G, H = p_.size.H, S = p_.sequences;
  prepare();
  if (by_heads_) {
    return each(threads, S * G, [&](std::int64_t i, int t) {
      run_blocks(i / G, i % G, {t, statistics, sink});
    });
  }
  each(threads, S * G * pieces_,
       [&](std::int64_t i, int t) { pack(i / pieces_ / G, i / pieces_ % G, i % pieces_, t); });
  if (geometry_.has_spans()) {  // the last see most: they come first
    const std::int64_t spans = geometry_.spans();
    return each(threads, S * G * spans, [&](std::int64_t i, int t) {
      run_span(i / spans / G, i / spans % G, spans - 1 - i % spans, {t, statistics, sink});
    });
  }
  const std::int64_t blocks = blocks_of(p_.longest_n, block_rows);
  each(threads, S * H * blocks, [&](std::int64_t i, int t) {
    const std::int64_t s = i / (H * blocks), h = i / blocks % H, N = geometry_.tokens(s).at.N;
    const std::int64_t first = (blocks - 1 - i % blocks) * block_rows;
    if (first >= N) return;
    run_block({s, h, 0}, first, std::min(block_rows, N - first), met_by(s, h, t),
              {t, statistics, sink});
  });
}

void Forward::run_head(std::int64_t s, std::int64_t g, int thread, const Sink& sink) {
  run_blocks(s, g, {thread, true, sink});
}

/// The queries of a span, head by head: they share k'.
void Forward::run_span(std::int64_t s, std::int64_t g, std::int64_t span, const Call& call) {
  const Geometry::Rows rows = geometry_.rows(s, span);
  if (rows.first >= rows.last) return;
  Room& room = rooms_[call.thread];
  const std::int64_t R = p_.heads_per_key(), n = geometry_.tokens(s).sees[rows.last - 1];
  const std::int64_t at_hand = slot(s, g, call.thread);
  float* raw = geometry_.whitens() ? keys_.data() + (at_hand * key_room_) : nullptr;
  const float* values = values_.data() + (at_hand * value_room_);
  pack_keys({s, g * R, span}, n, room.keys.data(), room.own.data(), raw, room);
  for (std::int64_t r = 0; r < R; ++r) {
    const Meeting at{s, g * R + r, span};
    complete_bias(at, n, room.b.data(), room.own.data());
    for (std::int64_t first = rows.first; first < rows.last; first += block_rows) {
      run_block(at, first, std::min(block_rows, rows.last - first),
                {room.keys.data(), values, room.b.data(), n}, call);
    }
  }
}

/// Where what is known of a block's rows goes.
void Forward::Room::place(ForwardBlock& block) const {
  block.by = rows.data();
  block.sizes = block.by + block_rows;
  block.squares = block.sizes + block_rows;
  block.entropy = block.squares + block_rows;
  block.largest = block.entropy + block_rows;
  block.shift = block.largest + block_rows;
  block.sum = block.shift + block_rows;
  block.largest_at = at.data();
}

void Forward::run_block(const Meeting& at, std::int64_t first, std::int64_t rows, const Met& met,
                        const Call& call) {
  const Tokens& tokens = geometry_.tokens(at.s);
  Room& room = rooms_[call.thread];
  NarrowForward block{};
  block.rows = rows;
  block.scale = 1;
  block.q = room.q.data();
  const bool keeps_rest = geometry_.keeps_rest();
  const float* plain =
      narrow_ || keeps_rest ? nullptr : geometry_.plain_queries(at, first, rows, room.r.data());
  if (narrow_) {
    place_narrow(block, at, first, room);
  } else if (plain) {
    block.q = plain;
    block.scale = float(geometry_.scale(at.s, geometry_.key_head(at.h)));
  } else {
    geometry_.queries(at, first, rows, room.q.data(), room.m.data(), room.r.data());
  }
  if (geometry_.by_differences(at)) block.m = room.m.data();
  if (keeps_rest) {
    geometry_.rounded_off(at, first, rows, room.q.data(), room.m.data());
    block.q_rest = room.m.data();
  }
  block.r = room.r.data();
  block.sees = tokens.sees.data() + first;
  block.keys = met.keys;
  block.values = met.values;
  block.value_rows = tokens.n;
  block.bias = met.b;
  block.biased = biased_;
  block.causal = block.sees[0] != met.n || block.sees[rows - 1] != met.n;
  block.statistics = call.statistics;
  block.divisor = weigher_.divisor;
  for (std::int64_t i = 0; i < rows && weigher_.fades; ++i) {
    const std::int64_t seen = block.sees[i];
    room.last[i] = seen > 0 ? float(tokens.key_at[seen - 1]) : 0.0f;
    block.fading = {weigher_.slope, positions_.data() + (at.s * bias_room_), room.last.data()};
  }
  block.n = met.n;
  block.D = p_.size.D;
  block.E = p_.size.E;
  block.scratch = room.scratch.data();
  block.o = direct_ ? metric::address<float>(direct_, {tokens.at.b, at.h, tokens.at.q0 + first, 0})
                    : room.o.data();
  room.place(block);
  if (narrow_) {
    narrow_->softmax_forward(block);
  } else {
    is_short(at.s) ? isa_.softmax_short(block) : weigher_.forward(block);
  }
  call.sink({at.s, at.h, first, block}, call.thread);
}

void Forward::write(const Outputs& to, const Result& result) const {
  const ForwardBlock& block = result.block;
  const Tokens& tokens = geometry_.tokens(result.s);
  const metric::Index first{tokens.at.b, result.h, tokens.at.q0 + result.first};
  const bool stored = direct_ || store_narrow(narrow_, to.o, first, block.o, block.rows, p_.size.E);
  const bool in_line = to.lse && to.lse.dtype == DType::f32 && to.lse.strides[2] == 1;
  if (in_line) std::copy_n(block.by, block.rows, metric::address<float>(to.lse, first));
  if (stored && !block.statistics && (in_line || !to.lse)) return;
  for (std::int64_t i = 0; i < block.rows; ++i) {
    const metric::Index at{tokens.at.b, result.h, tokens.at.q0 + result.first + i};
    if (!stored) metric::store(to.o, at, block.o + i * p_.size.E, p_.size.E);
    if (!in_line) metric::store_one(to.lse, at, block.by[i]);
    if (!block.statistics) continue;
    const float n = float(block.sees[i]);
    const bool empty = block.largest_at[i] < 0 && block.largest[i] == 0;
    const float concentration =
        empty || block.squares[i] == 0 ? 0.0f : block.sizes[i] / std::sqrt(n * block.squares[i]);
    metric::store_one(to.concentration, at, concentration);
    metric::store_one(to.effective_keys, at, n * concentration * concentration);
    metric::store_one(to.entropy, at, block.entropy[i]);
    metric::store_one(to.largest, at, block.largest[i]);
    const std::int64_t key = block.largest_at[i];
    metric::store_one(to.largest_at, at, key < 0 ? std::int64_t(-1) : tokens.key_at[key]);
  }
}

}  // namespace foci::cpu
