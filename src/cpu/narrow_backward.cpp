// SPDX-License-Identifier: Apache-2.0
// What the backward pass does otherwise over bf16: keys, values, queries and d_o are packed as they
// are, and one block after another goes to the kernels over bf16.
#include "cpu/backward.hpp"
#include "cpu/narrow_lines.hpp"

namespace foci::cpu {

Backward::NarrowRoom Backward::take_narrow(Arena& arena) const {
  const std::int64_t D = p_.size.D, E = p_.size.E;
  return {.keys = arena.take<float>(together, narrow_->gradient_keys_room(D, E)),
          .queries = arena.take<float>(narrow_->gradient_queries_room(D, E)),
          .scratch = arena.take<float>(narrow_->gradient_scratch()),
          .lines = arena.take<Bf16>(2, gradient_keys, std::max(D, E))};
}

void Backward::pack_narrow(const Work& work, Room& room) {
  const Tokens& tokens = geometry_.tokens(work.s);
  const std::int64_t D = p_.size.D, E = p_.size.E;
  Bf16 *here = room.narrow.lines.data(), *there = here + gradient_keys * std::max(D, E);
  float* to = room.narrow.keys.data();
  for (std::int64_t j = 0; j < work.count; j += gradient_keys) {
    const std::int64_t first = work.first + j, count = std::min(gradient_keys, work.count - j);
    narrow_->pack_gradient_keys(to, narrow_keys(tokens, p_.from.k, work.g, first, count, D, here),
                                narrow_keys(tokens, p_.from.v, work.g, first, count, E, there));
    to += narrow_->gradient_keys_room(D, E);
  }
}

/// Gives back the parts they are made of.
int Backward::pack_narrow_queries(const Gradients& to, const Meeting& at, std::int64_t first,
                                  std::int64_t rows, bool sums, Room& room) {
  static_assert(block_rows <= gradient_keys);
  const Tokens& tokens = geometry_.tokens(at.s);
  const std::int64_t D = p_.size.D, E = p_.size.E;
  Bf16 *here = room.narrow.lines.data(), *there = here + gradient_keys * std::max(D, E);
  float* wide = room.rows.data();
  NarrowQueries queries{.q = {nullptr, 0, rows, D}, .wide = wide, .d_o = {}, .sums = sums};
  if (!geometry_.weighted_queries(at, first, rows, wide)) {
    queries.q = narrow_queries(tokens, p_.from.q, at.h, first, rows, D, here);
    queries.wide = nullptr;
  }
  queries.d_o = narrow_queries(tokens, to.d_o, at.h, first, rows, E, there);
  return narrow_->pack_gradient_queries(room.narrow.queries.data(), queries);
}

void Backward::meet_narrow(const Gradients& to, const Meeting& at, const Work& work, Room& room,
                           bool deltas) {
  const Tokens& tokens = geometry_.tokens(at.s);
  const std::int64_t D = p_.size.D, E = p_.size.E, N = p_.longest_n;
  NarrowBackward block{};
  block.queries = room.narrow.queries.data();
  block.scale = float(geometry_.scale(at.s, work.g));
  block.D = D;
  block.E = E;
  block.scratch = room.narrow.scratch.data();
  for (std::int64_t first = 0; first < tokens.at.N; first += block_rows) {
    block.rows = std::min(block_rows, tokens.at.N - first);
    block.sees = tokens.sees.data() + first;
    const std::int64_t seen = block.sees[block.rows - 1];
    if (seen <= work.first) continue;
    block.parts = pack_narrow_queries(to, at, first, block.rows, !deltas, room);
    block.low = of(notes_.low, at.s, at.h, N) + first;
    block.delta = of(delta_, at.s, at.h, parts_ * N) + work.part * N + first;
    if (!deltas) block.minus_delta = of(notes_.minus_delta, at.s, at.h, N) + first;
    if (!deltas) block.dq = panels_of(dq_, at, work.part, first, work.thread);
    for (std::int64_t j = 0; j < work.count && work.first + j < seen; j += gradient_keys) {
      const std::int64_t slot = j / gradient_keys;
      block.key = work.first + j;
      block.n = std::min(gradient_keys, work.count - j);
      block.causal = block.sees[0] < block.key + block.n;
      block.keys = room.narrow.keys.data() + (slot * narrow_->gradient_keys_room(D, E));
      block.bias = room.b.data() + j;
      block.dk = room.dk.data() + (slot * gradient_stride * padded_L_);
      block.dv = room.dv.data() + (slot * gradient_stride * padded_E_);
      block.dbias = to.dkey_bias ? room.db.data() + j : nullptr;
      deltas ? narrow_->softmax_deltas(block) : narrow_->softmax_backward(block);
    }
  }
}

void Backward::find_deltas_of(const Gradients& to, const Work& work, Room& room) {
  const std::int64_t R = p_.heads_per_key();
  pack_narrow(work, room);
  for (std::int64_t r = 0; r < R; ++r) {
    const Meeting at{work.s, work.g * R + r, work.span};
    complete_keys(at, work, room);
    meet_narrow(to, at, work, room, true);
  }
}

/// minus_delta of every row from weights as the sweep will make them: do . o would carry the
/// rounding of o's weights, which is as large as the gradients of a row with one large weight.
void Backward::find_deltas(const Gradients& to, Executor* threads) {
  const std::int64_t S = p_.sequences, G = p_.size.G, H = p_.size.H, N = p_.longest_n;
  std::fill(delta_.begin(), delta_.end(), 0.0f);
  each(threads, S * G * parts_, [&](std::int64_t i, int t) {
    walk_keys(to, {i / (G * parts_), i / parts_ % G, 0, i % parts_, 0, 0, t},
              &Backward::find_deltas_of);
  });
  each(threads, S * H, [&](std::int64_t i, int) {
    float* sum = notes_.minus_delta.data() + i * N;
    std::fill_n(sum, N, 0.0f);
    for (std::int64_t part = 0; part < parts_; ++part) {
      for (std::int64_t row = 0; row < N; ++row)
        sum[row] -= delta_[std::size_t((i * parts_ + part) * N + row)];
    }
  });
}

}  // namespace foci::cpu
