// SPDX-License-Identifier: Apache-2.0
// The full metric in the passes: whitening on the way there; dq = c P (U - dr q), dk = c P (T - db
// k) and dP = 1/2 c sum_i (u q' + q u') - 1/2 c sum_j db k k', u = U - 1/2 dr q, on the way back,
// with q and k measured from the estimate's centre.
#include "cpu/geometry.hpp"

#include <algorithm>
#include <cmath>

namespace foci::cpu {

namespace {

constexpr std::int64_t column_block = 32;
constexpr std::int64_t wide_line = 128;
/// Rows that are summed up in float, sums of these in double, where the ds of a row do not sum up
/// to 0 as softmax's do, and what they add up to is larger than what is left of it.
constexpr std::int64_t short_sum = 32;

/// Lines side by side, in double: number d of all of them, then the next. Past the last are 0s.
struct Abreast {
  static constexpr std::int64_t lines = 16;
  double x[wide_line * lines];

  /// Numbers of `count` lines (count,D), `centre` aside where there is one.
  void take(const float* from, std::int64_t count, std::int64_t D, std::int64_t numbers,
            const float* centre = nullptr) {
    std::fill_n(x, numbers * lines, 0.0);
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < numbers; ++d)
        x[d * lines + i] = double(from[i * D + d]) - (centre ? double(centre[d]) : 0.0);
    }
  }
  void give(float* to, std::int64_t count, std::int64_t D, std::int64_t numbers, double c) const {
    for (std::int64_t i = 0; i < count; ++i) {
      for (std::int64_t d = 0; d < numbers; ++d) to[i * D + d] = float(c * x[d * lines + i]);
    }
  }
};

/// x (rows,D) becomes c W'W x in double; W (D,D), D <= wide_line.
void apply_in_double(const MatrixKernels& matrix, const double* W, double c, std::int64_t rows,
                     std::int64_t D, float* x) {
  constexpr std::int64_t lines = Abreast::lines;
  Abreast of, y;
  for (std::int64_t i = 0; i < rows; i += lines, x += lines * D) {
    const std::int64_t count = std::min(lines, rows - i);
    of.take(x, count, D, D);
    matrix.product_wide({y.x, W, of.x, D, lines, D, lines, D, 1, lines, false});
    matrix.product_wide({of.x, W, y.x, D, lines, D, lines, 1, D, lines, false});
    of.give(x, count, D, D, c);
  }
}

}  // namespace

/// z (rows,D) = W x. W is lower for key-covariance, upper for given: what is 0 is left out.
void Geometry::whiten(const Meeting& at, std::int64_t rows, float* z, const float* x) const {
  const std::int64_t D = p_.size.D;
  const Whitening by = full(at).at(at.span);
  const bool lower = p_.metric<KeyCovariance>() != nullptr;
  for (std::int64_t e = 0; e < D; e += column_block) {
    const std::int64_t cols = std::min(column_block, D - e), begin = lower ? 0 : e;
    isa_.matrix->product({.c = z + e,
                          .a = x + begin,
                          .b = by.Wt + begin * D + e,
                          .rows = rows,
                          .cols = cols,
                          .K = lower ? e + cols : D - e,
                          .c_step = D,
                          .a_row = D,
                          .a_k = 1,
                          .b_step = D,
                          .add = false});
  }
}

/// z = sqrt(|c|) W (x - centre) of raw lines (rows,D), in double: it costs little where keys are
/// few, and few average nothing out.
void Geometry::whiten_few(const Meeting& at, std::int64_t rows, float* z, const float* x,
                          float* norms) const {
  const std::int64_t D = p_.size.D;
  const Whitening by = full(at).at(at.span);
  const double root = std::sqrt(std::abs(scale(at.s, key_head(at.h))));
  constexpr std::int64_t lines = Abreast::lines;
  Abreast of, sums;
  for (std::int64_t i = 0; i < rows; i += lines) {
    const std::int64_t count = std::min(lines, rows - i);
    for (std::int64_t e = 0; e < D; e += wide_line) {
      const std::int64_t high = std::min(wide_line, D - e);
      for (std::int64_t d = 0; d < D; d += wide_line) {
        const std::int64_t K = std::min(wide_line, D - d);
        of.take(x + i * D + d, count, D, K, by.centre + d);
        isa_.matrix->product_wide(
            {sums.x, by.factor + e * D + d, of.x, high, lines, K, lines, D, 1, lines, d > 0});
      }
      sums.give(z + i * D + e, count, D, high, root);
    }
  }
  isa_.row_dots(norms, z, z, rows, D);
}

