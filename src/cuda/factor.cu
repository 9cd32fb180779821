// SPDX-License-Identifier: Apache-2.0
// L L' = A and L^-1 by one sweep over the columns, a block a matrix, in double: where column j of L
// is found, what lies right of it is left with less to factor, and what lies left of it is L^-1 so
// far. A ridge that does not suffice is raised tenfold on the spot.
#include "cuda/key_covariance.cuh"

#include <cmath>
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

/// P as floats, 4 by 4 a thread; a given one is its lower triangle.
FOCI_DEVICE void write_product(const Sweep& at, const Factors& to, bool sound) {
  constexpr int own = 4, side = own * factor_side;
  const int D = at.D;
  float* P = to.P + at.slot * D * D;
  const int down = int(threadIdx.x) / factor_side, along = int(threadIdx.x) % factor_side;
  for (int i0 = 0; i0 < D; i0 += side) {
    for (int j0 = 0; j0 < D; j0 += side) {
      double sum[own][own] = {};
      const auto row = [&](int i) { return i0 + down + factor_side * i; };
      const auto column = [&](int j) { return j0 + along + factor_side * j; };
      for (int l = i0 > j0 ? i0 : j0; l < D && !to.given; ++l) {
        double x[own], y[own];
        FOCI_UNROLL
        for (int i = 0; i < own; ++i) {
          x[i] = row(i) <= l ? at.work[l * D + row(i)] : 0.0;
          y[i] = column(i) <= l ? at.work[l * D + column(i)] : 0.0;
        }
        FOCI_UNROLL
        for (int i = 0; i < own * own; ++i) sum[i / own][i % own] += x[i / own] * y[i % own];
      }
      FOCI_UNROLL
      for (int i = 0; i < own * own; ++i) {
        const int d = row(i / own), e = column(i % own);
        if (d >= D || e >= D) continue;
        double x = sum[i / own][i % own];
        if (to.given)
          x = load_wide(to.given, to.given.offset(at.s, at.g, d > e ? d : e, d > e ? e : d));
        P[d * D + e] = sound ? float(x) : std::numeric_limits<float>::quiet_NaN();
      }
    }
  }
}

/// Around the mean of the keys that are known, or where there are none the first.
FOCI_DEVICE float centre_of(const Sweep& at, const Factors& to, const Place& place, int n, int d) {
  if (n > 0) return float(to.mean[at.slot * at.D + d]);
  int first = 0;
  while (first < place.M && !to.slots.keeps(place, first)) ++first;
  return first < place.M ? to.k.load(place.b, at.g, place.k0 + first, d) : 0.0f;
}
FOCI_DEVICE void write_centre(const Sweep& at, const Factors& to, const Place& place, int n,
                              int threads = factor_threads) {
  for (int d = int(threadIdx.x); d < at.D; d += threads)
    to.centre[at.slot * at.D + d] = centre_of(at, to, place, n, d);
}

FOCI_DEVICE void write_status(const Sweep& at, const Factors& to, const Place& place, int status) {
  const Slots& slots = to.slots;
  const std::int64_t entry = slots.prefix
                                 ? to.status.offset(place.b, at.g, slots.chunks_before[at.s] + at.c)
                                 : to.status.offset(at.s, at.g);
  static_cast<int*>(to.status.data)[entry] = status;
}

__global__ void __launch_bounds__(factor_threads) factor_slots(Factors to) {
  const Sweep at(to);
  const Slots& slots = to.slots;
  const Place place = slots.shape.place(at.s);
  const bool own = at.c < slots.own_chunks(place);
  if (slots.multiplied(at.s, at.g)) return;
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
  if (to.P) write_product(at, to, sound);
  if (to.metric && own && !to.given) write_metric(at, to, place, sound);
  if (to.status && own && threadIdx.x == 0)
    write_status(at, to, place, sound ? raises : metric::most_raises + 1);
}

