// SPDX-License-Identifier: Apache-2.0
// The mean of D numbers a token over the tokens that count, normalised: what layer-change, flat and
// jacobian have in common. One line a sequence and head, or under prefix one a query: the mean over
// the tokens up to it. Sums are kept in double and in an order that the shape alone decides.
#pragma once

#include "cuda/runs.cuh"

#include "metric/arena.hpp"

#include <foci/metric.hpp>

namespace foci::cuda {

/// What the mean is taken of: |x - y|, or x where there is no y.
struct Terms {
  Field x, y;          // (B, heads, tokens, D)
  Field mask;          // (B, tokens) bool, false: does not count
  int heads = 0;       // of x
  int of_queries = 0;  // tokens are queries, else keys

  struct Span {
    int b, first, count;  // where a sequence's tokens lie
    int ahead;            // query i knows the tokens up to ahead + i
  };
  FOCI_DEVICE Span span(const Shape& shape, int s) const {
    const Place at = shape.place(s);
    if (of_queries) return {at.b, at.q0, at.N, 0};
    return {at.b, at.k0, at.M, at.first_seen};
  }
  FOCI_DEVICE bool counts(const Span& at, int token) const {
    if (!mask) return true;
    return static_cast<const std::uint8_t*>(mask.data)[mask.offset(at.b, at.first + token)] != 0;
  }
};

/// What tokens of earlier calls left, and what the next call begins with: under prefix, of a
/// decoder. The call's own tokens are then all that the mean's terms tell of.
struct Carried {
  int any = 0;
  double* sums = nullptr;  // (sequences, heads, D)
  int* counts = nullptr;   // (sequences, heads)
  double* rows = nullptr;  // of RunningSums
};

/// The mean's arrays and options; kernels take it by value.
struct TokenMean {
  Shape shape;
  Terms of;
  int D = 0;
  int prefix = 0;
  int median = 0;             // sums come from elsewhere
  int chunk = 0, chunks = 0;  // tokens summed up apart, and how many such of the longest sequence
  Normalize normalize = Normalize::max;
  int flat = 0;
  double* sums = nullptr;   // (sequences, heads, chunks, D)
  int* counts = nullptr;    // (sequences, heads, chunks)
  float* m = nullptr;       // (sequences, heads, 1, D), prefix: (B, heads, N, D)
  double* wide = nullptr;   // the same before it was rounded, where few keys count every digit
  float* by = nullptr;      // (.., heads, rows) what m was divided by; the rest for the way back
  float* uneven = nullptr;  // flat: m before it was flattened
  int* counted = nullptr;   // (.., heads, rows) tokens behind a row
  Field copy;               // where m is to be written as well
  Carried carried;

  /// Lines of m before those of (s, head).
  FOCI_DEVICE std::int64_t first_row(int s, int head, const Place& at) const {
    if (!prefix) return std::int64_t(s) * of.heads + head;
    return (std::int64_t(at.b) * of.heads + head) * shape.N + at.q0;
  }
  FOCI_DEVICE double* sum(int s, int head, int c) const {
    return sums + ((std::int64_t(s) * of.heads + head) * chunks + c) * D;
  }
  FOCI_DEVICE int* count(int s, int head, int c) const {
    return counts + (std::int64_t(s) * of.heads + head) * chunks + c;
  }

  /// One number of m, flat or not, and of m before it was flattened; where it belongs in `copy`.
  struct Spot {
    int b, head, i;
  };
  template <class T>
  FOCI_DEVICE void write(T x, T before, std::int64_t row, int d, const Spot& to) const {
    m[row * D + d] = float(x);
    if (wide) wide[row * D + d] = x;
    if (uneven) uneven[row * D + d] = float(before);
    if (copy) copy.store(float(x), to.b, to.head, to.i, d);
  }

  /// Arrays for the terms that `of` tells of. `exact`: in double throughout. `back`: also what the
  /// way back needs.
  void take(metric::Arena& arena, const metric::Problem& problem, const Shape& of_shape, bool exact,
            bool back);
  /// Sums up; one chunk a sequence is a whole line, which is finished at once.
  void sum_up(Stream stream) const;
  /// The lines, where sum_up did not get that far.
  void finish(Stream stream) const;
  /// Gradient dm of the normalised lines, shaped like m -> of each term, in place: under prefix row
  /// i gets what every token gets that is known from row i on. Divided by the counts where `mean`.
  void backward(float* dm, bool mean, Stream stream) const;
};

/// By what a line is divided; every lane of a warp gets it. 0: m = 1.
template <class T>
FOCI_DEVICE T divisor_of(Normalize how, const T* line, int D, int counted) {
  if (counted == 0) return 0;
  if (how == Normalize::none) return 1;
  if (line[0] != line[0]) return line[0];  // the maximum below passes NaN over; ref begins with it
  T most = 0, sum = 0;
  for (int d = lane(); d < D; d += warp) {
    most = line[d] > most ? line[d] : most;
    sum += line[d];
  }
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) {
    const T other = __shfl_xor_sync(~0u, most, step);
    most = other > most ? other : most;
    sum += __shfl_xor_sync(~0u, sum, step);
  }
  return how == Normalize::max ? most : sum / T(D);
}

/// What every m_d of a flat metric is: the mean of line / by.
template <class T>
FOCI_DEVICE T flat_of(const T* line, int D, T by) {
  T sum = 0;
  for (int d = lane(); d < D; d += warp) sum += by == 0 ? T(1) : line[d] / by;
  FOCI_UNROLL
  for (int step = warp / 2; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum / T(D);
}

/// m of a sequence and head from its mean in `line`, D numbers in shared memory that every thread
/// has written some of; by all threads of a block.
template <class T>
FOCI_DEVICE void normalize_line(const TokenMean& mean, int s, int head, const T* line,
                                int counted) {
  const int D = mean.D, thread = int(threadIdx.x), threads = int(blockDim.x);
  const std::int64_t row = std::int64_t(s) * mean.of.heads + head;
  __syncthreads();
  const T by = divisor_of(mean.normalize, line, D, counted);
  const T all = mean.flat ? flat_of(line, D, by) : T(0);
  for (int d = thread; d < D; d += threads) {
    const T m = by == 0 ? T(1) : line[d] / by;
    mean.write(mean.flat ? all : m, m, row, d, {s, head, 0});
  }
  if (thread == 0 && mean.by) {
    mean.by[row] = float(by);
    mean.counted[row] = counted;
  }
}

}  // namespace foci::cuda
