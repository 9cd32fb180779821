// SPDX-License-Identifier: Apache-2.0
// L L' = A and L^-1 by one sweep over the columns, a block a matrix, in double: where column j of L
// is found, what lies right of it is left with less to factor, and what lies left of it is L^-1 so
// far. A ridge that does not suffice is raised tenfold on the spot.
#include "cuda/key_covariance.cuh"

#include <limits>

namespace foci::cuda {

namespace {

constexpr int factor_side = 16;  // threads along a row
constexpr int factor_threads = factor_side * factor_side;
/// Shared memory that every GPU since sm_80 has.
constexpr std::size_t most_shared = 160 * 1024;
/// Stands for a pivot of a semidefinite P that is 0: no score feels its square, and what it
/// multiplies can be divided by it again.
constexpr double next_to_nothing = 0x1p-80;

/// Doubles: the diagonal as it was, a column of L, a row of L^-1.
constexpr int vectors = 3;

std::size_t shared_bytes(int D) {
  const std::size_t matrix = wants_room(D) ? 0 : std::size_t(D) * std::size_t(D);
  return sizeof(double) * (matrix + vectors * std::size_t(D));
}

/// What a block works on.
struct Sweep {
  int D, s, g, c;
  std::int64_t slot;
  double *diagonal, *column, *row, *work;  // (D) (D) (D) (D,D)

  FOCI_DEVICE explicit Sweep(const Factors& to) : D(to.slots.shape.D), slot(blockIdx.x) {
    const int head = int(slot / to.slots.chunks);
    c = int(slot % to.slots.chunks), s = head / to.slots.shape.G, g = head % to.slots.shape.G;
    diagonal = reinterpret_cast<double*>(shared_memory());
    column = diagonal + D, row = column + D;
    const bool shared = sizeof(double) * std::size_t(D * D + vectors * D) <= most_shared;
    work = shared ? row + D : to.inverse + slot * D * D;
  }