void Geometry::whiten_panels(const Meeting& at, std::int64_t n, float* z, float* b,
                             const float* raw, float* room) const {
  const Whitening by = full(at).at(at.span);
  const bool lower = p_.metric<KeyCovariance>() != nullptr;
  isa_.whiten_panels({z, b, raw, by.Wt, by.centre, lower, n, p_.size.D, room});
  const float half = by_differences(at) ? 0.0f : float(-0.5 * scale(at.s, key_head(at.h)));
  for (std::int64_t j = 0; j < n; ++j) b[j] *= half;
}

void Geometry::unwhiten_panels(const Meeting& at, std::int64_t n, float* dk, const float* z,
                               float* db, float* room) const {
  const Whitening by = full(at).at(at.span);
  const bool lower = p_.metric<KeyCovariance>() != nullptr;
  const auto c = float(scale(at.s, key_head(at.h)));
  for (std::int64_t j = 0; j < n; ++j) db[j] *= -c;
  isa_.unwhiten_panels({dk, z, db, by.W, lower, n, p_.size.D, room});
}

void Geometry::unwhiten_keys(const Meeting& at, std::int64_t count, float* dk, float* T,
                             const float* db, const float* z) const {
  const std::int64_t D = p_.size.D;
  const double c = scale(at.s, key_head(at.h)), outer = by_differences(at) ? c : 1,
               inner = c / outer;
  for (std::int64_t j = 0; j < count; ++j) {
    const double by = inner * double(db[j]);
    for (std::int64_t d = 0; d < D; ++d) {
      const std::int64_t i = j * D + d;
      T[i] = float(outer * (double(T[i]) - by * double(z[i])));
    }
  }
  unwhiten(at, count, dk, T);
}

void Geometry::whiten_queries(const Meeting& at, std::int64_t first, std::int64_t rows, float* q,
                              float* m, float* r) const {
  const std::int64_t D = p_.size.D;
  const float c = float(scale(at.s, key_head(at.h))), half = -0.5f * c;
  const float* lines = tokens_[at.s].queries(p_.from.q, at.h, first, rows, D, m);
  if (whitens()) {
    subtract(m, lines, full(at).at(at.span).centre, rows, D);
    whiten(at, rows, q, m);
    isa_.row_dots(r, q, q, rows, D);
  } else {
    whiten_few(at, rows, q, lines, r);
  }
  if (by_differences(at)) {
    std::fill_n(r, rows, 0.0f);
    // Of few keys q' has sqrt(|c|) in it.
    std::fill_n(m, rows * D, whitens() ? half : std::copysign(0.5f, half));
    return;
  }
  for (std::int64_t i = 0; i < rows; ++i) r[i] *= half;
  for (std::int64_t i = 0; i < rows * D; ++i) q[i] *= c;
}

void Geometry::metric_queries(const Meeting& at, std::int64_t rows, float* y,
                              const float* q) const {
  unwhiten(at, rows, y, q);
  if (!by_differences(at)) return;  // else q' has c in it
  const auto c = float(scale(at.s, key_head(at.h)));
  for (std::int64_t i = 0; i < rows * p_.size.D; ++i) y[i] *= c;
}

/// x (rows,D) = W' z
void Geometry::unwhiten(const Meeting& at, std::int64_t rows, float* x, const float* z) const {
  const std::int64_t D = p_.size.D;
  const Whitening by = full(at).at(at.span);
  const bool lower = p_.metric<KeyCovariance>() != nullptr;
  for (std::int64_t d = 0; d < D; d += column_block) {
    const std::int64_t cols = std::min(column_block, D - d), begin = lower ? d : 0;
    isa_.matrix->product({.c = x + d,
                          .a = z + begin,
                          .b = by.W + begin * D + d,
                          .rows = rows,
                          .cols = cols,
                          .K = lower ? D - d : d + cols,
                          .c_step = D,
                          .a_row = D,
                          .a_k = 1,
                          .b_step = D,
                          .add = false});
  }
}

/// x (rows,D) becomes c P x.
void Geometry::apply_metric(const Meeting& at, std::int64_t rows, float* x, float* room) const {
  const std::int64_t D = p_.size.D;
  const Whitening by = full(at).at(at.span);
  const double c = scale(at.s, key_head(at.h));
  if (p_.longest_m <= few_keys && D <= wide_line)
    return apply_in_double(*isa_.matrix, by.factor, c, rows, D, x);
  whiten(at, rows, room, x);
  for (std::int64_t i = 0; i < rows * D; ++i) room[i] *= float(c);
  unwhiten(at, rows, x, room);
}