/// Entries of a thread: rows down + 16 r, columns along + across c.
template <int width>
struct Inverse {
  static constexpr int down = 16, across = width / 4, rows = width / down, columns = 4;
  static constexpr int threads = down * across;
  double a[rows][columns];

  static FOCI_DEVICE int row(int r) { return int(threadIdx.x) / across + down * r; }
  static FOCI_DEVICE int column(int c) { return int(threadIdx.x) % across + across * c; }

  /// f(row, column, entry) of those within D.
  template <class F>
  FOCI_DEVICE void each(int D, const F& f) {
    FOCI_UNROLL
    for (int i = 0; i < rows * columns; ++i) {
      if (row(i / columns) < D && column(i % columns) < D)
        f(row(i / columns), column(i % columns), a[i / columns][i % columns]);
    }
  }

  /// Gauss and Jordan's step k by its row and column as they were before, but for the pivot in the
  /// column, from which 1 is taken: so all entries change in the same way.
  FOCI_DEVICE void eliminate(int k, const double* its_row, const double* its_column) {
    const double pivot = its_row[k];
    const double by = pivot > 0 && pivot < std::numeric_limits<double>::infinity()
                          ? 1 / pivot
                          : std::numeric_limits<double>::quiet_NaN();
    double along[columns];
    FOCI_UNROLL
    for (int c = 0; c < columns; ++c) along[c] = column(c) == k ? 1 + by : its_row[column(c)] * by;
    FOCI_UNROLL
    for (int r = 0; r < rows; ++r) {
      const double down = its_column[row(r)];
      FOCI_UNROLL
      for (int c = 0; c < columns; ++c) a[r][c] -= down * along[c];
    }
  }
};

/// A block a matrix, in registers; the row and the column that a step needs pass through shared
/// memory, two of each, so that a step waits once.
template <int width>
__global__ void __launch_bounds__(Inverse<width>::threads) invert_slots(Factors to) {
  using I = Inverse<width>;
  __shared__ double rows[2][width], columns[2][width];
  const Sweep at(to);
  const int D = at.D, n = to.count[at.slot];
  const double weight = to.shrink.weight(n), own = to.shrink.own(n) + to.shrink.ridge;
  const double* scatter = to.scatter + at.slot * to.scatter_step;
  const double unit = weight * scatter[0] + own;  // pivots near 1, from which 1 may be taken
  const double over = 1 / unit;
  I mine = {};
  mine.each(D, [&](int i, int k, double& x) {
    x = over * (weight * scatter[i > k ? i * D + k : k * D + i] + (i == k ? own : 0.0));
  });
  FOCI_UNROLL
  for (int r = 0; r < I::rows; ++r) {
    for (int k = I::down * r; k < D && k < I::down * (r + 1); ++k) {
      double *row = rows[k % 2], *column = columns[k % 2];
      if (I::row(r) == k) {
        FOCI_UNROLL
        for (int c = 0; c < I::columns; ++c) row[I::column(c)] = mine.a[r][c];
      }
      constexpr int ratio = I::across / I::down;
      if (I::column(r / ratio) == k) {
        FOCI_UNROLL
        for (int i = 0; i < I::rows; ++i)
          column[I::row(i)] = mine.a[i][r / ratio] - (I::row(i) == k ? 1.0 : 0.0);
      }
      __syncthreads();
      mine.eliminate(k, row, column);
    }
  }
  const std::int64_t base = at.slot * D * D;
  mine.each(D, [&](int i, int k, double x) {
    x *= over;
    to.P[base + i * D + k] = float(x);
    if (to.inverse) to.inverse[base + i * D + k] = x;
  });
  const Place place = to.slots.shape.place(at.s);
  write_centre(at, to, place, n);
  if (to.status && threadIdx.x == 0) write_status(at, to, place, 0);
}

