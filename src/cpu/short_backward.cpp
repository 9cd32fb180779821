// SPDX-License-Identifier: Apache-2.0
// The backward pass of short sequences: a head's lines as they lie go to softmax_short_backward(),
// and what comes out is written where it belongs. No notes, nothing packed.
#include "cpu/backward.hpp"

namespace foci::cpu {

namespace {

/// Rows [first, ...) of a head where they may be written as (rows,width) floats; else nullptr.
float* place_in(const View& to, std::int64_t b, std::int64_t h, std::int64_t first,
                std::int64_t width) {
  if (!to || to.dtype != DType::f32 || to.strides[3] != 1 || to.strides[2] != width) return nullptr;
  return metric::address<float>(to, {b, h, first});
}

}  // namespace

bool Backward::shortens(const Problem& problem, const Kernels& isa, const Geometry& geometry,
                        const NarrowKernels* narrow) {
  const std::int64_t lanes = isa.panel / 2;
  if (!problem.packed() && problem.longest_m > short_keys) return false;
  return std::holds_alternative<Softmax>(problem.how.weighting) &&
         geometry.kind() == Kind::product && !problem.from.key_bias && !problem.through &&
         !(narrow && problem.longest_m > gradient_keys) && problem.size.D % lanes == 0 &&
         problem.size.E % lanes == 0;
}

/// dq of some rows from their sums U in room.rows.
void Backward::finish_short_rows(const Gradients& to, const Meeting& at, std::int64_t first,
                                 std::int64_t rows, bool plain, int thread) {
  Room& room = rooms_[thread];
  const Tokens& tokens = geometry_.tokens(at.s);
  float* dq = room.rows.data();
  if (!plain) {
    dq = room.q.data();
    geometry_.unfold_queries(at, first, rows, {room.rows.data(), nullptr, nullptr}, dq, thread);
  }
  for (std::int64_t i = 0; i < rows && to.dq; ++i)
    metric::store(to.dq, {tokens.at.b, at.h, tokens.at.q0 + first + i}, dq + i * D_, D_);
}

/// All queries that share a key head.
void Backward::run_short(const Gradients& to, std::int64_t s, std::int64_t g, int thread) {
  Room& room = rooms_[thread];
  const Tokens& tokens = geometry_.tokens(s);
  const std::int64_t R = p_.heads_per_key(), N = tokens.at.N, n = tokens.n, E = p_.size.E;
  const bool all_kept = n == tokens.at.M;
  float *dk = all_kept ? place_in(to.dk, tokens.at.b, g, tokens.at.k0, D_) : nullptr,
        *dv = all_kept ? place_in(to.dv, tokens.at.b, g, tokens.at.k0, E) : nullptr;
  ShortBackward block{};
  block.keys = tokens.lines(p_.from.k, g, 0, n, D_, room.lines.data());
  block.values = tokens.lines(p_.from.v, g, 0, n, E, room.value_lines.data());
  block.n = n;
  block.D = D_;
  block.E = E;
  block.scratch = room.scratch.data();
  block.dk = dk ? dk : room.dk_lines.data();
  block.dv = dv ? dv : room.dv.data();
  if (N == 0) {
    std::fill_n(block.dk, n * D_, 0.0f);
    std::fill_n(block.dv, n * E, 0.0f);
  }
  for (Meeting at{s, g * R, 0}; at.h < (g + 1) * R; ++at.h) {
    for (std::int64_t first = 0; first < N; first += block_rows) {
      const std::int64_t rows = std::min(block_rows, N - first);
      const float* plain = geometry_.plain_queries(at, first, rows, room.low.data());
      if (!plain)
        geometry_.queries(at, first, rows, room.q.data(), room.q_lines.data(), room.low.data());
      float* dq = plain ? place_in(to.dq, tokens.at.b, at.h, tokens.at.q0 + first, D_) : nullptr;
      block.rows = rows;
      block.q = plain ? plain : room.q.data();
      block.scale = block.back = plain ? float(geometry_.scale(s, g)) : 1.0f;
      block.d_o = tokens.queries(to.d_o, at.h, first, rows, E, room.d_o.data());
      block.sees = tokens.sees.data() + first;
      block.causal = block.sees[0] != n || block.sees[rows - 1] != n;
      block.dq = dq ? dq : room.rows.data();
      isa_.softmax_short_backward(block);
      block.joins = true;
      if (!dq) finish_short_rows(to, at, first, rows, plain, thread);
    }
  }
  for (std::int64_t j = 0; j < n; ++j) {
    const metric::Index at{tokens.at.b, g, tokens.at.k0 + tokens.key_at[j]};
    if (to.dk && !dk) metric::store(to.dk, at, block.dk + j * D_, D_);
    if (to.dv && !dv) metric::store(to.dv, at, block.dv + j * E, E);
  }
}

}  // namespace foci::cpu