  /// f(i, k) for the thread's share of rows [first, D) and columns [0, i], or all columns.
  template <class F>
  FOCI_DEVICE void each(int first, bool whole, const F& f) const {
    const int down = int(threadIdx.x) / factor_side, along = int(threadIdx.x) % factor_side;
    for (int i = first + down; i < D; i += factor_side) {
      for (int k = along; k < (whole ? D : i + 1); k += factor_side) f(i, k);
    }
  }
};

/// The matrix with its ridge, lower triangle.
FOCI_DEVICE void load_matrix(const Sweep& at, const Factors& from, int n, double ridge) {
  const double weight = from.shrink.weight(n), own = from.shrink.own(n);
  const double* scatter = from.scatter + at.slot * from.scatter_step;
  at.each(0, false, [&](int i, int k) {
    double x = 0;
    if (from.given) {
      x = load_wide(from.given, from.given.offset(at.s, at.g, i, k));
    } else {
      x = weight * scatter[i * at.D + k] + (i == k ? own + ridge : 0.0);
    }
    at.work[i * at.D + k] = x;
    if (i == k) at.diagonal[i] = x;
  });
}

/// A pivot that a semidefinite matrix lost to rounding: nothing may hang on it.
FOCI_DEVICE bool hangs(const Sweep& at, int j, double floor) {
  bool any = false;
  for (int i = j + 1 + int(threadIdx.x); i < at.D; i += factor_threads)
    any |= !(fabs(at.work[i * at.D + j]) <= sqrt(floor * at.diagonal[i]));
  return __syncthreads_or(int(any)) != 0;
}

/// work becomes L^-1; false where the matrix is not positive definite. Columns of L go to where
/// they are asked for.
FOCI_DEVICE bool sweep(const Sweep& at, const Factors& to) {
  const int D = at.D;
  const bool given = bool(to.given);
  float* W = to.W + at.slot * D * D;
  double* lower = to.lower ? to.lower + at.slot * D * D : nullptr;
  for (int j = 0; j < D; ++j) {
    __syncthreads();
    const double pivot = at.work[j * D + j], floor = to.slack * at.diagonal[j];
    const bool flat = given && fabs(pivot) <= floor;
    if (!flat && !(pivot > floor && pivot < std::numeric_limits<double>::infinity())) return false;
    if (flat && hangs(at, j, floor)) return false;
    const double root = flat ? next_to_nothing : sqrt(pivot), by = 1 / root;
    for (int i = int(threadIdx.x); i < D; i += factor_threads) {
      const double x = i == j ? root : i < j || flat ? 0.0 : at.work[i * D + j] * by;
      at.column[i] = x;
      at.row[i] = i < j ? at.work[j * D + i] * by : by;  // L^-1 up to the diagonal
      if (given) W[j * D + i] = float(x);
      if (lower) lower[i * D + j] = x;
    }
    __syncthreads();
    at.each(j, false, [&](int i, int k) {
      double& x = at.work[i * D + k];
      if (i == j) {
        x = at.row[k];
      } else if (k > j) {
        x -= at.column[i] * at.column[k];
      } else {
        x = (k < j ? x : 0.0) - at.column[i] * at.row[k];
      }
    });
  }
  __syncthreads();
  return true;
}

/// P = W'W of key-covariance.
FOCI_DEVICE void write_metric(const Sweep& at, const Factors& to, const Place& place, bool sound) {
  const int D = at.D;
  const std::int64_t base =
      to.slots.prefix ? to.metric.offset(place.b, at.g, to.slots.chunks_before[at.s] + at.c)
                      : to.metric.offset(at.s, at.g);
  const std::int64_t* strides = to.metric.strides + (to.slots.prefix ? 3 : 2);
  at.each(0, false, [&](int d, int e) {
    double sum = sound ? 0.0 : std::numeric_limits<double>::quiet_NaN();
    for (int l = d; l < D && sound; ++l) sum += at.work[l * D + d] * at.work[l * D + e];
    store_wide(to.metric, base + d * strides[0] + e * strides[1], sum);
    store_wide(to.metric, base + e * strides[0] + d * strides[1], sum);
  });
}

/// Around the mean of the keys that are known, or where there are none the first.
FOCI_DEVICE void write_centre(const Sweep& at, const Factors& to, const Place& place, int n) {
  int first = 0;
  while (n == 0 && first < place.M && !to.slots.keeps(place, first)) ++first;
  for (int d = int(threadIdx.x); d < at.D; d += factor_threads) {
    float x = 0;
    if (n > 0) {
      x = float(to.mean[at.slot * at.D + d]);
    } else if (first < place.M) {
      x = to.k.load(place.b, at.g, place.k0 + first, d);
    }
    to.centre[at.slot * at.D + d] = x;
  }
}

__global__ void __launch_bounds__(factor_threads) factor_slots(Factors to) {
  const Sweep at(to);
  const Slots& slots = to.slots;
  const Place place = slots.shape.place(at.s);
  const bool own = at.c < slots.own_chunks(place);
  if (slots.queries(at.s, place, at.c).empty() && !(to.every && own)) return;
  const int n = to.count ? to.count[at.slot] : 0;
  double ridge = to.shrink.ridge;
  bool sound = false;
  int raises = 0;
  for (;; ++raises, ridge *= 10) {
    __syncthreads();
    load_matrix(at, to, n, ridge);
    sound = sweep(at, to);
    if (sound || to.given || raises == metric::most_raises) break;
  }
  const float bad = std::numeric_limits<float>::quiet_NaN();
  const std::int64_t base = at.slot * at.D * at.D;
  at.each(0, true, [&](int i, int k) {
    const double x = k <= i ? at.work[i * at.D + k] : 0.0;
    if (!sound || !to.given) to.W[base + i * at.D + k] = sound ? float(x) : bad;
    if (to.inverse) to.inverse[base + i * at.D + k] = sound ? x : double(bad);
  });
  write_centre(at, to, place, n);
  if (to.metric && own && !to.given) write_metric(at, to, place, sound);
  if (!to.status || !own || threadIdx.x != 0) return;
  const std::int64_t entry = slots.prefix
                                 ? to.status.offset(place.b, at.g, slots.chunks_before[at.s] + at.c)
                                 : to.status.offset(at.s, at.g);
  static_cast<int*>(to.status.data)[entry] = sound ? raises : metric::most_raises + 1;
}

}  // namespace

bool wants_room(int D) { return sizeof(double) * std::size_t(D * D + vectors * D) > most_shared; }

void factor(const Factors& to, Stream stream) {
  launch("key-covariance: factors", factor_slots,
         {{unsigned(to.slots.count())}, {factor_threads}, shared_bytes(to.slots.shape.D)}, stream,
         to);
}

}  // namespace foci::cuda