/// Eight by eight entries of a thread, in float: along the prefix, where there are many matrices,
/// and what is chosen has a condition that leaves more digits than f16 has.
template <int width>
struct Blocks {
  static constexpr int own = 8, across = width / own, threads = across * across;
  float a[own][own];
  /// Of two steps, in shared memory.
  struct Shown {
    alignas(16) float rows[2][width];
    alignas(16) float columns[2][width];
  };

  static FOCI_DEVICE int row() { return int(threadIdx.x) / across * own; }
  static FOCI_DEVICE int column() { return int(threadIdx.x) % across * own; }

  /// From a lower triangle; the identity beyond D.
  FOCI_DEVICE void load(const double* scatter, int D, double weight, double diagonal) {
    FOCI_UNROLL
    for (int r = 0; r < own; ++r) {
      FOCI_UNROLL
      for (int c = 0; c < own; ++c) {
        const int i = row() + r, k = column() + c;
        const double x = i < D && k < D ? scatter[i > k ? i * D + k : k * D + i] : 0.0;
        a[r][c] = float(weight * x + (i == k ? (i < D ? diagonal : 1.0) : 0.0));
      }
    }
  }

  /// Shows row and column 8 `turn` + k, as eliminate() of Inverse wants them.
  template <int k>
  FOCI_DEVICE void show(float* its_row, float* its_column, int turn) const {
    if (row() == own * turn) {
      FOCI_UNROLL
      for (int c = 0; c < own; ++c) its_row[column() + c] = a[k][c];
    }
    if (column() == own * turn) {
      FOCI_UNROLL
      for (int r = 0; r < own; ++r)
        its_column[row() + r] = a[r][k] - (row() == column() && r == k ? 1.0f : 0.0f);
    }
  }

  template <int k>
  FOCI_DEVICE void eliminate(const float* its_row, const float* its_column, int turn) {
    const float pivot = its_row[own * turn + k];
    const float by = pivot > 1e-30f && pivot < 1e30f ? 1 / pivot : std::nanf("");
    float along[own];
    FOCI_UNROLL
    for (int c = 0; c < own; ++c) along[c] = its_row[column() + c] * by;
    if (column() == own * turn) along[k] = 1 + by;
    FOCI_UNROLL
    for (int r = 0; r < own; ++r) {
      const float down = its_column[row() + r];
      FOCI_UNROLL
      for (int c = 0; c < own; ++c) a[r][c] = fmaf(-down, along[c], a[r][c]);
    }
  }
};

/// Eight neighbours in one store.
FOCI_DEVICE void store_eight(std::uint16_t* to, const float (&x)[8], DType type) {
  unsigned words[4];
  FOCI_UNROLL
  for (int i = 0; i < 4; ++i)
    words[i] = narrow_of(x[2 * i], type) | unsigned(narrow_of(x[2 * i + 1], type)) << 16;
  *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}

/// Row k of L^-1, which is left of the pivot before step k, by the threads that have it.
template <int width>
FOCI_DEVICE void write_row(std::uint16_t* to, const float* its_row, int k, int D) {
  using I = Blocks<width>;
  if (I::row() != k / I::own * I::own || k >= D || I::column() >= D) return;
  const float by = 1 / sqrtf(its_row[k]);
  float x[8];
  FOCI_UNROLL
  for (int c = 0; c < 8; ++c) {
    const int column = I::column() + c;
    x[c] = by * (column < k ? its_row[column] : column == k ? 1.0f : 0.0f);
  }
  store_eight(to + k * D + I::column(), x, DType::f16);
}

/// Step 8 turn + k, and those after it with the same turn.
template <int width, int k = 0>
FOCI_DEVICE void eliminate_eight(Blocks<width>& mine, typename Blocks<width>::Shown& shown,
                                 int turn, std::uint16_t* W, int D) {
  float *row = shown.rows[k % 2], *column = shown.columns[k % 2];
  mine.template show<k>(row, column, turn);
  __syncthreads();
  write_row<width>(W, row, 8 * turn + k, D);
  mine.template eliminate<k>(row, column, turn);
  if constexpr (k + 1 < 8) eliminate_eight<width, k + 1>(mine, shown, turn, W, D);
}

