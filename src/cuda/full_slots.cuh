// SPDX-License-Identifier: Apache-2.0
// The full metrics of a problem, numbered: one for each (sequence, key head), under prefix one for
// each of its chunks as well. Which queries use one, which keys it knows, and where lines lie.
#pragma once

#include "cuda/field.cuh"

namespace foci::cuda {

/// Tokens [begin, end) of a sequence.
struct Stretch {
  int begin, end;
  FOCI_DEVICE bool empty() const { return begin >= end; }
  /// Part `index` of those that are `length` long.
  FOCI_DEVICE Stretch part(int index, int length) const {
    const int from = begin + index * length;
    return {from, from + length < end ? from + length : end};
  }
};

/// Slot (s * G + g) * chunks + c. Without prefix there is one chunk, which all queries use.
struct Slots {
  Shape shape;
  int B = 1;  // of tensors; packed: 1
  int prefix = 0, period = 1;
  int chunks = 1;                // of the longest sequence, at least 1
  Field key_mask;                // (B,M)
  int* kept = nullptr;           // (B,M) prefix: unmasked keys of the sequence before this one
  int* spans = nullptr;          // (sequences, chunks + 1) prefix: first query of each chunk
  int* key_spans = nullptr;      // the same: first key that c * period unmasked ones come before
  int* chunks_before = nullptr;  // (sequences) prefix: chunks of the sequences before
  const int* by_mma = nullptr;   // (sequences,G) without prefix: heads whose scores are products

  FOCI_HD std::int64_t count() const { return std::int64_t(shape.sequences) * shape.G * chunks; }

  FOCI_DEVICE int heads_per_key() const { return shape.H / shape.G; }
  FOCI_DEVICE std::int64_t slot(int s, int g, int c) const {
    return (std::int64_t(s) * shape.G + g) * chunks + c;
  }
  /// Whether there are no lines of this head.
  FOCI_DEVICE bool multiplied(int s, int g) const { return by_mma && by_mma[s * shape.G + g] != 0; }
  FOCI_DEVICE bool keeps(const Place& at, int j) const {
    if (!key_mask) return true;
    return static_cast<const std::uint8_t*>(key_mask.data)[key_mask.offset(at.b, at.k0 + j)] != 0;
  }
  FOCI_DEVICE int own_chunks(const Place& at) const {
    return prefix ? int(metric::chunk_count(at.M, period)) : 1;
  }
  FOCI_DEVICE Stretch queries(int s, const Place& at, int c) const {
    if (!prefix) return {0, at.N};
    const int* span = spans + std::int64_t(s) * (chunks + 1) + c;
    return {span[0], span[1]};
  }
  /// Keys that chunk c + 1 knows and chunk c does not.
  FOCI_DEVICE Stretch keys(int s, const Place& at, int c) const {
    if (!prefix) return {0, at.M};
    const int* span = key_spans + std::int64_t(s) * (chunks + 1) + c;
    return {span[0], span[1]};
  }
  /// Keys that the queries of chunk c look at, in whole tiles of whoever looks.
  FOCI_DEVICE int looked_at(int s, const Place& at, int c) const {
    if (!prefix) return at.M;
    const Stretch of = queries(s, at, c);
    if (of.empty()) return 0;
    constexpr int tile = 128;
    const int reach = (shape.reach(at, of.end - 1) + tile - 1) / tile * tile;
    return reach < at.M ? reach : at.M;
  }
};

/// The tokens of one head of a field (B,heads,tokens,D), from `first` on.
struct HeadLines {
  Field of;
  std::int64_t base, token, column;

  FOCI_DEVICE HeadLines(const Field& field, int b, int head, int first)
      : of(field),
        base(field.offset(b, head, first)),
        token(field.strides[2]),
        column(field.strides[3]) {}
  FOCI_DEVICE float operator()(int t, int d) const {
    return of.load_at(base + t * token + d * column);
  }
};

/// A number of an f32 or f64 field.
FOCI_DEVICE double load_wide(const Field& from, std::int64_t at) {
  if (from.dtype == DType::f64) return static_cast<const double*>(from.data)[at];
  return double(from.load_at(at));
}
FOCI_DEVICE void store_wide(const Field& to, std::int64_t at, double x) {
  if (to.dtype == DType::f64) {
    static_cast<double*>(to.data)[at] = x;
  } else {
    to.store_at(at, float(x));
  }
}

}  // namespace foci::cuda
