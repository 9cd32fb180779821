// SPDX-License-Identifier: Apache-2.0
// Blocks over bf16 made by hand, the loops that say what they should give, and a call of a kernel.
#pragma once

#include "cpu/choose.hpp"

#include <cmath>
#include <cstring>
#include <ostream>
#include <random>
#include <vector>

namespace foci::cpu {

inline std::uint16_t narrow(float x) {
  std::uint32_t bits;
  std::memcpy(&bits, &x, 4);
  if (x != x) return 0x7fc0;
  return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float widen(std::uint16_t x) {
  const std::uint32_t bits = std::uint32_t(x) << 16;
  float y;
  std::memcpy(&y, &bits, 4);
  return y;
}

struct Case {
  std::int64_t rows, n, D, E;
  bool causal = false, biased = false, statistics = false, split = false;
  std::int64_t first_sees = 1;  // causal: keys of the first row
  float growth = 0;             // how much further scores reach from key to key
  unsigned head = 0;            // for other numbers
};

inline std::ostream& operator<<(std::ostream& out, const Case& c) {
  return out << c.rows << " rows, " << c.n << " keys, D " << c.D << ", E " << c.E
             << (c.causal ? ", causal" : "") << (c.biased ? ", biased" : "")
             << (c.statistics ? ", statistics" : "") << (c.split ? ", split" : "")
             << (c.growth != 0 ? ", growing" : "");
}

struct Problem {
  Case size;
  float scale;
  std::vector<float> q, bias, r;
  std::vector<std::uint16_t> k, v;
  std::vector<std::int64_t> sees;
  bool lies_narrow = false;  // q handed over as bf16, in lines further apart than D
  std::int64_t piece = 0;    // keys packed at a time; 0: all

  explicit Problem(const Case& c) : size(c), scale(float(1 / std::sqrt(double(c.D)))) {
    std::mt19937 random(unsigned(c.rows * 7919 + c.n * 31 + c.D * 5 + c.E) + c.head * 65537);
    std::normal_distribution<float> normal;
    const auto fill = [&](auto& to, std::int64_t count, auto f) {
      to.resize(count);
      for (std::int64_t i = 0; i < count; ++i) to[i] = f(i);
    };
    fill(q, c.rows * c.D, [&](auto) {
      const float x = normal(random);
      return c.split ? x : widen(narrow(x));
    });
    fill(k, c.n * c.D,
         [&](auto i) { return narrow(normal(random) * (1 + c.growth * float(i / c.D))); });
    fill(v, c.n * c.E, [&](auto) { return narrow(normal(random)); });
    fill(r, c.rows, [&](auto) { return normal(random); });
    fill(bias, (c.n + 31) / 32 * 32, [&](auto i) {
      return i >= c.n ? -1e30f : c.biased ? normal(random) : 0.0f;
    });
    fill(sees, c.rows, [&](auto i) {
      const std::int64_t seen = c.first_sees + i + i / 5 * 2;  // sometimes three more
      return c.causal ? std::min(seen, c.n) : c.n;
    });
  }

  Problem row(std::int64_t i) const {
    Problem one = *this;
    one.size.rows = 1;
    one.q.assign(q.begin() + i * size.D, q.begin() + (i + 1) * size.D);
    one.sees = {sees[i]};
    one.r = {r[i]};
    return one;
  }
};

struct Result {
  std::vector<float> o, lse, sizes, squares, entropy, largest;
  std::vector<std::int64_t> largest_at;
  std::vector<float> shift, sum;

  Result row(std::int64_t i, std::int64_t E) const {
    return {{o.begin() + i * E, o.begin() + (i + 1) * E},
            {lse[i]},
            {sizes[i]},
            {squares[i]},
            {entropy[i]},
            {largest[i]},
            {largest_at[i]},
            {shift[i]},
            {sum[i]}};
  }
  /// To the bit.
  friend bool operator==(const Result& a, const Result& b) {
    const auto same = [](const auto& x, const auto& y) {
      return x.size() == y.size() && std::memcmp(x.data(), y.data(), x.size() * sizeof x[0]) == 0;
    };
    return same(a.o, b.o) && same(a.lse, b.lse) && same(a.sizes, b.sizes) &&
           same(a.squares, b.squares) && same(a.entropy, b.entropy) && same(a.largest, b.largest) &&
           same(a.largest_at, b.largest_at) && same(a.shift, b.shift) && same(a.sum, b.sum);
  }
};

struct Rows {
  std::vector<double> o, lse, squares, entropy, largest, margin;
  std::vector<std::int64_t> largest_at;
};

template <class X>
void append(std::vector<X>& to, const std::vector<X>& more) {
  to.insert(to.end(), more.begin(), more.end());
}
inline void append(Rows& to, const Rows& more) {
  append(to.o, more.o);
  append(to.lse, more.lse);
  append(to.squares, more.squares);
  append(to.entropy, more.entropy);
  append(to.largest, more.largest);
  append(to.margin, more.margin);
  append(to.largest_at, more.largest_at);
}
inline void append(Result& to, const Result& more) {
  append(to.o, more.o);
  append(to.lse, more.lse);
  append(to.squares, more.squares);
  append(to.entropy, more.entropy);
  append(to.largest, more.largest);
  append(to.largest_at, more.largest_at);
}

/// Scores and weights in T; in float the weights meet values as bf16.
template <class T>
Rows loops(const Problem& problem) {
  const Case& c = problem.size;
  Rows to;
  std::vector<T> a(c.n);
  for (std::int64_t i = 0; i < c.rows; ++i) {
    const std::int64_t n = problem.sees[i];
    T top = -std::numeric_limits<T>::infinity(), sum = 0;
    for (std::int64_t j = 0; j < n; ++j) {
      T s = 0;
      for (std::int64_t d = 0; d < c.D; ++d)
        s += T(problem.q[i * c.D + d]) * T(widen(problem.k[j * c.D + d]));
      a[j] = s * T(problem.scale) + T(problem.bias[j]);
      top = std::max(top, a[j]);
    }
    for (std::int64_t j = 0; j < n; ++j) sum += a[j] = std::exp(a[j] - top);
    T squares = 0, entropy = 0, first = 0, second = 0;
    std::int64_t at = -1;
    std::vector<T> o(c.E);
    for (std::int64_t j = 0; j < n; ++j) {
      a[j] /= sum;
      squares += a[j] * a[j];
      if (a[j] > 0) entropy -= a[j] * std::log(a[j]);
      if (a[j] > first) {
        second = first;
        first = a[j];
        at = j;
      } else {
        second = std::max(second, a[j]);
      }
      const T p = std::is_same_v<T, float> ? T(widen(narrow(float(a[j])))) : a[j];
      for (std::int64_t e = 0; e < c.E; ++e) o[e] += p * T(widen(problem.v[j * c.E + e]));
    }
    to.o.insert(to.o.end(), o.begin(), o.end());
    to.lse.push_back(n == 0 ? -INFINITY : double(top + std::log(sum) + T(problem.r[i])));
    to.squares.push_back(double(squares));
    to.entropy.push_back(double(entropy));
    to.largest.push_back(double(first));
    to.margin.push_back(double((first - second) / (first + T(1e-30))));
    to.largest_at.push_back(at);
  }
  return to;
}

/// Lines of `width` with other numbers between them.
inline std::vector<std::uint16_t> apart(const std::uint16_t* from, std::int64_t count,
                                        std::int64_t width, std::int64_t step) {
  std::vector<std::uint16_t> to(count * step, narrow(NAN));
  for (std::int64_t i = 0; i < count; ++i)
    std::memcpy(&to[i * step], from + i * width, width * sizeof to[0]);
  return to;
}

inline void pack(const NarrowKernels& kernels, const Problem& problem, std::vector<float>& keys,
                 std::vector<float>& values) {
  const Case& c = problem.size;
  const std::int64_t piece = problem.piece == 0 ? c.n : problem.piece;
  keys.assign(kernels.keys_room(c.n, c.D), NAN);
  values.assign(kernels.values_room(c.n, c.E), NAN);
  const auto k = apart(problem.k.data(), c.n, c.D, c.D + 3);
  const auto v = apart(problem.v.data(), c.n, c.E, c.E + 5);
  for (std::int64_t first = 0; first < c.n; first += piece) {
    const std::int64_t count = std::min(piece, c.n - first);
    kernels.pack_keys(keys.data(), {&k[first * (c.D + 3)], c.D + 3, count, c.D}, first);
    kernels.pack_values(values.data(), {&v[first * (c.E + 5)], c.E + 5, count, c.E}, first, c.n);
  }
}

inline Result attend(const NarrowKernels& kernels, const Problem& problem) {
  const Case& c = problem.size;
  std::vector<float> keys, values, scratch(kernels.forward_scratch(c.D, c.E), NAN);
  pack(kernels, problem, keys, values);
  const auto column = [&](auto x) { return std::vector<decltype(x)>(c.rows, x); };
  Result to{std::vector<float>(c.rows * c.E, NAN),
            column(0.0f),
            column(0.0f),
            column(0.0f),
            column(0.0f),
            column(0.0f),
            column(std::int64_t(0)),
            column(0.0f),
            column(0.0f)};
  std::vector<std::uint16_t> q;
  for (const float x : problem.q) q.push_back(narrow(x));
  q = apart(q.data(), c.rows, c.D, c.D + 2);
  NarrowForward block{};
  block.q = problem.lies_narrow ? nullptr : problem.q.data();
  block.narrow_q = problem.lies_narrow ? q.data() : nullptr;
  block.narrow_step = c.D + 2;
  block.r = problem.r.data();
  block.sees = problem.sees.data();
  block.keys = keys.data();
  block.values = values.data();
  block.bias = problem.bias.data();
  block.biased = c.biased;
  block.causal = c.causal;
  block.statistics = c.statistics;
  block.scale = problem.scale;
  block.split = c.split;
  block.rows = c.rows;
  block.n = c.n;
  block.value_rows = c.n;
  block.D = c.D;
  block.E = c.E;
  block.scratch = scratch.data();
  block.o = to.o.data();
  block.by = to.lse.data();
  block.shift = to.shift.data();
  block.sum = to.sum.data();
  block.sizes = to.sizes.data();
  block.squares = to.squares.data();
  block.entropy = to.entropy.data();
  block.largest = to.largest.data();
  block.largest_at = to.largest_at.data();
  kernels.softmax_forward(block);
  return to;
}

#if defined(FOCI_AMX_EMULATED)
namespace amx_emulated {
extern const NarrowKernels kernels;
}
#endif

/// Every table this machine runs, and AMX with arrays for tiles.
inline std::vector<const NarrowKernels*> narrow_tables() {
  const auto here = available_narrow();
  std::vector<const NarrowKernels*> tables(here.begin(), here.end());
#if defined(FOCI_AMX_EMULATED)
  if (!tables.empty()) tables.push_back(&amx_emulated::kernels);
#endif
  return tables;
}

}  // namespace foci::cpu