/// to (D,D) += c sum_i a_i b_i'; room (D,D).
void Geometry::add_products(double* to, std::int64_t rows, const float* a, const float* b, double c,
                            float* room) const {
  const std::int64_t D = p_.size.D;
  const bool softmax = std::holds_alternative<Softmax>(p_.how.weighting);
  if (!softmax && p_.longest_m <= few_keys) {
    for (std::int64_t i = 0; i < rows * D * D; ++i) {
      const float *x = a + i / (D * D) * D, *y = b + i / (D * D) * D;
      const std::int64_t d = i / D % D, e = i % D;
      to[d * D + e] += c * double(x[d]) * double(y[e]);
    }
    return;
  }
  const std::int64_t step = softmax ? block_rows : short_sum;
  for (std::int64_t first = 0; first < rows; first += step) {
    isa_.matrix->product({.c = room,
                          .a = a + first * D,
                          .b = b + first * D,
                          .rows = D,
                          .cols = D,
                          .K = std::min(step, rows - first),
                          .c_step = D,
                          .a_row = 1,
                          .a_k = D,
                          .b_step = D,
                          .add = false});
    for (std::int64_t i = 0; i < D * D; ++i) to[i] += c * double(room[i]);
  }
}

void Geometry::unfold_full(const Meeting& at, std::int64_t first, std::int64_t rows,
                           const QuerySums& sums, float* dq, int thread) {
  const std::int64_t D = p_.size.D;
  float *q = sums.dm, *u = sums.U;
  const float* lines = tokens_[at.s].queries(p_.from.q, at.h, first, rows, D, q);
  const float* middle = centre(at);
  const float part = wants_gradient_ ? 0.5f : 1.0f;
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t d = 0; d < D; ++d) {
      q[i * D + d] = lines[i * D + d] - middle[d];
      u[i * D + d] = without(u[i * D + d], part * sums.dr[i], q[i * D + d]);
    }
  }
  if (wants_gradient_) {
    add_products(full(at).gradient(at.span), rows, u, q, scale(at.s, key_head(at.h)), room(thread));
    for (std::int64_t i = 0; i < rows; ++i) {
      for (std::int64_t d = 0; d < D; ++d)
        u[i * D + d] = without(u[i * D + d], part * sums.dr[i], q[i * D + d]);
    }
  }
  apply_metric(at, rows, u, dq);
  std::copy_n(u, rows * D, dq);
}

void Geometry::gather_scatter(const Meeting& at, const double* sums, std::int64_t step) {
  const std::int64_t D = p_.size.D;
  const double half = -0.5 * scale(at.s, key_head(at.h));
  double* to = full(at).gradient(at.span);
  for (std::int64_t d = 0; d < D; ++d) {
    to[d * D + d] += half * sums[d * step + d];
    for (std::int64_t e = d + 1; e < D; ++e) to[d * D + e] += 2 * half * sums[d * step + e];
  }
}

void Geometry::gather_keys(const Meeting& at, std::int64_t n, const float* db, int thread) {
  if (kind_ != Kind::full || !wants_gradient_) return;
  const std::int64_t D = p_.size.D;
  float *square = room(thread), *lines = square + D * D, *scaled = lines + block_rows * D;
  for (std::int64_t first = 0; first < n; first += block_rows) {
    const std::int64_t count = std::min(block_rows, n - first);
    const float* k = key_lines(at, first, count, lines);
    for (std::int64_t j = 0; j < count; ++j) {
      for (std::int64_t d = 0; d < D; ++d) scaled[j * D + d] = db[first + j] * k[j * D + d];
    }
    add_products(full(at).gradient(at.span), count, scaled, k, -0.5 * scale(at.s, key_head(at.h)),
                 square);
  }
}

void Geometry::finish_full(const View& dmetric, std::int64_t s, std::int64_t g, bool joins,
                           const Gathered& to, int thread) {
  const FullMetric& metric = full_[s * p_.size.G + g];
  if (dmetric) {
    metric.symmetrise_gradient();
    metric.write_gradient(dmetric, joins);
  }
  if (!p_.through || !p_.metric<KeyCovariance>()) return;
  const float* k = tokens_[s].lines(p_.from.k, g, 0, tokens_[s].n, p_.size.D, room(thread));
  metric.through(to.dk.data(), k, full_rooms_[thread]);
}

}  // namespace foci::cpu