/// The inverse in two parts, and what it makes of the centre: threads of rows are neighbours.
template <int width>
FOCI_DEVICE void write_parts(const Blocks<width>& mine, const Factors& to, const Sweep& at,
                             double over) {
  using I = Blocks<width>;
  const int D = at.D, column = I::column();
  FOCI_UNROLL
  for (int r = 0; r < I::own; ++r) {
    const int row = I::row() + r;
    float rest[8], sum = 0;
    FOCI_UNROLL
    for (int c = 0; c < 8; ++c) {
      rest[c] = mine.a[r][c] - wide_of(narrow_of(mine.a[r][c], to.k.dtype), to.k.dtype);
      if (column + c < D) sum = fmaf(mine.a[r][c], float(to.centre[at.slot * D + column + c]), sum);
    }
    for (int step = 1; step < I::across; step *= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (row >= D || column >= D) continue;
    if (column == 0) to.moved[at.slot * D + row] = sum;
    std::uint16_t* part = to.P_parts + (2 * at.slot * D + row) * D + column;
    store_eight(part, mine.a[r], to.k.dtype);
    store_eight(part + D * D, rest, to.k.dtype);
    const std::int64_t place = (at.slot * D + row) * D + column;
    for (int c = 0; c < 8 && to.P; ++c) to.P[place + c] = float(over) * mine.a[r][c];
    for (int c = 0; c < 8 && to.inverse; ++c) to.inverse[place + c] = over * double(mine.a[r][c]);
  }
}

template <int width>
__global__ void __launch_bounds__(Blocks<width>::threads, 2) invert_blocks(Factors to) {
  using I = Blocks<width>;
  __shared__ typename I::Shown shown;
  const Sweep at(to);
  const Place place = to.slots.shape.place(at.s);
  const bool asked = to.every && at.c < to.slots.own_chunks(place);
  if (to.slots.queries(at.s, place, at.c).empty() && !asked) return;
  const int D = at.D, n = to.count[at.slot];
  const double weight = to.shrink.weight(n), own = to.shrink.own(n) + to.shrink.ridge;
  const double* scatter = to.scatter + at.slot * to.scatter_step;
  const double over = 1 / (weight * scatter[0] + own);  // pivots near 1
  write_centre(at, to, place, n, I::threads);
  I mine;
  mine.load(scatter, D, over * weight, over * own);
  for (int turn = 0; 8 * turn < D; ++turn)
    eliminate_eight<width>(mine, shown, turn, to.narrow_W + at.slot * D * D, D);
  write_parts(mine, to, at, over);
  if (threadIdx.x != 0) return;
  to.unit[at.slot] = to.c * float(over);
  if (to.status) write_status(at, to, place, 0);
}

}  // namespace

bool wants_room(int D) { return sizeof(double) * std::size_t(D * D + vectors * D) > most_shared; }

void factor(const Factors& to, Stream stream) {
  launch("key-covariance: factors", factor_slots,
         {{unsigned(to.slots.count())}, {factor_threads}, shared_bytes(to.slots.shape.D)}, stream,
         to);
}

void invert(const Factors& to, Stream stream) {
  const bool narrow = to.slots.shape.D <= 64;
  const unsigned count = unsigned(to.slots.count());
  if (to.slots.prefix)
    return launch("key-covariance: inverses", narrow ? invert_blocks<64> : invert_blocks<128>,
                  {{count}, {unsigned(narrow ? Blocks<64>::threads : Blocks<128>::threads)}},
                  stream, to);
  launch("key-covariance: inverses", narrow ? invert_slots<64> : invert_slots<128>,
         {{count}, {unsigned(narrow ? Inverse<64>::threads : Inverse<128>::threads)}}, stream, to);
}

}  // namespace foci::cuda
