// SPDX-License-Identifier: Apache-2.0
// A block of queries packed for the kernels of an instruction set, and what they make of it. Row
// arrays end where a tile ends, their padding is NaN: what reads on is found.
#pragma once

#include "cpu/block.hpp"

namespace foci::cpu::blocks {

inline std::int64_t padded(std::int64_t x, std::int64_t to) { return (x + to - 1) / to * to; }

/// x, and NaN up to a whole number of tiles or panels.
inline Floats padded(const Floats& x, std::int64_t to, float with = std::nanf("")) {
  Floats more = x;
  more.resize(std::size_t(padded(std::int64_t(x.size()), to)), with);
  return more;
}

inline Floats in_columns(const Kernels& isa, const Floats& x, std::int64_t lines, std::int64_t rows,
                         std::int64_t D) {
  Floats to(std::size_t(padded(D, isa.panel) * rows));
  isa.pack_columns(to.data(), x.data(), lines, rows, D);
  return to;
}

inline Floats in_panels(const Kernels& isa, const Floats& x, std::int64_t n, std::int64_t D) {
  Floats to(std::size_t(padded(n, isa.panel) * D));
  isa.pack_keys(to.data(), x.data(), n, D);
  return to;
}

/// (rows,D) += the first `rows` lines of column panels that are `lines` high.
inline void from_columns(const Kernels& isa, float* to, const Floats& x, std::int64_t rows,
                         std::int64_t lines, std::int64_t D) {
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < D; ++d)
      to[i * D + d] += x[(d / isa.panel * lines + i) * isa.panel + d % isa.panel];
  }
}

/// Inputs as kernels take them; one object for both ways.
struct Packed {
  const Kernels& isa;
  const How& how;
  const Inputs& in;
  std::int64_t lines, key_lines;  // of the column panels
  Floats keys, bias, at, last;

  Packed(const Kernels& kernels, const How& what, const Inputs& of)
      : isa(kernels),
        how(what),
        in(of),
        lines(padded(of.shape.rows, kernels.tile_rows)),
        key_lines(padded(of.shape.n, kernels.panel)),
        keys(in_panels(kernels, of.k, of.shape.n, of.shape.D)),
        bias(padded(of.bias, kernels.panel, -1e30f)),
        at(padded(of.at, kernels.panel)),
        last(padded(of.last, kernels.tile_rows)) {}

  /// What both kinds of block call the same, from a key on.
  template <class Block>
  void fill(Block& block, std::int64_t key) const {
    block.keys = keys.data() + key * in.shape.D;
    block.bias = bias.data() + key;
    block.sees = in.sees.data();
    block.biased = in.shape.biased;
    block.causal = in.shape.causal;
    block.divisor = how.divisor;
    if (how.kind == Kind::faded) block.fading = {how.slope, at.data() + key, last.data()};
    block.scale = 1;
    block.rows = in.shape.rows;
    block.n = in.shape.n;
    block.D = in.shape.D;
    block.E = in.shape.E;
  }
};

inline void forward(Answer<float>& to, const Packed& packed, bool statistics) {
  const auto& [isa, how, in, lines, key_lines, keys, bias, at, last] = packed;
  const auto& [rows, n, D, E, causal, biased, distances] = in.shape;
  const Floats values = in_columns(isa, in.v, n, n, E);
  const std::size_t count = std::size_t(rows);
  Floats scratch(std::size_t(isa.forward_scratch(D, E)), std::nanf(""));
  Floats sizes(count), squares(count);
  to.o.assign(count * std::size_t(E), std::nanf(""));
  to.by = to.largest = Floats(count, std::nanf(""));
  to.largest_at.assign(count, -77);
  ForwardBlock block{};
  packed.fill(block, 0);
  block.q = in.q.data();
  if (distances) block.m = in.m.data();
  block.r = in.r.data();
  block.values = values.data();
  block.value_rows = n;
  block.scale = 1;
  block.statistics = statistics;
  block.scratch = scratch.data();
  block.o = to.o.data();
  block.by = to.by.data();
  block.sizes = sizes.data();
  block.squares = squares.data();
  block.largest = to.largest.data();
  block.largest_at = to.largest_at.data();
  (how.kind == Kind::relu2 ? isa.relu2_forward : isa.identity_forward)(block);
  to.concentration.clear();
  for (std::size_t i = 0; i < count && statistics; ++i) {
    const float rest = float(in.sees[i]) * squares[i];
    to.concentration.push_back(rest == 0 ? 0.0f : sizes[i] / std::sqrt(rest));
  }
}

/// Key block by key block, from what forward() left in `to`: by, and o for sum_j a da = do . o.
inline void backward(Answer<float>& to, const Packed& packed) {
  const auto& [isa, how, in, lines, key_lines, keys, bias, at, last] = packed;
  const auto& [rows, n, D, E, causal, biased, distances] = in.shape;
  const Floats q = in_columns(isa, in.q, rows, lines, D);
  const Floats d_o = in_columns(isa, in.d_o, rows, lines, E), values = in_panels(isa, in.v, n, E);
  const Floats key_columns = in_columns(isa, in.k, n, key_lines, D);
  const Floats m = in_columns(isa, in.m, distances ? rows : 0, lines, D);
  const Floats low = padded(in.r, isa.tile_rows);
  Floats inverse = to.by, minus_delta(to.by.size(), 0.0f);
  for (float& x : inverse) x = x == 0 ? 0.0f : 1 / x;
  for (std::size_t i = 0; i < to.o.size(); ++i)
    minus_delta[i / std::size_t(E)] -= to.o[i] * in.d_o[i];
  inverse = padded(inverse, isa.tile_rows);
  minus_delta = padded(minus_delta, isa.tile_rows);
  Floats weights(block_rows * gradient_stride, std::nanf("")), d_scores = weights;
  Floats dq(std::size_t(padded(D, isa.panel) * lines));
  to.dq.assign(in.q.size(), 0.0f);
  to.dk.assign(in.k.size(), 0.0f);
  to.dv.assign(in.v.size(), 0.0f);
  to.dbias.assign(std::size_t(n), 0.0f);
  to.dr.assign(std::size_t(rows), 0.0f);
  for (std::int64_t key = 0; key < n; key += gradient_keys) {
    Floats dk(std::size_t(padded(D, isa.panel) * gradient_keys));
    Floats dv(std::size_t(padded(E, isa.panel) * gradient_keys));
    BackwardBlock block{};
    packed.fill(block, key);
    block.q = block.q_lines = q.data();
    if (distances) block.m = m.data();
    block.d_o = d_o.data();
    block.values = values.data() + key * E;
    block.key_lines = key_columns.data() + key * isa.panel;
    block.low = low.data();
    block.minus_delta = minus_delta.data();
    block.inverse = inverse.data();
    block.query_rows = lines;
    block.key = key;
    block.n = std::min(gradient_keys, n - key);
    block.whole = block.wide = n <= gradient_keys;
    block.key_rows = key_lines;
    block.line_width = D;
    block.weights = weights.data();
    block.d_scores = d_scores.data();
    block.dq = dq.data();
    block.dk = dk.data();
    block.dv = dv.data();
    block.dbias = to.dbias.data() + key;
    block.dr = to.dr.data();
    (how.kind == Kind::relu2 ? isa.relu2_backward : isa.identity_backward)(block);
    from_columns(isa, to.dk.data() + key * D, dk, block.n, gradient_keys, D);
    from_columns(isa, to.dv.data() + key * E, dv, block.n, gradient_keys, E);
  }
  from_columns(isa, to.dq.data(), dq, rows, lines, D);
}

}  // namespace foci::cpu::blocks
